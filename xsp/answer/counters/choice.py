"""Picks the kernels whose counters would say most about a trace."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses import kernel_information
from xsp.errors import AnalysisError
from xsp.level import Kind
from xsp.text import counted, percent
from xsp.trace import Trace

SCHEMA = {
    "kernel": pl.String,  # short name, without result, namespaces and parameters
    "launches": pl.Int64,  # in one step
    "latency_ns": pl.Float64,  # of all launches together
    "share_pct": pl.Float64,  # of the time of all kernels of the step
    "chosen": pl.Boolean,
    "reason": pl.String,  # empty of kernels after the last chosen one
}

# Kernels that wait for other GPUs: a replay by `ncu` would wait for ever.
_WAITS_FOR_OTHERS = r"(?i)nccl|nvshmem|rccl|all_?reduce_kernel|allgather_kernel"


def chosen(trace: Trace, *, top: int | None = None, until_pct: float = 80.0) -> pl.DataFrame:
    """Choose the kernels that deserve counters: the slowest, until they make most of the time.

    Args:
        trace: A trace with kernels of a device.
        top: How many names to choose at most. By default 5.
        until_pct: Share of the device's time, in per cent, after which no further name is chosen.

    Returns:
        A row for each name of a kernel, the slowest first, with the columns of `SCHEMA`.

    Raises:
        AnalysisError: The trace has no kernels of a device.
    """
    spans = trace.spans.filter(kind=Kind.KERNEL.value)
    if spans.is_empty():
        raise AnalysisError(
            f"No kernel of a device is in the trace ({trace.name}). Measure it with levels=4 on "
            "a machine with a GPU."
        )
    kernels = kernel_information(trace).filter(pl.col("path").is_in(spans["path"].implode()))
    fields = spans["attributes"].struct.unnest()
    counters = [name for name in fields.columns if name.startswith("ncu.")]
    known = fields.select(pl.any_horizontal(pl.col(counters).is_not_null())) if counters else None
    told = known.to_series() if known is not None else pl.repeat(False, spans.height, eager=True)
    table = (
        kernels.join(spans.select("path", told.alias("counted")), on="path", how="left")
        .group_by("kernel", maintain_order=True)
        .agg(
            launches=pl.col("count").sum(),
            latency_ns=pl.col("latency_ns").sum(),
            counted=pl.col("counted").all(),
        )
        .sort("latency_ns", descending=True, maintain_order=True)
    )
    whole = float(table["latency_ns"].sum())
    most = 5 if top is None else top
    reasons, takes, taken, reached = [], [], 0, 0.0
    for name, launches, latency, known_already in table.iter_rows():
        share = latency / whole if whole else 0.0
        waits = pl.Series([name]).str.contains(_WAITS_FOR_OTHERS).item()
        take = False
        if known_already:
            reason = "not chosen: its counters are in the trace"
        elif waits:
            reason = "not chosen: it waits for other GPUs, so a replay would never end"
        elif taken >= most or reached >= until_pct / 100:
            reason = ""
        else:
            take = True
            taken += 1
            reason = f"{percent(share)} of the device's time in {counted(launches, 'launch')}"
        reached += share if take else 0.0
        takes.append(take)
        reasons.append(reason)
    return table.with_columns(
        share_pct=100 * pl.col("latency_ns") / whole if whole else pl.lit(0.0),
        chosen=pl.Series(takes, dtype=pl.Boolean),
        reason=pl.Series(reasons, dtype=pl.String),
    ).select(*SCHEMA)
