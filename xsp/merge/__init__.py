"""Merging: correlated runs of all rungs in, one tree of latencies without overhead out."""

from xsp.merge.assembly import Merged, merge

__all__ = [
    "Merged",
    "merge",
]
