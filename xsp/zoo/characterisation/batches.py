"""Batches: results in, each batch of each model (Table VI) and the best (Table IX) out."""

from __future__ import annotations

import polars as pl

from xsp.zoo.characterisation.doubt import sure_of
from xsp.zoo.characterisation.entry import IDENTITY, best_rows, entry_rows, is_measured
from xsp.zoo.characterisation.models import SURE, WORK
from xsp.zoo.characterisation.table import ZooTable
from xsp.zoo.characterisation.thirds import QUANTITIES, most_of

_LATENCY = {
    "latency_ns": "Latency of an evaluation without the profiler.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
}

_THROUGHPUT = {
    **IDENTITY,
    "batch": "Batch size; null where the target takes none.",
    **_LATENCY,
    "throughput_per_s": "Samples per second: the batch size over the latency.",
    "throughput_low_per_s": "Lower end of its 95 % interval.",
    "throughput_high_per_s": "Upper end of its 95 % interval.",
    "gain_pct": "By how much twice the batch raises the throughput; null for the largest.",
    "kernel_ns": "Time in kernels; without a device in innermost operators and library calls.",
    "kernel_pct": "This time as a share of the latency.",
    **WORK,
    "runs": "Evaluations that the latency rests on.",
    "best": "Whether it is the best batch of the model with its settings.",
}

_BATCH = {
    **IDENTITY,
    "optimal_batch": "Best batch; null where one batch alone was tried, which the row is about.",
    **SURE,
    **_LATENCY,
    "kernel_ns": "Time in kernels; without a device in innermost operators and library calls.",
    "kernel_pct": "This time as a share of the latency.",
    **WORK,
    **{
        f"{name}_third": f"Which third of the layers has most {said}: first, middle or last."
        for name, said in QUANTITIES.items()
    },
}


def _throughput(results: pl.DataFrame) -> pl.DataFrame:
    return entry_rows(results).filter(is_measured())


def _batch(results: pl.DataFrame) -> pl.DataFrame:
    rows = best_rows(results).join(
        sure_of(entry_rows(results)), on="entry", how="left", maintain_order="left"
    )
    return rows.with_columns(most_of(name).alias(f"{name}_third") for name in QUANTITIES)


throughput = ZooTable(
    "throughput", "What does each batch size give?", _THROUGHPUT, _throughput, "Table VI"
)
batch = ZooTable("batch", "What does the best batch need, and where?", _BATCH, _batch, "Table IX")
