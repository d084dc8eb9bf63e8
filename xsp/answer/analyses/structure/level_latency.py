"""Divides the latency of a trace among the levels of the stack."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import analysis
from xsp.answer.analyses.structure.sums import grouped, on_host, share_pct
from xsp.answer.analyses.structure.timeline import drawn_ns, on_clock
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_WAIT = "device wait"
_ORDER = {kind.value: place for place, kind in enumerate(Kind)} | {_WAIT: len(Kind)}
_COLUMNS = {
    "level": "Level of the stack; null where the host only waited for devices.",
    "kind": "Kind of span whose self time it is; `device wait` is that at the end of the model.",
    "calls": "How many spans of the kind there are, among those that divide the time.",
    "own_ns": "Time in which a span of the kind was innermost.",
    "share_pct": "That as a share of all self times: the rows sum to 100 %.",
    "latency_ns": "Latency of these spans with all inside; what lies within its kind counts once.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
}


@analysis("At which level of the stack does the time go?", _COLUMNS)
def level_latency(trace: Trace) -> pl.DataFrame:
    """Return how the latency divides over self times of the kinds of span, from outside in.

    Self times are those of the timeline, on which spans that take longer than the span around
    them, by the errors of their latencies, are drawn shorter.

    Args:
        trace: Any trace.
    """
    tree = on_host(Tree.of(trace))
    among = on_clock(tree)
    _, own = drawn_ns(tree, among)
    wait = min(own[0], tree.attribute("device_wait_ns", pl.Float64)[0] or 0.0)
    own[0] -= wait
    kinds = (tree.spans["level"], tree.spans["kind"])
    table = grouped(tree, among, kinds, pl.Series("drawn_ns", own)).drop("own_ns")
    table = table.rename({"drawn_ns": "own_ns"})
    if wait:
        row = pl.DataFrame({"kind": [_WAIT], "calls": [1], "own_ns": [wait]})
        table = pl.concat([table, row], how="diagonal_relaxed")
    return (
        table.with_columns(share_pct=share_pct("own_ns", float(table["own_ns"].sum())))
        .sort(pl.col("kind").replace_strict(_ORDER, return_dtype=pl.Int64))
        .select(*_COLUMNS)
    )
