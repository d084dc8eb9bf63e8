"""Finds the thread of the forward operator that each backward operator belongs to.

A backward operator bears a number that the profiler gave to the thread of its forward operator,
and that no other event bears. Lines from forward to backward operators tell which thread that is;
in a file without lines, it is the thread with the most forward operators of the same sequence
numbers.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import nearest
from xsp.reading.correlation import enclosing
from xsp.reading.importers.kineto.nesting import Integers

_ENGINE = "autograd::engine::"  # names of the engine's spans, in which all backward operators run
_IS_BACKWARD = pl.col("forward") > 0


def with_forward_threads(
    rows: pl.DataFrame, begins: pl.DataFrame, ends: pl.DataFrame
) -> pl.DataFrame:
    """Return rows with the column `forward_thread`, null for what is no backward operator.

    Args:
        rows: Columns `start_ns`, `thread`, `sequence` and `forward`: the number of the forward
            operator's thread, 0 for forward operators.
        begins: Where lines from forward operators begin: `flow` and `tid`.
        ends: Where these lines end: `flow`, `tid` and `start_ns` of a backward operator.
    """
    backward = rows.filter(_IS_BACKWARD)
    lines = ends.join(
        backward.unique(["thread", "start_ns"]),
        left_on=["tid", "start_ns"],
        right_on=["thread", "start_ns"],
    ).join(begins.select("flow", found="tid"), on="flow")
    forward = rows.filter(pl.col("forward") == 0).select("sequence", found="thread")
    alike = backward.unique(["forward", "sequence"]).join(forward, on="sequence")
    votes = [pairs.group_by("forward", "found").len() for pairs in (lines, alike)]
    known = pl.concat(vote.sort("len", "found", descending=[True, False]) for vote in votes)
    known = known.unique("forward", keep="first", maintain_order=True).select("forward", "found")
    joined = rows.join(known, on="forward", how="left", maintain_order="left")
    thread = pl.coalesce("found", -pl.col("forward"))
    return joined.with_columns(forward_thread=pl.when(_IS_BACKWARD).then(thread)).drop("found")


def phases(rows: pl.DataFrame, around: Integers) -> pl.Series:
    """Return the phase of each operator: `backward` if it is of the backward pass, else null.

    Args:
        rows: Columns `kind`, `name` and `forward`.
        around: Index of the row around each row, -1 for none.
    """
    of_engine = pl.col("name").str.starts_with(_ENGINE) | _IS_BACKWARD
    outer = rows.select(of_engine.fill_null(value=False)).to_series().to_numpy()
    is_op = (rows["kind"] == Kind.OP.value).to_numpy()
    every = pl.int_range(rows.height, eager=True).to_numpy()
    inside = nearest(around, every, outer) >= 0
    return pl.Series([None, "backward"]).gather(pl.Series(inside & is_op).cast(pl.UInt32))


def in_regions(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return rows in which the backward pass states the region that was open while it ran.

    Its operators run on threads of autograd's engine, while the thread that asked for it waits
    within a range such as `## backward ##`. Where modules are recorded, backward operators belong
    to the modules whose forward pass made them.
    """
    regions = np.flatnonzero((rows["kind"] == Kind.REGION.value).to_numpy())
    loose = rows["attr.phase"] == "backward"
    passes = np.flatnonzero(loose.fill_null(value=False).to_numpy() & (around < 0))
    if not len(regions) or not len(passes) or rows["attr.module_class"].is_not_null().any():
        return rows
    start, end, thread = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    main = int(np.bincount(np.unique(thread[regions], return_inverse=True)[1]).argmax())
    asked = np.unique(thread[regions])[main]
    both = np.concatenate([regions, passes])
    lane = np.concatenate([thread[regions], np.full(len(passes), asked)])
    found = enclosing(lane, start[both], end[both], np.zeros(len(both), np.int64))
    found = nearest(found, found, np.arange(len(both)) < len(regions))[len(regions) :]
    parent = np.full(rows.height, -1)
    parent[passes] = np.where(found >= 0, regions[found], -1)
    ids = pl.int_range(1, rows.height + 1, eager=True)
    is_parent = pl.int_range(rows.height, eager=True).is_in(pl.Series(parent).unique().implode())
    stated = ids.gather(pl.Series(np.maximum(parent, 0)))
    return rows.with_columns(
        id=pl.when(is_parent).then(ids), parent_id=pl.when(pl.Series(parent >= 0)).then(stated)
    )
