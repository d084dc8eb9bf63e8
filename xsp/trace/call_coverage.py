"""What of the operators' time library calls explain: the spans of a trace in, tables out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from xsp.level import Kind

_OP, _CALL = Kind.OP.value, Kind.CALL.value


@dataclass(frozen=True, slots=True)
class Coverage:
    """How library calls and operators fit together; of latencies without overhead.

    Attributes:
        under_operator_pct: Share of the calls' time that lies under an operator.
        explained_pct: Share of the operators' time that is spent in calls.
    """

    under_operator_pct: float
    explained_pct: float


def coverage(spans: pl.DataFrame) -> Coverage | None:
    """Return how calls and operators fit together, None where there are no calls or no operators.

    Args:
        spans: Columns `span_id`, `parent_id`, `kind` and `latency_ns` of a trace.
    """
    placed = _with_parents(spans)
    calls = placed.filter((pl.col("kind") == _CALL) & (pl.col("parent_kind") != _CALL))
    operators = placed.filter((pl.col("kind") == _OP) & (pl.col("parent_kind") != _OP))
    under = _total(calls.filter(pl.col("parent_kind") == _OP))
    total, whole = _total(calls), _total(operators)
    if not total or not whole:
        return None
    return Coverage(100 * under / total, 100 * under / whole)


def unexplained(spans: pl.DataFrame) -> pl.DataFrame:
    """Return what of each operator's own time no library call explains, the most first.

    An operator's own time is its latency less that of the operators in it: over all
    operators it sums to the time of the outermost ones. Element-wise code inside a
    framework makes no call; that it stands here is an answer.

    Args:
        spans: Columns `span_id`, `parent_id`, `kind`, `name` and `latency_ns` of a trace.

    Returns:
        A row per name of operator: `name`, `count`, `own_ns`, `call_ns` (in calls right
        below it), `rest_ns` (the difference; not below 0), and `explained_pct` (null
        where `own_ns` is 0).

    >>> spans = pl.DataFrame({"span_id": [1, 2, 3, 4], "parent_id": [None, 1, 2, 1],
    ...                       "kind": ["pipeline", "op", "call", "op"],
    ...                       "name": ["predict", "addmm", "SGEMM", "relu"],
    ...                       "latency_ns": [10.0, 8.0, 6.0, 1.0]})
    >>> unexplained(spans).select("name", "call_ns", "rest_ns").rows()
    [('addmm', 6.0, 2.0), ('relu', 0.0, 1.0)]
    """
    below = spans.group_by("parent_id").agg(
        op_ns=_sum_of(_OP),
        call_ns=_sum_of(_CALL),
    )
    operators = spans.filter(pl.col("kind") == _OP).join(
        below, left_on="span_id", right_on="parent_id", how="left"
    )
    own = (pl.col("latency_ns").fill_null(0) - pl.col("op_ns").fill_null(0)).clip(lower_bound=0)
    return (
        operators.with_columns(own_ns=own, call_ns=pl.col("call_ns").fill_null(0))
        .group_by("name")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("own_ns", "call_ns").sum())
        .with_columns(rest_ns=(pl.col("own_ns") - pl.col("call_ns")).clip(lower_bound=0))
        .with_columns(
            explained_pct=pl.when(pl.col("own_ns") > 0).then(
                100 * pl.col("call_ns") / pl.col("own_ns")
            )
        )
        .sort("rest_ns", "name", descending=[True, False])
    )


def _total(spans: pl.DataFrame) -> float:
    return float(spans["latency_ns"].sum() or 0)


def _sum_of(kind: str) -> pl.Expr:
    return pl.col("latency_ns").filter(pl.col("kind") == kind).sum()


def _with_parents(spans: pl.DataFrame) -> pl.DataFrame:
    parents = spans.select(parent_id="span_id", parent_kind="kind")
    return spans.join(parents, on="parent_id", how="left").with_columns(
        pl.col("parent_kind").fill_null("")
    )
