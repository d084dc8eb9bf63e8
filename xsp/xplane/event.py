"""Reads events of a plane's lines into a frame with one row per event.

Times are picoseconds from the start of the event's line; rows have nanoseconds, rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.protobuf import BYTES, NO_FIELDS, NUMBER, Fields, Ints, scan
from xsp.xplane.kind import Kind
from xsp.xplane.stat import Found, Stats, found_stats

_KIND, _OFFSET, _DURATION, _STATS, _OCCURRENCES = 1, 2, 3, 4, 5  # fields of XEvent
_PIECE = 1 << 17  # events that are read at once: what is read on the way takes memory
_FACTS = ("line", "line_id", "line_name", "number", "name", "display", "start_ns", "end_ns")
_STAT = "stat."  # begins the names of columns of stats, until all others are known
_FAR = 1 << 62  # ns; times beyond are damaged, and their sums would overflow


@dataclass(frozen=True, slots=True)
class Events:
    """The events of some lines of a plane.

    Attributes:
        frame: One row per event that has a name and a time, line by line: `line`, `line_id`,
            `line_name`, `number` (of the kind of event), `name`, `display` (a shorter name;
            empty where there is none), `start_ns`, `end_ns`, and a column for each stat that was
            asked for; of a stat that is named as one of these, `stat.name`.
        damaged: How many events have no name, or a time that cannot be.
        sums: How many events stand for several occurrences, and have no time, by name.
    """

    frame: pl.DataFrame
    damaged: int = 0
    sums: Counter[str] = field(default_factory=Counter)


def read_events(
    data: npt.NDArray[np.uint8], places: Ints, stats: Stats, wanted: Mapping[str, Any]
) -> pl.DataFrame:
    """Return the events at some places, a row for each.

    Args:
        data: The bytes of the file, padded.
        places: Where each event begins and ends: an array of n times 2.
        stats: What the stats of the plane mean.
        wanted: Types of the columns of the stats that are asked for, by name.

    Returns:
        `number`, `offset_ps`, `duration_ps`, `occurrences`, `whole`, and a column `stat.…` for
        each stat.
    """
    numbers = {number: name for number, name in stats.names.items() if name in wanted}
    found: dict[str, list[Found]] = {name: [] for name in wanted}
    frames = [_frame(np.zeros((4, 0), np.int64), np.zeros(0, bool))]
    for first in range(0, len(places), _PIECE):
        frame, held = _piece(data, places[first : first + _PIECE])
        held = replace(held, message=held.message + first)
        for name, values in found_stats(data, held, numbers):
            found[name].append(values)
        frames.append(frame)
    columns = {
        _STAT + name: stats.column(Found.joined(found[name]), len(places), dtype)
        for name, dtype in wanted.items()
    }
    return pl.concat(frames).with_columns(**columns)


def _piece(data: npt.NDArray[np.uint8], places: Ints) -> tuple[pl.DataFrame, Fields]:
    """Return events, and the fields with their stats."""
    columns, damaged = np.zeros((4, len(places)), np.int64), np.zeros(len(places), bool)
    held = [NO_FIELDS]
    for fields in scan(data, places[:, 0], places[:, 1], damaged):
        for column, number in zip(columns, (_KIND, _OFFSET, _DURATION, _OCCURRENCES), strict=True):
            of = fields.of(number, NUMBER)
            column[of.message] = of.value
        held.append(fields.of(_STATS, BYTES))
    return _frame(columns, ~damaged), Fields.joined(held)


def _frame(columns: Ints, whole: npt.NDArray[np.bool_]) -> pl.DataFrame:
    names = ("number", "offset_ps", "duration_ps", "occurrences")
    return pl.DataFrame({**dict(zip(names, columns, strict=True)), "whole": whole})


def known_events(frame: pl.DataFrame, lines: pl.DataFrame, kinds: Mapping[int, Kind]) -> Events:
    """Return events with names and times.

    Args:
        frame: What `read_events` returned, and `line`.
        lines: The lines of the plane.
        kinds: What the numbers of events mean.
    """
    frame = _timed(frame.join(lines.drop("events"), on="line", how="left", maintain_order="left"))
    frame = frame.with_columns(
        name=_meaning({number: kind.name for number, kind in kinds.items()}),
        display=_meaning({number: kind.display for number, kind in kinds.items()}),
    )
    summed = pl.col("occurrences") != 0
    sums = Counter(frame.filter(summed)["name"].fill_null("").to_list())
    frame = frame.filter(~summed)
    timed = pl.col("end_ns") >= pl.col("start_ns")  # null, so false, where a time cannot be
    sound = frame.filter("whole", timed, pl.col("name").is_not_null())
    names = (each for each in frame.columns if each.startswith(_STAT))
    stats = {_named(name.removeprefix(_STAT)): name for name in names}
    return Events(sound.select(*_FACTS, **stats), frame.height - sound.height, sums)


def _named(stat: str) -> str:
    """Return the column of a stat, which may be named as another column of events."""
    return _STAT + stat if stat in _FACTS else stat


def _meaning(names: Mapping[int, str]) -> pl.Expr:
    return pl.col("number").replace_strict(names, default=None, return_dtype=pl.String)


def _timed(frame: pl.DataFrame) -> pl.DataFrame:
    """Return events with `start_ns` and `end_ns`, null where a time cannot be."""
    origin, offset, duration = pl.col("timestamp_ns"), pl.col("offset_ps"), pl.col("duration_ps")
    # Both rounded down, so that what lies within a range in the file does so here.
    ends = offset // 1000 + duration // 1000 + (offset % 1000 + duration % 1000) // 1000
    sound = origin.is_between(-_FAR, _FAR) & (duration >= 0)
    return frame.with_columns(
        start_ns=pl.when(sound).then(origin + offset // 1000),
        end_ns=pl.when(sound).then(origin + ends),
    ).drop("timestamp_ns", "offset_ps", "duration_ps")
