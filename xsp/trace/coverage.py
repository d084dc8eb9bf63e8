"""Computes the shares of time that spans of a trace cover.

Of the devices' time, the part under a layer, operator or mark (`attribution`); of the operators'
time, the part spent in library calls (`coverage`); of self time, the part of the function that ran
longest (`self_functions`); of the time of a clock, what spans of several threads take of it
together (`united_ns`, `elsewhere_ns`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.inexact import Inexact
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, covered, gathering
from xsp.trace.attribute import attribute_column, inexact_column
from xsp.trace.folding import parent_rows

Bools = NDArray[np.bool_]

# Fewer samples say too little of what ran longest; a smaller share, too little of self time.
_FEWEST_SAMPLES, _LEAST = 20, 0.1
WORKER_WAITS = "waiting for work"

_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_LAYER, _OP, _CALL = Kind.LAYER.value, Kind.OP.value, Kind.CALL.value
_CAUSES = (_LAYER, _OP, _CALL)
_MARK = "mark"
# Kinds whose spans, in an operator, hold the operators and calls that are not the operator's own.
_AROUND_CALLS = [kind.value for kind in (Kind.REGION, Kind.LAYER, Kind.OP)]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Fractions of the time of all device activities, by the spans above the activities.

    Attributes:
        layer: Fraction under a layer; None where the trace has no layers.
        operator: Fraction under an operator; None where the trace has no operators.
        nowhere: Fraction under no layer, operator or library call; where marked spans count,
            under none of these either.
        mark: Fraction under a marked span; None where there are none, or they do not count.
    """

    layer: float | None
    operator: float | None
    nowhere: float
    mark: float | None = None


def attribution(spans: pl.DataFrame, *, marks: bool = False) -> Attribution | None:
    """Return the fractions of the devices' time, None where no device worked.

    Args:
        spans: Columns of `trace.spans`.
        marks: Whether marked spans count as well: ranges that the user named. Programs that xsp
            watched lie in such spans as a whole; in recordings of other tools they are often all
            that says what devices worked for.
    """
    rows = np.flatnonzero(spans["kind"].is_in(_ACTIVITIES).to_numpy())
    time = spans["latency_ns"].gather(rows).fill_null(0.0).to_numpy()
    if not time.sum():
        return None
    causes = {kind: (spans["kind"] == kind).to_numpy() for kind in _CAUSES}
    if marks:
        # Which spans the user marked: not the root, a process, or a step of the profiler.
        process, step = (
            attribute_column(spans, "process", pl.Int64),
            attribute_column(spans, "step"),
        )
        marked = (spans["kind"] == Kind.REGION.value) & process.is_null() & step.is_null()
        causes[_MARK] = (marked & spans["parent_id"].is_not_null()).to_numpy()
    under = _below(parent_rows(spans), rows, causes)
    shares = {
        cause: float(time[found].sum() / time.sum()) if causes[cause].any() else None
        for cause, found in under.items()
    }
    somewhere = np.logical_or.reduce(list(under.values()))
    nowhere = float(time[~somewhere].sum() / time.sum())
    return Attribution(shares[_LAYER], shares[_OP], nowhere, shares.get(_MARK))


def _below(parents: Ints, rows: Ints, causes: Mapping[str, Bools]) -> dict[str, Bools]:
    """Return for each cause which of some rows have an ancestor among the spans of that cause."""
    found = {cause: np.zeros(len(rows), dtype=np.bool_) for cause in causes}
    current = parents[rows]
    # All rows climb one generation at a time, until all have passed the root.
    while np.any(current >= 0):
        for cause, among in causes.items():
            found[cause] |= (current >= 0) & among[current]
        current = np.where(current >= 0, parents[current], -1)
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Time that library calls and operators share; latencies without overhead.

    Attributes:
        under_operator_pct: Share of the calls' time that lies under an operator.
        in_calls_pct: Share of the operators' time that is spent in calls.
    """

    under_operator_pct: float
    in_calls_pct: float


def coverage(spans: pl.DataFrame) -> Coverage | None:
    """Return the coverage of calls and operators, None where there are no calls or operators.

    Args:
        spans: Columns `span_id`, `parent_id`, `kind` and `latency_ns` of a trace.
    """
    parents = spans.select(parent_id="span_id", parent_kind="kind")
    placed = spans.join(parents, on="parent_id", how="left").with_columns(
        pl.col("parent_kind").fill_null("")
    )
    # Only outermost calls: inner ones are part of their time.
    calls = placed.filter((pl.col("kind") == _CALL) & (pl.col("parent_kind") != _CALL))
    operators = placed.filter(pl.col("kind") == _OP)
    within = placed.filter((pl.col("parent_kind") == _OP) & pl.col("kind").is_in(_AROUND_CALLS))
    under = _total(calls.filter(pl.col("parent_kind") == _OP))
    total, whole = _total(calls), _total(operators) - _total(within)
    if not total or not whole:
        return None
    return Coverage(100 * under / total, 100 * under / whole)


def outside_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the self time of operators that is not spent in library calls, the longest first.

    An operator's self time is its latency less that of the operators, layers and marked spans
    right below it: the self times of all operators sum to the operators' time. Operators that
    compute inside the framework, as element-wise operators do, make no library call at all.

    Args:
        spans: Columns `span_id`, `parent_id`, `kind`, `name` and `latency_ns` of a trace.

    Returns:
        A row for each name of an operator: `name`, `count`, `own_ns`, `call_ns` (in calls
        right below the operator), `rest_ns` (the difference; not below 0), and
        `in_calls_pct` (null where `own_ns` is 0).

    >>> spans = pl.DataFrame({"span_id": [1, 2, 3, 4], "parent_id": [None, 1, 2, 1],
    ...                       "kind": ["region", "op", "call", "op"],
    ...                       "name": ["predict", "addmm", "SGEMM", "relu"],
    ...                       "latency_ns": [10.0, 8.0, 6.0, 1.0]})
    >>> outside_calls(spans).select("name", "call_ns", "rest_ns").rows()
    [('addmm', 6.0, 2.0), ('relu', 0.0, 1.0)]
    """
    below = spans.group_by("parent_id").agg(op_ns=_sum_of(*_AROUND_CALLS), call_ns=_sum_of(_CALL))
    operators = spans.filter(pl.col("kind") == _OP).join(
        below, left_on="span_id", right_on="parent_id", how="left"
    )
    # Latencies of different passes may contradict each other by their errors: not below 0.
    own = (pl.col("latency_ns").fill_null(0) - pl.col("op_ns").fill_null(0)).clip(lower_bound=0)
    return (
        operators.with_columns(own_ns=own, call_ns=pl.col("call_ns").fill_null(0))
        .group_by("name")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("own_ns", "call_ns").sum())
        .with_columns(rest_ns=(pl.col("own_ns") - pl.col("call_ns")).clip(lower_bound=0))
        .with_columns(
            in_calls_pct=pl.when(pl.col("own_ns") > 0).then(
                100 * pl.col("call_ns") / pl.col("own_ns")
            )
        )
        .sort("rest_ns", "name", descending=[True, False])
    )


def self_functions(
    spans: pl.DataFrame, of: Ints, whose: str = "self"
) -> dict[int, list[tuple[str, float, float]]]:
    """Return for each group the functions that ran longest in its self time, or in workers.

    Each is `name (file:line)`, its share, and how far the 95 % interval of that reaches. Groups
    in which too few samples were taken, or nothing stands out, are left out.

    Args:
        spans: Columns of `trace.spans`.
        of: Number of the group of each span.
        whose: "self"; or "worker": functions of other processes, and their waits.
    """
    texts, shares = pl.List(pl.String()), pl.List(pl.Float64())
    samples = attribute_column(spans, f"{whose}_samples", pl.Int64)
    functions = pl.DataFrame(
        {
            "group": of,
            "function": attribute_column(spans, f"{whose}_functions", texts),
            "line": attribute_column(spans, f"{whose}_lines", texts),
            "count": attribute_column(spans, f"{whose}_shares", shares),
            "waits": attribute_column(spans, f"{whose}_waits", pl.Float64),
            "samples": samples,
        }
    ).filter(samples > 0)
    wholes = functions.group_by("group").agg(whole=pl.sum("samples"))
    waits = functions.drop_nulls("waits").select(
        "group", "samples", function=pl.lit(WORKER_WAITS), line=pl.lit(""), count="waits"
    )
    longest = (
        functions.explode("function", "line", "count")
        .select(waits.columns)
        .extend(waits)
        .with_columns(pl.col("count") * pl.col("samples"))
        .group_by("group", "function", "line", maintain_order=True)
        .agg(pl.sum("count"))
        .sort("count", descending=True, maintain_order=True)
        .join(wholes, on="group")
        .filter(pl.col("whole") >= _FEWEST_SAMPLES, pl.col("count") >= _LEAST * pl.col("whole"))
    )
    result: dict[int, list[tuple[str, float, float]]] = {}
    for group, function, line, count, whole in longest.iter_rows():
        named = f"{_short(function)} ({PurePath(line).name})" if line else function
        part = min(count / whole, 1.0)
        reach = 1.96 * math.sqrt(part * (1.0 - part) / whole)  # of a share of so many samples
        result.setdefault(group, []).append((named, part, reach))
    return result


def worker_functions(spans: pl.DataFrame, of: Ints) -> dict[int, list[tuple[str, float, float]]]:
    """Return for each group what other processes did in its time, as `self_functions` does."""
    loads = attribute_column(spans, "workers", pl.Int64).fill_null(0).to_numpy() > 0
    loading = set(of[loads].tolist())
    result = {}
    for group, functions in self_functions(spans, of, "worker").items():
        who = "worker" if group in loading else "child process"
        result[group] = [(f"{who}: {name}", part, reach) for name, part, reach in functions]
    return result


def _short(function: str) -> str:
    """Return the last name of a qualified one; the last two where the last says little.

    >>> _short("Tokenizer.encode"), _short("Tokenizer.pairs.<locals>.<genexpr>")
    ('encode', 'pairs.<genexpr>')
    >>> _short("Tokenizer.__call__")
    'Tokenizer.__call__'
    """
    if function.startswith("import "):
        return function
    named = [part for part in function.split(".") if part != "<locals>"]
    return ".".join(named[-2:] if named[-1].startswith(("<", "__")) else named[-1:])


def united_ns(spans: pl.DataFrame, of: Ints) -> Ints:
    """Return the time in which at least one member of a group runs, for each group.

    Args:
        spans: Columns `start_ns` and `end_ns` of a trace.
        of: Number of each span's group, from 0.

    >>> spans = pl.DataFrame({"start_ns": [0, 2, 9, 4], "end_ns": [6, 5, 10, 7]})
    >>> united_ns(spans, np.array([0, 0, 0, 1]))
    array([7, 3])
    """
    count = int(of.max(initial=-1)) + 1
    ended = pl.col("end_ns").cum_max().shift(1).over("group")
    new = pl.col("end_ns") - pl.max_horizontal("start_ns", ended)
    parts = (
        spans.select("start_ns", "end_ns")
        .with_columns(pl.Series("group", of))
        .sort("group", "start_ns")
        .select("group", new=new.clip(lower_bound=0))
    )
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, parts["group"].to_numpy(), parts["new"].to_numpy())
    return sums


def on_another_thread(spans: pl.DataFrame, parent: Ints) -> Bools:
    """Return which spans ran on another thread of the host than their parents.

    Args:
        spans: Column `thread` of a trace, null on devices and where threads are not known.
        parent: Row of each span's parent, -1 for the root.
    """
    thread, known = spans["thread"].fill_null(-1).to_numpy(), spans["thread"].is_not_null()
    told = known.to_numpy() & known.to_numpy()[parent] & ~gathering_spans(spans, parent)[parent]
    away: Bools = told & (thread != thread[parent]) & (parent >= 0)
    return away


def gathering_spans(spans: pl.DataFrame, parent: Ints) -> Bools:
    """Return which spans leave as self time what no span in them covers, on whatever thread.

    Args:
        spans: Columns of `trace.spans`.
        parent: Row of each span's parent, -1 for the root.
    """
    host = spans["device"].is_null().to_numpy()
    derived = host & ((inexact_column(spans) & Inexact.INFERRED.bit) > 0)
    if not derived.any():
        return derived
    lane = spans["thread"].fill_null(-1).to_numpy()
    start, end = (
        spans[f"measured_{name}"].fill_null(0).to_numpy() for name in ("start_ns", "end_ns")
    )
    return gathering(np.where(host, parent, -1), lane, derived, start, end)


def at_once_inside(spans: pl.DataFrame, of: Ints, parent: Ints) -> NDArray[np.float64]:
    """Return for each group how many of the spans right inside its members ran at once on average.

    1 where they ran one after the other, or on threads of their own beside the parent's.

    Args:
        spans: Columns of `trace.spans`.
        of: Number of each span's group.
        parent: Row of each span's parent, -1 for the root.
    """
    gathers = gathering_spans(spans, parent)
    inside = np.flatnonzero((parent >= 0) & gathers[parent] & spans["device"].is_null().to_numpy())
    result = np.ones(int(of.max(initial=-1)) + 1)
    if inside.size:
        start, end = (spans[name].to_numpy() for name in ("start_ns", "end_ns"))
        above = parent[inside]
        lasts = np.bincount(above, (end - start)[inside], spans.height)
        united = covered(above, start[inside], end[inside], spans.height)
        sums = (np.bincount(of, each, len(result)) for each in (lasts, united))
        whole, part = sums
        result = np.where(part > 0, whole / np.maximum(part, 1), 1.0)
    return result


def elsewhere_ns(spans: pl.DataFrame, parent: Ints) -> Ints:
    """Return how long, of each span's self time, other threads ran what lies in the span.

    That is the time in which a span in it ran, on whatever thread, less that in which one ran
    on the thread of the span itself; 0 where the self time is without both (`gathering_spans`).

    Args:
        spans: Columns of `trace.spans`.
        parent: Row of each span's parent, -1 for the root.
    """
    away = on_another_thread(spans, parent)
    inside = (parent >= 0) & spans["device"].is_null().to_numpy()
    result = np.zeros(spans.height, dtype=np.int64)
    rows = np.flatnonzero(inside & np.isin(parent, parent[away]))
    for chosen, sign in ((rows, 1), (rows[~away[rows]], -1)):
        if chosen.size:
            above = parent[chosen]
            result[: above.max() + 1] += sign * united_ns(spans[chosen], above)
    told = attribute_column(spans, "elsewhere_ns", pl.Int64)  # drawn spans lie side by side
    return np.where(told.is_not_null().to_numpy(), told.fill_null(0).to_numpy(), result)


def on_one_clock(spans: pl.DataFrame, sums: pl.DataFrame, of: Ints, parent: Ints) -> pl.DataFrame:
    """Return sums over groups whose busy and self time count what ran at once only once.

    Args:
        spans: Columns of `trace.spans`.
        sums: Sums over the groups: `latency_ns`, `busy_ns` and `self_ns` of `folding.sums`.
        of: Number of each span's group.
        parent: Row of each span's parent, -1 for the root.
    """
    lanes = spans.select(group=pl.Series(of), lane=pl.struct("thread", "device", "stream"))
    several = lanes.group_by("group").agg(pl.col("lane").n_unique() > 1).filter("lane")
    # Layers made of operators may overlap on the thread that they are drawn on.
    made = np.flatnonzero((inexact_column(spans) & Inexact.INFERRED.bit) > 0)
    rows = np.flatnonzero(np.isin(of, np.append(several["group"].to_numpy(), of[made])))
    busy, own = sums["busy_ns"].to_numpy().copy(), sums["self_ns"].to_numpy().copy()
    if rows.size:
        chosen = spans[rows]
        drawn = chosen.select(pl.col("end_ns") - pl.col("start_ns")).to_series().to_numpy()
        united = united_ns(chosen, of[rows])
        ratio = united / np.maximum(np.bincount(of[rows], weights=drawn), 1)
        busy[: len(united)] = np.where(united > 0, busy[: len(united)] * ratio, busy[: len(united)])
    own -= np.bincount(of, weights=elsewhere_ns(spans, parent), minlength=len(own))
    return sums.with_columns(busy_ns=busy, self_ns=np.maximum(own, 0.0))


def _total(spans: pl.DataFrame) -> float:
    return float(spans["latency_ns"].sum() or 0)


def _sum_of(*kinds: str) -> pl.Expr:
    return pl.col("latency_ns").filter(pl.col("kind").is_in(kinds)).sum()
