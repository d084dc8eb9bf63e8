"""Joins the recordings of several processes into one tree for each step that all made.

The root lasts from the first beginning of the step in any process to the last end. Below it lies
one span for each process, with the step of that process inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, concat_rows, span_rows
from xsp.reading.importers.file_step import STEP, FileSteps, file_steps
from xsp.reading.importers.recording import Recording
from xsp.reading.rank import apart, common_name, listed, warnings_of_all
from xsp.text import counted, duration
from xsp.warning import TraceWarning

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
        steps: Their steps; the root of each has a child for each recording.
        described: What is told of each recording, and of its clock, for metadata.
    """

    name: str
    steps: FileSteps
    described: list[dict[str, Any]]


def together(parts: Sequence[Part], *, steps: bool) -> Together:
    """Return several recordings as one, on the clock of the first.

    Of the steps those are kept that every process made; a process without steps of its own has
    those of another.

    Args:
        parts: At least two recordings, in their order (`in_order`).
        steps: Whether each step is a step.

    Raises:
        TraceFormatError: A recording has no spans, or the files are not of one program.
        ProviderError: A row cannot be placed in a tree.
    """
    # A name for each process: its rank, else its own name, else that of its file.
    ranks = [part.recording.rank for part in parts]
    if None not in ranks and len(set(ranks)) == len(ranks):
        names = [f"rank {rank}" for rank in ranks]
    else:
        names = [part.recording.name or part.name for part in parts]
    recordings, files = [part.recording for part in parts], [part.file for part in parts]
    clocks = align(recordings, files)
    check_overlap(recordings, clocks, files, [part.name for part in parts])
    parts, borrowed = _with_steps(parts, clocks, names) if steps else (parts, ())
    made = [
        file_steps(part.recording, name, steps=steps)
        for part, name in zip(parts, names, strict=True)
    ]
    common = _common([each.steps for each in made], [each.numbers for each in made])
    frames = apart([each.frames for each in made])
    for_rank = list(map(_moved, frames, clocks, parts, count()))
    # What the names of all recordings, or of their files, begin with; else the first.
    given = [part.recording.name or part.name for part in parts]
    name = given[0] if len(set(given)) == 1 else common_name([part.name for part in parts])
    grafted = tuple(
        _grafted([frames[at] for frames, at in zip(for_rank, places, strict=True)], name)
        for places in common
    )
    # The warnings of each recording.
    both = zip(made, parts, strict=True)
    of_parts = [[*part.recording.warnings, *each.warnings] for each, part in both]
    warnings = (
        *borrowed,
        *_left_out(made, len(common)),
        *_of_clocks(clocks, names),
        *warnings_of_all(of_parts, names),
    )
    told = [_described(*each) for each in zip(parts, names, clocks, strict=True)]
    shown = tuple(made[0].steps[places[0]] for places in common)
    numbers = tuple(made[0].numbers[places[0]] for places in common)
    return Together(name, FileSteps(grafted, shown, numbers, warnings), told)


def in_order(parts: Sequence[Part]) -> Sequence[Part]:
    """Return recordings in the order of their ranks, if all of these are known and differ."""
    ranks = [part.recording.rank for part in parts]
    if None in ranks or len(set(ranks)) < len(ranks):
        return parts
    return sorted(parts, key=lambda part: part.recording.rank or 0)


def _with_steps(
    parts: Sequence[Part], clocks: Sequence[Clock], names: Sequence[str]
) -> tuple[Sequence[Part], tuple[TraceWarning, ...]]:
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
    message = f"{listed(without)} marked no steps; xsp uses those of {names[first]}"
    return found, (TraceWarning("steps-borrowed", message),)


def _common(steps: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each step that all recordings have its place among the steps of each.

    Steps are known by their names; where those tell nothing, by their numbers in the file.

    >>> names = [["step 7", "step 8"], ["step 8", "step 9"]]
    >>> _common(names, [[0, 1], [0, 1]]), _common([["", ""], [""]], [[0, 1], [1]])
    ([[1, 0]], [[1, 0]])
    """
    if all(len(set(names)) == len(names) for names in steps):
        both = [name for name in steps[0] if all(name in names for names in steps)]
        if both and both != [""]:
            return [[list(names).index(name) for names in steps] for name in both]
    shared = [number for number in numbers[0] if all(number in each for each in numbers)]
    if shared:
        return [[list(each).index(number) for each in numbers] for number in shared]
    return [[place] * len(steps) for place in range(min(map(len, steps)))]


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
            "kind": [Kind.REGION.value],
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


def _left_out(made: Sequence[FileSteps], common: int) -> Iterator[TraceWarning]:
    lost = max(len(each.steps) for each in made) - common
    if lost:
        yield TraceWarning(
            "steps-differ",
            f"not every process recorded {counted(lost, 'step')}; they are left out",
        )


def _of_clocks(clocks: Sequence[Clock], names: Sequence[str]) -> Iterator[TraceWarning]:
    """Yield how the clocks were brought together, and how well."""
    ways: dict[str, list[int]] = {}
    for number, clock in enumerate(clocks):
        ways.setdefault(clock.source, []).append(number)
    if found := ways.get("collectives"):
        yield _by_collectives([clocks[number] for number in found], [names[n] for n in found])
    if found := ways.get("time of day"):
        yield TraceWarning(
            "clocks",
            f"{listed([names[n] for n in found])} joined {names[0]} by the time of day, because "
            "too "
            "few collectives match. Between hosts it may be off by milliseconds; so are waits.",
        )
    if found := ways.get("beginning"):
        yield TraceWarning(
            "clocks-unknown",
            f"nothing tells when {listed([names[n] for n in found])} began relative to {names[0]}; "
            "the tree starts them together. Do not compare moments between them.",
        )


def _by_collectives(clocks: Sequence[Clock], names: Sequence[str]) -> TraceWarning:
    matched = sum(clock.matched for clock in clocks)
    errors = [clock.error_ns for clock in clocks if clock.error_ns is not None]
    corrected = [abs(clock.corrected_ns) for clock in clocks if clock.corrected_ns is not None]
    said = f" (the files were up to {duration(max(corrected))} off)" * bool(corrected)
    return TraceWarning(
        "clocks",
        f"{counted(matched, 'collective')} put {listed(names)} on one clock{said}. Moments are "
        "right "
        f"to ±{duration(max(errors))}; ignore shorter waits.",
    )


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


# Overlap: recordings on one clock in, an error out where they cannot be of one program.

_DAY_NS = 86_400_000_000_000  # further apart is no clock that is merely wrong, or in another zone


@dataclass(frozen=True, slots=True)
class _File:
    """When the recordings of a file began and ended on the common clock, and on which hosts."""

    name: str
    start_ns: int
    end_ns: int
    hosts: frozenset[str]


def check_overlap(
    recordings: Sequence[Recording],
    clocks: Sequence[Clock],
    files: Sequence[int],
    names: Sequence[str],
) -> None:
    """Verify that the files' times may be those of one program.

    Args:
        recordings: At least one.
        clocks: The clock of each recording.
        files: Number of the file that each recording is from.
        names: Name of the file that each recording is from.

    Raises:
        TraceFormatError: On one and the same host nothing overlaps, or there are more than a
            day between files of any hosts; the message says between which.
    """
    found = sorted(_files(recordings, clocks, files, names), key=lambda file: file.start_ns)
    for at in range(1, len(found)):
        before, after = max(found[:at], key=lambda file: file.end_ns), found[at]
        gap = after.start_ns - before.end_ns
        same_host = any(file.hosts & after.hosts for file in found[:at])
        if gap > (0 if same_host else _DAY_NS):
            raise TraceFormatError(
                f"{before.name} and {after.name} are not of one run: by the clocks in the files "
                f"{before.name} ended {_long(gap)} before {after.name} began, and no collectives "
                "tell otherwise. Read them one by one; `xsp compare` sets their traces side by side"
            )


def _files(
    recordings: Sequence[Recording],
    clocks: Sequence[Clock],
    files: Sequence[int],
    names: Sequence[str],
) -> Iterator[_File]:
    for file in dict.fromkeys(files):
        own = [number for number, each in enumerate(files) if each == file]
        spans = [_times(recordings[number], clocks[number]) for number in own]
        hosts = frozenset(recordings[number].host for number in own) - {""}
        starts, ends = zip(*filter(None, spans), strict=True) if any(spans) else ((), ())
        if starts:
            yield _File(names[own[0]], min(starts), max(ends), hosts)


def _times(recording: Recording, clock: Clock) -> tuple[int, int] | None:
    """Return when a recording began and ended on the common clock; None if nothing is in it."""
    parts = [frame for frame in (recording.rows, recording.roots) if frame.height]
    if not parts:
        return None
    start = min(frame["start_ns"].min() for frame in parts)  # type: ignore[type-var]
    end = max(frame["end_ns"].max() for frame in parts)  # type: ignore[type-var]
    return int(start) + clock.add_ns, int(end) + clock.add_ns  # type: ignore[arg-type]


def _long(nanoseconds: int) -> str:
    """Return a duration, in days where these are several.

    >>> _long(3 * 86_400_000_000_000), _long(5_000_000_000)
    ('3 days', '5.00 s')
    """
    days = nanoseconds // _DAY_NS
    return f"{days:,} days" if days > 1 else duration(nanoseconds)


# Brings the recordings of several processes onto one clock.

Ints = NDArray[np.int64]

_NAMES = "(?i)nccl|rccl"
_COLLECTIVE, _GROUP = f"{ATTRIBUTE}collective", f"{ATTRIBUTE}collective_group"
_APART_NS = 200_000  # ends of one collective are hardly further apart
_CLOSE_NS = 20_000  # most are much nearer
_FEWEST = 3  # coincidences that tell more than chance
_MOST = 500  # ends of a kind of collective that are compared with as many
_NEAR_NS = 1_000_000_000  # hosts whose clocks are kept by the network are nearer than that


@dataclass(frozen=True, slots=True)
class Clock:
    """The shift that brings a recording's times onto the clock of the first recording.

    Attributes:
        add_ns: What is added to the recording's times.
        source: How that is known: `first`, `same file`, `collectives`, `time of day`; or
            `beginning` where it is not, and the recordings are shown beginning together.
        matched: How many collectives end together then.
        error_ns: By how much the ends of 95 % of these differ at most; None where not known.
        corrected_ns: By how much that differs from what the files say; None if they do not.
    """

    add_ns: int
    source: str
    matched: int = 0
    error_ns: int | None = None
    corrected_ns: int | None = None


def align(recordings: Sequence[Recording], files: Sequence[int]) -> list[Clock]:
    """Return the clock of each recording.

    Args:
        recordings: At least one.
        files: Number of the file that each recording is from; those of one file have one clock.
    """
    ends = [_ends(recording) for recording in recordings]
    clocks: dict[int, Clock] = {0: Clock(0, "first")}
    while len(clocks) < len(recordings):
        number, clock = next(_next(recordings, files, ends, clocks))
        clocks[number] = clock
    return [clocks[number] for number in range(len(recordings))]


def _next(
    recordings: Sequence[Recording],
    files: Sequence[int],
    ends: Sequence[dict[str, Ints]],
    clocks: dict[int, Clock],
) -> Iterator[tuple[int, Clock]]:
    """Yield clocks of recordings whose clock is not known yet, what is known best first."""
    left = [number for number in range(len(recordings)) if number not in clocks]
    for number in left:
        for other in (each for each in clocks if files[each] == files[number]):
            yield number, Clock(clocks[other].add_ns, "same file")
    told = {number: _by_day(recordings[number], recordings[0]) for number in left}
    for number in left:
        for other, clock in clocks.items():
            known = {name: times + clock.add_ns for name, times in ends[other].items()}
            if found := _coinciding(known, ends[number], told[number]):
                yield number, found
    for number in left:
        by_day = told[number]
        if by_day is not None:
            yield number, Clock(by_day, "time of day")
    for number in left:
        yield number, Clock(_began(recordings[0]) - _began(recordings[number]), "beginning")


def _by_day(recording: Recording, first: Recording) -> int | None:
    """Find the offset of a recording's clock from the first one's, as far as the files tell."""
    if recording.unix_ns is None or first.unix_ns is None:
        return None
    return recording.unix_ns - first.unix_ns


def _began(recording: Recording) -> int:
    """Return when the first step of a recording, or else its first span, began."""
    starts = (recording.roots if recording.roots.height else recording.rows)["start_ns"]
    return int(starts.min() or 0)  # type: ignore[arg-type]


def _ends(recording: Recording) -> dict[str, Ints]:
    """Return when collectives ended, in order, for each name and group."""
    rows = recording.rows
    names = [name for name in (_COLLECTIVE, _GROUP) if name in rows.columns]
    is_one = pl.col("name").str.contains(_NAMES)
    if _COLLECTIVE in names:
        is_one |= pl.col(_COLLECTIVE).is_not_null()
    chosen = rows.filter((pl.col("kind") == Kind.KERNEL.value) & is_one).sort("end_ns")
    found: dict[str, list[int]] = {}
    for end, *key in chosen.select("end_ns", "name", *names).iter_rows():
        found.setdefault(repr(key), []).append(end)
    return {name: np.array(times, dtype=np.int64) for name, times in found.items()}


def _coinciding(known: dict[str, Ints], ends: dict[str, Ints], told: int | None) -> Clock | None:
    """Return the clock at which most collectives end when they are known to; None if few do."""
    both = [name for name in known if name in ends]
    if not both:
        return None
    apart = [(known[n][:_MOST, None] - ends[n][None, :_MOST]).ravel() for n in both]
    add = _most_frequent(np.sort(np.concatenate(apart)), told)
    if add is None:
        return None
    # All collectives, not only the first ones, say by how much exactly.
    near = [_nearest(known[name] - add, ends[name]) for name in both]
    rest = np.concatenate(near)
    rest = rest[np.abs(rest) <= _APART_NS]
    add += int(np.median(rest))
    error = int(np.quantile(np.abs(rest - np.median(rest)), 0.95))
    return Clock(add, "collectives", len(rest), error, None if told is None else add - told)


def _most_frequent(apart: Ints, told: int | None) -> int | None:
    """Return the difference around which most differences lie; None if that may be by chance.

    Args:
        apart: Differences, sorted.
        told: What the files say the difference is. Near to it fewer are believed as well.
    """
    count = _within(apart, _APART_NS)
    best = int(count.argmax())
    near = np.zeros(len(apart), np.bool_) if told is None else np.abs(apart - told) <= _NEAR_NS
    if near.any() and 2 * count[near].max() >= count[best]:
        best = int(np.flatnonzero(near)[count[near].argmax()])
    elsewhere = count[(np.abs(apart - apart[best]) > 2 * _APART_NS) & ~near]
    if count[best] < _FEWEST or (not near[best] and elsewhere.max(initial=0) >= count[best]):
        return None
    # Collectives may follow one another quickly: most ends of one and the same are much nearer.
    around = apart[np.abs(apart - apart[best]) <= _APART_NS]
    count = _within(around, _CLOSE_NS)
    best = int(count.argmax())
    return int(np.median(around[best : best + count[best]]))


def _within(values: Ints, reach: int) -> Ints:
    """Return how many of the sorted values lie from each value on, and no further than `reach`."""
    return np.searchsorted(values, values + reach, side="right") - np.arange(len(values))


def _nearest(known: Ints, ends: Ints) -> Ints:
    """Return for each end by how much the nearest known end is later; both are sorted."""
    at = np.clip(np.searchsorted(known, ends), 1, max(len(known) - 1, 1))
    after = known[np.minimum(at, len(known) - 1)] - ends
    before = known[at - 1] - ends
    return np.where(np.abs(before) < np.abs(after), before, after)
