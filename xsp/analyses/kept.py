"""Kept results: a function of trees in, the same function out, that works once for each trace."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

import polars as pl

from xsp.analyses.tree import Tree

T = TypeVar("T")


def once_per_trace(function: Callable[[Tree], T]) -> Callable[[Tree], T]:
    """Return the function, with its results kept as long as the spans that they are of.

    Several analyses of one trace need the same, and it is the same for them all: results must not
    be changed.
    """
    kept: dict[int, tuple[weakref.ref[pl.DataFrame], T]] = {}

    @functools.wraps(function)
    def wrapper(tree: Tree) -> T:
        key = id(tree.spans)
        found = kept.get(key)
        if found is not None and found[0]() is tree.spans:
            return found[1]
        result = function(tree)
        kept[key] = (weakref.ref(tree.spans, lambda _: kept.pop(key, None)), result)
        return result

    return wrapper
