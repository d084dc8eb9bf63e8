"""Operators' work: the name and tensors of an operator in, its operations and bytes out. Analytical.

Bytes are those of the tensors, each read or written once: the least that has to be moved where
nothing stays in a cache. What is not known is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from xsp.analyses.work.formula import CONVOLUTIONS, FORMULAS, Shape, flops_of, results_of

# Bytes of an element, by PyTorch's names of element types; what else is given is no tensor.
ELEMENT_BYTES = {
    **dict.fromkeys(("complex128",), 16),
    **dict.fromkeys(("float64", "int64", "complex64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "complex32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
_FLOATING = ("float", "bfloat", "complex")

# Operators that look at tensors otherwise, or make room, and neither compute nor move anything.
# Some of them call an operator that does where that is needed (`contiguous`, `dropout`).
IDLE = frozenset(
    f"aten::{name}"
    for name in """
    view _unsafe_view reshape _reshape_alias t transpose permute as_strided expand expand_as view_as
    slice select narrow squeeze unsqueeze flatten unflatten detach detach_ alias empty empty_like
    empty_strided new_empty new_empty_strided resize_ resize_as_ resolve_conj resolve_neg split chunk
    unbind split_with_sizes tensor_split unsafe_split unsafe_chunk lift_fresh movedim swapaxes
    numpy_T mT mH adjoint view_as_real view_as_complex diagonal unfold set_ contiguous to dropout
    dropout_ feature_dropout type_as result_type broadcast_to broadcast_tensors real imag conj
    swapdims unsafe_split_with_sizes squeeze_ unsqueeze_ t_ transpose_ is_floating_point size
    """.split()
) | {"detach", "detach_"}
# One operation per element of the result, as a device's counters have it.
_ARITHMETIC = frozenset(f"aten::{name}" for name in ("add", "sub", "mul", "div", "rsub", "neg"))
# No operation: what is compared or moved is no arithmetic, and counted by no counter.
_MOVING = frozenset(
    f"aten::{name}"
    for name in """
    relu clamp clamp_min clamp_max hardtanh threshold threshold_backward max_pool2d_with_indices
    max_pool3d_with_indices maximum minimum copy fill zero cat _cat stack where masked_fill eq ne gt
    ge lt le logical_not logical_and logical_or bitwise_not embedding index_select gather index
    arange fill_diagonal constant_pad_nd roll flip repeat repeat_interleave one_hot argmax tril triu
    _local_scalar_dense
    """.split()
)
# Of a large table only the rows asked for are read.
_GATHERING = frozenset(f"aten::{name}" for name in ("embedding", "index_select", "gather", "index"))
_BROADCASTING = _ARITHMETIC | frozenset(
    f"aten::{name}"
    for name in """
    relu clamp clamp_min clamp_max hardtanh threshold threshold_backward maximum minimum gelu silu
    sigmoid tanh exp log sqrt rsqrt pow hardswish hardsigmoid leaky_relu elu erf sin cos
    gelu_backward silu_backward sigmoid_backward tanh_backward native_layer_norm _softmax
    _log_softmax _softmax_backward_data native_batch_norm cudnn_batch_norm masked_fill where
    """.split()
)
_UNREAD = frozenset({"aten::fill_", "aten::zero_"})  # written, whatever was there


class Work(NamedTuple):
    """What one operator computes and moves; None where it is not known."""

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
    operator: str,
    shapes: Sequence[Shape | None] | None,
    types: Sequence[str | None] | None,
    *,
    kept_bytes: int | None = None,
    around: Shape | None = None,
) -> Work:
    """Return the work of one call of an operator, from what it was given.

    Args:
        operator: Name with its namespace, such as `aten::mm`.
        shapes: Shape of each tensor put in; None in place of an unknown list.
        types: Element type of each; what is no tensor has no name of an element type.
        kept_bytes: Memory allocated within it and not freed: that of what came out.
        around: Shape of what came out of the layer around it.

    >>> operator_work("aten::mm", [[2, 3], [3, 5]], ["float32", "float32"])
    Work(flops=60, read_bytes=84, write_bytes=40)
    """
    if operator in IDLE:
        return Work(0, 0, 0)
    if shapes is None or types is None:
        return Work()
    given, complete = _tensors(shapes, types)
    results = _results(operator, given, kept_bytes, around)
    written = _written(operator, given, results, kept_bytes)
    read = _read(operator, given, written) if complete else None
    return Work(_flops(operator, given, results), read, written)


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
    operator: str, given: Sequence[_Tensor], kept_bytes: int | None, around: Shape | None
) -> Sequence[Shape] | None:
    """Return the shapes of what comes out, None where they are not known."""
    shapes = [tensor.shape for tensor in given]
    try:
        if operator in CONVOLUTIONS:
            result = _convolved(given, kept_bytes, around)
            return None if result is None else [result]
        if operator in FORMULAS:
            return results_of(operator, shapes)
        if operator.removesuffix("_") in _BROADCASTING and shapes:
            return [_broadcast(shapes)]
    except (IndexError, ValueError):  # not the tensors that the operator takes
        return None
    return None


def _convolved(
    given: Sequence[_Tensor], kept_bytes: int | None, around: Shape | None
) -> Shape | None:
    """Return the shape that comes out of a convolution, which the tensors put in do not tell.

    The memory that stays allocated does (an allocator of a device rounds up to 512 bytes), and the
    layer around it if its result has the batch and the channels of this.
    """
    source, weight = given[0], given[1]
    batch, channels = source.shape[0], weight.shape[0]
    point = batch * channels * ELEMENT_BYTES[source.element_type]
    if kept_bytes and point and kept_bytes >= point and kept_bytes % point < 512:
        return [batch, channels, kept_bytes // point]
    if around is not None and list(around[:2]) == [batch, channels]:
        return around if len(around) == len(source.shape) else None
    return None


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(len(shape) for shape in shapes)
    sizes = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [max(size) if min(size) else 0 for size in zip(*sizes, strict=True)]


def _flops(operator: str, given: Sequence[_Tensor], results: Sequence[Shape] | None) -> int | None:
    bare = operator.removesuffix("_")
    if bare in _MOVING:
        return 0
    if bare in _ARITHMETIC and results and given:
        floating = any(tensor.element_type.startswith(_FLOATING) for tensor in given)
        return math.prod(results[0]) * floating
    return flops_of(operator, [tensor.shape for tensor in given], results[0] if results else None)


def _written(
    operator: str,
    given: Sequence[_Tensor],
    results: Sequence[Shape] | None,
    kept_bytes: int | None,
) -> int | None:
    if operator.endswith("_") and given:
        return given[0].bytes
    if results is not None and given:
        size = max(ELEMENT_BYTES[tensor.element_type] for tensor in given)
        return sum(math.prod(shape) for shape in results) * size
    return kept_bytes if kept_bytes and kept_bytes > 0 else None


def _read(operator: str, given: Sequence[_Tensor], written: int | None) -> int | None:
    if operator in _UNREAD:
        return 0
    if operator == "aten::copy_":
        return sum(tensor.bytes for tensor in given[1:2])
    if operator in _GATHERING:
        return None if written is None else written + sum(tensor.bytes for tensor in given[1:])
    return sum(tensor.bytes for tensor in given)
