"""Objects that hold something of their process in; `abandon` called on each in forked children.

A hook, a descriptor or a subscription that was made before a fork belongs to the parent
process: a child must neither use what it has inherited nor undo it for the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Abandoning(Protocol):
    """An object that can let go of what belongs to its process."""

    def abandon(self) -> None:
        """Let go in a forked child; the parent process goes on undisturbed."""


_holders: weakref.WeakSet[Abandoning] = weakref.WeakSet()


def register(holder: Abandoning) -> None:
    """Call `holder.abandon()` in every process forked from now on, while the object lives."""
    _holders.add(holder)


def _abandon_all() -> None:
    for holder in list(_holders):
        holder.abandon()


os.register_at_fork(after_in_child=_abandon_all)
