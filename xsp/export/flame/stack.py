"""Stacks: spans in, for each thread and stream the spans that lie on top of each other out.

A thread's stack is of spans that nest there. Below the outermost span of a thread or stream
stands what it lies in elsewhere: below a kernel its operator and its layers, so that the flame
graph of a stream shows whose kernels ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xsp.export import label
from xsp.export.reduction import Reduced
from xsp.export.track import Track, device_name, order, track_name, tracks
from xsp.trace import parent_rows


@dataclass(frozen=True, slots=True)
class Stacks:
    """Spans, each on the track of a thread or stream; sequences have an entry per span.

    Attributes:
        names: Name of each span, with the path and class of the module.
        starts: Start of each span in ns, on the timeline without overhead.
        ends: End of each span in ns.
        parents: Row of each span's parent, -1 for the root.
        above: Row of the parent where the span lies in it on the same track, else -1.
        tracks: The tracks; that of the root is `of_row[0]`.
        of_row: Index of each span's track.
    """

    names: Sequence[str]
    starts: Sequence[int]
    ends: Sequence[int]
    parents: Sequence[int]
    above: Sequence[int]
    tracks: Sequence[Track]
    of_row: Sequence[int]

    @classmethod
    def of(cls, reduced: Reduced, metadata: Mapping[str, Any]) -> Stacks:
        """Return the stacks of a trace, whole or cut to a budget."""
        spans = reduced.spans
        names = label.names(spans, str(metadata.get("name") or "")).to_list()
        starts, ends = spans["start_ns"].to_list(), spans["end_ns"].to_list()
        parents = parent_rows(spans).tolist()
        found, of_row = tracks(spans)
        above = [
            up if up >= 0 and of_row[up] == of_row[row] and ends[row] <= ends[up] else -1
            for row, up in enumerate(parents)
        ]
        return cls(names, starts, ends, parents, above, found, of_row)

    def by_track(self) -> Iterator[tuple[Track, list[int]]]:
        """Yield each track, those of the host first, and its rows in the order they began."""
        rows: list[list[int]] = [[] for _ in self.tracks]
        for row in sorted(range(len(self.starts)), key=self.starts.__getitem__):
            rows[self.of_row[row]].append(row)
        for index in sorted(order(self.tracks), key=lambda at: _place(self.tracks[at])):
            yield self.tracks[index], rows[index]

    def elsewhere(self, row: int) -> list[int]:
        """Return the rows of what the outermost span of a track lies in, from the root down."""
        rows = []
        while (row := self.parents[row]) >= 0:
            rows.append(row)
        return rows[::-1]


def _place(track: Track) -> int:
    return -1 if track.device is None else track.device


def title(track: Track, metadata: Mapping[str, Any]) -> str:
    """Return the name of a track among all: that of the device goes before that of the stream."""
    if track.device is None:
        return track_name(track)
    return f"{device_name(track.device, metadata.get('environment') or {})}, {track_name(track)}"
