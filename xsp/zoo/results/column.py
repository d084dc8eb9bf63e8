"""Columns of a zoo's results: what each means and how it is stored, as data.

The unit of a column is the end of its name, as in docs/analyses.md; docs/zoo-results.md shows all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from xsp.layer_type import MEANINGS, LayerType

Row = dict[str, Any]  # values by column; a column that is not in it is null

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
    """What a column of the results holds.

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
    "train": Column("Whether an evaluation is a training step.", _FLAG),
    "settings": Column("All settings as JSON, sorted by name.", _TEXT),
}
_OUTCOME = {
    "status": Column(
        "`measured`, `out-of-memory`, `time-out`, `crashed`, `failed`, or `skipped`.", _TEXT
    ),
    "reason": Column("Why there is no measurement; null where there is one.", _TEXT),
    "problems": Column(
        "What to know before trusting the numbers, a sentence each.", pl.List(_TEXT)
    ),
    "problem_codes": Column("The short names of these problems.", pl.List(_TEXT)),
    "same_output": Column(
        "Whether two calls gave the same output; null where that was not checked.", _FLAG
    ),
    "trace": Column("File of the trace, from the folder of results; null: there is none.", _TEXT),
    "took_s": Column("Seconds that the measurement took, loading included.", _NUMBER),
    "started": Column("When the measurement began, as ISO 8601 with the time zone.", _TEXT),
}
_TIMES = {
    "latency_ns": Column("Latency of an evaluation without the profiler.", _NUMBER),
    "latency_low_ns": Column("Lower end of its 95 % interval.", _NUMBER),
    "latency_high_ns": Column("Upper end of its 95 % interval.", _NUMBER),
    "throughput_per_s": Column("Samples per second: the batch size over the latency.", _NUMBER),
    "throughput_low_per_s": Column("Lower end of its 95 % interval.", _NUMBER),
    "throughput_high_per_s": Column("Upper end of its 95 % interval.", _NUMBER),
    "runs": Column("Evaluations that the latency rests on.", _COUNT),
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
    "layers": Column("How many layers an evaluation calls.", _COUNT),
    "kernels": Column("How many kernels an evaluation runs on devices.", _COUNT),
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
    "peak_bytes": Column("Most memory held at one time in an evaluation, above its start.", _COUNT),
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
        "As JSON what the result rests on beside: target, plan, versions, machine.", _TEXT
    ),
}

COLUMNS: Final[Mapping[str, Column]] = _POINT | _OUTCOME | _TIMES | _WORK | _SHARES | _PLACE
SCHEMA: Final = pl.Schema({name: column.dtype for name, column in COLUMNS.items()})
