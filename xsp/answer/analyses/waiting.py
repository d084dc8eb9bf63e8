"""Finds calls of background threads that only wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind

# Calls in which a thread only waits: for another thread, for a file, or for time to pass.
_WAITING = (
    r"^_*(p?poll|p?select|epoll_p?wait2?|sem_(timed|clock)?wait|futex\w*|pthread_join"
    r"|pthread_(cond_(timed|clock)?|barrier_)wait|sigwait\w*|(clock_)?nanosleep|u?sleep|wait(pid|4)?)$"
)


@once_per_trace
def waiting(tree: Tree) -> NDArray[np.bool_]:
    """Return which spans are calls in which a thread other than that of its parent only waits.

    Where nothing of a trace waits for such a thread, what it waits for determines nothing.
    """
    calls = tree.is_of(Kind.SYSCALL) & tree.spans["name"].str.contains(_WAITING).to_numpy()
    thread = tree.spans["thread"].fill_null(-1).to_numpy()
    found: NDArray[np.bool_] = calls & (tree.parent >= 0) & (thread != thread[tree.parent])
    return found
