"""Measures copies by direction and kind of memory: sizes, times and bandwidth."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMMUNICATING, COMPUTING, COPYING, Work, apart
from xsp.answer.analyses.total import total
from xsp.answer.analyses.tree import Tree
from xsp.trace import Trace

_COLUMNS = {
    "rank": "Rank of the process, or its number; null where the trace is of one process.",
    "device": "Number of the device.",
    "direction": "Where from and where to: `HtoD`, `DtoH`, `DtoD` or `PtoP`; null: not known.",
    "source": "Kind of memory that is copied from, such as `pinned`; null: not known.",
    "destination": "Kind of memory that is written to; null: not known.",
    "count": "How many copies.",
    "time_ns": "Their times, added up.",
    "exposed_ns": "Time in which at least one of them ran, and the device neither computed nor "
    "communicated.",
    "size_bytes": "What they copied; null where no size is known.",
    "median_bytes": "Median size of one.",
    "mean_bytes_per_s": "Bandwidth of those whose size is known: their bytes by their times.",
    "median_bytes_per_s": "Median bandwidth of one.",
    "largest_bytes_per_s": "Bandwidth of the largest one, which the start of a copy lowers least.",
}
_KEYS = ("rank", "device", "direction", "source", "destination")


@analysis("How fast are copies, in which direction?", _COLUMNS, needs=(Need.DEVICE,))
def copies(trace: Trace) -> pl.DataFrame:
    """Return the copies of each device by direction and kinds of memory, most time first.

    Args:
        trace: A trace with work of a device; without copies the table has no rows.

    Raises:
        AnalysisError: No device worked in the trace.
    """
    tree = Tree.of(trace)
    work = Work.of(tree)
    rows = work.table.filter(pl.col("sort") == COPYING)
    at = rows["row"]
    told = [tree.attribute(name)[at] for name in ("direction", "source", "destination")]
    size = tree.attribute("transfer_bytes", pl.Int64)[at].alias("size")
    calls = tree.attribute("calls", pl.Int64)[at].fill_null(1).alias("calls")
    table = rows.hstack([*told, size, calls]).with_columns(
        time=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    )
    number = table.select(pl.struct(_KEYS).rank("dense").cast(pl.Int64) - 1).to_series()
    table = table.with_columns(number=number)
    rate = 1e9 * pl.col("size") / pl.when(pl.col("time") > 0).then("time")
    known = pl.col("time").filter(pl.col("size").is_not_null())
    sums = table.group_by("number").agg(
        *(pl.col(key).first() for key in _KEYS),
        count=pl.sum("calls"),
        time_ns=pl.sum("time"),
        size_bytes=total("size"),
        median_bytes=pl.median("size"),
        mean_bytes_per_s=1e9 * total("size") / known.sum(),
        median_bytes_per_s=rate.median(),
        largest_bytes_per_s=rate.sort_by("size", nulls_last=False).last(),
    )
    return (
        sums.join(_exposed(work, table), on="number")
        .sort("rank", "device", "time_ns", "number", descending=[False, False, True, False])
        .select(*_COLUMNS)
    )


def _exposed(work: Work, table: pl.DataFrame) -> pl.DataFrame:
    """Return for each number of rows how long they ran while their device did nothing else."""
    number, place, start, end = (
        table[name].cast(pl.Int64).to_numpy() for name in ("number", "place", "start_ns", "end_ns")
    )
    of = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    of[number] = place
    numbers, starts, ends = apart(number, start, end)
    hidden = work.worked_ns(of[numbers], starts, ends, COMPUTING, COMMUNICATING)
    exposed = np.bincount(numbers, ends - starts - hidden, len(of))
    return pl.DataFrame({"number": np.arange(len(of)), "exposed_ns": exposed})
