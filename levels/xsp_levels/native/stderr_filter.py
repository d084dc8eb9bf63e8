"""Removes the lines of frameworks' profilers from the output on standard error.

PyTorch's and TensorFlow's profilers print from C++, so file descriptor 2 itself is redirected to
memory while a profiler is switched on or off, a fraction of a millisecond each time. All other
output in the meantime is passed on unchanged right afterwards.
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
    # and what it says once where the first recording is not of the main thread
    rb"|ERROR: External init callback must run in same thread as registerClient [^\n]*\n?"
    # PyTorch's one-time warning about memory allocated before memory was recorded
    rb"|\[W\S* \S+ CPUAllocator\.cpp:\d+\] Memory block of unknown size [^\n]*\n?"
    # TensorFlow's: `I0000 00:00:1795368000.942910 4574 profiler_session.cc:117] Profiler ...`, and
    # what the logging library says before the first line of all
    rb"|[IWE]\d{4} \S+ +\d+ (?:profiler_session|session_manager|save_profile)\.cc:\d+\] [^\n]*\n?"
    rb"|WARNING: All log messages before absl::InitializeLog\(\) is called [^\n]*\n?"
)
_one_at_a_time = threading.Lock()
_held: list[tuple[int, int]] = []  # (copy of the user's descriptor 2, file in its place)


@contextlib.contextmanager
def vendor_silenced() -> Iterator[None]:
    """Redirect descriptor 2 inside the block, then pass on all but the vendor's lines.

    Whatever the block raises, the descriptor is restored.
    """
    with _one_at_a_time:
        try:
            # A descriptor to which writing never blocks.
            if hasattr(os, "memfd_create"):
                sink = os.memfd_create("xsp-stderr")
            else:
                with tempfile.TemporaryFile(prefix="xsp-stderr") as file:
                    sink = os.dup(file.fileno())
            _held.append((os.dup(_STDERR), sink))
            os.dup2(sink, _STDERR)
            yield
        finally:
            written = _release()
            rest = memoryview(_VENDOR.sub(b"", written))
            # The writer would have met the same error; the measurement must not raise it.
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[os.write(_STDERR, rest) :]


def _release() -> bytes:
    """Restore descriptor 2, and return the bytes written meanwhile."""
    if not _held:
        return b""
    user, sink = _held.pop()
    os.dup2(user, _STDERR)
    os.close(user)
    try:
        return os.pread(sink, os.fstat(sink).st_size, 0)
    finally:
        os.close(sink)


def _free_child() -> None:
    """Restore descriptor 2 in a child that was forked while a thread was in the block."""
    global _one_at_a_time  # noqa: PLW0603  the thread that holds the lock is not in the child
    _one_at_a_time = threading.Lock()
    _release()


os.register_at_fork(after_in_child=_free_child)
