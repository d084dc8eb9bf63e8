"""Correlation: rows of visits in, one tree for each evaluation out."""

from xsp.correlation.ambiguity import Settled, settle
from xsp.correlation.cuda_graph import any_captured, captures, unseen, with_captured
from xsp.correlation.parent import Correlated, correlate
from xsp.correlation.untimed import place_by_order

__all__ = [
    "Correlated",
    "Settled",
    "any_captured",
    "captures",
    "correlate",
    "place_by_order",
    "settle",
    "unseen",
    "with_captured",
]
