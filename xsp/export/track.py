"""Tracks: spans in, the rows of a timeline on which spans nest out, with their names and order.

Viewers draw spans that overlap on a track as if one called the other. So a span lies on the
track of its parent or on a free track: coroutines that take turns on a thread get tracks of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.evaluation import ON_DEVICE
from xsp.trace import parent_rows


@dataclass(frozen=True, slots=True)
class Track:
    """One row of a timeline: spans of one thread or stream that nest.

    Attributes:
        device: Number of the device; None on the host.
        number: The host's thread or the device's stream; None where that is not known.
        lane: Which of the tracks of its thread or stream this track is, from 0.
    """

    device: int | None
    number: int | None
    lane: int


@dataclass(slots=True)
class _Lane:
    """A track (its index) and the rows of the spans open on it, the innermost last."""

    track: int
    rows: list[int]


def tracks(spans: pl.DataFrame) -> tuple[list[Track], list[int]]:
    """Return the tracks that spans need, and the index of the track of each row.

    On each track spans nest by time, and a span within another is its descendant in the tree.

    Args:
        spans: Columns of `trace.spans`, parents before children.
    """
    numbers = pl.when(ON_DEVICE).then("stream").otherwise("thread")
    keys = spans.select("device", numbers.alias("number")).rows()
    return _Sorter(spans, keys).sort()


class _Sorter:
    """Distributes spans over tracks; `keys` has the device and the thread or stream of each."""

    def __init__(self, spans: pl.DataFrame, keys: list[tuple[int | None, int | None]]) -> None:
        self._parents = parent_rows(spans).tolist()
        self._starts = spans["start_ns"].to_list()
        self._ends = spans["end_ns"].to_list()
        self._keys = keys
        self._tracks: list[Track] = []
        self._open: dict[tuple[int | None, int | None], list[_Lane]] = {}
        self._of_row = [-1] * len(keys)

    def sort(self) -> tuple[list[Track], list[int]]:
        """Return the tracks and the index of each row's track; spans that begin first go first."""
        for row in sorted(range(len(self._keys)), key=self._starts.__getitem__):
            lane = self._parents_lane(row) or self._free_lane(row)
            lane.rows.append(row)
            self._of_row[row] = lane.track
        return self._tracks, self._of_row

    def _parents_lane(self, row: int) -> _Lane | None:
        """Return the lane of the parent, if the parent is open there and the span fits into it."""
        parent = self._parents[row]
        # Where times are damaged, a span may begin before its parent, which has no track yet.
        if parent < 0 or self._of_row[parent] < 0 or self._keys[parent] != self._keys[row]:
            return None
        track = self._tracks[self._of_row[parent]]
        lane = self._open[self._keys[row]][track.lane]
        self._close(lane, self._starts[row], keep=parent)
        inside = bool(lane.rows) and lane.rows[-1] == parent
        return lane if inside and self._ends[row] <= self._ends[parent] else None

    def _free_lane(self, row: int) -> _Lane:
        """Return the first lane of the row's thread or stream without an open span."""
        key = self._keys[row]
        lanes = self._open.setdefault(key, [])
        for lane in lanes:
            self._close(lane, self._starts[row])
            if not lane.rows:
                return lane
        lanes.append(_Lane(len(self._tracks), []))
        self._tracks.append(Track(*key, lane=len(lanes) - 1))
        return lanes[-1]

    def _close(self, lane: _Lane, now: int, keep: int = -1) -> None:
        """Remove spans that have ended; `keep` stays: a parent of no length has children too."""
        while lane.rows and self._ends[lane.rows[-1]] <= now and lane.rows[-1] != keep:
            lane.rows.pop()


def order(tracks: Sequence[Track]) -> list[int]:
    """Return tracks in the order to be shown: threads by first span, streams by number."""
    firsts: dict[tuple[int | None, int | None], int] = {}
    ranks: list[tuple[int, int]] = []
    for index, track in enumerate(tracks):
        first = firsts.setdefault((track.device, track.number), index)
        by_number = None if track.device is None else track.number
        ranks.append((first if by_number is None else by_number, track.lane))
    return sorted(range(len(tracks)), key=ranks.__getitem__)


def host_name(environment: Mapping[str, Any]) -> str:
    """Return the name of the host, with that of the machine where it is known."""
    return f"host {environment.get('host') or ''}".rstrip()


def device_name(device: int, environment: Mapping[str, Any]) -> str:
    """Return the name of a device: its number, and its model where that is known."""
    gpus = environment.get("gpus") or ()
    model = f" {gpus[device].get('name', '')}" if 0 <= device < len(gpus) else ""
    return f"device {device}{model}".rstrip()


def track_name(track: Track) -> str:
    """Return the name of a track among those of the same host or device."""
    # Without a stream, on a device: waits for the whole device, layers replayed from a graph.
    if track.number is None:
        name = "unknown thread" if track.device is None else "across streams"
    else:
        name = f"{'thread' if track.device is None else 'stream'} {track.number}"
    return f"{name}, at the same time ({track.lane + 1})" if track.lane else name
