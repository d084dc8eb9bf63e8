"""Rows of results: what their columns mean, and how a row is made of a measurement.

The unit of a column is the end of its name, as in docs/analyses.md; docs/zoo-results.md shows all.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from xsp import __version__
from xsp.answer.analyses import (
    Analysis,
    device_time,
    layer_thirds,
    layer_type_work,
    model_information,
    model_roofline,
    primitive_latency,
)
from xsp.answer.zoo.task import Point, Task, basis_text, machine_of
from xsp.layer_type import MEANINGS, LayerType
from xsp.record.session import host_id
from xsp.trace import Trace

Row = dict[str, Any]  # values by column; a column that is not in it is null

# Statuses: only a row that was measured has numbers.
MEASURED, SKIPPED, OUT_OF_MEMORY = "measured", "skipped", "out-of-memory"
TIME_OUT, CRASHED, FAILED = "time-out", "crashed", "failed"
SET, FACT, TIME = "set.", "fact.", "time."  # begin the columns of one setting, fact, layer type
THIRDS: Final = ("first", "middle", "last")  # as layer-thirds names them
PARTS: Final = {
    "latency": "layers' time",
    "allocated": "memory that layers allocate",
    "flops": "operations",
    "accessed": "bytes read and written",
}

_FLAG, _COUNT, _NUMBER, _TEXT = pl.Boolean(), pl.Int64(), pl.Float64(), pl.String()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the results.

    Attributes:
        meaning: A sentence or two for people.
        dtype: Type of its values.
    """

    meaning: str
    dtype: pl.DataType


def type_column(kind: str) -> str:
    """Return the column of a layer type's share of the latency.

    >>> type_column("data movement")
    'time.data_movement_pct'
    """
    return f"{TIME}{kind.replace(' ', '_')}_pct"


UNTYPED: Final = type_column("unknown")
TYPES: Final = tuple(type_column(kind) for kind in LayerType)

_POINT = {
    "model": Column("Name of the model in the zoo.", _TEXT),
    "target": Column("What was measured, as `xsp profile` takes it.", _TEXT),
    "family": Column("Family of models, as the zoo says.", _TEXT),
    "zoo": Column("Name of the zoo that named the model last.", _TEXT),
    "accuracy_pct": Column("Accuracy, as the zoo says.", _NUMBER),
    "batch": Column("Batch size; null where the target takes none.", _COUNT),
    "threads": Column("Threads of the framework and its libraries; null: as they chose.", _COUNT),
    "framework": Column("What ran the model; null where it is not known.", _TEXT),
    "precision": Column("Element type of weights and inputs; null where not known.", _TEXT),
    "compiled": Column("Whether the model was compiled first; null where not known.", _FLAG),
    "device": Column("Where the model ran; null where it is not known.", _TEXT),
    "train": Column("Whether a step is a training step.", _FLAG),
    "settings": Column("All settings as JSON, sorted by name.", _TEXT),
}
_OUTCOME = {
    "status": Column(
        "`measured`, `out-of-memory`, `time-out`, `crashed`, `failed`, or `skipped`.", _TEXT
    ),
    "reason": Column("Why there is no measurement; null where there is one.", _TEXT),
    "warnings": Column(
        "What to know before trusting the numbers, a sentence each.", pl.List(_TEXT)
    ),
    "warning_codes": Column("The short names of these warnings.", pl.List(_TEXT)),
    "same_output": Column(
        "Whether two calls gave the same output; null where that was not checked.", _FLAG
    ),
    "trace": Column("File of the trace, from the folder of results; null: there is none.", _TEXT),
    "took_s": Column("Seconds that the measurement took, loading included.", _NUMBER),
    "started": Column("When the measurement began, as ISO 8601 with the time zone.", _TEXT),
}
_TIMES = {
    "latency_ns": Column("Latency of a step without the profiler.", _NUMBER),
    "latency_low_ns": Column("Lower end of its 95 % interval.", _NUMBER),
    "latency_high_ns": Column("Upper end of its 95 % interval.", _NUMBER),
    "throughput_per_s": Column("Samples per second: the batch size over the latency.", _NUMBER),
    "throughput_low_per_s": Column("Lower end of its 95 % interval.", _NUMBER),
    "throughput_high_per_s": Column("Upper end of its 95 % interval.", _NUMBER),
    "runs": Column("Number of steps behind the latency.", _COUNT),
    "optimal_batch": Column(
        "Best batch of this model, settings and machine: the smallest of which a doubling raises "
        "the throughput by no more than 5 %. One alone is the best where a larger one ran out of "
        "memory; else it is null.",
        _COUNT,
    ),
    "gain_pct": Column(
        "By how much a doubling of the batch raises the throughput; null for the largest.", _NUMBER
    ),
    "overhead_pct": Column(
        "What recording the deepest level added to the latency, and is not in it, as a share of "
        "it; noise can make it negative.",
        _NUMBER,
    ),
    "layers": Column("How many layers a step calls.", _COUNT),
    "kernels": Column("How many kernels a step runs on devices.", _COUNT),
    "kernel_ns": Column(
        "Sum over kernels, copies and sets; without a device, calls and operators.", _NUMBER
    ),
    "kernel_pct": Column("This sum as a share of the latency.", _NUMBER),
    "device_pct": Column("Time in which devices worked, of the latency.", _NUMBER),
    "device_idle_pct": Column(
        "Of the time from the first to the last work of the device that worked longest, the part "
        "in which it idled.",
        _NUMBER,
    ),
    "convolution_pct": Column("Share of the latency in convolutions.", _NUMBER),
}
_WORK = {
    "flops": Column("Operations, a multiplication and an addition two.", _COUNT),
    "read_bytes": Column("Bytes that kernels or operators read.", _COUNT),
    "write_bytes": Column("Bytes that they wrote.", _COUNT),
    "work_source": Column("Where operations and bytes are known from.", _TEXT),
    "flops_per_byte": Column("Arithmetic intensity: operations per byte.", _NUMBER),
    "flops_per_s": Column("Operations per second of `kernel_ns`.", _NUMBER),
    "occupancy_pct": Column("Achieved occupancy of kernels, weighted by their latency.", _NUMBER),
    "ideal_flops_per_byte": Column("Intensity at which the device's roof bends.", _NUMBER),
    "peak_flops_per_s": Column("The most operations per second of the device.", _NUMBER),
    "peak_bytes_per_s": Column("The most bytes per second from and to its memory.", _NUMBER),
    "bound": Column(
        "`memory` where the intensity is below the ideal, else `compute`; null without a roof.",
        _TEXT,
    ),
    "roof_pct": Column("Operations per second, of the most possible at this intensity.", _NUMBER),
    "roof_source": Column("Where the roof is from.", _TEXT),
    "peak_memory_bytes": Column(
        "Most memory that the process had resident until then, libraries and smaller batches "
        "included.",
        _COUNT,
    ),
    "peak_device_memory_bytes": Column(
        "Most that PyTorch's tensors took on a CUDA device.", _COUNT
    ),
    "parameter_bytes": Column("Size of the parameters.", _COUNT),
    "peak_bytes": Column("Most memory held at one time in a step, above its start.", _COUNT),
    "energy_j": Column("Energy of a step: of the GPUs, or without any of CPU packages.", _NUMBER),
    "energy_low_j": Column("Lower end of its 95 % interval.", _NUMBER),
    "energy_high_j": Column("Upper end of its 95 % interval.", _NUMBER),
}
_SHARES = {
    **{
        type_column(kind): Column(f"Share of the latency in `{kind}`: {meaning}.", _NUMBER)
        for kind, meaning in MEANINGS.items()
    },
    UNTYPED: Column("Share of the latency in layers whose type is not known.", _NUMBER),
    "primitives": Column(
        "Share of the latency in percent of each library and primitive, as a JSON object such as "
        '`{"onednn convolution": 61.5}`, most time first; null where no library was recorded.',
        _TEXT,
    ),
    **{
        f"{third}_{part}_pct": Column(
            f"Share of the {what} in the {third} third of the layers, in the forward pass.", _NUMBER
        )
        for part, what in PARTS.items()
        for third in THIRDS
    },
}
_PLACE = {
    "host": Column("Name of the machine.", _TEXT),
    "machine": Column("Short id of the machine, which differs between machines.", _TEXT),
    "cpu": Column("Name of the processor.", _TEXT),
    "cores": Column("How many cores could be used.", _NUMBER),
    "gpu": Column("Name of the GPU, or of several; null where there is none.", _TEXT),
    "xsp_version": Column("Version of xsp that measured.", _TEXT),
    "basis": Column(
        "What else the result depends on, as JSON: target, plan, versions, machine.", _TEXT
    ),
}

COLUMNS: Final[Mapping[str, Column]] = _POINT | _OUTCOME | _TIMES | _WORK | _SHARES | _PLACE
SCHEMA: Final = pl.Schema({name: column.dtype for name, column in COLUMNS.items()})


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
_ENERGY = ("energy_j", "energy_low_j", "energy_high_j")


def measured_of(trace: Trace) -> Row:
    """Return the values that analyses compute from a trace of one model, by column."""
    environment = trace.metadata.get("environment") or {}
    overhead, latency = trace.root.overhead_ns, trace.root.latency_ns
    overhead_pct = 100 * overhead / latency if overhead is not None and latency else None
    # How much the device idled that worked longest.
    table = _asked(device_time, trace)
    if table is None:
        idle_pct = None
    else:
        busiest = table.filter(part="busy").sort("time_ns", maintain_order=True).row(-1, named=True)
        parts = table.filter(part="idle").filter(
            pl.col(name).eq_missing(pl.lit(busiest[name])) for name in ("rank", "device")
        )
        idle: float | None = parts["share_pct"][0]
        idle_pct = idle
    found = {
        **_of_model(trace),
        "overhead_pct": overhead_pct,
        **{name: environment.get(name) for name in _MEMORY},
        **{name: trace.root.attributes.get(name) for name in _ENERGY},
        **_of_types(trace),
        **_of_primitives(trace),
        **_of_thirds(trace),
        "device_idle_pct": idle_pct,
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_model(trace: Trace) -> Row:
    information, roofline = model_information(trace), model_roofline(trace)
    row = information.row(0, named=True)
    found = {name: row[name] for name in _INFORMATION}
    worked = roofline.row(0, named=True)
    # The device's roof, of what a model's place below the roof says.
    if not worked["roof_pct"]:
        roof = {}
    else:
        at, ideal = worked["flops_per_byte"], worked["ideal_flops_per_byte"]
        above = 100 * worked["flops_per_s"] / worked["roof_pct"]
        flops = above * ideal / at if worked["bound"] == "memory" else above
        roof = {"peak_flops_per_s": flops, "peak_bytes_per_s": flops / ideal}
    return found | {name: worked[name] for name in _ROOFLINE} | roof


def _of_types(trace: Trace) -> Row:
    """Return the share of each type of layer: 0 of types that the model has not."""
    table = layer_type_work(trace)
    shares = dict(table.select("layer_type", "share_pct").iter_rows())
    if not table.height or any(share is None for share in shares.values()):
        return {}
    found = dict.fromkeys((*TYPES, UNTYPED), 0.0)
    found |= {type_column(kind or "unknown"): share for kind, share in shares.items()}
    return found | {"convolution_pct": found[type_column(LayerType.CONVOLUTION)]}


def _of_primitives(trace: Trace) -> Row:
    table = _asked(primitive_latency, trace)
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
    """Return the share of each third of the layers in each quantity, in the forward pass."""
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


def _asked(analysis: Analysis[Any], trace: Trace) -> pl.DataFrame | None:
    """Return the table of an analysis, None where the trace has not what that needs."""
    return None if analysis.unmet(trace) else analysis(trace)


_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")
_FACTS = ("accuracy_pct", "family", "zoo")


def row_of(
    task: Task, point: Point, trace: Trace, *, took_s: float, basis: Mapping[str, str]
) -> Row:
    """Return the row of a point that was measured, with what the analyses say of its trace.

    Args:
        task: The task that the point is of.
        point: The point.
        trace: Its trace.
        took_s: Seconds that the measurement took until now, loading included.
        basis: What the result rests on beside its settings, from `basis_of`.
    """
    environment = trace.metadata.get("environment") or {}
    return {
        **_common(task, point, took_s, basis),
        "status": MEASURED,
        "warnings": [warning.message for warning in trace.warnings],
        "warning_codes": [warning.code for warning in trace.warnings],
        **measured_of(trace),
        **_place(environment),
    }


def row_without(  # what is known of a point without a trace
    task: Task,
    point: Point,
    status: str,
    reason: str,
    *,
    took_s: float | None,
    basis: Mapping[str, str],
) -> Row:
    """Return the row of a point that has no trace.

    Args:
        task: The task that the point is of.
        point: The point.
        status: `out-of-memory`, `time-out`, `crashed`, `failed`, or `skipped`.
        reason: What happened, for people.
        took_s: Seconds until it happened; None where nothing was started.
        basis: What the result rests on beside its settings, from `basis_of`.
    """
    return {**_common(task, point, took_s, basis), "status": status, "reason": reason}


def facts_of(task: Task) -> Row:
    """Return the facts that the zoo gives of a task's model, by column."""
    return {name if name in _FACTS else f"{FACT}{name}": fact for name, fact in task.facts.items()}


def is_fact(column: str) -> bool:
    """Return whether a column has what the zoo says of models."""
    return column in _FACTS or column.startswith(FACT)


def _common(task: Task, point: Point, took_s: float | None, basis: Mapping[str, str]) -> Row:
    settings: dict[str, Any] = dict(point.settings)
    more = {f"{SET}{name}": value for name, value in settings.items() if name not in _SETTINGS}
    started = datetime.now(UTC) - timedelta(seconds=took_s or 0.0)
    # The columns of the machine, from a basis.
    gpus = [fact for name, fact in basis.items() if name.startswith("GPU ")]
    cores = basis.get("usable cores")
    here = basis.get("host id") == host_id()
    place_of = {
        "host": platform.node() if here else None,
        "machine": machine_of(basis),
        "cpu": basis.get("cpu"),
        "cores": float(cores) if cores else None,
        "gpu": ", ".join(dict.fromkeys(gpus)) or None,
    }
    return {
        "model": task.model,
        "target": point.spec.target,
        **facts_of(task),
        **{name: settings.get(name) for name in _SETTINGS},
        "train": bool(settings.get("train")),
        "settings": point.key,
        **more,
        "took_s": took_s,
        "started": started.isoformat(timespec="seconds"),
        **place_of,
        "xsp_version": __version__,
        "basis": basis_text(basis),
    }


def _place(environment: Mapping[str, Any]) -> Row:
    found = {"host": environment.get("host"), "cpu": environment.get("cpu")}
    found["cores"] = environment.get("usable_cores")
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    found["gpu"] = ", ".join(dict.fromkeys(gpus)) or None
    if known := environment.get("host_id"):
        found["machine"] = machine_of({"host id": known})
    return {name: value for name, value in found.items() if value is not None}
