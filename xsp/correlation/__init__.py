"""Correlation: rows of visits in, one tree for each evaluation out."""

from xsp.correlation.ambiguity import Resolution, resolve
from xsp.correlation.cuda_graph import any_captured, captures, unseen, with_captured
from xsp.correlation.parent import Trees, correlate
from xsp.correlation.untimed import place_by_order

__all__ = [
    "Resolution",
    "Trees",
    "any_captured",
    "captures",
    "correlate",
    "place_by_order",
    "resolve",
    "unseen",
    "with_captured",
]
