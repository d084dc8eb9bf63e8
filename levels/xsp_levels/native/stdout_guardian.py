"""Passes on what a process printed into a tap, when that process dies before it could.

The guardian is a process of its own, started once, that sleeps until then: it wakes no
core while a model runs. A message with the two descriptors it needs lies ready for it in
a socket that nobody reads; when the last copy of the other end is closed, by whatever
kind of death, it wakes up, reads the message and does what is left to be done. It also
follows files that a program started in the meantime still writes to.

This file is both sides: imported by `stdout_tap`, run as a script by the guardian, which
therefore imports the standard library only.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PIECE = 4096  # PIPE_BUF: of so much, a pipe takes all or nothing
_FOLLOW_MS = 50  # how long output of a program that outlives the tap may wait


def remains(claimed: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield what lies between ranges that were claimed.

    >>> list(remains([(5, 7), (2, 5)], 9))
    [(0, 2), (7, 9)]
    """
    at = 0
    for start, stop in sorted(claimed):
        if start > at:
            yield at, start
        at = max(at, stop)
    if length > at:
        yield at, length


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


def _write(destination: int, piece: memoryview) -> int:
    try:
        return os.write(destination, piece)
    except BlockingIOError:
        poll = select.poll()
        poll.register(destination, select.POLLOUT)
        poll.poll()
        return 0


class Guardian:
    """The living process's side."""

    def __init__(self) -> None:
        self._here, self._there = _pair()
        self._urgent, self._inbox = _pair()
        self._keeps = False

    def start(self) -> None:
        """Start the process; it is nobody's child, and holds none of our descriptors.

        Raises:
            OSError: It cannot be started.
        """
        ends = (self._there.fileno(), self._inbox.fileno())
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), *map(str, ends)]
        nowhere = subprocess.DEVNULL
        subprocess.run(
            command,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            pass_fds=ends,
            cwd="/",
            start_new_session=True,
            check=False,
        )
        self._inbox.close()

    def keep(self, destination: int, reader: int, patterns: list[bytes]) -> None:
        """Lay a message ready, in place of the one before; it is read only if we die."""
        self.release()
        self._keeps = _send(self._here, destination, reader, patterns)

    def release(self) -> None:
        """Take the message back: all was passed on."""
        if self._keeps:
            self._keeps = False
            message = _receive(self._there)
            if message is not None:
                message.close()

    def take_over(self, destination: int, reader: int) -> bool:
        """Have what others still write passed on from now; return whether it will be."""
        return _send(self._urgent, destination, reader, [])

    def dismiss(self) -> None:
        """Let go of it, in a forked process."""
        for end in (self._here, self._there, self._urgent):
            end.close()


def summon() -> Guardian | None:
    """Return a guardian, None where there can be none.

    That is on systems other than Linux, and where Python is part of another program.
    """
    python = os.path.basename(sys.executable or "").startswith("python")
    if not sys.platform.startswith("linux") or not python:
        return None
    try:
        guardian = Guardian()
        guardian.start()
    except OSError:
        return None
    return guardian


@dataclass(frozen=True, slots=True)
class _Errand:
    """Pass on what is in a file: from its descriptor's position on."""

    destination: int
    reader: int
    patterns: tuple[bytes, ...]

    def run(self) -> bool:
        """Pass on what there is; return whether there will be more."""
        finished = self._is_alone()
        begin = os.lseek(self.reader, 0, os.SEEK_CUR)
        written = os.pread(self.reader, os.fstat(self.reader).st_size - begin, begin)
        claimed = [m.span() for p in self.patterns for m in re.finditer(p, written)]
        rest = remains(claimed, len(written))
        error = pass_on(written, rest, destination=self.destination, progress=self.reader)
        os.lseek(self.reader, begin + len(written), os.SEEK_SET)
        return not finished and error is None

    def _is_alone(self) -> bool:
        try:
            fcntl.flock(self.reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self.destination)
        os.close(self.reader)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, none of which is a standard descriptor that was closed."""
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with made[0], made[1]:
        numbers = [fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3) for end in made]
    return socket.socket(fileno=numbers[0]), socket.socket(fileno=numbers[1])


def _send(end: socket.socket, destination: int, reader: int, patterns: list[bytes]) -> bool:
    body = json.dumps([pattern.decode("latin-1") for pattern in patterns]).encode()
    rights = array.array("i", [destination, reader])
    try:
        end.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT)
    except OSError:  # it was killed: then there is no guardian
        return False
    return True


def _receive(end: socket.socket) -> _Errand | None:
    """Return the next message, None if there is none."""
    end.setblocking(False)  # recv_fds itself passes no flags on
    try:
        body, descriptors, _, _ = socket.recv_fds(end, 1 << 16, 2)
    except OSError:
        return None
    if len(descriptors) != 2:
        return None
    patterns = tuple(pattern.encode("latin-1") for pattern in json.loads(body))
    return _Errand(descriptors[0], descriptors[1], patterns)


def _guard(vault: socket.socket, inbox: socket.socket) -> None:
    """Do errands as they come in, and the one in the vault when the other end is gone."""
    poll = select.poll()
    poll.register(vault, 0)  # hang-ups only
    poll.register(inbox, select.POLLIN)
    errands: list[_Errand] = []
    watching = True
    while watching or errands:
        events = dict(poll.poll(_FOLLOW_MS if errands else None))
        while inbox.fileno() in events and (errand := _receive(inbox)) is not None:
            errands.append(errand)
        if watching and vault.fileno() in events:
            watching = False
            poll.unregister(vault)
            poll.unregister(inbox)
            if (errand := _receive(vault)) is not None:
                errands.append(errand)
        errands = [errand for errand in errands if _done_more(errand)]


def _done_more(errand: _Errand) -> bool:
    if errand.run():
        return True
    errand.close()
    return False


def main(arguments: list[str]) -> None:
    """Be the guardian: two sockets, by number."""
    if os.fork():
        os._exit(0)
    vault, inbox = (socket.socket(fileno=int(number)) for number in arguments)
    with vault, inbox, contextlib.suppress(KeyboardInterrupt):
        _guard(vault, inbox)


if __name__ == "__main__":
    main(sys.argv[1:])
