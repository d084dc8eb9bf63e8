r"""Takes the lines that a library prints on standard output, and passes on all other output.

Some libraries (oneDNN) print their verbose lines on the process's standard output and
nowhere else. While a tap is open, descriptor 1 is a file in memory, which costs no more
than printing into any file. Afterwards the tap returns the lines that match its pattern;
all other output goes to the user's standard output, unchanged and in order.

    tap = open_tap(re.compile(rb"MKL_VERBOSE [^\n]*\n"))
    ...
    taken = tap.close()  # taken.lines, taken.warnings

Several taps may be open at once; each gets its own lines, and the descriptor is restored
when the last tap is closed. Output is passed on when a tap is opened or closed and when the
process forks: output of a process that is killed while a tap is open is lost. What a program
prints that was started meanwhile and outlives the tap is passed on when the next tap is opened or
the process ends, and lost after that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import re
import select
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_STDOUT = 1
_PIECE = 4096  # PIPE_BUF: a pipe takes a piece of this size whole or not at all
_LINE_BUFFERED = 1  # _IOLBF
_PATIENCE_MS = 20  # how long a thread may take to finish printing
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class TapOutput:
    """The output that a tap took.

    Attributes:
        lines: Every match of the tap's pattern, in order, one after the other.
        warnings: Sentences about output that could not be passed on.
    """

    lines: bytes
    warnings: tuple[str, ...] = ()


class Tap:
    """One library's tap, open until `close`.

    Args:
        pattern: Matches a line of the library with its newline, anywhere in the output: other
            text may stand before the match on the same line.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self.taken: list[bytes] = []

    def close(self) -> TapOutput:
        """Return the tap's output; the last tap to be closed restores the descriptor.

        In a child that was forked while the tap was open, the output is empty.
        """
        with _lock:
            warnings = _close(self)
        lines, self.taken = b"".join(self.taken), []
        return TapOutput(lines, warnings)


def remains(claimed: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between claimed ranges, up to `length`.

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


def open_tap(pattern: re.Pattern[bytes]) -> Tap:
    """Return a tap for the lines that match; see `Tap`.

    Raises:
        OSError: There is no descriptor or no memory left; nothing has been changed.
    """
    tap = Tap(pattern)
    with _lock:
        _open(tap)
    return tap


class _Capture:
    """The file that stands in for descriptor 1.

    `reader` is opened separately: its position is the end of the output that was passed on. `sink`
    is locked (flock): the lock is free once no process is left that could write.
    """

    def __init__(self) -> None:
        self.taps: list[Tap] = []
        self.warnings: list[str] = []
        with contextlib.ExitStack() as undo:
            self.sink, self.reader = _memory_file()
            undo.callback(os.close, self.sink)
            undo.callback(os.close, self.reader)
            self.user = _above_standard(_STDOUT) if _is_open(_STDOUT) else None
            fcntl.flock(self.sink, fcntl.LOCK_EX)
            os.dup2(self.sink, _STDOUT)
            undo.pop_all()

    def drain(self) -> None:
        """Give every tap its lines of the new output, and pass on the rest."""
        begin = os.lseek(self.reader, 0, os.SEEK_CUR)
        end = os.fstat(self.reader).st_size
        written = _read(self.reader, begin, end)
        claimed: list[tuple[int, int]] = []
        for tap in self.taps:
            found = [match.span() for match in tap.pattern.finditer(written)]
            tap.taken += [written[start:stop] for start, stop in found]
            claimed += found
        rest = remains(claimed, len(written))
        if self.user is not None:  # None: descriptor 1 was closed, nobody reads the output
            error = _pass_on(written, rest, destination=self.user, progress=self.reader)
            if error is not None:
                self.warnings.append(_LOST.format(error))
        os.lseek(self.reader, end, os.SEEK_SET)

    def put_back(self) -> None:
        """Restore descriptor 1, unless the user has redirected it since."""
        if _same_file(_STDOUT, self.sink):
            if self.user is None:
                os.close(_STDOUT)
            else:
                os.dup2(self.user, _STDOUT)
        os.close(self.sink)

    def forget(self) -> None:
        """Close the descriptors that are left, once all output was passed on."""
        for descriptor in (self.reader, self.user):
            if descriptor is not None:
                os.close(descriptor)


_LOST = "part of what the program printed could not be written to standard output: {}"

_lock = threading.RLock()
_capture: _Capture | None = None
_waiting: list[_Capture] = []  # with output to pass on: interrupted, or still written to


def _open(tap: Tap) -> None:
    global _capture  # noqa: PLW0603  a process has one descriptor 1
    _flush()
    if _capture is None:
        _finish_waiting()
        _keep_line_buffering()
        _capture = _Capture()
    else:
        _capture.drain()
    _capture.taps.append(tap)


def _close(tap: Tap) -> tuple[str, ...]:
    global _capture  # noqa: PLW0603  as above
    capture = _capture
    if capture is None or tap not in capture.taps:
        return ()
    _flush()
    if len(capture.taps) > 1:
        capture.drain()
        capture.taps.remove(tap)
        return ()
    _waiting.append(capture)  # from here on an interrupt loses no output
    _capture = None
    capture.put_back()
    _finish_waiting()
    return tuple(capture.warnings)


def _finish_waiting() -> None:
    """Pass on what captures have kept, and let go of those that no program writes to any more."""
    for each in tuple(_waiting):
        each.drain()
        each.taps = []
        alone = each.user is None or _soon_alone(each.reader)
        each.drain()
        if alone:
            _waiting.remove(each)
            each.forget()


def _soon_alone(reader: int) -> bool:
    """Return whether no other program can write; wait for threads of this one to finish."""
    for _ in range(_PATIENCE_MS):
        if _nobody_writes(reader):
            return True
        time.sleep(0.001)
    return False


def _pass_on(
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


def _write(destination: int, piece: memoryview) -> int:
    try:
        return os.write(destination, piece)
    except BlockingIOError:
        poll = select.poll()
        poll.register(destination, select.POLLOUT)
        poll.poll()
        return 0


def _nobody_writes(reader: int) -> bool:
    """Return whether no process is left that could write to a file.

    While another program can still write, its open file cannot get the file's lock (flock).
    """
    try:
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _above_standard(descriptor: int) -> int:
    """Return a copy of a descriptor that is none of the three standard descriptors."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _memory_file() -> tuple[int, int]:
    """Return two descriptors of a new file, to write and to read, with separate positions."""
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            made = os.memfd_create("xsp-stdout")
            path = f"/proc/self/fd/{made}"
        else:
            made, path = tempfile.mkstemp(prefix="xsp-stdout")
            stack.callback(os.unlink, path)
        stack.callback(os.close, made)
        reading = os.open(path, os.O_RDONLY)
        stack.callback(os.close, reading)
        fcntl.fcntl(made, fcntl.F_SETFL, fcntl.fcntl(made, fcntl.F_GETFL) | os.O_APPEND)
        return _above_standard(made), _above_standard(reading)


def _read(descriptor: int, begin: int, end: int) -> bytes:
    parts = []
    while begin < end and (part := os.pread(descriptor, end - begin, begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # the user closed descriptor 1
        return False


def _flush() -> None:
    """Write out the buffers of Python and C, before descriptor 1 changes."""
    for stream in {id(s): s for s in (sys.stdout, sys.__stdout__)}.values():
        # The user's own next print raises the same error; the measurement must not.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None and stream.fileno() == _STDOUT:
                stream.flush()
    _libc.fflush(_c_stdout())


def _c_stdout() -> Any:
    """Return C's `stdout`; fflush of all streams could wait for a thread that reads."""
    for name in ("stdout", "__stdoutp"):
        with contextlib.suppress(ValueError):
            return ctypes.c_void_p.in_dll(_libc, name)
    return None


def _keep_line_buffering() -> None:
    """Have C buffer lines if standard output is a terminal that C has not printed to yet.

    C chooses the buffering at its first print: at a file in memory, C would choose blocks.
    """
    size = getattr(_libc, "__fbufsize", None)
    if size is None or not os.isatty(_STDOUT):
        return
    size.restype = ctypes.c_size_t
    stdout = _c_stdout()
    if stdout is not None and size(stdout) == 0:
        _libc.setvbuf(stdout, None, ctypes.c_int(_LINE_BUFFERED), ctypes.c_size_t(0))


def _before_fork() -> None:
    """Pass on the output so far, before the child can print."""
    _lock.acquire()
    if _capture is not None:
        _capture.drain()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock, _capture  # noqa: PLW0603  the child begins anew
    _lock = threading.RLock()
    capture, _capture = _capture, None
    if capture is not None:
        for tap in capture.taps:
            tap.taken = []
        capture.put_back()
        capture.forget()
    for each in _waiting:
        each.forget()
    _waiting.clear()


def _at_exit() -> None:
    """Pass on the output that an interrupt has kept back."""
    with _lock:
        _finish_waiting()


atexit.register(_at_exit)
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
