"""Work of graphs: an operator of TensorFlow, ONNX or XLA and its tensors in, its work out.

As operator_work.py has it for PyTorch; here what comes out is told, and need not be found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xsp.analyses.work.formula import Shape
from xsp.analyses.work.graph_formula import graph_flops, names
from xsp.analyses.work.operator_kind import ELEMENT_BYTES
from xsp.analyses.work.operator_work import Work

Shapes = Sequence[Shape | None] | None
Types = Sequence[str | None] | None

# What looks at tensors otherwise, or hands them on.
_IDLE = names(
    """
    Reshape Squeeze Unsqueeze ExpandDims Flatten Identity IdentityN Shape Const Constant NoOp
    ReadVariableOp bitcast reshape get-tuple-element tuple parameter constant StopGradient
    """
)
# Of a large table only the rows asked for are read.
_GATHERING = frozenset(("Gather", "GatherV2", "ResourceGather", "GatherND", "gather"))


def graph_work(
    name: str,
    framework: str,
    given: tuple[Shapes, Types],
    made: tuple[Shapes, Types],
    sources: str | None = None,
) -> Work:
    """Return the work of one call of an operator, from the tensors put in and what came out.

    Args:
        name: Type of the operator.
        framework: `tensorflow`, `onnxruntime` or `jax`.
        given: Shapes and element types of the tensors put in.
        made: Shapes and element types of what came out.
        sources: Operators that were fused into it, joined by commas.

    >>> f = ["float32"]
    >>> graph_work("MatMul", "onnxruntime", ([[2, 3], [3, 5]], f * 2), ([[2, 5]], f))
    Work(flops=60, read_bytes=84, write_bytes=40)
    """
    if name in _IDLE:
        return Work(0, 0, 0)
    written = _bytes(made, given)
    read = _bytes(given, given)
    if name in _GATHERING and given[0] is not None:
        indices = _bytes((given[0][1:], (given[1] or ())[1:]), given)
        read = None if written is None or indices is None else written + indices
    if given[0] is None or made[0] is None or None in given[0] or None in made[0]:
        return Work(None, read, written)
    shapes, results = (
        [shape for shape in side if shape is not None] for side in (given[0], made[0])
    )
    return Work(graph_flops(name, framework, shapes, results, sources), read, written)


def _bytes(tensors: tuple[Shapes, Types], given: tuple[Shapes, Types]) -> int | None:
    """Return the size of some tensors; of what came out without element types, by that put in."""
    shapes, types = tensors
    if not shapes or None in shapes:
        return None
    known = list(types or ()) or [(given[1] or [None])[0]] * len(shapes)
    sizes = [ELEMENT_BYTES.get(each or "") for each in known]
    if len(sizes) != len(shapes) or None in sizes:
        return None
    pairs = zip(shapes, sizes, strict=True)
    return sum(math.prod(shape or ()) * (size or 0) for shape, size in pairs)
