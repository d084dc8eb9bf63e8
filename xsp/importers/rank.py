"""Ranks: recordings of several processes in, one tree for each step that all of them made out.

The root lasts from the first beginning of the step in any process to the last end. Below it lies
one span for each process, with the evaluation of that process inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import polars as pl

from xsp.importers.clock import Clock, align
from xsp.importers.evaluation import STEP, Evaluations, evaluations
from xsp.importers.overlap import check_overlap
from xsp.importers.recording import Recording
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import ATTRIBUTE, concat_rows, span_rows
from xsp.rank import apart, common_name, listed, problems_of_all
from xsp.text import counted, duration

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Part:
    """A recording that becomes a part of a trace.

    Attributes:
        recording: What was recorded.
        file: Number of the file that it is from.
        name: Name of that file, without the endings of its format.
    """

    recording: Recording
    file: int
    name: str


@dataclass(frozen=True, slots=True)
class Together:
    """Several recordings as one.

    Attributes:
        name: Name of them all.
        evaluations: Their evaluations; the root of each has a child for each recording.
        described: What is told of each recording, and of its clock, for metadata.
    """

    name: str
    evaluations: Evaluations
    described: list[dict[str, Any]]


def together(parts: Sequence[Part], *, steps: bool) -> Together:
    """Return several recordings as one, on the clock of the first.

    Of the steps those are kept that every process made; a process without steps of its own has
    those of another.

    Args:
        parts: At least two recordings, in their order (`in_order`).
        steps: Whether each step is an evaluation.

    Raises:
        TraceFormatError: A recording has no spans, or the files are not of one program.
        ProviderError: A row cannot be placed in a tree.
    """
    names = _labels(parts)
    recordings, files = [part.recording for part in parts], [part.file for part in parts]
    clocks = align(recordings, files)
    check_overlap(recordings, clocks, files, [part.name for part in parts])
    parts, borrowed = _with_steps(parts, clocks, names) if steps else (parts, ())
    made = [
        evaluations(part.recording, name, steps=steps)
        for part, name in zip(parts, names, strict=True)
    ]
    common = _common([each.steps for each in made])
    frames = apart([each.frames for each in made])
    for_rank = list(map(_moved, frames, clocks, parts, count()))
    name = _name(parts)
    grafted = tuple(
        _grafted([frames[at] for frames, at in zip(for_rank, places, strict=True)], name)
        for places in common
    )
    problems = (
        *borrowed,
        *_left_out(made, len(common)),
        *_of_clocks(clocks, names),
        *problems_of_all(_of_parts(made, parts), names),
    )
    told = [_described(*each) for each in zip(parts, names, clocks, strict=True)]
    shown = tuple(made[0].steps[places[0]] for places in common)
    return Together(name, Evaluations(grafted, shown, problems), told)


def in_order(parts: Sequence[Part]) -> Sequence[Part]:
    """Return recordings in the order of their ranks, if all of these are known and differ."""
    ranks = [part.recording.rank for part in parts]
    if None in ranks or len(set(ranks)) < len(ranks):
        return parts
    return sorted(parts, key=lambda part: part.recording.rank or 0)


def _labels(parts: Sequence[Part]) -> list[str]:
    """Return a name for each process: its rank, else its own name, else that of its file."""
    ranks = [part.recording.rank for part in parts]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    return [part.recording.name or part.name for part in parts]


def _with_steps(
    parts: Sequence[Part], clocks: Sequence[Clock], names: Sequence[str]
) -> tuple[Sequence[Part], tuple[Problem, ...]]:
    """Return recordings of which those without steps have the steps of the first that has some."""
    own = [part.recording.roots.height > 0 for part in parts]
    if all(own) or not any(own):
        return parts, ()
    first = own.index(True)
    roots = parts[first].recording.roots.with_columns(thread=pl.lit(None, dtype=pl.Int64))
    found = []
    for part, clock, has in zip(parts, clocks, own, strict=True):
        later = clocks[first].add_ns - clock.add_ns
        moved = roots.with_columns(pl.col(name) + later for name in _TIMES)
        given = part.recording.roots if has else moved
        found.append(replace(part, recording=replace(part.recording, roots=given)))
    without = [name for name, has in zip(names, own, strict=True) if not has]
    message = f"{listed(without)}: without steps of their own, shown in those of {names[first]}"
    return found, (Problem("steps-borrowed", message),)


def _name(parts: Sequence[Part]) -> str:
    """Return what the names of all recordings, or of their files, begin with; else the first."""
    given = [part.recording.name or part.name for part in parts]
    if len(set(given)) == 1:
        return given[0]
    return common_name([part.name for part in parts])


def _common(steps: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return for each step that all recordings have its place among the steps of each.

    Steps are known by their names; where those tell nothing, by their numbers.

    >>> _common([["step 7", "step 8"], ["step 8", "step 9"]]), _common([["", ""], [""]])
    ([[1, 0]], [[0, 0]])
    """
    if all(len(set(names)) == len(names) for names in steps):
        both = [name for name in steps[0] if all(name in names for names in steps)]
        if both:
            return [[list(names).index(name) for names in steps] for name in both]
    return [[number] * len(steps) for number in range(min(map(len, steps)))]


def _moved(
    frames: Sequence[pl.DataFrame], clock: Clock, part: Part, number: int
) -> list[pl.DataFrame]:
    """Return trees on the common clock, whose roots say which process they are."""
    recording = part.recording
    devices = [str(device) for device in recording.environment.get("devices") or ()]
    about = {
        "process": pl.lit(number, dtype=pl.Int64),
        "rank": pl.lit(recording.rank, dtype=pl.Int64),
        "host": pl.lit(recording.host or None, dtype=pl.String),
        "devices": pl.lit(devices or None, dtype=pl.List(pl.String)),
    }
    is_root = pl.col("parent") < 0
    columns = [pl.when(is_root).then(v).alias(ATTRIBUTE + name) for name, v in about.items()]
    times = [pl.col(name) + clock.add_ns for name in _TIMES]
    return [frame.with_columns(*times, *columns) for frame in frames]


def _grafted(frames: Sequence[pl.DataFrame], name: str) -> pl.DataFrame:
    """Return one tree with a new root, whose children are the roots of some trees."""
    tops = pl.concat([frame.head(1).select(*_TIMES, "thread") for frame in frames])
    root = span_rows(
        {
            "kind": [Kind.PIPELINE.value],
            "name": [name],
            "start_ns": [tops["start_ns"].min()],
            "end_ns": [tops["end_ns"].max()],
            "thread": [tops["thread"][0]],
            STEP: [frames[0][STEP][0]],
        }
    ).with_columns(parent=pl.lit(-1, dtype=pl.Int64))
    heights = np.cumsum([1, *(frame.height for frame in frames)]).tolist()
    below = [
        frame.with_columns(
            parent=pl.when(pl.col("parent") < 0).then(0).otherwise(pl.col("parent") + at)
        )
        for frame, at in zip(frames, heights, strict=False)
    ]
    return concat_rows([root, *below])


def _left_out(made: Sequence[Evaluations], common: int) -> Iterator[Problem]:
    lost = max(len(each.steps) for each in made) - common
    if lost:
        yield Problem(
            "steps-differ",
            f"{counted(lost, 'step')} not recorded by every process: left out",
        )


def _of_clocks(clocks: Sequence[Clock], names: Sequence[str]) -> Iterator[Problem]:
    """Yield how the clocks were brought together, and how well."""
    ways: dict[str, list[int]] = {}
    for number, clock in enumerate(clocks):
        ways.setdefault(clock.source, []).append(number)
    if found := ways.get("collectives"):
        yield _by_collectives([clocks[number] for number in found], [names[n] for n in found])
    if found := ways.get("time of day"):
        yield Problem(
            "clocks",
            f"{listed([names[n] for n in found])}: brought onto the clock of {names[0]} by the "
            "time of day in the files, for too few collectives end together; between hosts that "
            "may be off by milliseconds, or by as much as their clocks are",
        )
    if found := ways.get("beginning"):
        yield Problem(
            "clocks-unknown",
            f"{listed([names[n] for n in found])}: neither the time of day nor collectives tell "
            f"when that was on the clock of {names[0]}; they are shown beginning together, and "
            "what happened at one moment is not known",
        )


def _by_collectives(clocks: Sequence[Clock], names: Sequence[str]) -> Problem:
    matched = sum(clock.matched for clock in clocks)
    errors = [clock.error_ns for clock in clocks if clock.error_ns is not None]
    corrected = [abs(clock.corrected_ns) for clock in clocks if clock.corrected_ns is not None]
    said = f"; by the files alone they were up to {duration(max(corrected))} off" * bool(corrected)
    return Problem(
        "clocks",
        f"{listed(names)}: brought onto one clock by {counted(matched, 'collective')} that end "
        f"together; the ends of 95 % of these agree to ±{duration(max(errors))}{said}",
    )


def _of_parts(made: Sequence[Evaluations], parts: Sequence[Part]) -> list[list[Problem]]:
    """Return the problems of each recording."""
    both = zip(made, parts, strict=True)
    return [[*part.recording.problems, *each.problems] for each, part in both]


def _described(part: Part, name: str, clock: Clock) -> dict[str, Any]:
    recording = part.recording
    return {
        "name": name,
        "file": part.name,
        "tool": recording.tool,
        "rank": recording.rank,
        "host": recording.host or None,
        "clock": clock.source,
        "clock_add_ns": clock.add_ns,
        "clock_error_ns": clock.error_ns,
    }
