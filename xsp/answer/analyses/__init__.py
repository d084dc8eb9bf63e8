"""Analyses of traces: each answers one question with a table.

Each analysis is a function (`layer_latency(trace)`) that returns a polars frame, and an `Analysis`:
`layer_latency.question` is what the table answers, `.columns` what its columns mean, `.needs` what
the trace must have. `ALL` lists them in the order of the gallery, docs/analyses.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xsp.answer.analyses.advice.advice import advice
from xsp.answer.analyses.cell import ends_of as ends_of
from xsp.answer.analyses.cell import estimate_of as estimate_of
from xsp.answer.analyses.cell import heading_of as heading_of
from xsp.answer.analyses.cell import text_of as text_of
from xsp.answer.analyses.contract import Analysis
from xsp.answer.analyses.contract import Need as Need
from xsp.answer.analyses.dataflow.parallelism import parallelism
from xsp.answer.analyses.dataflow.scheduling import scheduling
from xsp.answer.analyses.device.collectives import collectives
from xsp.answer.analyses.device.communication import communication
from xsp.answer.analyses.device.copies import copies
from xsp.answer.analyses.device.critical_path import critical_path
from xsp.answer.analyses.device.device_idle import device_idle
from xsp.answer.analyses.device.device_time import device_time
from xsp.answer.analyses.device.device_work import DeviceWork as DeviceWork
from xsp.answer.analyses.device.device_work import step_device_ns as step_device_ns
from xsp.answer.analyses.device.launch_overhead import launch_overhead
from xsp.answer.analyses.device.rank_imbalance import rank_imbalance
from xsp.answer.analyses.device.stream_queue import stream_queue
from xsp.answer.analyses.device.verdict import verdict
from xsp.answer.analyses.kernel.kernel_by_name import kernel_by_name
from xsp.answer.analyses.kernel.kernel_by_type import kernel_by_type
from xsp.answer.analyses.kernel.kernel_information import kernel_information
from xsp.answer.analyses.kernel.kernel_roofline import kernel_roofline
from xsp.answer.analyses.kernel.kernel_sequences import kernel_sequences
from xsp.answer.analyses.kernel.layer_device_time import layer_device_time
from xsp.answer.analyses.kernel.layer_kernel_metrics import layer_kernel_metrics
from xsp.answer.analyses.kernel.layer_kernels import layer_kernels
from xsp.answer.analyses.kernel.layer_roofline import layer_roofline
from xsp.answer.analyses.kernel.operator_roofline import operator_roofline
from xsp.answer.analyses.layer.layer_information import layer_information
from xsp.answer.analyses.layer.layer_latency import layer_latency
from xsp.answer.analyses.layer.layer_latency_by_type import layer_latency_by_type
from xsp.answer.analyses.layer.layer_memory_allocation import layer_memory_allocation
from xsp.answer.analyses.layer.layer_memory_by_type import layer_memory_by_type
from xsp.answer.analyses.layer.layer_thirds import layer_thirds
from xsp.answer.analyses.layer.layer_type_distribution import layer_type_distribution
from xsp.answer.analyses.layer_type import layer_types as layer_types
from xsp.answer.analyses.memory.layer_memory import layer_memory
from xsp.answer.analyses.memory.memory_peak import memory_peak
from xsp.answer.analyses.memory.memory_timeline import memory_timeline
from xsp.answer.analyses.memory.operator_memory_allocation import operator_memory_allocation
from xsp.answer.analyses.model.evaluation import batch_of as batch_of
from xsp.answer.analyses.model.model_information import model_information
from xsp.answer.analyses.model.model_roofline import model_roofline
from xsp.answer.analyses.model.optimal_batch import optimal_batch
from xsp.answer.analyses.model.step_latency import step_latency
from xsp.answer.analyses.monitor.energy import energy
from xsp.answer.analyses.monitor.host_use import host_use
from xsp.answer.analyses.monitor.utilization import utilization
from xsp.answer.analyses.monitor.utilization_timeline import utilization_timeline
from xsp.answer.analyses.structure.attribution import attribution
from xsp.answer.analyses.structure.layer_type_work import layer_type_work
from xsp.answer.analyses.structure.level_latency import level_latency
from xsp.answer.analyses.structure.module_latency import module_latency
from xsp.answer.analyses.structure.operator_latency import operator_latency
from xsp.answer.analyses.structure.primitive_latency import primitive_latency
from xsp.answer.analyses.structure.side_by_side import side_by_side
from xsp.answer.analyses.system.off_cpu import off_cpu
from xsp.answer.analyses.system.page_faults import page_faults
from xsp.answer.analyses.system.processor_counters import processor_counters
from xsp.answer.analyses.system.system_calls import system_calls
from xsp.answer.analyses.system.thread_states import thread_states
from xsp.answer.analyses.system.thread_timeline import thread_timeline
from xsp.answer.analyses.tree import Tree as Tree
from xsp.answer.analyses.work import with_peak

ALL: tuple[Analysis[Any], ...] = (
    model_information,
    optimal_batch,
    model_roofline,
    step_latency,
    layer_information,
    layer_latency,
    layer_memory_allocation,
    layer_type_distribution,
    layer_latency_by_type,
    layer_memory_by_type,
    layer_thirds,
    kernel_information,
    kernel_roofline,
    kernel_by_name,
    kernel_by_type,
    kernel_sequences,
    operator_roofline,
    layer_kernels,
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
    stream_queue,
    copies,
    communication,
    collectives,
    rank_imbalance,
    critical_path,
    scheduling,
    parallelism,
    verdict,
    memory_peak,
    memory_timeline,
    layer_memory,
    operator_memory_allocation,
    off_cpu,
    thread_states,
    thread_timeline,
    system_calls,
    page_faults,
    processor_counters,
    utilization,
    utilization_timeline,
    energy,
    host_use,
    advice,
)

# Names of earlier versions.
by_layer_type, by_module, by_operator = layer_type_work, module_latency, operator_latency
by_primitive, time_by_level = primitive_latency, level_latency
memory_by_layer, allocations_by_operator = layer_memory, operator_memory_allocation
FORMER: Mapping[str, Analysis[Any]] = {
    "by-layer-type": by_layer_type,
    "by-module": by_module,
    "by-operator": by_operator,
    "by-primitive": by_primitive,
    "time-by-level": time_by_level,
    "memory-by-layer": memory_by_layer,
    "allocations-by-operator": allocations_by_operator,
}

__all__ = [
    "ALL",
    "Analysis",
    "advice",
    "attribution",
    "collectives",
    "communication",
    "copies",
    "critical_path",
    "device_idle",
    "device_time",
    "energy",
    "host_use",
    "kernel_by_name",
    "kernel_by_type",
    "kernel_information",
    "kernel_roofline",
    "kernel_sequences",
    "launch_overhead",
    "layer_device_time",
    "layer_information",
    "layer_kernel_metrics",
    "layer_kernels",
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
    "page_faults",
    "parallelism",
    "primitive_latency",
    "processor_counters",
    "rank_imbalance",
    "scheduling",
    "side_by_side",
    "step_latency",
    "stream_queue",
    "system_calls",
    "thread_states",
    "thread_timeline",
    "utilization",
    "utilization_timeline",
    "verdict",
    "with_peak",
]
