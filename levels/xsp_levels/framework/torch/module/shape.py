"""Arguments or results of a module in, the shapes and types of the tensors among them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

Shapes = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]


def shapes(value: Any) -> Shapes:
    """Return sizes and dtypes of all tensors in `value`, in their order.

    A size that is symbolic, while a model is being traced, is given as -1: asking for
    its value would make the traced graph depend on the value.
    """
    found = list(tensors(value))
    sizes = tuple(tuple(n if type(n) is int else -1 for n in t.shape) for t in found)
    return sizes, tuple(str(t.dtype).removeprefix("torch.") for t in found)


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    import torch  # noqa: PLC0415

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))
