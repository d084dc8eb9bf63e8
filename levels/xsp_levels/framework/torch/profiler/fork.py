"""A way to give up a recording in; forked children that neither record nor hang out.

Kineto keeps a thread, which a forked child does not have. When such a child ends by `exit`,
Kineto's destructor waits for the thread for ever (PyTorch 2.15; with or without xsp).
Programs that fork must not begin to hang because they were measured.
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
        abandon_recording: Called in each child, to give up the recording under way.
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
    """Have this process exit right after C's files are flushed, before C++'s destructors run.

    Python's exit handlers have run, and Python's files are flushed, before that.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # outside glibc there is no on_exit
        # handlers run in the opposite order, with the exit status as the first argument
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
