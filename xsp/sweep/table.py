"""The table of a sweep: results in, one Parquet file out, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.machine import replacing
from xsp.sweep.result import Result, Status
from xsp.trace import DAMAGE

TABLE = "sweep.parquet"
SET = "set."  # begins the columns of further settings

# Meaning of each column; its unit is at the end of its name.
COLUMNS = {
    "batch": "Batch size; null where the target takes none.",
    "threads": "Threads of the framework and its libraries; null: as they choose.",
    "framework": "What ran the model; null where it is not known.",
    "precision": "Element type of the weights and inputs; null where it is not known.",
    "compiled": "Whether the model was compiled first; null where it is not known.",
    "device": "Where the model ran; null where it is not known.",
    "train": "Whether an evaluation is a training step.",
    "status": "`measured`, `out-of-memory`, `failed`, or `skipped`.",
    "reason": "Why there is no trace; null where there is one.",
    "latency_ns": "Latency of an evaluation without the profiler.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "throughput_per_s": "Samples per second: the batch size over the latency.",
    "throughput_low_per_s": "Lower end of its 95 % interval.",
    "throughput_high_per_s": "Upper end of its 95 % interval.",
    "runs": "Evaluations that the latency rests on.",
    "peak_memory_bytes": "Most memory that the first process had resident, libraries included.",
    "peak_device_memory_bytes": "Most that PyTorch's tensors took on a CUDA device.",
    "trace": "File of the trace, in the folder of the table; null where there is none.",
    "problems": "What to know before trusting the numbers.",
    "took_s": "Seconds that the point took, loading included.",
    "settings": "All settings as JSON, sorted by name: what the point is found again by.",
    "basis": "As JSON what the result rests on beside: target, plan, versions, machine.",
}

_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("batch", "threads", "runs"), pl.Int64),
    **dict.fromkeys(("peak_memory_bytes", "peak_device_memory_bytes"), pl.Int64),
    **dict.fromkeys(("compiled", "train"), pl.Boolean),
    "problems": pl.List(pl.String),
}
_SCHEMA = pl.Schema(
    {
        name: _TYPES.get(name, pl.Float64 if name.endswith(("_ns", "_s")) else pl.String)
        for name in COLUMNS
    }
)
_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")


def frame(results: Iterable[Result]) -> pl.DataFrame:
    """Return results as a table: the columns of `COLUMNS`, and `set.NAME` for each other setting.

    A further setting whose values are of several types is text.
    """
    rows = list(results)
    table = pl.DataFrame([_row(result) for result in rows], schema=_SCHEMA, orient="row")
    names = dict.fromkeys(name for row in rows for name in row.settings if name not in _SETTINGS)
    return table.with_columns(_series(name, rows) for name in names)


def write(results: Iterable[Result], folder: Path) -> None:
    """Write the table of some results into a folder, whole or not at all.

    Raises:
        ExportError: The file could not be written.
    """
    with replacing(folder / TABLE) as file:
        frame(results).write_parquet(file)


def read(folder: Path) -> list[Result]:
    """Return the results in the table of a folder; none where there is no table.

    Raises:
        TraceFormatError: The table is damaged, or is none of a sweep.
    """
    path = folder / TABLE
    if not path.exists():
        return []
    try:
        # A result's settings are read from their JSON.
        rows = pl.read_parquet(path).select(*(set(COLUMNS) - set(_SETTINGS))).to_dicts()
        return [_result(row) for row in rows]
    except (*DAMAGE, KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceFormatError(
            f"{path} is damaged, or no table of a sweep: choose another folder (-o), or delete it "
            f"to measure all points again ({error})"
        ) from error


def _row(result: Result) -> dict[str, Any]:
    settings = {name: result.settings.get(name) for name in _SETTINGS}
    return {
        **dict.fromkeys(COLUMNS),
        **settings,
        "train": bool(settings["train"]),
        "status": str(result.status),
        "reason": result.reason,
        **result.measured,
        "trace": result.trace,
        "problems": list(result.problems),
        "took_s": result.took_s,
        "settings": result.key,
        "basis": json.dumps(result.basis),
    }


_NUMBERS = [
    name for name in COLUMNS if name.endswith(("_ns", "_per_s", "_bytes")) or name == "runs"
]


def _result(row: Mapping[str, Any]) -> Result:
    return Result(
        row["settings"],
        dict(json.loads(row["settings"])),
        Status(row["status"]),
        row["reason"],
        row["trace"],
        {name: row[name] for name in _NUMBERS},
        tuple(row["problems"]),
        row["took_s"],
        dict(json.loads(row["basis"])),
    )


def _series(name: str, rows: list[Result]) -> pl.Series:
    values = [row.settings.get(name) for row in rows]
    if len({type(value) for value in values if value is not None}) > 1:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(f"{SET}{name}", values)
