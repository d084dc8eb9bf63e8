"""Repetition: a function in, a problem out where two of its calls give different outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from xsp.problem import Problem

_DIFFERENT = "outputs-differ"
UNKNOWN = "outputs-unknown"
_TEXTS = "OSU"  # kinds of arrays of objects, bytes and texts


def compared(call: Callable[[], Any]) -> tuple[bool | None, list[Problem]]:
    """Return whether two calls of a function give the same output, and the problem if they do not.

    Arrays and tensors of numbers are compared as they are, wherever they stand in lists, mappings
    and tuples; None where there are none.
    """
    first, second = list(_arrays(call())), list(_arrays(call()))
    if not first and not second:
        said = "two calls could not be compared: they return no arrays of numbers"
        return None, [Problem(UNKNOWN, said)]
    if [(a.shape, a.dtype) for a in first] != [(a.shape, a.dtype) for a in second]:
        return False, [Problem(_DIFFERENT, "two calls gave outputs of different shapes or types")]
    pairs = list(zip(first, second, strict=True))
    if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        return True, []
    most = max(_difference(*pair) for pair in pairs)
    said = f"two calls gave different outputs, by up to {most:.2g} of the largest value"
    return False, [Problem(_DIFFERENT, said)]


def _arrays(output: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays of numbers of an output."""
    if isinstance(output, Mapping):
        yield from _of_all(output.values())
    elif isinstance(output, (list, tuple)):
        yield from _of_all(output)
    elif hasattr(output, "detach"):  # a tensor of PyTorch
        try:
            yield output.numpy(force=True)
        except TypeError:  # bfloat16 and float8, which NumPy does not know; float32 holds them
            yield output.float().numpy(force=True)
    elif hasattr(output, "__array__"):
        array = np.asarray(output)
        if array.dtype.kind not in _TEXTS:
            yield array


def _of_all(outputs: Iterable[Any]) -> Iterator[np.ndarray[Any, Any]]:
    for output in outputs:
        yield from _arrays(output)


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays over the largest value."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not one.size:
        return 0.0
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
    return float(np.abs(one - other).max()) / largest if largest else 0.0
