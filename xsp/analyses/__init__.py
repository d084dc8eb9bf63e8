"""Analyses: traces in, tables that answer one question each out.

Each analysis is a function (`layer_latency(trace)`) that returns a polars frame, and an `Analysis`:
`layer_latency.question` is what the table answers, `.columns` what its columns mean, `.needs` what
the trace must have. `ALL` lists them in the order of the gallery, docs/analyses.md.
"""

from __future__ import annotations

from typing import Any

from xsp.analyses.advice.advice import advice
from xsp.analyses.cell import heading_of, text_of
from xsp.analyses.contract import Analysis, Need
from xsp.analyses.layer.layer_latency import layer_latency
from xsp.analyses.memory.allocations_by_operator import allocations_by_operator
from xsp.analyses.memory.memory_by_layer import memory_by_layer
from xsp.analyses.memory.memory_peak import memory_peak
from xsp.analyses.memory.memory_timeline import memory_timeline
from xsp.analyses.structure.attribution import attribution
from xsp.analyses.structure.by_module import by_module
from xsp.analyses.structure.by_operator import by_operator
from xsp.analyses.structure.by_primitive import by_primitive
from xsp.analyses.structure.side_by_side import side_by_side
from xsp.analyses.structure.time_by_level import time_by_level

ALL: tuple[Analysis[Any], ...] = (
    layer_latency,
    time_by_level,
    by_module,
    by_operator,
    by_primitive,
    side_by_side,
    attribution,
    memory_peak,
    memory_timeline,
    memory_by_layer,
    allocations_by_operator,
    advice,
)

__all__ = [
    "ALL",
    "Analysis",
    "Need",
    "advice",
    "allocations_by_operator",
    "attribution",
    "by_module",
    "by_operator",
    "by_primitive",
    "heading_of",
    "layer_latency",
    "memory_by_layer",
    "memory_peak",
    "memory_timeline",
    "side_by_side",
    "text_of",
    "time_by_level",
]
