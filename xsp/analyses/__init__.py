"""Analyses: traces in, tables that answer one question each out.

Each analysis is a function (`layer_latency(trace)`) that returns a polars frame, and an `Analysis`:
`layer_latency.question` is what the table answers, `.columns` what its columns mean, `.needs` what
the trace must have. `ALL` lists them in the order of the gallery, docs/analyses.md.
"""

from __future__ import annotations

from typing import Any

from xsp.analyses.cell import heading_of, text_of
from xsp.analyses.contract import Analysis, Need
from xsp.analyses.layer.layer_latency import layer_latency
from xsp.analyses.tree import Tree

ALL: tuple[Analysis[Any], ...] = (layer_latency,)

__all__ = ["ALL", "Analysis", "Need", "Tree", "heading_of", "layer_latency", "text_of"]
