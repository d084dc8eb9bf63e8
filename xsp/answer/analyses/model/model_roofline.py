"""Compares the operations and bytes of each model with its device's roof (A15 of the paper).

The paper divides operations by the time of kernels, not by the model's latency: that says how well
the device is used while it works. How much of the latency that is stands beside it, `kernel_pct`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.kernel.kernel import kernels_of
from xsp.answer.analyses.kernel.kernel_by_name import KNOWN_COLUMN, known_pct
from xsp.answer.analyses.model.evaluation import MEANINGS, inside, step_rows
from xsp.answer.analyses.owned_work import MEANINGS as WORK
from xsp.answer.analyses.owned_work import work_by_owner
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import dispatching, roof_of
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.trace import Trace

_LATENCY: Final = ("latency_ns", "latency_low_ns", "latency_high_ns")
_KERNEL: Final = ("kernel_ns", "kernel_low_ns", "kernel_high_ns")
_RATES: Final = ("flops_per_s", "flops_low_per_s", "flops_high_per_s")
_COLUMNS = {name: MEANINGS[name] for name in ("model", "settings", "batch", *_LATENCY)} | {
    "kernel_ns": "Sum over kernels, copies and sets; without a device, calls and operators.",
    "kernel_low_ns": "Lower end of its 95 % interval.",
    "kernel_high_ns": "Upper end of its 95 % interval.",
    "kernel_pct": "This sum as a share of the latency; more than 100 where some ran side by side.",
    **WORK,
    **KNOWN_COLUMN,
    "flops_per_byte": "Arithmetic intensity: operations per byte read or written.",
    "flops_per_s": "Operations per second of `kernel_ns`.",
    "flops_low_per_s": "Lower end of its 95 % interval.",
    "flops_high_per_s": "Upper end of its 95 % interval.",
    "occupancy_pct": "Achieved occupancy of the kernels that have it, weighted by their latency.",
    "ideal_flops_per_byte": "Intensity at which the roof bends: peak operations over peak bytes.",
    "bound": "`memory` where the intensity is below that, else `compute`; null without a roof.",
    "roof_pct": "Operations per second as a share of the most possible at this intensity.",
    "roof_source": "Where the roof is from.",
}


@analysis("Is the model bound by memory or by compute?", _COLUMNS, paper="A15", several=True)
def model_roofline(*traces: Trace) -> pl.DataFrame:
    """Return the summed work of the kernels of each model, and the bound of the model.

    Args:
        traces: Traces of models, such as those of a sweep over batch sizes, or of programs, which
            have a row for each group of like steps.
    """
    rows = step_rows(traces)
    found = [_together(trace, rows.filter(trace=n)) for n, trace in enumerate(traces)]
    moved = pl.sum_horizontal(_BYTES, ignore_nulls=True)
    intensity = pl.when(moved > 0).then(pl.col("flops") / moved).alias("flops_per_byte")
    # Operations per second: the lower end is that of the longest time.
    times = ("kernel_ns", "kernel_high_ns", "kernel_low_ns")
    rates = [
        (1e9 * _positive("flops", time)).alias(name)
        for name, time in zip(_RATES, times, strict=True)
    ]
    roof = pl.min_horizontal(
        "peak_flops_per_s", pl.col("flops_per_byte") * pl.col("peak_bytes_per_s")
    )
    known = pl.col("flops_per_byte").is_not_null()
    of_roof = pl.when(known).then(100 * pl.col("flops_per_s") / roof).alias("roof_pct")
    return (
        pl.concat(found, how="vertical_relaxed")
        .with_columns(intensity, *rates, kernel_pct=100 * _positive("kernel_ns", "latency_ns"))
        .with_columns(_bound(), of_roof)
        .select(*_COLUMNS)
    )


def _together(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of a trace with the sums over what lies in one of each."""
    tree = Tree.of(trace)
    first = rows["spans"].list.first()
    owner = inside(tree, first.drop_nulls().to_list())
    numbers = dict(enumerate(first.drop_nulls()))
    sums = (
        _times(tree, owner)
        .join(work_by_owner(tree, owner), on="owner", how="full", coalesce=True)
        .join(_known(tree, owner), on="owner", how="left")
        .with_columns(pl.col("owner").replace_strict(numbers, return_dtype=pl.Int64))
    )
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    roof = roof_of(trace)
    # What lies in a group is in proportion to what its calls took, not to its repetitions.
    rows = rows.with_columns(taken=pl.Series(tree.latency_ns()).fill_nan(None).gather(first))
    known = (pl.col("taken") > 0) & pl.col("latency_ns").is_not_null()
    share = (
        pl.when(known).then(pl.col("latency_ns") / pl.col("taken")).otherwise(1 / pl.col("calls"))
    )
    # A sum over all spans, null where it is 0: then it is known of none that has any.
    return (
        rows.with_columns(owner=first, calls=calls.gather(first))
        .join(sums, on="owner", how="left", maintain_order="left")
        .with_columns(pl.col(name) * share for name in _KERNEL)
        .with_columns(
            pl.when(pl.col(name) > 0).then(pl.col(name)) // pl.col("calls")
            for name in ("flops", *_BYTES)
        )
        .with_columns(pl.col("unknown_operators") // pl.col("calls"))
        .with_columns(
            peak_flops_per_s=pl.lit(roof and roof.flops_per_s, dtype=pl.Float64),
            peak_bytes_per_s=pl.lit(roof and roof.bytes_per_s, dtype=pl.Float64),
            ideal_flops_per_byte=pl.lit(roof and roof.ideal_flops_per_byte, dtype=pl.Float64),
            roof_source=pl.lit(roof and roof.source, dtype=pl.String),
        )
    )


def _known(tree: Tree, owner: Ints) -> pl.DataFrame:
    """Return per owner for which share of its kernels' time the operations are known."""
    kernels = kernels_of(tree)
    return (
        kernels.with_columns(pl.Series("owner", owner[kernels["row"].to_numpy()]))
        .group_by("owner")
        .agg(pl.sum("covered_ns", "latency_ns"))
        .select("owner", known_pct=known_pct())
    )


_BYTES: Final = ("read_bytes", "write_bytes")


def _times(tree: Tree, owner: Ints) -> pl.DataFrame:
    """Return per owner the time of its kernels, with the sums of the ends of their intervals."""
    occupancy = tree.attribute("achieved_occupancy_pct", pl.Float64)
    latency, counted = pl.col("latency_ns"), pl.col("occupancy").is_not_null()
    weight = pl.when(counted).then("latency_ns")
    complete = [pl.col(end).count() == latency.count() for end in _LATENCY]
    working, times = _working(tree)
    return (
        times.with_columns(pl.Series("owner", owner), occupancy.alias("occupancy"))
        .filter(pl.Series(working), pl.col("owner") >= 0)
        .group_by("owner", maintain_order=True)
        .agg(
            *(
                pl.when(known).then(pl.sum(end)).alias(name)
                for known, end, name in zip(complete, _LATENCY, _KERNEL, strict=True)
            ),
            ((weight * pl.col("occupancy")).sum() / weight.sum())
            .fill_nan(None)
            .alias("occupancy_pct"),
        )
    )


def _working(tree: Tree) -> tuple[NDArray[np.bool_], pl.DataFrame]:
    """Return which spans do the work, and the times and intervals of all spans.

    Without a device these are library calls, and operators that do more than call others, with
    their self times: what an operator calls to make room (`aten::empty`) is not its work.
    """
    device = tree.is_of(*DEVICE_ACTIVITIES)
    times = tree.spans.select(*_LATENCY)
    if device.any():
        return device, times
    host = tree.is_of(Kind.CALL) | (tree.is_of(Kind.OP) & ~dispatching(tree))
    inside = times["latency_ns"] - pl.Series(tree.own_ns(host)).fill_nan(None)
    return host, times.select((pl.col(name) - inside).clip(0.0) for name in _LATENCY)


def _positive(above: str, below: str) -> pl.Expr:
    """Return a quotient, null where what is divided by is 0."""
    return pl.when(pl.col(below) > 0).then(pl.col(above) / pl.col(below))


def _bound() -> pl.Expr:
    """Return which of the two limits a model, as the paper defines it (section III-D3)."""
    intensity, ideal = pl.col("flops_per_byte"), pl.col("ideal_flops_per_byte")
    known = intensity.is_not_null() & ideal.is_not_null()
    side = pl.when(intensity < ideal).then(pl.lit("memory")).otherwise(pl.lit("compute"))
    return pl.when(known).then(side).alias("bound")
