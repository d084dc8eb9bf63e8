"""The events of a plane in, a frame with one row per event out.

An event has a number instead of a name, and so has each of its stats (attributes); the plane says
what the numbers mean. Times are picoseconds from the start of the event's line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

PYTHON = "$"  # names of the calls that the Python tracer records begin with it
_FAR = 1 << 62  # ns; times beyond are damaged, and their sums would overflow

NUMBERS = ("correlation_id", "step_num", "cuda_graph_id", "_ct", "_c", "_pt", "_p")
TEXTS = (
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "hlo_op",
    "hlo_module",
    "tf_op",
    "annotation",
    "context_id",
)
# Numbers that make an event what it is; of the other stats the texts are attributes.
SCHEMA: Mapping[str, Any] = {
    "line": pl.Int64,
    "meaning": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    **dict.fromkeys(NUMBERS, pl.Int64),
    **dict.fromkeys(TEXTS, pl.String),
    "name": pl.String,
    "display": pl.String,
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many events are no rows, for which reasons.

    Attributes:
        unknown: Events by the name of the plane, or of the plane and line, that was not read.
        marks: Events without a duration, by name.
        python: Calls that the Python tracer recorded.
        damaged: Events without a name, or whose times are damaged.
        sums: Events that stand for several occurrences, and have no time.
        outer: Operators of a device that hold other operators.
    """

    unknown: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    python: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    outer: Counter[str] = field(default_factory=Counter)


def text(value: bytes) -> str:
    """Return text that may be no UTF-8."""
    return value.decode(errors="replace")


class Meanings:
    """What the numbers of a plane mean.

    Attributes:
        names: Name of each kind of event, by its number.
        displays: Shorter name of each kind of event, by its number; empty where there is none.
        metadata: The message of each kind of event, by its number.
    """

    def __init__(self, plane: Any) -> None:
        self._stats = {each.key: text(each.value.name) for each in plane.stat_metadata}
        self.metadata = {each.key: each.value for each in plane.event_metadata}
        self.names = {key: text(each.name) for key, each in self.metadata.items()}
        self.displays = {key: text(each.display_name) for key, each in self.metadata.items()}

    def numbered(self, names: Iterable[str]) -> dict[int, str]:
        """Return the names of stats by their numbers."""
        wanted = set(names)
        return {key: name for key, name in self._stats.items() if name in wanted}

    def value(self, stat: Any) -> Any:
        """Return the value of a stat: a number, text, or None."""
        which = stat.WhichOneof("value")
        if which is None:
            return None
        value = getattr(stat, which)
        if which == "ref_value":
            return self._stats.get(value, "")
        return text(value) if isinstance(value, bytes) else value

    def stats(self, stats: Iterable[Any]) -> dict[str, Any]:
        """Return the values of stats by their names."""
        return {self._stats.get(each.metadata_id, ""): self.value(each) for each in stats}


def events(
    plane: Any, meanings: Meanings, lines: Iterable[int], left: LeftOut, *, python: bool = False
) -> pl.DataFrame:
    """Return the events of some lines of a plane (`SCHEMA`), line by line.

    Args:
        plane: The plane.
        meanings: What its numbers mean.
        lines: Positions of the lines that are read.
        left: Counts what is left out: calls of Python functions, sums, and damaged events.
        python: Whether calls of Python functions are read.
    """
    skipped = set() if python else {k for k, n in meanings.names.items() if n.startswith(PYTHON)}
    wanted = meanings.numbered((*NUMBERS, *TEXTS))
    found: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in wanted.values()}
    columns: tuple[list[int], ...] = ([], [], [], [])
    add_line, add_meaning, add_offset, add_duration = (column.append for column in columns)
    row = 0
    for at in lines:
        for event in plane.lines[at].events:
            meaning = event.metadata_id
            if meaning in skipped:
                left.python["calls"] += 1
                continue
            if event.num_occurrences:
                left.sums[meanings.names.get(meaning, "")] += 1
                continue
            add_line(at)
            add_meaning(meaning)
            add_offset(event.offset_ps)
            add_duration(event.duration_ps)
            for stat in event.stats:
                name = wanted.get(stat.metadata_id)
                if name is not None:
                    rows, values = found[name]
                    rows.append(row)
                    values.append(meanings.value(stat))
            row += 1
    return _sound(_frame(plane, meanings, columns, found), left)


def _frame(
    plane: Any,
    meanings: Meanings,
    columns: tuple[list[int], ...],
    found: Mapping[str, tuple[list[int], list[Any]]],
) -> pl.DataFrame:
    line, meaning, offset, duration = (np.array(column, np.int64) for column in columns)
    origins = [each.timestamp_ns for each in plane.lines]
    far = np.array([abs(each) > _FAR for each in origins], bool)
    origin = np.array([0 if abs(each) > _FAR else each for each in origins], np.int64)
    ends = offset // 1000 + duration // 1000 + (offset % 1000 + duration % 1000) // 1000
    frame = pl.DataFrame(
        {
            "line": line,
            "meaning": meaning,
            # Both rounded down, so that what lies within a range in the file does so here.
            "start_ns": origin[line] + offset // 1000,
            "end_ns": origin[line] + ends,
            "damaged": far[line] | (duration < 0),
        }
    )
    stats = {name: _column(name, *found.get(name, ([], [])), len(line)) for name in NUMBERS + TEXTS}
    return frame.with_columns(
        **stats,
        name=pl.col("meaning").replace_strict(meanings.names, default=None, return_dtype=pl.String),
        display=pl.col("meaning").replace_strict(
            meanings.displays, default="", return_dtype=pl.String
        ),
    )


def _column(name: str, rows: list[int], values: list[Any], count: int) -> pl.Series:
    """Return a column that has a value in some rows, and null elsewhere."""
    number = name in NUMBERS
    given = [_number(each) if number else _text(each) for each in values]
    dtype = pl.Int64 if number else pl.String
    if not rows:
        return pl.Series([None], dtype=dtype).new_from_index(0, count)
    at = np.full(count, len(given), np.int64)
    at[rows] = np.arange(len(given))
    return pl.Series([*given, None], dtype=dtype).gather(at)


def _number(value: Any) -> int | None:
    """Return a number of 64 bits, with a sign; None if it is none."""
    if isinstance(value, float):
        value = int(value) if abs(value) < _FAR else None
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?\d{1,18}", value) else None
    if value is None:
        return None
    return int(value) - (1 << 64) if value >= 1 << 63 else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _sound(frame: pl.DataFrame, left: LeftOut) -> pl.DataFrame:
    """Return the events that have a name, and an end after their start."""
    sound = (
        pl.col("name").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns")) & ~pl.col("damaged")
    )
    kept = frame.filter(sound)
    if kept.height < frame.height:
        left.damaged["events"] += frame.height - kept.height
    return kept.drop("damaged")
