"""Finds sequences of kernels that recur, in which fusing kernels may pay."""

from __future__ import annotations

import numpy as np
import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.device.activity import COMPUTING, Work
from xsp.answer.analyses.structure.sums import share_pct
from xsp.answer.analyses.tree import Tree
from xsp.text import short_name
from xsp.trace import Trace

_COLUMNS = {
    "sequence": "Short names of the kernels, one after the other on one stream.",
    "count": "How often the sequence occurs; those that overlap count once.",
    "time_ns": "Time of their kernels, added up.",
    "share_pct": "That time as a share of the time of all kernels.",
    "gap_ns": "Time between their kernels, added up.",
    "mean_ns": "Mean time of one kernel of it.",
}


@analysis("Which sequences of kernels recur?", _COLUMNS, needs=(Need.DEVICE,))
def kernel_sequences(trace: Trace, *, length: int = 3) -> pl.DataFrame:
    """Return the sequences of kernels that occur twice or more, those with most time first.

    Args:
        trace: A trace with work of a device.
        length: How many kernels a sequence has, by default 3.

    Raises:
        AnalysisError: No device worked in the trace.
        ValueError: `length` is below 2.
    """
    if length < 2:
        raise ValueError(f"A sequence has two kernels or more (length={length}). Give at least 2.")
    work = Work.of(Tree.of(trace)).table.filter(pl.col("sort") == COMPUTING)
    work = work.sort("lane", "start_ns", "row")
    names = work["name"].unique().sort()
    short = pl.Series([short_name(name) for name in names.to_list()], dtype=pl.String)
    number = work["name"].rank("dense").cast(pl.Int64) - 1
    table = work.select(
        "lane", "start_ns", "end_ns", number=number, time=pl.col("end_ns") - pl.col("start_ns")
    )
    windows = table.select(
        "start_ns",
        *(pl.col("number").shift(-n).over("lane").alias(f"of_{n}") for n in range(length)),
        end=pl.col("end_ns").shift(1 - length).over("lane"),
        time=sum((pl.col("time").shift(-n).over("lane") for n in range(1, length)), pl.col("time")),
        place=pl.int_range(pl.len()),
    ).drop_nulls()
    keys = [f"of_{n}" for n in range(length)]
    windows = windows.with_columns(key=pl.struct(keys).rank("dense").cast(pl.Int64))
    # Of windows of one sequence that overlap, as of one kernel many times, the first counts.
    chosen = _apart(windows["key"].to_numpy(), windows["place"].to_numpy(), length)
    sums = (
        windows.filter(pl.Series(chosen, dtype=pl.Boolean))
        .group_by(keys, maintain_order=True)
        .agg(
            count=pl.len().cast(pl.Int64),
            time_ns=pl.sum("time"),
            gap_ns=(pl.col("end") - pl.col("start_ns") - pl.col("time")).clip(lower_bound=0).sum(),
        )
        .filter(pl.col("count") > 1)
    )
    words = [short.gather(sums[key]).alias(key) for key in keys]
    return (
        sums.with_columns(
            sequence=pl.select(pl.concat_str(words, separator=" → ")).to_series(),
            share_pct=share_pct("time_ns", float(work.select(_TOTAL).item() or 0)),
            mean_ns=pl.col("time_ns") / pl.col("count") / length,
        )
        .sort("time_ns", "sequence", descending=[True, False])
        .select(*_COLUMNS)
    )


_TOTAL = (pl.col("end_ns") - pl.col("start_ns")).sum()


def _apart(key: np.ndarray, place: np.ndarray, length: int) -> list[bool]:
    """Choose windows of which no two of one key overlap.

    >>> _apart(np.array([0, 0, 1, 0]), np.array([0, 1, 2, 3]), 2)
    [True, False, True, True]
    """
    until: dict[int, int] = {}
    chosen = []
    for of, at in zip(key.tolist(), place.tolist(), strict=True):
        free = at >= until.get(of, 0)
        chosen.append(free)
        if free:
            until[of] = at + length
    return chosen
