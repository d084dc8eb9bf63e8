"""Output of programs that outlive a tap: two descriptors in, a process that copies out.

A program that was started while standard output was a file (see `stdout_tap`) has that
file as its own standard output for as long as it runs. The follower is a process that
copies what such programs write to where it was meant to go, until none of them is left.
It is started only where there is one.

This file is both sides: imported by `stdout_tap`, run as a script by the follower, which
therefore imports the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable

_PIECE = 4096  # PIPE_BUF: of so much, a pipe takes all or nothing
_EVERY_S = 0.05  # how long output of a program that outlives the tap may wait


def follow(destination: int, reader: int) -> bool:
    """Have what others still write to a file passed on; return whether it will be.

    That cannot be on systems other than Linux, and where Python is part of another program.

    Args:
        destination: Descriptor to write to.
        reader: Descriptor of the file, at the position up to which it was passed on. While
            a program can still write, this description cannot get the file's lock (flock).
    """
    python = os.path.basename(sys.executable or "").startswith("python")
    if not sys.platform.startswith("linux") or not python:
        return False
    ends = (destination, reader)
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), *map(str, ends)]
    nowhere = subprocess.DEVNULL
    try:
        subprocess.run(
            command,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            pass_fds=ends,
            cwd="/",
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def pass_on(
    written: bytes, rest: Iterable[tuple[int, int]], *, destination: int, progress: int
) -> OSError | None:
    """Write ranges of `written` to a descriptor; return what made that impossible.

    Args:
        written: What begins at the position of `progress`.
        rest: The ranges, in order.
        destination: Descriptor to write to; it is waited for while it is full.
        progress: Descriptor whose position says how far it has come.
    """
    origin = os.lseek(progress, 0, os.SEEK_CUR)
    view = memoryview(written)
    try:
        for at, stop in rest:
            while at < stop:
                at += _write(destination, view[at : min(stop, at + _PIECE)])  # noqa: PLW2901
                os.lseek(progress, origin + at, os.SEEK_SET)
    except OSError as error:  # closed, broken, full disk: as for whoever printed it
        return error
    return None


def nobody_writes(reader: int) -> bool:
    """Return whether nobody is left who could write to a file; see `follow`."""
    try:
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(destination: int, piece: memoryview) -> int:
    try:
        return os.write(destination, piece)
    except BlockingIOError:
        poll = select.poll()
        poll.register(destination, select.POLLOUT)
        poll.poll()
        return 0


def _passed_on_all(destination: int, reader: int) -> bool:
    """Pass on what there is; return whether there will be no more, or nobody to read it."""
    finished = nobody_writes(reader)
    begin = os.lseek(reader, 0, os.SEEK_CUR)
    written = os.pread(reader, os.fstat(reader).st_size - begin, begin)
    error = pass_on(written, [(0, len(written))], destination=destination, progress=reader)
    return finished or error is not None


def main(arguments: list[str]) -> None:
    """Be the follower: the destination and the reader, by number."""
    if os.fork():
        os._exit(0)  # it is nobody's child
    destination, reader = map(int, arguments)
    with contextlib.suppress(KeyboardInterrupt):
        while not _passed_on_all(destination, reader):
            time.sleep(_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1:])
