"""Sums calls, times and intervals of spans by group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES
from xsp.matching import Ints, Keys
from xsp.trace import total

Bools = NDArray[np.bool_]


def on_host(tree: Tree) -> Tree:
    """Return the tree without the latencies of spans that a replayed CUDA graph stands for.

    These stand on the device: host code ran for them when the graph was captured, and not here.
    """
    without = _without_replayed(tree)
    return tree if without is None else without


@once_per_trace
def _without_replayed(tree: Tree) -> Tree | None:
    replayed = tree.spans["device"].is_not_null() & ~pl.Series(tree.is_of(*DEVICE_ACTIVITIES))
    if not replayed.any():
        return None
    times = pl.col("latency_ns", "latency_low_ns", "latency_high_ns")
    return Tree(tree.spans.with_columns(pl.when(~replayed).then(times)), tree.parent)


def bounds_ns(tree: Tree) -> tuple[Floats, Floats]:
    """Return the lower and the upper ends of the latencies' intervals in ns; NaN for none."""
    low, high = (
        tree.spans[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in ("latency_low_ns", "latency_high_ns")
    )
    return low, high


def self_times(tree: Tree, among: Bools) -> pl.DataFrame:
    """Return the self time of each span among some, with the ends of its interval.

    The errors of a span's latency and of the sum of those below it are added in quadrature, as
    if they were independent: mostly they err together, so that the interval is rather too wide.

    Returns:
        Columns `own_ns`, `own_low_ns` and `own_high_ns`, a row for each span of the tree; null
        for spans that are not among them and where they are not known.
    """
    latency, (low, high) = tree.latency_ns(), bounds_ns(tree)
    inside, above = tree.inside(among)
    below = {"low": np.zeros(len(low)), "high": np.zeros(len(low))}
    for name, reach in (("low", latency - low), ("high", high - latency)):
        # A child whose interval is not known makes that of its parent's self time unknown.
        known = np.where(np.isnan(latency), 0.0, reach)
        np.add.at(below[name], above, known[inside])
    own = tree.own_ns(among)
    lowest = np.maximum(own - np.hypot(latency - low, below["high"]), 0.0)
    highest = own + np.hypot(high - latency, below["low"])
    columns = {"own_ns": own, "own_low_ns": lowest, "own_high_ns": highest}
    return pl.DataFrame(columns).fill_nan(None)


def outermost(above: Ints, among: Bools, group: Keys) -> Bools:
    """Return which spans among some have no span of their own group around them.

    Args:
        above: Row of each span's innermost ancestor among them (`Tree.nearest`), -1 for none.
        among: The spans that count.
        group: Key of each span's group.

    >>> above, among = np.array([-1, -1, 1, 2]), np.array([False, True, True, True])
    >>> outermost(above, among, np.array([0, 7, 5, 7], dtype=np.uint64))
    array([False,  True,  True, False])
    """
    result = among.copy()
    rows = np.flatnonzero(among)
    at = above[rows]
    while len(rows):
        rows, at = rows[at >= 0], at[at >= 0]
        same = group[rows] == group[at]
        result[rows[same]] = False
        rows, at = rows[~same], above[at[~same]]
    return result


def launched(tree: Tree, among: Bools) -> tuple[Floats, Ints]:
    """Return device time in ns, and number of device activities, by the innermost span around.

    Args:
        tree: The spans.
        among: The spans that device work may be charged to.
    """
    work = tree.rows(*DEVICE_ACTIVITIES)
    above = tree.nearest(among)[work]
    work, above = work[above >= 0], above[above >= 0]
    time, count = np.zeros(len(among)), np.zeros(len(among), dtype=np.int64)
    np.add.at(time, above, np.nan_to_num(tree.latency_ns()[work]))
    np.add.at(count, above, calls(tree)[work])
    return time, count


def calls(tree: Tree) -> Ints:
    """Return how many occurrences each span stands for."""
    found: Ints = tree.attribute("calls", pl.Int64).fill_null(1).to_numpy()
    return found


def grouped(tree: Tree, among: Bools, by: Sequence[pl.Series], *more: pl.Series) -> pl.DataFrame:
    """Return the sums of each group of spans, the groups in the order of their first spans.

    A group's latency is that of its spans which lie in no other span of the group, so that
    nothing counts twice. A sum's interval has the sums of the ends: null where one is missing.

    Args:
        tree: The spans.
        among: The spans that count.
        by: What spans of a group have in common, a value for each span of the tree.
        more: Further values of each span, which are summed up as well.

    Returns:
        The columns of `by`, then `calls`, `latency_ns`, `latency_low_ns`, `latency_high_ns`,
        `own_ns`, `own_low_ns`, `own_high_ns`, and those of `more`.
    """
    keys = pl.DataFrame(list(by))
    first = outermost(tree.nearest(among), among, keys.hash_rows().to_numpy())
    frame = pl.concat([keys, times(tree, among), pl.DataFrame(list(more))], how="horizontal")
    return (
        frame.with_columns(pl.Series("first", first))
        .filter(pl.Series(among))
        .group_by(keys.columns, maintain_order=True)
        .agg(
            pl.sum("calls"),
            *sums_of("latency", "first"),
            *sums_of("own"),
            *(total(pl.col(part.name)) for part in more),
        )
    )


def times(tree: Tree, among: Bools) -> pl.DataFrame:
    """Return `calls`, latency and self time of each span, with the ends of their intervals."""
    names = ("latency_ns", "latency_low_ns", "latency_high_ns")
    known = tree.spans.select(pl.Series("calls", calls(tree)), *names)
    return known.hstack(self_times(tree, among))


def sums_of(name: str, where: str | None = None) -> list[pl.Expr]:
    """Return the sums of a time and of the ends of its interval, over the rows of a group.

    Args:
        name: The time, such as `own` for `own_ns`, `own_low_ns` and `own_high_ns`.
        where: Column that says which rows count; None for all.
    """
    names = (f"{name}_ns", f"{name}_low_ns", f"{name}_high_ns")
    time, low, high = (pl.col(each).filter(where) if where else pl.col(each) for each in names)
    known = time.is_not_null()
    ends = [
        pl.when(end.filter(known).null_count() == 0).then(total(end.filter(known))).alias(each)
        for end, each in zip((low, high), names[1:], strict=True)
    ]
    return [total(time).alias(names[0]), *ends]


def device_total_ns(tree: Tree) -> float:
    """Return the latencies of all kernels, copies and sets, added up, in ns."""
    return float(np.nansum(tree.latency_ns()[tree.rows(*DEVICE_ACTIVITIES)]))


def share_pct(part: str, whole: float) -> pl.Expr:
    """Return a column as a percentage of a whole; null where there is no whole."""
    known = whole if whole > 0 else None
    return 100 * pl.col(part) / pl.lit(known, dtype=pl.Float64)
