"""Counts the floating-point operations of an instruction in a program that XLA compiled.

Counted as for the operators of other frameworks: a multiplication and an addition are two; of what
is fused with products and convolutions (biases, activations) nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from xsp.xplane import Instruction, Module

_ARITHMETIC = ("add", "subtract", "multiply", "divide")
_CALLING = ("fusion", "call")


def flops(module: Module, around: Mapping[int, Instruction], each: Instruction) -> int | None:
    """Return the operations of an instruction; None where they are not known.

    Args:
        module: The program.
        around: The instructions of the computation that it is in, by number.
        each: The instruction.
    """
    if each.opcode in ("custom-call", "while", "conditional"):
        return None
    main = main_flops(module, around, each)
    return main if main else _arithmetic(module, each)


def main_flops(module: Module, around: Mapping[int, Instruction], each: Instruction) -> int:
    """Return the operations of the products and convolutions in an instruction."""
    if each.opcode in _CALLING:
        inside = [module.computations.get(number, {}) for number in each.called]
        return sum(main_flops(module, part, one) for part in inside for one in part.values())
    sizes = [
        around[at].shapes[0].sizes for at in each.operands if at in around and around[at].shapes
    ]
    if len(sizes) < 2 or not each.shapes:
        return 0
    if each.opcode == "dot":
        summed = (sizes[0][axis] for axis in each.summed if axis < len(sizes[0]))
        return 2 * math.prod(each.shapes[0].sizes) * math.prod(summed)
    # Each point that is made sums over the weights of its channel.
    # Where zeros lie between the points put in, each of these points meets the weights of its
    # channel instead, as in a transposed convolution.
    given = sizes[0]
    weights = sizes[1]
    axes = each.convolution
    if axes is None or axes.features >= len(given) or axes.made >= len(weights):
        return 0
    points, channels = each.shapes[0].sizes, weights[axes.made]
    if axes.spread:
        points, channels = given, given[axes.features]
    return 2 * math.prod(points) * math.prod(weights) // max(channels, 1)


def _arithmetic(module: Module, each: Instruction) -> int:
    """Return one operation for each element that sums, products and the like make."""
    if each.opcode in _CALLING:
        parts = (p for number in each.called for p in module.computations.get(number, {}).values())
        return sum(_arithmetic(module, part) for part in parts)
    on = each.opcode in _ARITHMETIC
    return sum(math.prod(shape.sizes) for shape in each.shapes) if on else 0
