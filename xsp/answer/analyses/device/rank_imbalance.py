"""Finds ranks that come late to collectives, and measures how long other ranks wait for them."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMMUNICATING, COMPUTING, COPYING, Work
from xsp.answer.analyses.device.communication import communicating_kernels
from xsp.answer.analyses.device.host_collective import imbalance
from xsp.answer.analyses.tree import Tree
from xsp.level import DEVICE_ACTIVITIES
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number.",
    "device": "Number of the device; null where hosts communicate without one.",
    "busy_ns": "How long the device worked, communication with its waiting included; without one, "
    "how long operators and collectives did.",
    "computing_ns": "How long it computed.",
    "communicating_ns": "How long it communicated.",
    "collectives": "How many collective operations were also found in another rank.",
    "waiting_ns": "In these, from its own arrival to that of the last rank.",
    "late_median_ns": "Median of how long after the first rank it arrived.",
    "late_max_ns": "The most of that.",
    "last": "At how many of them it was the last to arrive.",
    "made_wait_ns": "How long all other ranks together waited for it where it was the last.",
    "ends_apart_ns": "How far 95 % of its ends are from the mean of all ranks' at most: the error "
    "of the clocks, below which being late means nothing.",
}

# Ends of one collective operation are no farther apart, as clocks and means of steps go.
_APART_NS, _APART = 200_000, 0.1  # the larger of a time, and of a share of the longer kernel
_KEY = ("collective", "group", "group_size", "group_ranks")


@analysis("Which rank makes the others wait?", _COLUMNS, needs=(Need.RANKS, Need.COMMUNICATION))
def rank_imbalance(trace: Trace) -> pl.DataFrame:
    """Return the times that each rank works, waits, and makes others wait.

    Args:
        trace: A trace of several ranks, with work of devices or collectives of hosts.

    Raises:
        AnalysisError: The trace is of one process, or nothing communicated and no device worked.
    """
    tree = Tree.of(trace)
    if not len(tree.rows(*DEVICE_ACTIVITIES)):
        return imbalance(trace, tree).select(*_COLUMNS)
    work = Work.of(tree)
    found = arrivals(communicating_kernels(tree, work))
    late, waited = pl.col("late"), pl.col("waited")
    ranks = found.group_by("place").agg(
        collectives=pl.len().cast(pl.Int64),
        waiting_ns=waited.sum(),
        late_median_ns=late.median(),
        late_max_ns=late.max(),
        last=pl.col("is_last").sum().cast(pl.Int64),
        made_wait_ns=pl.when("is_last").then(pl.col("others_waited")).sum(),
        ends_apart_ns=pl.col("end_apart").quantile(0.95),
    )
    times = pl.DataFrame({
        "busy_ns": work.covered_ns(COMPUTING, COMMUNICATING, COPYING),
        "computing_ns": work.covered_ns(COMPUTING),
        "communicating_ns": work.covered_ns(COMMUNICATING),
    })  # fmt: skip
    places = work.places.hstack(times).with_columns(place=pl.int_range(pl.len(), dtype=pl.Int64))
    return (
        places.join(ranks, on="place", how="left")
        .with_columns(pl.col("collectives").fill_null(0))
        .sort("place")
        .select(*_COLUMNS)
    )


def _matched(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return collectives with the number of the operation that they are, the same in all ranks.

    A collective ends at about one moment in all of its ranks, and runs in all of them at that
    moment. So kernels of one collective and group are one operation if their ends are the nearest
    to each other, near enough, and if they overlap. The place with most kernels of the sort says
    which operations there are; what is not found there, or more than once, is left out.
    """
    key = pl.concat_str(*(pl.col(c).cast(pl.String).fill_null("") for c in _KEY), separator="\n")
    kernels = kernels.with_columns(key=key.rank("dense").cast(pl.Int64)).sort("key", "end_ns")
    counts = (
        kernels.group_by("key", "place")
        .len()
        .sort("key", "len", "place", descending=[False, True, False])
    )
    most = counts.unique("key", keep="first", maintain_order=True).select("key", most="place")
    kernels = kernels.join(most, on="key", maintain_order="left")
    known = kernels.filter(pl.col("place") == pl.col("most")).with_row_index("operation")
    if not known.height:
        return kernels.with_columns(operation=pl.lit(0, pl.UInt32)).head(0)
    # For each kernel the position of the known one of its key that ends the nearest.
    stride = 2 * int(kernels["end_ns"].max()) + 2  # type: ignore[arg-type]
    ends = (known["key"] * stride + known["end_ns"]).to_numpy()
    own = (kernels["key"] * stride + kernels["end_ns"]).to_numpy()
    after = np.clip(np.searchsorted(ends, own), 0, len(ends) - 1)
    before = np.maximum(after - 1, 0)
    operation: np.ndarray[tuple[int], np.dtype[np.int64]] = np.where(
        np.abs(ends[before] - own) < np.abs(ends[after] - own), before, after
    )
    found = kernels.with_columns(pl.Series("operation", operation, pl.UInt32)).join(
        known.select("operation", "key", known_start="start_ns", known_end="end_ns"),
        on=("operation", "key"),
    )
    start, end = pl.col("start_ns"), pl.col("end_ns")
    together = (start < pl.col("known_end")) & (pl.col("known_start") < end)
    longer = pl.max_horizontal(end - start, pl.col("known_end") - pl.col("known_start"))
    apart = (end - pl.col("known_end")).abs()
    found = found.filter(together, apart <= pl.max_horizontal(_APART_NS, _APART * longer))
    once = pl.len().over("operation", "place") == 1
    return found.filter(once).filter(pl.len().over("operation") > 1)


def arrivals(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return for each kernel how late it arrived, how long it waited, and who was the last.

    Args:
        kernels: Collectives of all ranks; those that are not found in another rank are left out.
    """
    found = _matched(kernels)
    start, end = pl.col("start_ns"), pl.col("end_ns")
    found = found.with_columns(
        late=start - start.min().over("operation"),
        waited=(start.max().over("operation") - start).clip(upper_bound=end - start),
        is_last=start.rank("ordinal").over("operation") == pl.len().over("operation"),
        end_apart=(end - end.mean().over("operation")).abs(),
    )
    waited = pl.col("waited")
    return found.with_columns(others_waited=waited.sum().over("operation") - waited)
