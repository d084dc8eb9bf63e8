"""Overlap: recordings on one clock in, an error out where they cannot be of one program.

host a    ████                            refused: one host has one clock
host a            ████
host b                      ████          kept up to a day: clocks of hosts may be hours apart
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xsp.errors import TraceFormatError
from xsp.importers.clock import Clock
from xsp.importers.recording import Recording
from xsp.text import duration

_DAY_NS = 86_400_000_000_000  # further apart is no clock that is merely wrong, or in another zone


@dataclass(frozen=True, slots=True)
class _File:
    """When the recordings of a file began and ended on the common clock, and on which hosts."""

    name: str
    start_ns: int
    end_ns: int
    hosts: frozenset[str]


def check_overlap(
    recordings: Sequence[Recording],
    clocks: Sequence[Clock],
    files: Sequence[int],
    names: Sequence[str],
) -> None:
    """Verify that the files' times may be those of one program.

    Args:
        recordings: At least one.
        clocks: The clock of each recording.
        files: Number of the file that each recording is from.
        names: Name of the file that each recording is from.

    Raises:
        TraceFormatError: On one and the same host nothing overlaps, or there are more than a
            day between files of any hosts; the message says between which.
    """
    found = sorted(_files(recordings, clocks, files, names), key=lambda file: file.start_ns)
    for at in range(1, len(found)):
        before, after = max(found[:at], key=lambda file: file.end_ns), found[at]
        gap = after.start_ns - before.end_ns
        same_host = any(file.hosts & after.hosts for file in found[:at])
        if gap > (0 if same_host else _DAY_NS):
            raise TraceFormatError(
                f"{before.name} and {after.name} are not of one run: by the clocks in the files "
                f"{before.name} ended {_long(gap)} before {after.name} began, and no collectives "
                "tell otherwise. Read them one by one; `xsp compare` sets their traces side by side"
            )


def _files(
    recordings: Sequence[Recording],
    clocks: Sequence[Clock],
    files: Sequence[int],
    names: Sequence[str],
) -> Iterator[_File]:
    for file in dict.fromkeys(files):
        own = [number for number, each in enumerate(files) if each == file]
        spans = [_times(recordings[number], clocks[number]) for number in own]
        hosts = frozenset(recordings[number].host for number in own) - {""}
        starts, ends = zip(*filter(None, spans), strict=True) if any(spans) else ((), ())
        if starts:
            yield _File(names[own[0]], min(starts), max(ends), hosts)


def _times(recording: Recording, clock: Clock) -> tuple[int, int] | None:
    """Return when a recording began and ended on the common clock; None if nothing is in it."""
    parts = [frame for frame in (recording.rows, recording.roots) if frame.height]
    if not parts:
        return None
    start = min(frame["start_ns"].min() for frame in parts)  # type: ignore[type-var]
    end = max(frame["end_ns"].max() for frame in parts)  # type: ignore[type-var]
    return int(start) + clock.add_ns, int(end) + clock.add_ns  # type: ignore[arg-type]


def _long(nanoseconds: int) -> str:
    """Return a duration, in days where these are several.

    >>> _long(3 * 86_400_000_000_000), _long(5_000_000_000)
    ('3 days', '5.00 s')
    """
    days = nanoseconds // _DAY_NS
    return f"{days:,} days" if days > 1 else duration(nanoseconds)
