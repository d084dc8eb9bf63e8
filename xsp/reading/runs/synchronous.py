"""Joins a synchronous measurement to the ordinary one: its latencies, and parents that it tells.

In a synchronous measurement the host waits for each kernel, and libraries use one thread: rows that
overlap in an ordinary run come one after the other, so that fewer rows are ambiguous.

    ordinary run      ops "mm" and "add" overlap; launch "go", in both of them, is ambiguous,
                      and hangs under "add", which began last
    synchronous run   launch "go" lies in "mm"
    result            the ordinary run, with "go" under "mm", no longer ambiguous
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.inexact import Inexact
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import ON_DEVICE, Run, is_ambiguous, observe, on_device, typical_run
from xsp.reading.merge import Merged
from xsp.warning import WarningCount

Ints = NDArray[np.int64]

_HOSTS = [kind.value for kind in (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)]
_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_LABEL = ["kind", "name", "device", "stream"]
_PLACE = [*_LABEL, "number", "count"]


def resolve(
    runs: Sequence[Run], synchronous: Sequence[Run]
) -> tuple[list[Run], Counter[tuple[str, str]]]:
    """Return the runs with ambiguous rows moved under the parents of a synchronous run.

    An ambiguous row corresponds to a row of the typical synchronous run: the k-th of a kind and
    name (on a device also of a stream), in the order of their start, to the k-th, if both runs
    have equally many and one thread made all of them. It moves under the row that has the path of
    the corresponding row's parent; what it launched moves along. It stays ambiguous where the
    corresponding row is ambiguous too, where no row has that path, or where that row does not
    enclose it in time, as the parent of a row of the host must.

    Returns:
        All runs, and how many rows are no longer ambiguous, by the code of their warning and the
        pass.
    """
    told: Counter[tuple[str, str]] = Counter()
    timed = [run for run in synchronous if run.rows is not None and run.pass_.timed]
    if not timed:
        return list(runs), told
    deepest = max(run.pass_.order for run in timed)
    seen = observe([run for run in timed if run.pass_.order == deepest])
    homes = _homes(seen.runs[typical_run(seen, range(len(seen.runs)))])
    return [_resolved(run, homes, told) for run in runs], told


def _homes(run: Run) -> pl.DataFrame:
    """Return the path of the parent that each row of a synchronous run surely has, as `home`."""
    seen = observe([run])
    rows, above = seen.runs[0].rows, np.maximum(seen.parent, 0)
    assert rows is not None
    around = rows[above].select("kind", "thread")
    return (
        _numbered(rows)
        .with_columns(
            home=seen.key[above], maker=around["thread"], sure=pl.Series(~is_ambiguous(rows))
        )
        .filter(
            pl.col("maker").n_unique().over(_LABEL) == 1,
            pl.col("sure") & around["kind"].is_in(_HOSTS) & pl.Series(~on_device(rows)[above]),
        )
        .select(*_PLACE, "home")
    )


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the label of each row, its number among the rows of that label, and their count."""
    place = [pl.when(ON_DEVICE).then(name).alias(name) for name in ("device", "stream")]
    return rows.select("kind", "name", "start_ns", *place).select(
        *_LABEL,
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        number=pl.col("start_ns").rank("ordinal").over(_LABEL),
        count=pl.len().over(_LABEL),
    )


def _resolved(run: Run, homes: pl.DataFrame, told: Counter[tuple[str, str]]) -> Run:
    """Return the run with the rows moved whose parent is told, and count these."""
    if run.rows is None or not is_ambiguous(run.rows).any():
        return run
    seen = observe([run])
    rows, parent, ambiguous = run.rows, seen.parent.copy(), is_ambiguous(run.rows)
    known = pl.DataFrame({"home": seen.key, "at": np.arange(len(seen.key))}).filter(~ambiguous)
    found = (
        _numbered(rows)
        .filter(pl.Series(ambiguous & ~on_device(rows)[parent]))  # no row of a replayed graph
        .join(homes, on=_PLACE, nulls_equal=True)
        .join(known.unique("home", keep="first"), on="home")
        .sort("row")
    )
    row, home = found["row"].to_numpy(), found["at"].to_numpy()
    able = _encloses(rows, home, row)
    row, home = row[able], home[able]
    inside = np.flatnonzero(
        ambiguous & np.isin(parent, row)
    )  # calls of the driver, in the runtime's
    settled = np.union1d(row, inside)
    for code in _codes(rows, settled):
        told[code, run.pass_.name] += 1
    along = _launched(rows, parent, row)
    parent[along["row"].to_numpy()] = home[along["at"].to_numpy()]
    parent[row] = home
    ambiguous[settled] = False
    rows = _fitted(rows, parent, row)
    return replace(run, rows=rows.with_columns(parent=parent, ambiguous=ambiguous))


def _encloses(rows: pl.DataFrame, home: Ints, row: Ints) -> NDArray[np.bool_]:
    """Return which rows can lie in `home`; those of a device may lie anywhere in time."""
    around, inside = rows[home], rows[row]
    slack = inside["uncertainty_ns"].fill_null(0)
    within = (around["start_ns"] <= inside["start_ns"] + slack) & (
        inside["end_ns"] - slack <= around["end_ns"]
    )
    one_thread = around["thread"].eq_missing(inside["thread"].fill_null(rows["thread"][0]))
    within &= one_thread | (inside["kind"] == Kind.CALL.value)
    able: NDArray[np.bool_] = (within | inside["kind"].is_in(_ACTIVITIES)).to_numpy()
    return able & (home < row)


def _launched(rows: pl.DataFrame, parent: Ints, moved: Ints) -> pl.DataFrame:
    """Return rows of devices (`row`) that lie beside the moved row (`at`) that launched them."""
    by = ["correlation_id", "kept"]
    table = rows.select("kind", "correlation_id").with_columns(
        kept=parent, sure=~is_ambiguous(rows), row=np.arange(rows.height)
    )
    launches = table[moved].with_columns(at=np.arange(len(moved)))
    launches = launches.filter(pl.col("kind") == Kind.LAUNCH.value).unique(by, keep="first")
    asking = table.filter(pl.col("kind").is_in(_ACTIVITIES) & pl.col("sure"))
    return asking.join(launches.select(*by, "at"), on=by)


def _fitted(rows: pl.DataFrame, parent: Ints, moved: Ints) -> pl.DataFrame:
    """Return rows with moved library calls on the thread, and cut to the time, of their parent."""
    chosen = np.zeros(rows.height, np.bool_)
    chosen[moved] = True
    call = pl.Series(chosen) & (rows["kind"] == Kind.CALL.value)
    around = rows.select("start_ns", "end_ns", "thread")[np.maximum(parent, 0)]
    times = (
        pl.col(name).clip(around["start_ns"], around["end_ns"]) for name in ("start_ns", "end_ns")
    )
    fitted = rows.with_columns(*times, around["thread"])
    columns = (
        pl.when(call).then(fitted[name]).otherwise(pl.col(name)).alias(name)
        for name in ("start_ns", "end_ns", "thread")
    )
    return rows.with_columns(*columns)


def _codes(rows: pl.DataFrame, chosen: Ints) -> list[str]:
    """Return the code of the warning under which each of the chosen rows was counted."""
    launched = rows.filter(pl.col("kind") == Kind.LAUNCH.value)["correlation_id"].drop_nulls()
    seen = pl.col("correlation_id").is_in(launched.implode()).fill_null(value=False)
    code = (
        pl.when(pl.col("kind") == Kind.CALL.value)
        .then(pl.lit("ambiguous-thread"))
        .when(pl.col("kind").is_in(_ACTIVITIES) & ~seen)
        .then(pl.lit("no-launch"))
        .otherwise(pl.lit("ambiguous"))
    )
    return rows[chosen].select(code).to_series().to_list() if len(chosen) else []


def left(counts: Iterable[WarningCount], told: Counter[tuple[str, str]]) -> list[WarningCount]:
    """Return the counts of rows that are still ambiguous."""
    left, rest = [], Counter(told)
    for each in counts:
        taken = min(each.count, rest[each.code, each.pass_])
        rest[each.code, each.pass_] -= taken
        if each.count > taken:
            left.append(replace(each, count=each.count - taken))
    return left


def with_latencies(merged: Merged, synchronous: Merged) -> Merged:
    """Return the merged runs with the latencies of the synchronous ones as an attribute."""
    reasons = pl.col("attributes").struct.field("inexact")
    carried = reasons.list.contains(Inexact.INCLUDES_OVERHEAD.value).fill_null(value=False)
    # Latencies that still carry overhead could not be compared; launches wait for their kernels.
    chosen = ~carried & ~ON_DEVICE & pl.col("kind").is_in(_HOSTS)
    latencies = synchronous.spans.filter(chosen).select("span_id", synchronous_ns="latency_ns")
    # The order is kept, as parents come before children in a trace.
    joined = merged.spans.join(latencies, on="span_id", how="left", maintain_order="left")
    field = pl.col("attributes").struct.with_fields(synchronous_ns="synchronous_ns")
    columns = ("runs", "latency_ns", "latency_low_ns", "latency_high_ns")
    pass_ = synchronous.spans.head(1).select(pl.lit("synchronous").alias("pass"), *columns)
    return replace(
        merged,
        # A synchronous pass has no overhead or cost per span: these columns become null.
        spans=joined.with_columns(field).drop("synchronous_ns"),
        passes=pl.concat([merged.passes, pass_], how="diagonal_relaxed"),
    )
