"""Pictures of analyses, each drawn from the table of its analysis.

Each picture bears the name of its analysis: `xsp.plot.layer_latency(trace)` is the picture of
`xsp.analyses.layer_latency(trace)`, and stands in a module named as the folder of the analysis.
`ALL` lists them, in the order of the analyses.
"""

from __future__ import annotations

from typing import Any

from xsp.answer import analyses
from xsp.show.plot.document import Picture
from xsp.show.plot.gallery.device import (
    communication,
    critical_path,
    device_idle,
    device_time,
    launch_overhead,
    rank_imbalance,
    verdict,
)
from xsp.show.plot.gallery.kernel import (
    kernel_by_name,
    kernel_by_type,
    kernel_roofline,
    layer_device_time,
    layer_kernel_metrics,
    layer_roofline,
    operator_roofline,
)
from xsp.show.plot.gallery.layer import (
    layer_latency,
    layer_latency_by_type,
    layer_memory_allocation,
    layer_memory_by_type,
    layer_thirds,
    layer_type_distribution,
)
from xsp.show.plot.gallery.memory import (
    layer_memory,
    memory_peak,
    memory_timeline,
    operator_memory_allocation,
)
from xsp.show.plot.gallery.model import (
    model_information,
    model_roofline,
    optimal_batch,
)
from xsp.show.plot.gallery.monitor import utilization_timeline
from xsp.show.plot.gallery.structure import (
    advice,
    attribution,
    layer_type_work,
    level_latency,
    module_latency,
    operator_latency,
    primitive_latency,
    side_by_side,
)
from xsp.show.plot.gallery.system import off_cpu, thread_states, thread_timeline

ALL: tuple[Picture, ...] = (
    model_information,
    optimal_batch,
    model_roofline,
    layer_latency,
    layer_memory_allocation,
    layer_type_distribution,
    layer_latency_by_type,
    layer_memory_by_type,
    layer_thirds,
    kernel_roofline,
    kernel_by_name,
    kernel_by_type,
    operator_roofline,
    layer_kernel_metrics,
    layer_device_time,
    layer_roofline,
    level_latency,
    layer_type_work,
    module_latency,
    operator_latency,
    primitive_latency,
    side_by_side,
    attribution,
    device_time,
    device_idle,
    launch_overhead,
    communication,
    rank_imbalance,
    critical_path,
    verdict,
    memory_peak,
    memory_timeline,
    layer_memory,
    operator_memory_allocation,
    off_cpu,
    thread_states,
    thread_timeline,
    utilization_timeline,
    advice,
)

__all__ = [
    "ALL",
    "advice",
    "attribution",
    "communication",
    "critical_path",
    "device_idle",
    "device_time",
    "kernel_by_name",
    "kernel_by_type",
    "kernel_roofline",
    "launch_overhead",
    "layer_device_time",
    "layer_kernel_metrics",
    "layer_latency",
    "layer_latency_by_type",
    "layer_memory",
    "layer_memory_allocation",
    "layer_memory_by_type",
    "layer_roofline",
    "layer_thirds",
    "layer_type_distribution",
    "layer_type_work",
    "level_latency",
    "memory_peak",
    "memory_timeline",
    "model_information",
    "model_roofline",
    "module_latency",
    "off_cpu",
    "operator_latency",
    "operator_memory_allocation",
    "operator_roofline",
    "optimal_batch",
    "picture_of",
    "primitive_latency",
    "rank_imbalance",
    "side_by_side",
    "thread_states",
    "thread_timeline",
    "utilization_timeline",
    "verdict",
]


def picture_of(analysis: analyses.Analysis[Any]) -> Picture | None:
    """Return the picture of an analysis, None where its table says more than a picture would."""
    return next((picture for picture in ALL if picture.name == analysis.name), None)
