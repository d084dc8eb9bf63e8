"""Comparison of zoos: two tables of results in, what differs between their models out.

`compare_results` (comparison.py) pairs models by name (name.py) and results by settings
(pairing.py), and judges their differences as `xsp compare` does (difference.py).
"""

from xsp.zoo.comparison.comparison import ZooComparison, compare_results
from xsp.zoo.comparison.difference import DIFFERENCE_COLUMNS
from xsp.zoo.comparison.name import matched

__all__ = ["DIFFERENCE_COLUMNS", "ZooComparison", "compare_results", "matched"]
