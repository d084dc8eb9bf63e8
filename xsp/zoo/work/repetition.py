"""Repetition: a function in, a problem out where two of its calls give different outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from xsp.problem import Problem

_DIFFERENT = "outputs-differ"
UNKNOWN = "outputs-unknown"


def compared(call: Callable[[], Any]) -> tuple[bool | None, list[Problem]]:
    """Return whether two calls of a function give the same output, and the problem if they do not.

    Arrays and tensors are compared, wherever they stand in lists, mappings and tuples; None where
    there are none.
    """
    first, second = list(_arrays(call())), list(_arrays(call()))
    if not first and not second:
        said = "two calls could not be compared: they return no arrays"
        return None, [Problem(UNKNOWN, said)]
    if [array.shape for array in first] != [array.shape for array in second]:
        return False, [Problem(_DIFFERENT, "two calls gave outputs of different shapes")]
    pairs = list(zip(first, second, strict=True))
    if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        return True, []
    most = max(_difference(*pair) for pair in pairs)
    said = f"two calls gave different outputs, by up to {most:.2g} of the largest value"
    return False, [Problem(_DIFFERENT, said)]


def _arrays(output: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays of an output, as float64."""
    if isinstance(output, Mapping):
        yield from _of_all(output.values())
    elif isinstance(output, (list, tuple)):
        yield from _of_all(output)
    elif hasattr(output, "detach"):  # a tensor of PyTorch, whose bfloat16 NumPy does not know
        yield output.detach().cpu().double().numpy()
    elif hasattr(output, "__array__"):
        yield np.asarray(output).astype(np.float64)


def _of_all(outputs: Iterable[Any]) -> Iterator[np.ndarray[Any, Any]]:
    for output in outputs:
        yield from _arrays(output)


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays over the largest value."""
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not one.size:
        return 0.0
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
    return float(np.abs(one - other).max()) / largest if largest else 0.0
