"""Analyses: traces in, tables that answer one question each out.

Each analysis is a function (`layer_latency(trace)`) that returns a polars frame, and an `Analysis`:
`layer_latency.question` is what the table answers, `.columns` what its columns mean, `.needs` what
the trace must have. `ALL` lists them in the order of the gallery, docs/analyses.md.
"""

from __future__ import annotations

from typing import Any

from xsp.analyses.cell import heading_of, text_of
from xsp.analyses.contract import Analysis, Need
from xsp.analyses.device.communication import communication
from xsp.analyses.device.critical_path import critical_path
from xsp.analyses.device.device_idle import device_idle
from xsp.analyses.device.device_time import device_time
from xsp.analyses.device.launch_overhead import launch_overhead
from xsp.analyses.device.rank_imbalance import rank_imbalance
from xsp.analyses.device.verdict import verdict
from xsp.analyses.layer.layer_latency import layer_latency

ALL: tuple[Analysis[Any], ...] = (
    layer_latency,
    device_time,
    device_idle,
    launch_overhead,
    communication,
    rank_imbalance,
    critical_path,
    verdict,
)

__all__ = [
    "ALL",
    "Analysis",
    "Need",
    "communication",
    "critical_path",
    "device_idle",
    "device_time",
    "heading_of",
    "launch_overhead",
    "layer_latency",
    "rank_imbalance",
    "text_of",
    "verdict",
]
