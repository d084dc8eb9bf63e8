"""The whole model: a trace in, its latency, device time, throughput and memory out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from xsp.comparison.significance import Differences, Estimates, Verdict
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace import Trace, attribute_column

LATENCY, DEVICE, THROUGHPUT, MEMORY = "latency_ns", "device_ns", "throughput_per_s", "peak_bytes"
QUANTITIES = (LATENCY, DEVICE, THROUGHPUT, MEMORY)

SUMMARY_COLUMNS = {
    "trace": "Name of the trace that is compared with the first.",
    "quantity": "What is compared, with its unit: `latency_ns`, `device_ns` (time in which a "
    "device worked), `throughput_per_s` (samples per second) or `peak_bytes` (most memory that an "
    "evaluation held above what it began with).",
    "a": "Of the first trace.",
    "a_low": "Lower end of its 95 % interval.",
    "a_high": "Upper end of its 95 % interval.",
    "b": "Of the trace that is compared.",
    "b_low": "Lower end of its 95 % interval.",
    "b_high": "Upper end of its 95 % interval.",
    "difference": "`b` less `a`.",
    "difference_low": "Lower end of its 95 % interval.",
    "difference_high": "Upper end of its 95 % interval.",
    "ratio": "`b` over `a`.",
    "p_value": "Chance of a difference as large or larger, were there none; each quantity is "
    "tested alone.",
    "verdict": "`slower`, `faster`, `more` or `less` where that chance is below 5 %, otherwise "
    "`not significant`; `unknown` where an interval is missing.",
}

_LIST = pl.List(pl.List(pl.Int64))


def quantities(trace: Trace, *, widen: bool) -> Estimates:
    """Return the `QUANTITIES` of a trace, NaN where the trace does not have one.

    Args:
        trace: Any trace.
        widen: Whether the assumed spread of processes goes into the intervals.
    """
    latency = _latency(trace)
    if widen:
        latency = latency.widened(np.ones(1, np.bool_))
    parts = (latency, _device(trace), _throughput(trace, latency), _memory(trace))
    return Estimates(
        *(np.concatenate([getattr(each, end) for each in parts]) for end in Estimates.__slots__)
    )


def summary(name: str, a: Estimates, b: Estimates) -> pl.DataFrame:
    """Return the table of `SUMMARY_COLUMNS`, without quantities that a trace does not have."""
    found = Differences.between(a, b)
    columns = {
        "trace": pl.Series([name] * len(QUANTITIES), dtype=pl.String),
        "quantity": QUANTITIES,
        **{"a": a.value, "a_low": a.low, "a_high": a.high},
        **{"b": b.value, "b_low": b.low, "b_high": b.high},
        "difference": found.value,
        "difference_low": found.value - found.half,
        "difference_high": found.value + found.half,
        "ratio": b.value / np.where(a.value == 0, np.nan, a.value),
        "p_value": found.p,
        "verdict": _words(found),
    }
    table = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    return table.filter(pl.col("a").is_not_null(), pl.col("b").is_not_null())


def _words(found: Differences) -> Sequence[str]:
    """Return verdicts in words that fit: more throughput is faster, and memory has no speed."""
    other: dict[str, dict[str, str]] = {
        THROUGHPUT: {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER},
        MEMORY: {Verdict.SLOWER: Verdict.MORE, Verdict.FASTER: Verdict.LESS},
    }
    verdicts = found.verdicts(found.p, 0.05)
    return [
        str(other.get(quantity, {}).get(verdict, verdict))
        for quantity, verdict in zip(QUANTITIES, verdicts, strict=True)
    ]


def batch_of(trace: Trace) -> int | None:
    """Return how many samples an evaluation takes: the leading size of the leading input.

    None where no module was called with a tensor, and in traces of whole programs.
    """
    if attribute_column(trace.spans, "whole_block", pl.Boolean).fill_null(value=False).any():
        return None
    shapes = attribute_column(calls_of(trace), "input_shapes", _LIST).drop_nulls()
    first = shapes[0] if len(shapes) else None
    shape = None if first is None or not len(first) else first[0]
    return int(shape[0]) if shape is not None and len(shape) > 1 else None


def calls_of(trace: Trace) -> pl.DataFrame:
    """Return the spans of which the first with shapes was given the model's inputs.

    The first operators of graphs of TensorFlow and JAX may be given weights alone: there only
    layers tell.
    """
    graph = attribute_column(trace.spans, "framework").is_in(["tensorflow", "jax"])
    operators = trace.spans["kind"] == Kind.OP.value
    return trace.spans.filter(~(operators & graph.fill_null(value=False)))


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimates:
    ends = (math.nan if end is None else float(end) for end in (value, low, high))
    return Estimates(*(np.array([end]) for end in ends))


def _latency(trace: Trace) -> Estimates:
    root = trace.root
    return _estimate(root.latency_ns, root.latency_low_ns, root.latency_high_ns)


def _device(trace: Trace) -> Estimates:
    """Return how long devices worked; the interval in proportion to that of their work's sum."""
    kinds = [kind.value for kind in DEVICE_ACTIVITIES]
    work = trace.spans.filter(pl.col("kind").is_in(kinds))
    ends = ("latency_ns", "latency_low_ns", "latency_high_ns")
    known = work.height and not any(work[end].null_count() for end in ends)
    total, low, high = (float(work[end].sum() or 0.0) for end in ends)
    value = trace.root.device_ns
    if value is None or not known or not total:
        return _estimate(value, None, None)
    return _estimate(value, value * low / total, value * high / total)


def _throughput(trace: Trace, latency: Estimates) -> Estimates:
    samples = batch_of(trace)
    if samples is None:
        return _estimate(None, None, None)
    with np.errstate(divide="ignore"):
        value, low, high = (
            samples * 1e9 / end for end in (latency.value, latency.high, latency.low)
        )
    return Estimates(value, low, high)


def _memory(trace: Trace) -> Estimates:
    """Return the most memory held within a span; it is counted, and so without an error."""
    peak = attribute_column(trace.spans, "peak_bytes", pl.Int64).max()
    value = float(peak) if isinstance(peak, int) else None
    return _estimate(value, value, value)
