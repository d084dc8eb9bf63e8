"""Measured values: a trace in, what the analyses say of it as columns of the results out.

Only what the trace tells is in it: columns of what is not known are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from xsp.analyses import (
    Analysis,
    by_layer_type,
    by_primitive,
    device_time,
    layer_thirds,
    model_information,
    model_roofline,
)
from xsp.layer_type import LayerType
from xsp.trace import Trace
from xsp.zoo.results.column import PARTS, THIRDS, TYPES, UNTYPED, Row, type_column

_INFORMATION = (
    "latency_ns", "latency_low_ns", "latency_high_ns",
    "throughput_per_s", "throughput_low_per_s", "throughput_high_per_s",
    "device_pct", "layers", "kernels", "parameter_bytes", "peak_bytes", "runs",
)  # fmt: skip
_ROOFLINE = (
    "kernel_ns", "kernel_pct", "flops", "read_bytes", "write_bytes", "work_source",
    "flops_per_byte", "flops_per_s", "occupancy_pct", "ideal_flops_per_byte", "bound", "roof_pct",
    "roof_source",
)  # fmt: skip
_PRIMITIVE = ("library", "primitive", "share_pct")
_MEMORY = ("peak_memory_bytes", "peak_device_memory_bytes")


def measured_of(trace: Trace) -> Row:
    """Return what the analyses say of a trace of one model, by column."""
    environment = trace.metadata.get("environment") or {}
    found = {
        **_of_model(trace),
        "overhead_pct": _overhead_pct(trace),
        **{name: environment.get(name) for name in _MEMORY},
        **_of_types(trace),
        **_of_primitives(trace),
        **_of_thirds(trace),
        "device_idle_pct": _idle_pct(trace),
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_model(trace: Trace) -> Row:
    information, roofline = model_information(trace), model_roofline(trace)
    row = information.row(0, named=True)
    found = {name: row[name] for name in _INFORMATION}
    worked = roofline.row(0, named=True)
    return found | {name: worked[name] for name in _ROOFLINE} | _roof(worked)


def _roof(row: Mapping[str, Any]) -> Row:
    """Return the device's roof, of what a model's place below the roof says."""
    if not row["roof_pct"]:
        return {}
    at, ideal = row["flops_per_byte"], row["ideal_flops_per_byte"]
    above = 100 * row["flops_per_s"] / row["roof_pct"]
    flops = above * ideal / at if row["bound"] == "memory" else above
    return {"peak_flops_per_s": flops, "peak_bytes_per_s": flops / ideal}


def _overhead_pct(trace: Trace) -> float | None:
    overhead, latency = trace.root.overhead_ns, trace.root.latency_ns
    return 100 * overhead / latency if overhead is not None and latency else None


def _of_types(trace: Trace) -> Row:
    """Return the share of each type of layer: 0 of types that the model has not."""
    table = by_layer_type(trace)
    shares = dict(table.select("layer_type", "share_pct").iter_rows())
    if not table.height or any(share is None for share in shares.values()):
        return {}
    found = dict.fromkeys((*TYPES, UNTYPED), 0.0)
    found |= {type_column(kind or "unknown"): share for kind, share in shares.items()}
    return found | {"convolution_pct": found[type_column(LayerType.CONVOLUTION)]}


def _of_primitives(trace: Trace) -> Row:
    table = _asked(by_primitive, trace)
    if table is None:
        return {}
    shares: dict[str, float] = {}
    for library, primitive, share in table.select(_PRIMITIVE).iter_rows():
        if share is not None:
            name = " ".join(filter(None, (library, primitive)))
            shares[name] = shares.get(name, 0.0) + share
    most_first = sorted(shares.items(), key=lambda each: -each[1])
    return {"primitives": json.dumps({name: round(share, 4) for name, share in most_first})}


def _of_thirds(trace: Trace) -> Row:
    """Return what share each third of the layers has of each quantity, in the forward pass."""
    table = _asked(layer_thirds, trace)
    if table is None:
        return {}
    forward = table.filter(pl.col("phase").eq_missing("forward") | pl.col("phase").is_null())
    rows = {row["third"]: row for row in forward.iter_rows(named=True)}
    return {
        f"{third}_{part}_pct": rows[third][f"{part}_pct"]
        for part in PARTS
        for third in THIRDS
        if third in rows
    }


def _idle_pct(trace: Trace) -> float | None:
    """Return how much the device idled that worked longest."""
    table = _asked(device_time, trace)
    if table is None:
        return None
    busiest = table.filter(part="busy").sort("time_ns", maintain_order=True).row(-1, named=True)
    parts = table.filter(part="idle").filter(
        pl.col(name).eq_missing(pl.lit(busiest[name])) for name in ("rank", "device")
    )
    idle: float | None = parts["share_pct"][0]
    return idle


def _asked(analysis: Analysis[Any], trace: Trace) -> pl.DataFrame | None:
    """Return the table of an analysis, None where the trace has not what that needs."""
    return None if analysis.unmet(trace) else analysis(trace)
