"""Puts what decides the next action into a small dictionary that JSON can hold."""

from __future__ import annotations

from typing import Any

import polars as pl

from xsp.answer.analyses import ALL
from xsp.answer.comparison import Comparison
from xsp.errors import AnalysisError
from xsp.trace import Trace, headline

SCHEMA = "xsp.brief/1"  # a new number only if a field goes or changes its meaning

_SLOWEST = 10  # spans by self time
_ADVICE = 5
_GROUPS = 10
_ROWS = 20  # of a comparison


def brief(trace: Trace, *, file: str = "") -> dict[str, Any]:
    """Summarize a trace by the schema `xsp.brief/1` (docs/schema/brief-1.json).

    Args:
        trace: Any trace.
        file: Where it lies; empty: nowhere.

    Returns:
        Values that JSON can hold. Times are nanoseconds without the profiler; None is unknown.
    """
    root = trace.root
    own = trace.spans.select("path", "kind", "name", "self_ns", "latency_ns")
    slowest = own.drop_nulls("self_ns").sort("self_ns", descending=True).head(_SLOWEST)
    whole = root.latency_ns or 0.0
    return {
        "schema": SCHEMA,
        "name": trace.name,
        "file": file or None,
        "headline": headline(trace.spans, trace.metadata),
        "time_ns": root.latency_ns,
        "time_low_ns": root.latency_low_ns,
        "time_high_ns": root.latency_high_ns,
        "device_ns": root.device_ns,
        "steps": [
            {
                "name": group["name"],
                "count": group["calls"],
                "time_ns": group["latency_ns"],
                "time_low_ns": group["latency_low_ns"],
                "time_high_ns": group["latency_high_ns"],
            }
            for group in (trace.metadata.get("groups") or ())[:_GROUPS]
        ],
        "slowest": [
            {**row, "share_pct": 100 * row["self_ns"] / whole if whole else None}
            for row in slowest.iter_rows(named=True)
        ],
        "advice": _advice(trace),
        "warnings": [
            {"code": warning.code, "message": warning.message} for warning in trace.warnings
        ],
        "questions": _questions(trace),
    }


def _advice(trace: Trace) -> list[dict[str, Any]]:
    columns = ("rule", "advice", "gain_ns", "gain_pct", "evidence", "verify")
    try:
        return trace.advice().select(columns).head(_ADVICE).to_dicts()
    except AnalysisError:  # it has too little for advice
        return []


def _questions(trace: Trace) -> list[str]:
    """List the analyses that have what they need in a trace."""
    return [analysis.name for analysis in ALL if analysis.unmet(trace) is None]


def difference(comparison: Comparison) -> dict[str, Any]:
    """Summarize a comparison by the schema `xsp.difference/1` (docs/schema/difference-1.json).

    Args:
        comparison: What `xsp.compare` found.

    Returns:
        The quantities of the whole with their intervals and verdicts, and the spans that differ
        significantly, the largest differences first.
    """
    whole = ("trace", "quantity", "a", "b", "difference", "difference_low", "difference_high",
             "ratio", "p_value", "verdict")  # fmt: skip
    spans = ("trace", "kind", "path_a", "path_b", "latency_a_ns", "latency_b_ns", "difference_ns",
             "difference_low_ns", "difference_high_ns", "ratio", "p_value", "verdict")  # fmt: skip
    table = comparison.table
    told = table.filter(pl.col("verdict").is_in(["slower", "faster"]))
    by = pl.col("difference_ns").abs()
    rows = told.sort(by, descending=True).head(_ROWS).select(c for c in spans if c in told.columns)
    return {
        "schema": "xsp.difference/1",
        "names": list(comparison.names),
        "whole": comparison.summary.select(
            name for name in whole if name in comparison.summary.columns
        ).to_dicts(),
        "spans": rows.to_dicts(),
        "spans_that_differ": told.height,
        "notes": list(comparison.notes),
    }
