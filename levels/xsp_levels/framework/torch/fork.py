"""Forked children of a process that used PyTorch's profiler: made to end without hanging.

Kineto keeps a thread that no child has. Its destructor waits for that thread for
ever when such a child ends by `exit` (PyTorch 2.15; with or without xsp). Programs
that fork must not begin to hang because they were measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

_abandon_recording: Callable[[], None] | None = None


def leave_children_unharmed(abandon_recording: Callable[[], None]) -> None:
    """Make sure that children forked from now on neither record nor hang.

    Args:
        abandon_recording: Called in each child, to give up what is being recorded.
    """
    global _abandon_recording
    first, _abandon_recording = _abandon_recording is None, abandon_recording
    if first:
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if _abandon_recording is not None:
        _abandon_recording()
    _end_before_destructors()


def _end_before_destructors() -> None:
    """End this process, when it exits, after flushing C's files and before C++'s destructors.

    Python has then run its own exit handlers and flushed its own files already.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # no on_exit outside glibc: left as it was
        # called in the opposite order, with the exit status as the first argument
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
