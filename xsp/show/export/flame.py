"""Writes what ran on each thread and stream as stacks of names, for viewers of flame graphs.

A thread's stack is of spans that nest there. Below the outermost span of a thread or stream
stands what it lies in elsewhere: below a kernel its operator and its layers, so that the flame
graph of a stream shows whose kernels ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from xsp.show.export import label
from xsp.show.export.reduction import Reduced
from xsp.show.export.timeline import Track, device_name, order, track_name, tracks
from xsp.text import printable
from xsp.trace import parent_rows

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Event = dict[str, Any]


def write_folded(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a line for each stack of names, weighted by self time in whole ns.

    `predict;conv1 Conv2d;aten::conv2d 41000` is the format of Brendan Gregg's flamegraph.pl,
    which inferno, speedscope and many others read. Lines of the root's thread begin with the
    root, and sum to its latency. Those of another thread or stream begin with its name, for they
    run beside. A `;` in a name becomes a `:`, as stackcollapse-perf.pl has it, and a character
    that cannot be printed its escape.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to line by line.

    Raises:
        OSError: The file could not be written.
    """
    stacks = Stacks.of(reduced, metadata)
    names = [_escaped(name) for name in stacks.names]
    own = [end - start for start, end in zip(stacks.starts, stacks.ends, strict=True)]
    for row, above in enumerate(stacks.above):
        if above >= 0:
            own[above] -= stacks.ends[row] - stacks.starts[row]
    main = stacks.tracks[stacks.of_row[0]]
    lines = [""] * len(names)
    weights: Counter[str] = Counter()
    for track, rows in stacks.by_track():
        beside = [] if track == main else [_escaped(title(track, metadata))]
        for row in rows:
            above = stacks.above[row]
            if above >= 0:
                below = [lines[above]]
            else:
                below = beside + [names[other] for other in stacks.elsewhere(row)]
            lines[row] = ";".join([*below, names[row]])
            weights[lines[row]] += own[row]
    for line, weight in weights.items():
        if weight > 0:
            file.write(f"{line} {weight}\n".encode("utf-8", "replace"))


def _escaped(name: str) -> str:
    r"""Return a name without what separates names and lines.

    >>> _escaped("a;b\n"), _escaped("a\u2028b")
    ('a:b\\n', 'a\\u2028b')
    """
    return printable(name.replace(";", ":"))


def write_speedscope(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a trace as one document of speedscope's format.

    The format is documented at
    https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources. A thread or stream
    is a profile of events (`O` opens a frame, `C` closes it) in ns from 0 at the root's start,
    on the timeline without overhead. Profiles share the frames, and a name is one frame:
    speedscope's view `Sandwich` sums over all spans of a name.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to profile by profile.

    Raises:
        OSError: The file could not be written.
    """
    stacks = Stacks.of(reduced, metadata)
    frames: dict[str, int] = {}
    about = {
        "$schema": _SCHEMA,
        "name": str(metadata.get("name") or "trace"),
        "exporter": f"xsp@{metadata.get('xsp_version', '')}".rstrip("@"),
        "activeProfileIndex": 0,
    }
    file.write(label.json_of(about)[:-1] + b',"profiles":[\n')
    separator = b""
    for track, rows in stacks.by_track():
        events = list(_events(stacks, rows, frames))
        profile = {
            "type": "evented",
            "name": title(track, metadata),
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": max([stacks.ends[0], *(event["at"] for event in events[-1:])]),
            "events": events,
        }
        file.write(separator + label.json_of(profile))
        separator = b",\n"
    shared = {"frames": [{"name": name} for name in frames]}
    file.write(b'\n],"shared":' + label.json_of(shared) + b"}\n")


def _events(stacks: Stacks, rows: list[int], frames: dict[str, int]) -> Iterator[Event]:
    """Yield the events of a track in order; each closes the frame that was opened last."""

    def event(kind: str, row: int, at: int) -> Event:
        frame = frames.setdefault(stacks.names[row], len(frames))
        return {"type": kind, "frame": frame, "at": at}

    open_rows: list[tuple[int, int]] = []  # rows, and when each ends on this track
    for row in rows:
        while open_rows and open_rows[-1][0] != stacks.above[row]:
            yield event("C", *open_rows.pop())
        below = [] if open_rows else stacks.elsewhere(row)
        for opened in (*below, row):
            open_rows.append((opened, stacks.ends[row]))
            yield event("O", opened, stacks.starts[row])
    while open_rows:
        yield event("C", *open_rows.pop())


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
        devices = [-1 if track.device is None else track.device for track in self.tracks]
        for index in sorted(order(self.tracks), key=devices.__getitem__):
            yield self.tracks[index], rows[index]

    def elsewhere(self, row: int) -> list[int]:
        """Return the rows of the spans around the outermost span of a track, from the root down."""
        rows = []
        while (row := self.parents[row]) >= 0:
            rows.append(row)
        return rows[::-1]


def title(track: Track, metadata: Mapping[str, Any]) -> str:
    """Return the name of a track among all: that of the device goes before that of the stream."""
    if track.device is None:
        return track_name(track)
    return f"{device_name(track.device, metadata.get('environment') or {})}, {track_name(track)}"
