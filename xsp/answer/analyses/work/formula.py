"""Computes the floating-point operations of an operator from the shapes of its tensors.

The counts are those of PyTorch's `torch.utils.flop_counter`, and a test compares the two: a
multiplication and an addition are two operations; biases, activations and softmaxes are not
counted, nor is it considered that a kernel lies over padding, or that attention is causal. They
are computed here because importing PyTorch takes seconds, and recordings of GPUs are read on
machines that do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Shape = Sequence[int]
Shapes = Sequence[Shape]
# From the shapes given, and those that came out (empty: not known), to operations.
_Formula = Callable[[Shapes, Shapes], int]


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
        None also where shapes do not fit the formula.

    >>> flops_of("aten::addmm", [[4], [2, 3], [3, 4]], [])
    48
    >>> flops_of("aten::relu", [[2, 3]], [[2, 3]])
    """
    formula = FORMULAS.get(operator)
    if formula is None:
        return None
    if transposed and operator in CONVOLUTIONS:
        formula = _transposed
    try:
        return formula(given, results)
    except (IndexError, ValueError):  # shapes unlike the formula's
        return None


def results_of(operator: str, given: Shapes) -> Shapes:
    """Return the shapes that come out of an operator with a formula; none where not known.

    >>> results_of("aten::mm", [[2, 3], [3, 5]])
    [[2, 5]]
    """
    if "attention" in operator and operator.endswith("backward"):
        return given[1:4]
    if operator in (*_ATTENTIONS, *_INNER_ATTENTIONS):
        return [[*given[0][:-1], given[2][-1]]]
    if operator in _LINEAR:
        return [[*given[0][:-1], given[1][0]]]
    if operator in _PRODUCTS:
        left, right = given[:2]
        return [[*left[:-1], right[-1]]]
    if operator in _ADDED_PRODUCTS:
        left, right = given[1:3]
        return [[*left[:-1], right[-1]]]
    return []


def _multiplied(left: Shape, right: Shape) -> int:
    """2 m n k, for each matrix of a batch; `mm`, `bmm`."""
    *batch, rows, inner = left
    *same, again, columns = right
    if inner != again or list(batch) != list(same):
        raise ValueError(f"shapes {left} and {right} cannot be multiplied")
    return 2 * math.prod(batch) * rows * inner * columns


def _product(given: Shapes, results: Shapes) -> int:
    return _multiplied(given[0], given[1])


def _added_product(given: Shapes, results: Shapes) -> int:
    return _multiplied(given[1], given[2])


def _linear(given: Shapes, results: Shapes) -> int:
    """The matrix comes second, and is transposed."""
    columns, inner = given[1]
    return _multiplied([math.prod(given[0][:-1]), given[0][-1]], [inner, columns])


def _vector(given: Shapes, results: Shapes) -> int:
    return _multiplied(given[0], [*given[1], 1])


def _added_vector(given: Shapes, results: Shapes) -> int:
    return _vector(given[1:], results)


def _dot(given: Shapes, results: Shapes) -> int:
    return _multiplied([1, *given[0]], [*given[1], 1])


def _convolved(weight: Shape, batch: int, points: Shape) -> int:
    """Each point of each image is multiplied by all weights once."""
    return 2 * batch * math.prod(points) * math.prod(weight)


def _convolution(given: Shapes, results: Shapes) -> int:
    """The points are those of the result; the weights are [out, in / groups, *kernel]."""
    return _convolved(given[1], given[0][0], results[0][2:])


def _transposed(given: Shapes, results: Shapes) -> int:
    """The points are those of the input."""
    return _convolved(given[1], given[0][0], given[0][2:])


def _convolution_backward(given: Shapes, results: Shapes) -> int:
    """Gradients of the weights, and of the input where that came out as well.

    Each has as many multiplications as the convolution: with the points of its result, or of its
    input where it is transposed, and its weights are [in, out / groups, *kernel].
    """
    gradient, source, weight = given[:3]
    points = gradient if weight[0] == gradient[1] else source
    return len(results) * _convolved(weight, gradient[0], points[2:])


def _attention(given: Shapes, results: Shapes) -> int:
    """Queries by keys, and the weights that come out by values."""
    query, key, value = given[:3]
    if key[-2] != value[-2] or query[-1] != key[-1]:
        raise ValueError(f"queries {query}, keys {key} and values {value} do not fit")
    return _scores(query, key, query[-1]) + _scores(query, key, value[-1])


def _attention_backward(given: Shapes, results: Shapes) -> int:
    """Scores once more, then gradients of scores, values, queries and keys."""
    query, key, value = given[1:4]
    return 3 * _scores(query, key, query[-1]) + 2 * _scores(query, key, value[-1])


def _heads_first(shape: Shape) -> Shape:
    batch, length, heads, inner = shape
    return batch, heads, length, inner


def _attention_by_token(given: Shapes, results: Shapes) -> int:
    """As the kernels of attention take tensors: [batch, length, heads, inner]."""
    return _attention([_heads_first(shape) for shape in given[:3]], results)


def _attention_by_token_backward(given: Shapes, results: Shapes) -> int:
    return _attention_backward([_heads_first(shape) for shape in given[:4]], results)


def _recurrent(given: Shapes, results: Shapes) -> int:
    """Each token is multiplied by all matrices once; the state of cuDNN's has three axes."""
    matrices = [shape for shape in given[1:] if len(shape) == 2]
    return 2 * math.prod(given[0][:-1]) * sum(map(math.prod, matrices))


def _recurrent_layer(given: Shapes, results: Shapes) -> int:
    """As oneDNN takes tensors: the matrices are the second and the third."""
    return _recurrent(given[:3], results)


def _recurrent_backward(given: Shapes, results: Shapes) -> int:
    """Gradients of the matrices, and of what was multiplied by them."""
    return 2 * _recurrent(given, results)


def _recurrent_layer_backward(given: Shapes, results: Shapes) -> int:
    return 2 * _recurrent_layer(given, results)


def _scores(query: Shape, key: Shape, inner: int) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * inner


# Operators that convolve, apart from those that only call another of them.
CONVOLUTIONS = frozenset(
    {
        *(f"aten::{name}" for name in ("convolution", "_convolution", "convolution_overrideable")),
        *(f"aten::cudnn_convolution{end}" for end in ("", "_relu", "_add_relu")),
        *(f"aten::miopen_{name}" for name in ("convolution", "convolution_relu")),
        *(f"aten::{name}" for name in ("miopen_depthwise_convolution", "mkldnn_convolution")),
        *(f"aten::{name}" for name in ("_slow_conv2d_forward", "slow_conv3d_forward")),
        *(f"aten::{name}" for name in ("_conv_depthwise2d", "conv_depthwise3d")),
        "mkldnn::_convolution_pointwise",
    }
)
_TRANSPOSED = (
    *(f"aten::{vendor}_convolution_transpose" for vendor in ("cudnn", "miopen", "mkldnn")),
    *(f"aten::slow_conv_transpose{axes}d" for axes in (2, 3)),
    "mkldnn::_convolution_transpose_pointwise",
)
_ATTENTIONS = tuple(
    f"aten::_scaled_dot_product_{kind}_attention{end}"
    for kind, end in (
        ("flash", ""),
        ("flash", "_for_cpu"),
        ("efficient", ""),
        ("cudnn", ""),
        ("fused", "_overrideable"),
    )
)
_INNER_ATTENTIONS = ("aten::_flash_attention_forward", "aten::_efficient_attention_forward")
_PRODUCTS = ("aten::mm", "aten::_scaled_mm", "aten::_int_mm", "aten::bmm")
_ADDED_PRODUCTS = ("aten::addmm", "aten::_addmm_activation", "aten::baddbmm")
_LINEAR = ("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
FORMULAS: Mapping[str, _Formula] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_ADDED_PRODUCTS, _added_product),
    **dict.fromkeys(_LINEAR, _linear),
    "aten::mv": _vector,
    "aten::addmv": _added_vector,
    "aten::dot": _dot,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(_TRANSPOSED, _transposed),
    "aten::convolution_backward": _convolution_backward,
    "aten::cudnn_convolution_backward_input": _transposed,  # of what had come out
    **dict.fromkeys(_ATTENTIONS, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
    **dict.fromkeys(_INNER_ATTENTIONS, _attention_by_token),
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    **dict.fromkeys(("aten::_cudnn_rnn", "aten::miopen_rnn"), _recurrent),
    **dict.fromkeys(
        ("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"), _recurrent_backward
    ),
    **{
        name.replace("forward", "backward"): _attention_by_token_backward
        for name in _INNER_ATTENTIONS
    },
}
