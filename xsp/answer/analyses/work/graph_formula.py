"""Computes the floating-point operations of operators of TensorFlow, ONNX and XLA.

They are counted as in formula.py for PyTorch, so that one architecture has as many in all
frameworks: a multiplication and an addition are two; biases, activations and softmaxes none. The
sizes that come out are used, which do not depend on strides, paddings and dilations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from xsp.answer.analyses.work.formula import Shape, Shapes

_Formula = Callable[[Shapes, Shapes], int]
_PREFIX = re.compile(r"^_?(?:MklNative|Mkl)?_?(?:Padded|PadWith)?(?:Fused)?(?=[A-Z])")


def names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


def graph_flops(
    operator: str, framework: str, given: Shapes, results: Shapes, sources: str | None = None
) -> int | None:
    """Return the operations of one call of an operator; None where no formula knows them.

    Args:
        operator: Type of the operator, such as `_FusedConv2D`, `Gemm`, `dot`.
        framework: `tensorflow`, `onnxruntime` or `jax`.
        given: Shape of each tensor put in, in their order.
        results: Shape of each tensor that came out.
        sources: Operators that were fused into it, joined by commas.

    >>> graph_flops("Gemm", "onnxruntime", [[8, 512], [10, 512], [10]], [[8, 10]])
    81920
    >>> graph_flops("Relu", "onnxruntime", [[8, 512]], [[8, 512]])
    0
    """
    try:
        if framework == "jax":
            return _of_xla(operator, given, results, sources or "")
        bare = _PREFIX.sub("", operator) if framework == "tensorflow" else operator
        if bare in _ARITHMETIC:
            return math.prod(results[0])
        formula = _FORMULAS.get((framework, bare))
        return 0 if bare in _NOTHING else formula and formula(given, results)
    except (IndexError, ValueError, ZeroDivisionError):  # shapes unlike the formula's
        return None


def _convolved_out_first(given: Shapes, results: Shapes) -> int:
    """Weights are [out, in / groups, *kernel], or have the channels last."""
    return 2 * math.prod(results[0]) * math.prod(given[1][1:])


def _transposed_in_first(given: Shapes, results: Shapes) -> int:
    """Weights are [in, out / groups, *kernel]; each point put in meets all of its channel's."""
    return 2 * math.prod(given[0]) * math.prod(given[1][1:])


def _convolved_out_last(given: Shapes, results: Shapes) -> int:
    """Weights are [*kernel, in / groups, out]."""
    return 2 * math.prod(results[0]) * math.prod(given[1][:-1])


def _depthwise(given: Shapes, results: Shapes) -> int:
    """Weights are [*kernel, in, multiplier]."""
    return 2 * math.prod(results[0]) * math.prod(given[1][:-2])


def _gradient_of_input(given: Shapes, results: Shapes) -> int:
    """Given are the sizes of the input, the weights, and the gradient of the result."""
    return 2 * math.prod(given[2]) * math.prod(given[1][:-1])


def _gradient_of_weights(given: Shapes, results: Shapes) -> int:
    """Given are the input, the sizes of the weights, and the gradient of the result."""
    return 2 * math.prod(given[2]) * math.prod(results[0][:-1])


def _product(given: Shapes, results: Shapes) -> int:
    """2 m n k; either matrix may be transposed, and the first may be shared by a batch."""
    left, made = given[0], results[0]
    inner = left[-1]
    if len(left) == len(made):
        inner = math.prod(left) // math.prod(made[:-1]) or inner
    return 2 * math.prod(made) * inner


def _packed_attention(given: Shapes, results: Shapes) -> int:
    """The projection to queries, keys and values, then attention; weights are [in, 3 out]."""
    batch, length, wide = given[0]
    inside = given[1][-1] // 3
    projected = 2 * batch * length * wide * given[1][-1]
    return projected + 4 * batch * length * length * inside


def _attention(given: Shapes, results: Shapes) -> int:
    """Queries by keys, and the weights that come out by values: [batch, length, all heads]."""
    query, key, value = given[:3]
    return 2 * query[0] * query[1] * key[1] * (query[2] + value[2])


_ONNX: Mapping[str, _Formula] = {
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger"), _convolved_out_first
    ),
    "ConvTranspose": _transposed_in_first,
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger"), _product),
    **dict.fromkeys(("GemmFastGelu", "TransposeMatMul", "FusedMatMulActivation"), _product),
    "Attention": _packed_attention,
    "MultiHeadAttention": _attention,
}
_TENSORFLOW: Mapping[str, _Formula] = {
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolved_out_last),
    "DepthwiseConv2dNative": _depthwise,
    **{f"Conv{axes}DBackpropInput{v}": _gradient_of_input for axes in (2, 3) for v in ("", "V2")},
    **{
        f"Conv{axes}DBackpropFilter{v}": _gradient_of_weights for axes in (2, 3) for v in ("", "V2")
    },
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
}
_FORMULAS = {
    **{("onnxruntime", name): formula for name, formula in _ONNX.items()},
    **{("tensorflow", name): formula for name, formula in _TENSORFLOW.items()},
}
# One operation for each element of the result.
_ARITHMETIC = frozenset({"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv"})
# No operation: what is compared or moved is no arithmetic, and biases are not counted.
_NOTHING = names(
    """
    BiasAdd Relu Relu6 LeakyRelu Clip MaxPool GlobalMaxPool NhwcMaxPool Concat ConcatV2 Pad PadV2
    Transpose Reshape Squeeze Unsqueeze ExpandDims Flatten Identity Gather GatherV2 ResourceGather
    Slice StridedSlice Split SplitV Tile Expand BroadcastTo Pack Unpack Cast Shape ReadVariableOp
    ReorderInput ReorderOutput Maximum Minimum Const Constant Where
    """
)


def _of_xla(operator: str, given: Shapes, results: Shapes, sources: str) -> int | None:
    """Return the operations of an operator of HLO, or of a primitive; of fusions the main one's."""
    words = {operator, *re.split(r",\s*", sources)}
    if words & {"convolution", "conv_general_dilated"}:
        # 2 · result · weights / channels: weights have the channels last, or first.
        # In a fusion the weights are the only tensor of as many axes, but for the image. Where what
        # comes out has fewer axes, it was summed up there, and what the convolution made is not
        # known.
        made = results[0]
        wide = [shape for shape in given if len(shape) == len(made) >= 3]
        for weights in wide:
            if weights[-1] == made[-1] and weights[0] != made[0]:
                return 2 * math.prod(made) * math.prod(weights[:-1])
        for weights in wide:
            if weights[0] == made[1] and weights[0] != made[0]:
                return 2 * math.prod(made) * math.prod(weights[1:])
        return None
    if words & {"dot", "dot_general"}:
        return _xla_product(given, results[0])
    if operator in {"add", "subtract", "multiply", "divide"}:
        return math.prod(results[0])
    moving = {"copy", "transpose", "broadcast", "bitcast", "reshape", "slice", "concatenate", "pad"}
    return 0 if operator in moving | {"maximum", "minimum"} else None


def _xla_product(given: Shapes, made: Shape) -> int | None:
    """Return 2 · result · k of two tensors whose batch axes come first, and one axis is summed."""
    for at, left in enumerate(given):
        for right in given[at + 1 :]:
            batches = len(left) + len(right) - len(made) - 2
            if min(len(left), len(right)) < 2 or batches < 0:
                continue
            batch = math.prod(made[:batches])
            squared, rest = divmod(math.prod(left) * math.prod(right), math.prod(made) * batch)
            inner = math.isqrt(squared)
            if not rest and inner**2 == squared and inner in left and inner in right:
                return 2 * math.prod(made) * inner
    return None
