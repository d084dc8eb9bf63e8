"""Reads events, with times in nanoseconds, from the text of a profile of ONNX Runtime.

The profile is a list of events in JSON, each on a line of its own and written when it ended. Times
are cut to whole microseconds. Profiles of programs that crashed end in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from xsp.onnxruntime_profile.event import Event

BOM = b"\xef\xbb\xbf"
US = 1_000  # ns, by which the profiler's clock counts

_LONGEST_US = 1 << 52
_ROUNDED = 2 * US  # by how much an event may seem to end before what it holds
_LARGEST = 1 << 62


class _Written(msgspec.Struct):
    """An event as it is written; times in microseconds since profiling began."""

    name: Any = ""
    cat: Any = ""
    tid: Any = 0
    ts: Any = None
    dur: Any = None
    args: Any = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The events of a file.

    Attributes:
        events: In the order in which they ended, as far as the profile has that order.
        damaged: How many events have no proper times, and are left out.
        whole: Whether the file is a whole list.
    """

    events: Sequence[Event]
    damaged: int
    whole: bool


def read_profile(data: bytes) -> Profile:
    """Return the events of a file; of a damaged one those that are whole."""
    written, whole = _written(data.removeprefix(BOM))
    events = [event for each in written if (event := _timed(each)) is not None]
    # Events that end no earlier than the events in them.
    # Starts and durations are cut to whole microseconds, so that an event may seem to end before an
    # event in it. An event holds what was written before it on its thread and began no earlier.
    before: dict[int, list[Event]] = {}
    nested = [event if event.is_on_device else _around(before, event) for event in events]
    return Profile(nested, len(written) - len(events), whole)


def _written(data: bytes) -> tuple[list[_Written], bool]:
    try:
        return msgspec.json.decode(data, type=list[_Written]), True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = data.decode("utf-8", errors="replace")
        return list(_salvaged(text)), text.rstrip().endswith("]")


def _salvaged(text: str) -> Iterator[_Written]:
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            event, end = decoder.raw_decode(text, at)
            yield msgspec.convert(event, _Written)
        except (ValueError, RecursionError):
            end = text.find("\n", at)
        at = text.find("{", end) if end >= 0 else -1


def _timed(event: _Written) -> Event | None:
    """Return an event with its times; None if they are damaged."""
    if not all(isinstance(time, int | float) for time in (event.ts, event.dur)):
        return None
    if not (abs(event.ts) < _LONGEST_US and 0 <= event.dur < _LONGEST_US):
        return None
    start = round(event.ts * US)
    return Event(
        name=str(event.name),
        category=str(event.cat),
        thread=event.tid if isinstance(event.tid, int) and abs(event.tid) < _LARGEST else 0,
        start=start,
        end=start + round(event.dur * US),
        args=event.args if isinstance(event.args, dict) else {},
    )


def _around(before: dict[int, list[Event]], event: Event) -> Event:
    """Return an event that ends no earlier than those before it that it holds, which it replaces.

    Args:
        before: Of each thread the events that no other event was found to hold.
        event: The event that is written next.
    """
    ended = before.setdefault(event.thread, [])
    end = event.end
    while ended and ended[-1].start >= event.start:
        last = ended.pop().end
        end = max(end, last) if last <= event.end + _ROUNDED else end
    ended.append(event._replace(end=end))
    return ended[-1]
