"""Parts: a journal in, the nested parts of the program out.

A part is an evaluation, a span of the user's, or what a watcher told of (data loading). Parts nest
by time on their thread:

    load       2…8                block    0…30
    request    9…20               ├─ load
    call      10…18               └─ request
                                     └─ call

A span of the user's that begins in an evaluation, or before it and ends in it, is recorded as a
part of that evaluation, and is no part of the program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from xsp import tracer
from xsp.composition.journal import Evaluation, Journal
from xsp.correlation import correlate
from xsp.level import Kind
from xsp.provider import ATTRIBUTE, span_rows
from xsp.trace import Trace

UNWATCHED = "unwatched, for nothing was left to be measured"

_COLD = 2.0  # times the latency that a first call takes, to be shown apart
_NUMBER = f"{ATTRIBUTE}part"

_Numbers = tuple[int | None, int | None]  # number and parent that a span of the user's states


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the program.

    Attributes:
        name: Name of the part.
        kind: Kind of span.
        start_ns: When the part began, with xsp.
        end_ns: When the part ended.
        thread: Thread that the part ran on.
        parent: Index of the part around it; -1 for the block.
        evaluation: Index of the evaluation in the journal; -1 for other parts.
        attributes: What is known of the part.
    """

    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    thread: int
    parent: int = -1
    evaluation: int = -1
    attributes: Mapping[str, Any] | None = None


def parts(journal: Journal, name: str, labels: Sequence[str]) -> list[Part]:
    """Return the parts of a program, the block itself first, parents before children.

    Args:
        journal: What the program did.
        name: Name of the block.
        labels: For each evaluation of the journal, the name of its group.
    """
    block = Part(name, Kind.PIPELINE, journal.begin_ns, journal.end_ns, journal.thread)
    found, numbers = _around_evaluations(*_found(journal, labels), journal.evaluations)
    return _nested(block, found, numbers)


def _found(journal: Journal, labels: Sequence[str]) -> tuple[list[Part], list[_Numbers]]:
    """Return all parts, not yet nested, and number and parent that the user's spans state."""
    found: list[Part] = []
    numbers: list[_Numbers] = []
    for at, (each, label) in enumerate(zip(journal.evaluations, labels, strict=True)):
        found.append(
            Part(label, Kind.PIPELINE, each.begin_ns, each.end_ns, each.thread, evaluation=at)
        )
    found += [
        Part(
            mark.name,
            Kind.PIPELINE,
            mark.start_ns,
            mark.end_ns,
            mark.thread,
            attributes=mark.attributes,
        )
        for mark in journal.marks
    ]
    if journal.unwatched_ns is not None:
        times = journal.unwatched_ns, journal.end_ns
        found.append(Part(UNWATCHED, Kind.PIPELINE, *times, journal.thread))
    numbers += [(None, None)] * len(found)
    records, width = journal.spans.records, len(tracer.FIELDS)
    for at in range(0, len(records), width):
        label, kind, start, end, thread, number, parent, error, attributes = records[
            at : at + width
        ]
        more = {f"user.{key}": value for key, value in attributes.items()}
        more |= {"error": error} if error else {}
        found.append(Part(label, kind, start, end, thread, attributes=more))
        numbers.append((number, parent))
    return found, numbers


def _around_evaluations(
    found: Sequence[Part], numbers: Sequence[_Numbers], evaluations: Sequence[Evaluation]
) -> tuple[list[Part], list[_Numbers]]:
    """Return evaluations, and the parts that providers do not record as parts of evaluations."""
    of: defaultdict[int, list[Evaluation]] = defaultdict(list)
    for each in sorted(evaluations, key=lambda each: each.begin_ns):
        of[each.thread].append(each)
    kept: list[Part] = []
    kept_numbers: list[_Numbers] = []
    for part, stated in zip(found, numbers, strict=True):
        own = part.evaluation >= 0 or part.name == UNWATCHED
        if own or _is_around(part, of[part.thread]):
            kept.append(part)
            kept_numbers.append(stated)
    return kept, kept_numbers


def _is_around(part: Part, evaluations: Sequence[Evaluation]) -> bool:
    """Return whether a part lies around or between the evaluations of its thread.

    Evaluations of one thread never overlap, and are sorted by time.
    """
    at = bisect_left(evaluations, part.start_ns, key=lambda each: each.begin_ns)
    if at and part.start_ns < evaluations[at - 1].end_ns:
        return False
    last = bisect_left(evaluations, part.end_ns, lo=at, key=lambda each: each.begin_ns) - 1
    return last < at or part.end_ns >= evaluations[last].end_ns


def _nested(block: Part, found: Sequence[Part], numbers: Sequence[_Numbers]) -> list[Part]:
    """Return the block, and in it parts nested by time, without what lies in evaluations."""
    root = span_rows(
        {
            "kind": [Kind.PIPELINE.value],
            "name": [block.name],
            "start_ns": [block.start_ns],
            "end_ns": [block.end_ns],
            "thread": [block.thread],
            _NUMBER: pl.Series([-1], dtype=pl.Int64),
        }
    )
    rows = span_rows(
        {
            "kind": Kind.PIPELINE.value,  # so that parts nest by time alone
            "name": [part.name for part in found],
            "start_ns": [part.start_ns for part in found],
            # A part that outlasts the block is cut where the block ends.
            "end_ns": [max(min(part.end_ns, block.end_ns), part.start_ns) for part in found],
            "thread": [part.thread for part in found],
            "id": pl.Series([number for number, _ in numbers], dtype=pl.Int64),
            "parent_id": pl.Series([parent for _, parent in numbers], dtype=pl.Int64),
            _NUMBER: pl.Series(range(len(found)), dtype=pl.Int64),
        }
    )
    [tree] = correlate(root, rows).frames
    result = [block]
    place: list[int] = []  # of each row of the tree in the result; -1: left out
    columns = zip(
        tree[_NUMBER].to_list(), tree["parent"].to_list(), tree["end_ns"].to_list(), strict=True
    )
    for number, parent, end in columns:
        if number < 0:
            place.append(0)
            continue
        above = place[parent]
        if above < 0 or result[above].evaluation >= 0:
            place.append(-1)
            continue
        place.append(len(result))
        result.append(replace(found[number], parent=above, end_ns=end))
    return result


def first_calls(
    parts: Sequence[Part],
    lasting_ns: Sequence[float],
    groups: Sequence[int],
    traces: Mapping[int, Trace],
) -> dict[int, float]:
    """Return what first calls take beyond the latency of their group (ns), by their parts.

    Those that take less than twice that latency are left out.

    Args:
        parts: All parts of the program.
        lasting_ns: How long each part takes without xsp.
        groups: For each evaluation of the journal, the number of its group.
        traces: The traces of groups, by their numbers.
    """
    first: dict[int, int] = {}
    for number in sorted(range(len(parts)), key=lambda number: parts[number].start_ns):
        if (evaluation := parts[number].evaluation) >= 0:
            first.setdefault(groups[evaluation], number)
    result = {}
    for group, number in first.items():
        latency = traces[group].root.latency_ns if group in traces else None
        if latency is not None and lasting_ns[number] >= _COLD * latency:
            result[number] = lasting_ns[number] - latency
    return result
