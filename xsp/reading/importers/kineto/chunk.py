"""Reads the events of a file piece by piece, and the metadata beside the events."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from xsp.reading.importers.kineto.event import Event, events, rescued

BEFORE = b"\xef\xbb\xbf \t\r\n"  # what may stand before JSON: a mark of UTF-8, and space
LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_PIECE = 1 << 23  # bytes
_STEP = 1 << 18  # bytes that are read at once: what a damaged file may lose before its damage
_LONGEST = 1 << 28  # bytes without an event between them: this is no list of events


class Chunks:
    """The content of a file, piece by piece; to be iterated over once, and then asked.

    Attributes:
        begun: Whether a list of events was found.
        cut: Whether the file ends before its content does.
        damaged: How many events could not be read.
        metadata: What the file says beside its events.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = self._after = b""
        self.begun = False
        self.cut = False
        self.damaged = 0

    def __iter__(self) -> Iterator[list[Event]]:
        rest = self._begin()
        ended = False
        while not ended:
            more = self._read(_PIECE)
            rest += more
            place = _between(rest) if more else len(rest)
            if more and place < 0 and len(rest) < _LONGEST:
                continue
            piece, rest = rest[: max(place, 0)], rest[max(place, 0) :]
            found, ended = self._decoded(piece.strip(b" \t\r\n,"), last=not more)
            if found:
                yield found
            if not more and not ended:
                self.cut = ended = True
        self._after += rest
        while more := self._read(_PIECE):
            self._after += more

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata beside the events of the file; empty if the metadata cannot be read."""
        for end in (self._after, b"}"):
            try:
                found = json.loads(self._before.lstrip(BEFORE) + b"]" + end)
            except ValueError:
                continue
            return found if isinstance(found, dict) else {}
        return {}

    def _begin(self) -> bytes:
        """Return the beginning of the list, and keep what comes before it."""
        head = b""
        while len(head) < _LONGEST:
            more = self._read(_STEP)
            head += more
            start = LIST.search(head)
            if head.lstrip(BEFORE)[:1] == b"[":
                start = re.search(rb"\[", head)
            if start is not None:
                self.begun, self._before = True, head[: start.end()]
                return head[start.end() :]
            if not more:
                break
        return b""

    def _decoded(self, piece: bytes, *, last: bool) -> tuple[list[Event], bool]:
        """Return the events of a piece, and whether the list ends in it."""
        if piece.startswith(b"]"):
            self._after = piece[1:]
            return [], True
        if not last and (found := events(piece)) is not None:
            return found, False
        read, damaged, after = rescued(piece)
        # The event in which a file ends is no event that is damaged.
        self.damaged += damaged - (last and after is None and damaged > 0)
        if after is not None:
            self._after = after
        return read, after is not None

    def _read(self, count: int) -> bytes:
        """Return up to that many bytes; fewer only at the end of what can be read."""
        parts = []
        while count > 0:
            try:
                part = self._file.read1(min(count, _STEP))  # type: ignore[attr-defined]
            except (EOFError, OSError, zlib.error):
                self.cut = True
                part = b""
            if not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _between(content: bytes) -> int:
    """Return the last place where an object ends and another follows, -1 if there is none.

    >>> _between(b'{"a": {}}, {"b"')
    9
    """
    at = len(content)
    while (at := content.rfind(b"{", 0, at)) >= 0:
        before = content[max(0, at - 256) : at].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return at - (min(at, 256) - len(before)) - 1
    return -1
