"""Makes a row for each span of a tree's deepest level, with the span's work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.total import joined, total, whole_total
from xsp.answer.analyses.tree import Tree
from xsp.answer.analyses.work import around, work_of
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints
from xsp.text import short_name

WORK = ("flops", "read_bytes", "write_bytes")
_INTERVAL = ("latency_ns", "latency_low_ns", "latency_high_ns")
Mask = NDArray[np.bool_]


@once_per_trace
def kernels_of(tree: Tree) -> pl.DataFrame:
    """Return the kernels of a tree, in the order of its rows.

    Kernels of a device have the device's times; other spans have their self time, without that of
    the kernels inside, so that all sum to the time of the level. An operator's work is its only
    kernel's, where that has no counters; of an operator with several kernels it is nobody's.

    Returns:
        A row per kernel: `row` in the tree, `layer_row` (of the innermost layer around, -1 for
        none), `kernel`, `full_name`, `count`, times and interval in ns (null where not known),
        `WORK`, `work_source`, `occupancy_pct`, `occupancy_source`, `transfer` (whether it is a copy
        or a set, which the peaks of a device do not limit), and `covered_ns`: its time if the work
        in it is known, be it the kernel's or that of an operator around it.
    """
    among = _among(tree)
    rows = np.flatnonzero(among)
    work, covered = _shared(tree, work_of(tree), among)
    launched = tree.attribute("launched_kernel")[rows]
    told = launched.unique().drop_nulls().to_list()
    short = launched.replace(told, [short_name(name) for name in told])
    name = tree.spans["name"][rows]
    on_device = tree.is_of(Kind.KERNEL)[rows]
    full = tree.attribute("full_name")[rows].fill_null(launched)
    frame = pl.DataFrame({"name": name, "short": short, "full": full, "device": on_device})
    names = frame.select(
        kernel=pl.coalesce("short", "name"),
        full_name=pl.when("device").then(pl.coalesce("full", "name")).otherwise(pl.col("full")),
    )
    parts = (kernel_times(tree), names, work, _occupancy(tree, rows))
    return pl.concat(parts, how="horizontal").with_columns(
        transfer=pl.Series(tree.is_of(Kind.MEMCPY, Kind.MEMSET)[rows]),
        covered_ns=pl.when(pl.Series(covered)).then(pl.col("latency_ns")).otherwise(0.0),
    )


@once_per_trace
def kernel_times(tree: Tree) -> pl.DataFrame:
    """Return `row`, `layer_row`, `count`, times and interval of kernels, as `kernels_of` does."""
    among = _among(tree)
    rows = np.flatnonzero(among)
    return _times(tree, among, rows).with_columns(
        row=pl.Series(rows),
        layer_row=pl.Series(tree.nearest(tree.is_of(Kind.LAYER))[rows]),
        count=tree.attribute("calls", pl.Int64)[rows].fill_null(1),
    )


def in_kernels(tree: Tree) -> Mask:
    """Return which spans have the work that is done in kernels: these, and operators around."""
    among = _among(tree)
    return among | (tree.is_of(Kind.OP) & around(tree, among))


def _among(tree: Tree) -> Mask:
    """Return which spans are kernels; launches stand for kernels of which nothing else is known."""
    counted = tree.attribute("launched_kernel").is_not_null().to_numpy()
    if not tree.is_of(*DEVICE_ACTIVITIES).any() and counted.any():
        return counted & tree.is_of(Kind.LAUNCH)
    return tree.is_of(*tree.deepest())


def _times(tree: Tree, among: Mask, rows: Ints) -> pl.DataFrame:
    """Return latencies with intervals; null of launches, whose time is not their kernels'.

    The interval of a span's self time is as wide as that of its latency.
    """
    latency = tree.spans.select(_INTERVAL)[rows]
    kinds = tree.spans["kind"][rows]
    if (kinds == Kind.LAUNCH.value).all():
        return latency.with_columns(pl.lit(None, dtype=pl.Float64).alias(n) for n in _INTERVAL)
    if tree.is_of(*DEVICE_ACTIVITIES).any():
        return latency
    own = pl.Series(tree.own_ns(among)[rows]).fill_nan(None)
    inside = latency["latency_ns"] - own
    return latency.select((pl.col(name) - inside).clip(0.0) for name in _INTERVAL)


def _shared(tree: Tree, work: pl.DataFrame, among: Mask) -> tuple[pl.DataFrame, Mask]:
    """Return the work of kernels, with that of operators of one, and of which work is known."""
    rows = np.flatnonzero(among)
    own = work[rows]
    doing = pl.any_horizontal(pl.col(*WORK) > 0) & (pl.col("work_source") == "analytical")
    acting = work.select(doing.fill_null(value=False)).to_series().to_numpy()
    above = tree.nearest(acting & tree.is_of(Kind.OP) & ~among)[rows]
    above[own["work_source"].is_not_null().to_numpy()] = -1
    kernels = np.bincount(above[above >= 0], minlength=len(among))
    alone = (above >= 0) & (kernels[above] == 1)
    given, mask = work[np.where(alone, above, 0)], pl.Series(alone)
    shared = own.with_columns(given[name].zip_with(mask, own[name]) for name in own.columns)
    around = (above >= 0) & work["flops"].is_not_null().to_numpy()[above]
    return shared, own["flops"].is_not_null().to_numpy() | around


def _occupancy(tree: Tree, rows: Ints) -> pl.DataFrame:
    """Return occupancies; none is 0, which PyTorch's profiler writes where it knows none."""
    counted, possible = (
        tree.attribute(name, pl.Float64)[rows]
        for name in ("achieved_occupancy_pct", "occupancy_pct")
    )
    frame = pl.DataFrame({"counted": counted, "possible": possible})
    return frame.with_columns(possible=pl.when(pl.col("possible") > 0).then("possible")).select(
        occupancy_pct=pl.coalesce("counted", "possible"),
        occupancy_source=pl.when(pl.col("counted").is_not_null())
        .then(pl.lit("counted"))
        .when(pl.col("possible").is_not_null())
        .then(pl.lit("theoretical")),
    )


def aggregated(kernels: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the kernels summed up, groups in the order they began.

    Occupancy is the mean weighted by latency (paper, section III-D3). Sums of work are of the
    kernels whose work is known, and null where none is; `covered_ns` is the time of these.
    """
    weight = pl.when(pl.col("occupancy_pct").is_not_null()).then(pl.col("latency_ns"))
    sums = [total(name) for name in ("latency_ns", *WORK)]
    ends = [whole_total(name) for name in _INTERVAL[1:]]
    return kernels.group_by(by, maintain_order=True).agg(
        pl.col("count").sum(),
        *sums,
        *ends,
        pl.col("covered_ns").sum(),
        occupancy_pct=pl.when(weight.sum() > 0).then(
            (pl.col("occupancy_pct") * weight).sum() / weight.sum()
        ),
        occupancy_source=joined(pl.col("occupancy_source"), ("counted", "theoretical")),
        work_source=joined(pl.col("work_source")),
    )
