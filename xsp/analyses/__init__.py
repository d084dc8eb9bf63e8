"""Analyses: traces in, tables that answer one question each out.

Each analysis is a function (`layer_latency(trace)`) that returns a polars frame, and an `Analysis`:
`layer_latency.question` is what the table answers, `.columns` what its columns mean, `.needs` what
the trace must have. `ALL` lists them in the order of the gallery, docs/analyses.md.
"""

from __future__ import annotations

from typing import Any

from xsp.analyses.cell import heading_of, text_of
from xsp.analyses.contract import Analysis, Need
from xsp.analyses.kernel.kernel_by_name import kernel_by_name
from xsp.analyses.kernel.kernel_information import kernel_information
from xsp.analyses.kernel.kernel_roofline import kernel_roofline
from xsp.analyses.kernel.layer_device_time import layer_device_time
from xsp.analyses.kernel.layer_kernel_metrics import layer_kernel_metrics
from xsp.analyses.kernel.layer_kernels import layer_kernels
from xsp.analyses.kernel.layer_roofline import layer_roofline
from xsp.analyses.layer.layer_latency import layer_latency

ALL: tuple[Analysis[Any], ...] = (
    layer_latency,
    kernel_information,
    kernel_roofline,
    kernel_by_name,
    layer_kernels,
    layer_kernel_metrics,
    layer_device_time,
    layer_roofline,
)

__all__ = [
    "ALL",
    "Analysis",
    "Need",
    "heading_of",
    "kernel_by_name",
    "kernel_information",
    "kernel_roofline",
    "layer_device_time",
    "layer_kernel_metrics",
    "layer_kernels",
    "layer_latency",
    "layer_roofline",
    "text_of",
]
