"""Compares what devices did: of spans, and by kernel, by operator, and by operator and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from xsp.answer.analyses import DeviceWork, Tree
from xsp.answer.comparison.alignment import Floats, Nodes
from xsp.answer.comparison.significance import (
    FALSE_DISCOVERY_RATE,
    Differences,
    Estimates,
    corrected,
    with_ends,
)
from xsp.matching import Ints, subtree_sums
from xsp.text import short_name
from xsp.trace import Trace

Parts = Mapping[int, list[int]]

# What `by` may say, and the columns that rows of it have in common.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "kernel": ("kernel",),
    "operator": ("operator",),
    "operator and shapes": ("operator", "shapes"),
}
DEVICE_COLUMNS: Mapping[str, str] = {
    "trace": "Name of the trace that is compared with the first.",
    "by": "What the row sums up: `kernel` (copies and sets too), `operator` (the innermost around) "
    "or `operator and shapes`.",
    "kernel": "Full name of the kernel, copy or set; null in rows by operator.",
    "operator": "Name of the operator; null in rows by kernel, and for what lies in no operator.",
    "shapes": "Shapes of the tensors put into the operator; null where not known.",
    "count_a": "How many kernels, copies and sets there are a step in the first trace; null where "
    "there are none.",
    "count_b": "The same in the trace that is compared.",
    **with_ends("device_a", "_ns", "Their device time a step in the first trace, added up."),
    **with_ends("device_b", "_ns", "Their device time a step in the trace that is compared."),
    **with_ends(
        "difference", "_ns", "What they take more; of what one trace alone has, all of that."
    ),
    "ratio": "Device time over that in the first trace.",
    "p_value": "Chance of a difference as large or larger, were there none.",
    "corrected_p_value": "The same, corrected for the number of rows of its sort "
    "(Benjamini-Hochberg).",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, otherwise `not "
    "significant`; `unknown` where an interval is missing, as of single steps; null for what one "
    "trace alone has.",
}
_ENDS = ("device_ns", "device_low_ns", "device_high_ns")


def device_beside(name: str, a: Trace, b: Trace) -> pl.DataFrame:
    """Return the table of `DEVICE_COLUMNS`, what differs most of each sort first.

    It has no rows unless devices worked in both traces.
    """
    works = [DeviceWork.of(trace) for trace in (a, b)]
    if not all(work.groups.height for work in works):
        works = [DeviceWork(work.groups.clear(), work.parts_ns[:, :0], False) for work in works]
    tables = []
    for by, keys in GROUPS.items():
        sides = [_summed(work, keys) for work in works]
        tables.append(_judged(by, keys, *sides))
    table = pl.concat(tables, how="diagonal").with_columns(trace=pl.lit(name))
    return table.select(*DEVICE_COLUMNS)


def _summed(work: DeviceWork, keys: Sequence[str]) -> pl.DataFrame:
    """Sum the count and the device time of each group, with the time's interval."""
    number = work.groups.select(pl.struct(keys).rank("dense").cast(pl.Int64) - 1).to_series()
    counted = work.groups.with_columns(number=number)
    table = counted.group_by("number").agg(pl.col(keys).first(), pl.sum("count")).sort("number")
    times = work.interval(work.sums(number.to_numpy(), table.height))
    ends = zip(_ENDS, times, strict=True)
    return table.select(*keys, "count", *(pl.Series(end, each) for end, each in ends))


def _judged(by: str, keys: Sequence[str], a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Put the sums of both traces beside each other, with their differences and verdicts."""
    both = a.join(b, on=keys, how="full", coalesce=True, nulls_equal=True, suffix="_b")
    absent_a, absent_b = (both[name].is_null().to_numpy() for name in ("count", "count_b"))
    first, second = (
        Estimates(*(floats(both[f"{end}{side}"]) for end in _ENDS)).zero_where(absent)
        for absent, side in ((absent_a, ""), (absent_b, "_b"))
    )
    found = Differences.between(first, second)
    p = np.where(absent_a | absent_b, np.nan, found.p)
    corrected_p = corrected(p)
    verdicts = pl.Series(found.verdicts(corrected_p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    ratio = np.full(both.height, np.nan)
    np.divide(second.value, first.value, out=ratio, where=(first.value > 0) & ~absent_b)
    table = both.with_columns(
        by=pl.lit(by),
        kernel=pl.col("kernel") if "kernel" in keys else pl.lit(None, pl.String),
        operator=pl.col("operator") if "operator" in keys else pl.lit(None, pl.String),
        shapes=pl.col("shapes") if "shapes" in keys else pl.lit(None, pl.String),
        count_a="count",
        **{f"device_a{end[6:]}": pl.col(end) for end in _ENDS},
        **{f"device_b{end[6:]}": pl.col(f"{end}_b") for end in _ENDS},
        difference_ns=found.value,
        difference_low_ns=found.value - found.half,
        difference_high_ns=found.value + found.half,
        ratio=ratio,
        p_value=p,
        corrected_p_value=corrected_p,
        verdict=pl.when(pl.Series(~(absent_a | absent_b))).then(verdicts),
    ).with_columns(pl.col(pl.Float64).fill_nan(None))
    cost = pl.col("difference_ns").abs()
    order = [True, *[False] * len(keys)]
    return table.sort(cost, *keys, descending=order, nulls_last=True).drop("count")


def floats(values: pl.Series) -> Floats:
    """The values of a column, NaN for null."""
    known: Floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return known


def title(row: Mapping[str, str | None]) -> str:
    """Name what a row of `DEVICE_COLUMNS` sums up, for people."""
    if row["by"] == "kernel":
        return short_name(row["kernel"] or "")
    shapes = f" ({row['shapes']})" if row["shapes"] else ""
    return f"{row['operator'] or 'in no operator'}{shapes}"


class NodeWork:
    """Device time of the spans of one trace that are compared, added up over kernels.

    Args:
        trace: The trace.
        nodes: Its spans that are compared.
    """

    def __init__(self, trace: Trace, nodes: Nodes) -> None:
        self._work, self._parent = DeviceWork.of(trace), nodes.parent
        place = np.full(trace.spans.height, -1)
        place[nodes.row] = np.arange(len(nodes))
        row = self._work.groups["row"].to_numpy()
        inner = np.where(place[row] >= 0, row, Tree.of(trace).nearest(place >= 0)[row])
        self._own = self._work.sums(place[inner], len(nodes))

    @property
    def known(self) -> bool:
        """Whether a device worked."""
        return bool(self._work.groups.height)

    def within(self, at: Ints, parts: Parts) -> Estimates:
        """Return the device time of some nodes with all inside.

        Args:
            at: The nodes.
            parts: Further nodes that are part of some of these, by their position in `at`.
        """
        whole = self._own + subtree_sums(self._own, self._parent)
        return Estimates(*self._work.interval(_joined(whole, at, parts)))

    def own_ns(self, owner: Ints, at: Ints, parts: Parts) -> Floats:
        """Return the device time of some nodes without that of nodes inside that have rows.

        Args:
            owner: The node in whose row the time of each node counts.
            at: The nodes.
            parts: Further nodes that are part of some of these, by their position in `at`.
        """
        told = np.zeros_like(self._own)
        for part, total in zip(self._own, told, strict=True):
            np.add.at(total, owner, part)
        return self._work.interval(_joined(told, at, parts))[0]


def _joined(values: Floats, at: Ints, parts: Parts) -> Floats:
    found = values[:, at]
    for place, places in parts.items():
        found[:, place] += values[:, places].sum(axis=1)
    return found
