"""Models (Table VIII of the paper): results in, a row for each model with its settings out."""

from __future__ import annotations

import polars as pl

from xsp.zoo.characterisation.doubt import sure_of
from xsp.zoo.characterisation.entry import IDENTITY, entry_rows, first_of, is_measured
from xsp.zoo.characterisation.table import ZooTable

# Of a row at the best batch.
WORK = {
    "flops": "Floating-point operations of an evaluation.",
    "read_bytes": "Bytes that it reads from memory.",
    "write_bytes": "Bytes that it writes to memory.",
    "occupancy_pct": "Achieved occupancy of the kernels on devices.",
    "flops_per_byte": "Operations for each byte read or written: its arithmetic intensity.",
    "flops_per_s": "Operations for each second of work.",
    "bound": "`memory` or `compute`: what the roof of its machine says of its intensity.",
}
SURE = {
    "optimal_batch_sure": "Whether the intervals of the throughputs allow no other best batch; of "
    "single runs, which have none, it is not sure.",
}
_AT_BEST = {
    "convolution_pct": "Share of convolution layers in the latency, at the best batch.",
    "kernel_pct": "Share of the latency in kernels; without a device in innermost operators and "
    "library calls. At the best batch.",
    "peak_memory_bytes": "Most memory that its process had resident up to the best batch, "
    "libraries included.",
    "peak_device_memory_bytes": "Most that its tensors took on a device up to the best batch.",
    "parameter_bytes": "Parameters of the model.",
    "layers": "Layers of the model.",
    "flops": "Floating-point operations of an evaluation at the best batch.",
    "flops_per_byte": "Operations for each byte read or written: arithmetic intensity, at the "
    "best batch.",
    "flops_per_s": "Operations for each second of work, at the best batch.",
    "bound": "`memory` or `compute`: what the roof of the machine says of the intensity.",
    "overhead_pct": "What profiling would have added to the latency, had it not been removed.",
}
_FIRST = ("accuracy_pct", "optimal_batch", "reason")
_ONLINE = ("latency_ns", "latency_low_ns", "latency_high_ns")
_RATE = ("throughput_per_s", "throughput_low_per_s", "throughput_high_per_s")

COLUMNS = {
    **IDENTITY,
    "accuracy_pct": "Accuracy of the model, where the zoo gives one.",
    "online_latency_ns": "Latency at batch 1, or of a target that takes no batch.",
    "online_latency_low_ns": "Lower end of its 95 % interval.",
    "online_latency_high_ns": "Upper end of its 95 % interval.",
    "max_throughput_per_s": "Most samples per second of the batches measured.",
    "max_throughput_low_per_s": "Lower end of its 95 % interval.",
    "max_throughput_high_per_s": "Upper end of its 95 % interval.",
    "optimal_batch": "Best batch: the smallest measured of which a doubling raises the throughput "
    "by no more than 5 %; null where one batch alone was tried.",
    **SURE,
    **_AT_BEST,
    "problems": "What to know before trusting the numbers: how many sentences, of all batches.",
    "measured": "Batches with numbers.",
    "failed": "Batches without.",
    "reason": "Why the first of them has none.",
}


def _models(results: pl.DataFrame) -> pl.DataFrame:
    rows = entry_rows(results)
    measured = rows.filter(is_measured())
    alone = measured.filter(pl.col("batch").fill_null(1) == 1)
    quickest = measured.drop_nulls(_RATE[0]).sort(_RATE[0], descending=True, maintain_order=True)
    parts = [
        alone.select("entry", **{f"online_{name}": name for name in _ONLINE}),
        quickest.select("entry", **{f"max_{name}": name for name in _RATE}),
        *(rows.select("entry", name).drop_nulls(name) for name in _FIRST),
        rows.filter("best").select("entry", *_AT_BEST),
    ]
    table = first_of(rows.select("entry", *IDENTITY))
    for part in [*map(first_of, parts), sure_of(rows), _counted(rows)]:
        table = table.join(part, on="entry", how="left", maintain_order="left")
    return table


def _counted(rows: pl.DataFrame) -> pl.DataFrame:
    """Return how many problems, and batches with and without numbers, each entry has."""
    each = rows.select(
        "entry",
        problems=pl.col("problems").list.len(),
        measured=is_measured().cast(pl.Int64),
        failed=(~is_measured()).cast(pl.Int64),
    )
    return each.group_by("entry").agg(pl.all().sum().cast(pl.Int64))


models = ZooTable("models", "How does each model do?", COLUMNS, _models, "Table VIII")
