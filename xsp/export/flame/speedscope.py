"""Speedscope's file format: spans in, a profile of each thread and stream for speedscope.app out.

The format is documented at https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources
and by its JSON schema, https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from xsp.export import label
from xsp.export.flame.stack import Stacks, title
from xsp.export.reduction import Reduced
from xsp.export.track import Track

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Event = dict[str, Any]


def write(reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write a trace as one document of speedscope's format.

    A thread or stream is a profile of events (`O` opens a frame, `C` closes it) in ns from 0 at
    the root's start, on the timeline without overhead. Profiles share the frames, and a name is
    one frame: speedscope's view `Sandwich` sums over all spans of a name.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to profile by profile.

    Raises:
        OSError: The file could not be written.
    """
    stacks = Stacks.of(reduced, metadata)
    frames: dict[str, int] = {}
    whole = stacks.ends[0]
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
        profile = _profile(track, metadata, max([whole, *(event["at"] for event in events[-1:])]))
        file.write(separator + label.json_of(profile | {"events": events}))
        separator = b",\n"
    shared = {"frames": [{"name": name} for name in frames]}
    file.write(b'\n],"shared":' + label.json_of(shared) + b"}\n")


def _profile(track: Track, metadata: Mapping[str, Any], end: int) -> dict[str, Any]:
    name = title(track, metadata)
    return {
        "type": "evented",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": end,
    }


def _events(stacks: Stacks, rows: list[int], frames: dict[str, int]) -> Iterator[Event]:
    """Yield the events of a track in order; each closes the frame that was opened last."""

    def event(kind: str, row: int, at: int) -> Event:
        return {
            "type": kind,
            "frame": frames.setdefault(stacks.names[row], len(frames)),
            "at": at,
        }

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
