"""Alignment: two traces in, which span of one is which span of the other out.

node.py numbers the spans of both alike, alignment.py goes from the root down, sequence.py pairs
siblings in their order, and leftover.py says what became of those that found no partner there.
Layers of two frameworks are paired by what they compute instead (unit.py, across.py,
absorption.py).
"""

from xsp.comparison.alignment.across import align_across
from xsp.comparison.alignment.alignment import Alignment, Change, align
from xsp.comparison.alignment.node import DEPTHS, Bools, Nodes, nodes_of
from xsp.comparison.alignment.sequence import Floats
from xsp.comparison.alignment.unit import frameworks_of, units_of

__all__ = [
    "DEPTHS",
    "Alignment",
    "Bools",
    "Change",
    "Floats",
    "Nodes",
    "align",
    "align_across",
    "frameworks_of",
    "nodes_of",
    "units_of",
]
