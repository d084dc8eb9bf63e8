"""Keeps the results of a function of trees, so that the function works once for each tree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from xsp.answer.analyses.tree import Tree

T = TypeVar("T")


def once_per_trace(function: Callable[[Tree], T]) -> Callable[[Tree], T]:
    """Return the function, with its results kept as long as the tree that they are of.

    Several analyses of one trace need the same, and it is the same for them all: results must not
    be changed.
    """

    @functools.wraps(function)
    def wrapper(tree: Tree) -> T:
        return tree.once(function, lambda: function(tree))

    return wrapper
