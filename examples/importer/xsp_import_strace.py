"""An importer for xsp: system calls that `strace -f -ttt -T -o FILE` recorded."""

from __future__ import annotations

import re

from xsp import Kind, TraceWarning
from xsp.importers import Contents, Recording, Source
from xsp.provider import span_rows

# 4711 1700000000.123456 read(3, "x", 1) = 1 <0.000012>
CALL = re.compile(rb"(?:(\d+) +)?(\d+)\.(\d{6}) (\w+)\(.*<(\d+)\.(\d{6})>\s*")
_LONGEST = 400  # characters of a line by which the format is told


class Strace:
    """Reads what strace writes: a line for each system call."""

    name = "strace"
    tool = "strace -f -ttt -T -o FILE"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the first line is that of a call."""
        return CALL.match(source.head.partition(b"\n")[0][:_LONGEST]) is not None

    def read(self, source: Source) -> Contents:
        """Return one recording, a span for each call that strace saw begin and end."""
        with source.open() as file:
            calls = [CALL.fullmatch(line) for line in file]
        known = [call for call in calls if call]
        start = [nanoseconds(call[2], call[3]) for call in known]
        rows = span_rows(
            {
                "kind": Kind.SYSCALL.value,
                "name": [call[4].decode() for call in known],
                "start_ns": start,
                "end_ns": [
                    began + nanoseconds(call[5], call[6])
                    for began, call in zip(start, known, strict=True)
                ],
                "thread": [int(call[1] or 0) for call in known],
            }
        )
        # The clock of the rows is the time of day.
        return (Recording("strace", rows, warnings=unread(len(calls) - len(known)), unix_ns=0),)


def nanoseconds(seconds: bytes, microseconds: bytes) -> int:
    """Return a time without the rounding of a float."""
    return int(seconds) * 1_000_000_000 + int(microseconds) * 1_000


def unread(lines: int) -> tuple[TraceWarning, ...]:
    """Return the warning that counts the lines that are no whole call, if there are any."""
    if not lines:
        return ()
    return (
        TraceWarning("unread", f"no whole calls, left out: {lines} lines (signals, exits, parts)"),
    )
