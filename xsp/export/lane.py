"""Lanes: which track of a timeline each span is drawn on.

A timeline draws what overlaps on a track as if one called the other. So a span lies
on its parent's track or on a free one: coroutines that take turns on a thread get
tracks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider import ON_DEVICE

# What a launch starts; what a graph replays of layers is on a device as well, and lies in it.
_STARTED = [kind.value for kind in (*DEVICE_ACTIVITIES, Kind.SYNC)]


@dataclass(frozen=True, slots=True)
class Track:
    """One row of a timeline.

    Attributes:
        device: Number of the device; None on the host.
        number: The host's thread or the device's stream; None where it is not known.
        lane: Counts the tracks of one thread or stream, from 0.
    """

    device: int | None
    number: int | None
    lane: int


@dataclass(slots=True)
class _Open:
    """Spans that are open on one track, the innermost last, by row."""

    track: int
    rows: list[int]


def tracks(spans: pl.DataFrame) -> tuple[list[Track], list[int]]:
    """Return the tracks that spans need, and the index of the track of each row.

    On each track spans nest by time, and what lies in a span is below it in the tree.

    Args:
        spans: Columns of `trace.spans`, parents before children.
    """
    numbers = pl.when(ON_DEVICE).then("stream").otherwise("thread")
    keys = spans.select("device", numbers.alias("number")).rows()
    return _Sorter(spans, keys).sort()


def launches(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs `launch` and `execution` that share a correlation id, as rows of `spans`.

    Where calls within calls bear the same id, the innermost is the launch.
    """
    rows = spans.select("kind", "thread", "device", "correlation_id").with_row_index("row")
    rows = rows.filter(pl.col("correlation_id").is_not_null())
    made = rows.filter(pl.col("kind") == Kind.LAUNCH.value)
    made = made.unique("correlation_id", keep="last", maintain_order=True)
    done = rows.filter(ON_DEVICE & pl.col("kind").is_in(_STARTED))
    pairs = done.join(made, on="correlation_id", suffix="_of_launch", maintain_order="left")
    return pairs.select(launch="row_of_launch", execution="row")


class _Sorter:
    """Holds what every step of one distribution over tracks reads."""

    def __init__(self, spans: pl.DataFrame, keys: list[tuple[int | None, int | None]]) -> None:
        rows = {span_id: row for row, span_id in enumerate(spans["span_id"])}
        self._parents = [rows.get(parent, -1) for parent in spans["parent_id"]]
        self._starts = spans["start_ns"].to_list()
        self._ends = spans["end_ns"].to_list()
        self._keys = keys
        self._tracks: list[Track] = []
        self._open: dict[tuple[int | None, int | None], list[_Open]] = {}
        self._of_row = [-1] * len(keys)

    def sort(self) -> tuple[list[Track], list[int]]:
        """Return the tracks and each row's; spans are taken in the order they begin."""
        for row in sorted(range(len(self._keys)), key=self._starts.__getitem__):
            lane = self._parents_lane(row) or self._free_lane(row)
            lane.rows.append(row)
            self._of_row[row] = lane.track
        return self._tracks, self._of_row

    def _parents_lane(self, row: int) -> _Open | None:
        """Return the lane of the parent, if that is open there and the span fits into it."""
        parent = self._parents[row]
        if parent < 0 or self._keys[parent] != self._keys[row]:
            return None
        track = self._tracks[self._of_row[parent]]
        lane = self._open[self._keys[row]][track.lane]
        self._close(lane, self._starts[row], keep=parent)
        inside = bool(lane.rows) and lane.rows[-1] == parent
        return lane if inside and self._ends[row] <= self._ends[parent] else None

    def _free_lane(self, row: int) -> _Open:
        key = self._keys[row]
        lanes = self._open.setdefault(key, [])
        for lane in lanes:
            self._close(lane, self._starts[row])
            if not lane.rows:
                return lane
        lanes.append(_Open(len(self._tracks), []))
        self._tracks.append(Track(*key, lane=len(lanes) - 1))
        return lanes[-1]

    def _close(self, lane: _Open, now: int, keep: int = -1) -> None:
        """Take off what has ended; a parent without length still holds its children."""
        while lane.rows and self._ends[lane.rows[-1]] <= now and lane.rows[-1] != keep:
            lane.rows.pop()
