"""Alignment: two traces in, which span of one is which span of the other out.

node.py numbers the spans of both alike, alignment.py goes from the root down, sequence.py pairs
siblings in their order, and leftover.py says what became of those that found no partner there.
"""

from xsp.comparison.alignment.alignment import Alignment, Change, align
from xsp.comparison.alignment.node import DEPTHS, Bools, Nodes, nodes_of
from xsp.comparison.alignment.sequence import Floats

__all__ = ["DEPTHS", "Alignment", "Bools", "Change", "Floats", "Nodes", "align", "nodes_of"]
