"""Compares traces: what differs between the first and each other one.

comparison.py puts a `Comparison` together: alignment.py finds which spans are the same, table.py
makes the rows of spans and of sums, device.py those of what devices did, whole.py what is known of
the model and of how it was measured, significance.py judges differences, and text.py and markup.py
show them. condition.py decides what a pull request
is to fail for. docs/compare.md says how differences are judged.
"""

from xsp.answer.comparison.comparison import Comparison, compare, names_of
from xsp.answer.comparison.condition import GRAMMAR, Condition, Outcome, parse_condition
from xsp.answer.comparison.significance import (
    FALSE_DISCOVERY_RATE,
    Differences,
    Estimates,
    corrected,
)
from xsp.answer.comparison.text import chance, percent

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
