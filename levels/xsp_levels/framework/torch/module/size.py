"""Sums the sizes of modules' parameters and buffers, with tied tensors counted once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple


class Size(NamedTuple):
    """Sizes of a module with all modules inside; see `module_path.ModuleFacts`."""

    parameters: bool
    parameter_bytes: int
    buffer_bytes: int
    shared_parameter_bytes: int
    frozen_parameter_bytes: int


class _Part(NamedTuple):
    """The part of a storage that a tensor is."""

    key: Hashable
    size: int
    storage: int
    storage_size: int
    frozen: bool


class Sizes:
    """Computes the sizes of the modules of one program.

    Two tensors that are the same part of one storage are one. Tensors that overlap otherwise,
    and expanded ones, count as much as their storage.

    Args:
        modules: Modules in the order in which they come to hold a tensor first, roots first.
    """

    def __init__(self, modules: Iterable[Any]) -> None:
        self._parts: dict[int, _Part] = {}  # by the tensor's id
        self._first: dict[Hashable, int] = {}  # id of the module that holds a parameter first
        seen: set[int] = set()
        for root in modules:
            for module in _inside(root, seen):
                for part in self._of(module._parameters):
                    self._first.setdefault(part.key, id(module))

    def of(self, module: Any) -> Size:
        """Return the sizes of a module."""
        inside: set[int] = set()
        parameters: dict[Hashable, _Part] = {}
        buffers: dict[Hashable, _Part] = {}
        for each in _inside(module, inside):
            parameters.update((part.key, part) for part in self._of(each._parameters))
            buffers.update((part.key, part) for part in self._of(each._buffers))
        return Size(
            parameters=bool(parameters),
            parameter_bytes=_bytes(parameters.values()),
            buffer_bytes=_bytes(buffers.values()),
            shared_parameter_bytes=_bytes(
                part for key, part in parameters.items() if self._first[key] not in inside
            ),
            frozen_parameter_bytes=_bytes(part for part in parameters.values() if part.frozen),
        )

    def _of(self, tensors: dict[str, Any]) -> Iterator[_Part]:
        for tensor in tensors.values():
            if tensor is not None:
                if id(tensor) not in self._parts:
                    self._parts[id(tensor)] = _part(tensor)
                yield self._parts[id(tensor)]


def address(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 where it has none of its own, or not yet."""
    try:
        return 0 if tensor is None else int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError, ValueError):
        return 0


def _inside(module: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a module and the modules inside, each once, and none of those seen before."""
    if id(module) not in seen:
        seen.add(id(module))
        yield module
        for child in module._modules.values():
            if child is not None:
                yield from _inside(child, seen)


def _part(tensor: Any) -> _Part:
    frozen = not tensor.requires_grad
    try:
        size = int(tensor.nbytes)
    except (RuntimeError, ValueError):  # a lazy module's parameter that has no shape yet
        return _Part(id(tensor), 0, id(tensor), 0, frozen)
    at = address(tensor)
    if not at:
        return _Part(id(tensor), size, id(tensor), size, frozen)
    key = at, tensor.storage_offset(), size
    return _Part(key, size, at, int(tensor.untyped_storage().nbytes()), frozen)


def _bytes(parts: Iterable[_Part]) -> int:
    """Return the size of some tensors, of those in one storage at most that of the storage."""
    views: dict[int, list[int]] = {}
    for part in parts:
        sums = views.setdefault(part.storage, [0, part.storage_size])
        sums[0] += part.size
    return sum(map(min, views.values()))
