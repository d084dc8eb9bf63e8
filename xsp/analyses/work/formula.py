"""Formulas: an operator and the shapes of its tensors in, its floating-point operations out.

The formulas are PyTorch's own (`torch.utils.flop_counter`): a multiplication and an addition are
two operations, biases and activations are not counted. What is here is which formula an operator
has, and how its arguments follow from the tensors that it was given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Sequence[int]

# Operators that convolve, apart from those that call another of them.
CONVOLUTIONS = (
    "aten::convolution",
    "aten::_convolution",
    "aten::convolution_overrideable",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "aten::miopen_convolution",
    "aten::miopen_convolution_relu",
    "aten::miopen_depthwise_convolution",
    "aten::mkldnn_convolution",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d_forward",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "mkldnn::_convolution_pointwise",
)
_TRANSPOSED = (
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
    "mkldnn::_convolution_transpose_pointwise",
)
_ATTENTIONS = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)

Shapes = Sequence[Shape]
# From the shapes given, and those that came out (empty: not known), to operations.
_Formula = Callable[[Shapes, Shapes], int | None]
_SETTINGS = (None, None, None, None)  # bias, stride, padding, dilation: the shapes say enough


def flops_of(
    operator: str, given: Shapes, results: Shapes, *, transposed: bool = False
) -> int | None:
    """Return the operations of one call of an operator; None where no formula knows them.

    Args:
        operator: Name with its namespace, such as `aten::mm`.
        given: Shape of each tensor put in, in their order.
        results: Shape of each tensor that came out; empty where these are not known.
        transposed: Whether a transposed convolution calls it.

    Returns:
        None also where PyTorch is not installed, and where shapes do not fit the formula.

    >>> flops_of("aten::relu", [[2, 3]], [[2, 3]])
    """
    formula = FORMULAS.get(operator)
    if formula is None:
        return None
    if transposed and operator in CONVOLUTIONS:
        formula = _transposed
    try:
        return formula(given, results)
    except (AssertionError, IndexError, TypeError, ValueError):  # shapes unlike the formula's
        return None


@functools.cache
def _registry() -> Mapping[str, Callable[..., Any]]:
    """Return PyTorch's formulas by the operator's name; none where PyTorch is not installed."""
    try:
        from torch.utils.flop_counter import flop_registry  # noqa: PLC0415  # slow to import
    except ImportError:
        return {}
    return {str(packet).replace(".", "::"): formula for packet, formula in flop_registry.items()}


def _torch(name: str, *arguments: Any, result: Any = None) -> int | None:
    formula = _registry().get(f"aten::{name}")
    return None if formula is None else int(formula(*arguments, out_val=result))


def _product(given: Shapes, results: Shapes) -> int | None:
    return _torch("mm", *given[:2])


def _product_added(given: Shapes, results: Shapes) -> int | None:
    return _torch("mm", *given[1:3])


def _batch(given: Shapes, results: Shapes) -> int | None:
    return _torch("bmm", *given[:2])


def _batch_added(given: Shapes, results: Shapes) -> int | None:
    return _torch("bmm", *given[1:3])


def _linear(given: Shapes, results: Shapes) -> int | None:
    rows, (columns, inner) = given[0], given[1]
    return _torch("mm", [math.prod(rows[:-1]), rows[-1]], [inner, columns])


def _vector(given: Shapes, results: Shapes) -> int | None:
    return _torch("mm", given[0], [*given[1], 1])


def _vector_added(given: Shapes, results: Shapes) -> int | None:
    return _vector(given[1:], results)


def _dot(given: Shapes, results: Shapes) -> int | None:
    return _torch("mm", [1, *given[0]], [*given[1], 1])


def _convolution(given: Shapes, results: Shapes) -> int | None:
    return _torch("convolution", *given[:2], *_SETTINGS, False, result=results[0])


def _transposed(given: Shapes, results: Shapes) -> int | None:
    return _torch("convolution", *given[:2], *_SETTINGS, True, result=())


def _convolution_backward(given: Shapes, results: Shapes) -> int | None:
    """Gradients of the weights, and of the input where that came out as well."""
    gradient, source, weight = given[:3]
    transposed = weight[0] != gradient[1]
    more = (*_SETTINGS, transposed, None, None, (len(results) > 1, True, False))
    return _torch("convolution_backward", *given[:3], *more, result=[source, weight])


def _gradient_of_input(given: Shapes, results: Shapes) -> int | None:
    """A transposed convolution of what had come out, with the same weights."""
    gradient, weight = given[:2]
    return _torch("convolution", gradient, weight, *_SETTINGS, True, result=())


def _attention(given: Shapes, results: Shapes) -> int | None:
    return _torch("_scaled_dot_product_flash_attention", *given[:3])


def _attention_backward(given: Shapes, results: Shapes) -> int | None:
    return _torch("_scaled_dot_product_flash_attention_backward", *given[:4])


FORMULAS: Mapping[str, _Formula] = {
    "aten::mm": _product,
    "aten::_scaled_mm": _product,
    "aten::_int_mm": _product,
    "aten::addmm": _product_added,
    "aten::_addmm_activation": _product_added,
    "aten::bmm": _batch,
    "aten::baddbmm": _batch_added,
    "aten::mv": _vector,
    "aten::addmv": _vector_added,
    "aten::dot": _dot,
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward_input": _gradient_of_input,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(_TRANSPOSED, _transposed),
    **dict.fromkeys(_ATTENTIONS, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
}

_ADDED = ("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::addmv")
_LINEAR = ("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")


def results_of(operator: str, given: Shapes) -> Shapes:
    """Return the shapes that come out of an operator with a formula; none where not known.

    >>> results_of("aten::mm", [[2, 3], [3, 5]])
    [[2, 5]]
    """
    if operator.endswith("attention_backward"):
        return given[1:4]
    if operator in _ATTENTIONS:
        return [[*given[0][:-1], given[2][-1]]]
    if operator in _LINEAR:
        return [[*given[0][:-1], given[1][0]]]
    if FORMULAS.get(operator) in (_product, _product_added, _batch, _batch_added):
        left, right = given[1:3] if operator in _ADDED else given[:2]
        return [[*left[:-1], right[-1]]]
    return []
