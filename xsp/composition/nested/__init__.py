"""Nested parts of a program: a journal in; its parts, loops and which of them are one span out.

part.py nests what the journal has, iteration.py puts the iterations of training loops around it,
and node.py says which parts are one span, and where that is drawn.
"""

from xsp.composition.nested.iteration import ITERATION, with_iterations
from xsp.composition.nested.node import Made, Node, nodes_of
from xsp.composition.nested.part import UNWATCHED, Part, first_calls, parts

__all__ = [
    "ITERATION",
    "UNWATCHED",
    "Made",
    "Node",
    "Part",
    "first_calls",
    "nodes_of",
    "parts",
    "with_iterations",
]
