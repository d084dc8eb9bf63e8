"""A file that other programs write to in; a process that copies their output out.

A program that was started while standard output was a file (see `stdout_tap`) keeps the
file as its standard output for as long as it runs. The follower is a process that copies
the output of such programs to the user's standard output, until all of them have ended. A
follower is started only if there is such a program.

This module serves both sides: `stdout_tap` imports it, and the follower runs it as a script.
So it imports the standard library only.
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

_PIECE = 4096  # PIPE_BUF: a pipe takes a piece of this size whole or not at all
_EVERY_S = 0.05  # how long output of a program that outlives the tap may wait


def follow(destination: int, reader: int) -> bool:
    """Start a follower for a file; return whether a follower was started.

    There is none on systems other than Linux, and if Python is embedded in another program.

    Args:
        destination: Descriptor to write to.
        reader: Descriptor of the file, at the position up to which output was passed on.
            While another program can still write, its open file cannot get the file's lock
            (flock).
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
    """Write ranges of `written` to a descriptor; return the error that ended the writing.

    Args:
        written: Bytes of the file from the position of `progress` on.
        rest: The ranges, in order.
        destination: Descriptor to write to; while it is full, the function waits.
        progress: Descriptor of the file whose position is moved along.
    """
    origin = os.lseek(progress, 0, os.SEEK_CUR)
    view = memoryview(written)
    try:
        for at, stop in rest:
            while at < stop:
                at += _write(destination, view[at : min(stop, at + _PIECE)])  # noqa: PLW2901
                os.lseek(progress, origin + at, os.SEEK_SET)
    except OSError as error:  # closed, broken, full disk: printing would have failed as well
        return error
    return None


def nobody_writes(reader: int) -> bool:
    """Return whether no process is left that could write to a file; see `follow`."""
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
    """Pass on new output; return whether there will be no more output, or no reader."""
    finished = nobody_writes(reader)
    begin = os.lseek(reader, 0, os.SEEK_CUR)
    written = os.pread(reader, os.fstat(reader).st_size - begin, begin)
    error = pass_on(written, [(0, len(written))], destination=destination, progress=reader)
    return finished or error is not None


def main(arguments: list[str]) -> None:
    """Be the follower, given the numbers of the destination and the reader."""
    if os.fork():
        os._exit(0)  # the follower must not be a child that the program would have to wait for
    destination, reader = map(int, arguments)
    with contextlib.suppress(KeyboardInterrupt):
        while not _passed_on_all(destination, reader):
            time.sleep(_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1:])
