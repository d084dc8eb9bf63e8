"""Finds the shapes and types of the tensors among a call's arguments or results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Shapes = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]

UNKNOWN = -1  # a length that is not known before the call
_DEPTH = 4  # of containers in containers


def shapes(value: Any) -> Shapes:
    """Return sizes and data types of all tensors in `value`, in their order."""
    found = [shape_of(tensor) for tensor in tensors(value)]
    return tuple(size for size, _ in found), tuple(dtype for _, dtype in found)


def shape_of(tensor: Any) -> tuple[tuple[int, ...], str]:
    """Return the size of a tensor, an array or a description of one, and its data type."""
    size = tuple(UNKNOWN if length is None else int(length) for length in tensor.shape)
    dtype = tensor.dtype
    return size, str(getattr(dtype, "name", dtype))


def tensors(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the tensors of known rank in nested tuples, lists and mappings."""
    items: Iterable[Any] = ()
    if isinstance(value, (tuple, list)):
        items = value
    elif isinstance(value, Mapping):
        items = value.values()
    elif _has_shape(value):
        yield value
    for item in items if depth else ():
        yield from tensors(item, depth - 1)


def _has_shape(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "dtype") or isinstance(value, type):
        return False
    return getattr(shape, "rank", 0) is not None
