"""Standard error in, the same without the lines that PyTorch's profiler prints out.

The profiler prints from C++, so file descriptor 2 itself is caught while the profiler
is switched on or off, a fraction of a millisecond each time. All other lines that are
written there meanwhile are passed on unchanged right afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator

_STDERR = 2
_VENDOR = re.compile(
    # Kineto's log lines: `USDT:2026-11-20 22:20:50 6660:6660 File.cpp:39] profiler_start`
    rb"(?:USDT|VERBOSE|DEBUG|INFO|STAGE|WARNING|ERROR)"
    rb":\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.(?:cpp|h):\d+\] [^\n]*\n?"
    # what PyTorch says once when memory is recorded that it did not see allocated
    rb"|\[W\S* \S+ CPUAllocator\.cpp:\d+\] Memory block of unknown size [^\n]*\n?"
)
_one_at_a_time = threading.Lock()
_held: list[tuple[int | None, int]] = []  # (the user's descriptor 2, what stands in for it)


@contextlib.contextmanager
def vendor_silenced() -> Iterator[None]:
    """Catch descriptor 2 inside the block, then pass on all but the vendor's lines.

    Whatever happens inside, the descriptor is afterwards what it was; one that was
    closed is closed again.
    """
    with _one_at_a_time:
        try:
            _catch()
            yield
        finally:
            _pass_on(_release())


def _catch() -> None:
    user = _user_descriptor()
    sink = _memory_file()
    _held.append((user, sink))
    os.dup2(sink, _STDERR)


def _user_descriptor() -> int | None:
    try:
        return os.dup(_STDERR)
    except OSError:  # it is closed: nobody reads what is printed there
        return None


def _memory_file() -> int:
    """Return a descriptor that never blocks who writes to it, and is not number 2."""
    sink = _open_memory_file()
    if sink != _STDERR:
        return sink
    try:
        return os.dup(sink)
    finally:
        os.close(sink)


def _open_memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("xsp-stderr")
    with tempfile.TemporaryFile(prefix="xsp-stderr") as file:
        return os.dup(file.fileno())


def _release() -> bytes:
    """Put descriptor 2 back and return what was written meanwhile."""
    if not _held:
        return b""
    user, sink = _held.pop()
    if user is None:
        os.close(_STDERR)
    else:
        os.dup2(user, _STDERR)
        os.close(user)
    try:
        return os.pread(sink, os.fstat(sink).st_size, 0)
    finally:
        os.close(sink)


def _pass_on(written: bytes) -> None:
    rest = memoryview(_VENDOR.sub(b"", written))
    # Whoever wrote would have met the same error, and did not expect one from us.
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(_STDERR, rest) :]


def _free_child() -> None:
    """Let a process that was forked while another thread was in the block see its output."""
    global _one_at_a_time  # noqa: PLW0603  the thread that holds the lock is not in the child
    _one_at_a_time = threading.Lock()
    _release()


os.register_at_fork(after_in_child=_free_child)
