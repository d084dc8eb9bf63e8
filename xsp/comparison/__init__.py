"""Comparisons: traces in, one table of what differs between the first and each other one out.

`compare` aligns the spans of two traces (node.py numbers them, sequence.py pairs siblings in their
order, leftover.py says what became of the others, alignment.py goes from the root down), and
table.py judges their differences (significance.py). whole.py compares what is known of the model as
a whole, setting.py how and where it was measured. text.py and markup.py show a `Comparison`, and
condition.py decides what a pull request is to fail for. docs/compare.md says how differences are
judged.
"""

from xsp.comparison.comparison import Comparison, compare, names_of
from xsp.comparison.condition import GRAMMAR, Condition, Outcome, parse_condition
from xsp.comparison.significance import (
    FALSE_DISCOVERY_RATE,
    Differences,
    Estimates,
    corrected,
)
from xsp.comparison.text import chance, percent

__all__ = [
    "FALSE_DISCOVERY_RATE",
    "GRAMMAR",
    "Comparison",
    "Condition",
    "Differences",
    "Estimates",
    "Outcome",
    "chance",
    "compare",
    "corrected",
    "names_of",
    "parse_condition",
    "percent",
]
