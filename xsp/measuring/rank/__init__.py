"""Measures the ranks of a distributed program together."""

from xsp.measuring.rank.company import Company
from xsp.measuring.rank.exchange import collect, hand_over

__all__ = [
    "Company",
    "collect",
    "hand_over",
]
