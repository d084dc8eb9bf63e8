"""Computes the operations and bytes of an operator from its name and tensors.

All of this is analytical: nothing was counted. Bytes are those of the tensors, each read or
written once: the least that has to be moved where nothing stays in a cache. What is not known is
None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from xsp.answer.analyses.work.formula import (
    CONVOLUTIONS,
    FORMULAS,
    Shape,
    Shapes,
    flops_of,
    results_of,
)
from xsp.answer.analyses.work.operator_kind import (
    ARITHMETIC,
    BROADCASTING,
    ELEMENT_BYTES,
    GATHERING,
    IDLE,
    MOVING,
    OPERANDS,
    PACKAGES,
    SHAPED_AS_FIRST,
    UNREAD,
)

_FLOATING = ("float", "bfloat", "complex")


class Work(NamedTuple):
    """Operations and bytes of one operator; None where a number is not known."""

    flops: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None


class _Tensor(NamedTuple):
    shape: Shape
    element_type: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.element_type]


def operator_work(
    name: str,
    shapes: Sequence[Shape | None] | None,
    element_types: Sequence[str | None] | None,
    *,
    kept_bytes: int | None = None,
    seen: Shape | None = None,
    transposed: bool = False,
) -> Work:
    """Return the work of one call of an operator, from what it was given.

    Args:
        name: Name with its namespace, such as `aten::mm`.
        shapes: Shape of each tensor put in; None in place of an unknown list.
        element_types: Element type of each; what is no tensor has no name of an element type.
        kept_bytes: Memory allocated within it and not freed: that of what came out.
        seen: Shape of what came out of a convolution, as it was seen elsewhere.
        transposed: Whether a transposed convolution calls it.

    >>> operator_work("aten::mm", [[2, 3], [3, 5]], ["float32", "float32"])
    Work(flops=60, read_bytes=84, write_bytes=40)
    """
    if name in IDLE:
        return Work(0, 0, 0)
    if shapes is None or element_types is None:
        return Work()
    given, _ = _tensors(shapes, element_types)
    operands = slice(OPERANDS.get(name))
    sources, complete = _tensors(shapes[operands], element_types[operands])
    results = _results(name, given, kept_bytes, seen)
    written = _written(name, given, results, kept_bytes)
    read = _read(name, sources, written) if complete else None
    return Work(_flops(name, given, results, transposed=transposed), read, written)


def _tensors(
    shapes: Sequence[Shape | None], types: Sequence[str | None]
) -> tuple[list[_Tensor], bool]:
    """Return the tensors, and whether these are all and everything is known of them."""
    given, complete = [], True
    for shape, element_type in zip(shapes, types, strict=False):
        if shape is None or (element_type is None and shape):
            complete = False
        elif element_type in ELEMENT_BYTES:
            given.append(_Tensor(shape, element_type))
    return given, complete and bool(given)


def _results(
    operator: str, given: Sequence[_Tensor], kept_bytes: int | None, seen: Shape | None
) -> Shapes:
    """Return the shapes of what comes out, none where they are not known."""
    shapes = [tensor.shape for tensor in given]
    try:
        if operator in CONVOLUTIONS:
            # The shape that comes out of a convolution, which the tensors put in do not tell.
            # The memory that stays allocated does (an allocator of a device rounds up to 512
            # bytes), else the shape that was seen elsewhere.
            source, weight = given[0], given[1]
            batch, channels = source.shape[0], weight.shape[0]
            point = batch * channels * ELEMENT_BYTES[source.element_type]
            if kept_bytes and point and kept_bytes >= point and kept_bytes % point < 512:
                seen = [batch, channels, kept_bytes // point]
            return [] if seen is None else [seen]
        if operator == "aten::convolution_backward":
            # The gradient of the input is left out where nobody needs it.
            both = given[1].bytes + given[2].bytes
            without = kept_bytes is not None and 0 < kept_bytes < both
            return shapes[2:3] if without else shapes[1:3]
        if operator in FORMULAS:
            return results_of(operator, shapes)
        if operator.removesuffix("_") in SHAPED_AS_FIRST:
            return shapes[:1]
        if operator.removesuffix("_") in BROADCASTING:
            rank = max(len(shape) for shape in shapes)
            sizes = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
            broadcast = [max(size) if min(size) else 0 for size in zip(*sizes, strict=True)]
            return [broadcast]
    except (IndexError, ValueError):  # not the tensors that the operator takes
        pass
    return []


def _flops(
    operator: str, given: Sequence[_Tensor], results: Shapes, *, transposed: bool
) -> int | None:
    bare = operator.removesuffix("_")
    if bare in MOVING:
        return 0
    if bare in ARITHMETIC and results:
        floating = any(tensor.element_type.startswith(_FLOATING) for tensor in given)
        return math.prod(results[0]) * floating
    shapes = [tensor.shape for tensor in given]
    return flops_of(operator, shapes, results, transposed=transposed)


def _written(
    operator: str, given: Sequence[_Tensor], results: Shapes, kept_bytes: int | None
) -> int | None:
    if operator.endswith("_") and given:
        return given[0].bytes
    if results and given:
        # A number beside tensors is put in as a tensor of no axis, in its own, wider type.
        wide = [tensor for tensor in given if tensor.shape] or given
        size = max(ELEMENT_BYTES[tensor.element_type] for tensor in wide)
        return sum(math.prod(shape) for shape in results) * size
    return kept_bytes if kept_bytes and kept_bytes > 0 else None


def _read(operator: str, given: Sequence[_Tensor], written: int | None) -> int | None:
    if operator in UNREAD:
        return 0
    if operator == "aten::copy_":
        return sum(tensor.bytes for tensor in given[1:2])
    if operator in GATHERING:
        return None if written is None else written + sum(tensor.bytes for tensor in given[1:])
    package, said, _ = operator.partition("::")
    if said and package not in PACKAGES:
        return None
    return sum(tensor.bytes for tensor in given)
