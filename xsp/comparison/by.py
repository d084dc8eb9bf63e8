"""Sums beside each other: two traces in, what they take by layer type and by library primitive out.

These hold where no span of one trace is one of the other: across frameworks, and where one runs a
layer as one operator and another as five.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from xsp.analyses import by_layer_type, by_primitive
from xsp.comparison.alignment import Floats
from xsp.comparison.setting import holds_processes
from xsp.comparison.significance import FALSE_DISCOVERY_RATE, Differences, Estimates, corrected
from xsp.level import Kind
from xsp.trace import Trace

_SIDES: Mapping[str, str] = {
    "calls_a": "How many calls of these there are in the first trace; null where there are none.",
    "calls_b": "The same in the trace that is compared.",
    "own_a_ns": "Their own times in the first trace, summed.",
    "own_a_low_ns": "Lower end of its 95 % interval.",
    "own_a_high_ns": "Upper end of its 95 % interval.",
    "own_b_ns": "Their own times in the trace that is compared, summed.",
    "own_b_low_ns": "Lower end of its 95 % interval.",
    "own_b_high_ns": "Upper end of its 95 % interval.",
    "difference_ns": "What they take more; of what one trace alone has, all of that.",
    "difference_low_ns": "Lower end of its 95 % interval.",
    "difference_high_ns": "Upper end of its 95 % interval.",
    "ratio": "Own time over that in the first trace.",
    "p_value": "Chance of a difference as large or larger, were there none.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg).",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, otherwise `not "
    "significant`; `unknown` where an interval is missing; null for what one trace alone has.",
}
_TRACE = {"trace": "Name of the trace that is compared with the first."}
TYPE_COLUMNS: Mapping[str, str] = {
    **_TRACE,
    "layer_type": "What the layers do, or the operators where a trace has no layers; null: not "
    "known.",
    **_SIDES,
}
PRIMITIVE_COLUMNS: Mapping[str, str] = {
    **_TRACE,
    "primitive": "Name of the library's call: a primitive, or a routine.",
    **_SIDES,
}
_TIMES = ("own_ns", "own_low_ns", "own_high_ns")


def types_beside(name: str, a: Trace, b: Trace) -> pl.DataFrame:
    """Return the table of `TYPE_COLUMNS`, what differs most first."""
    sides = (_summed(by_layer_type(each), "layer_type", each) for each in (a, b))
    return _judged(name, "layer_type", *sides).select(*TYPE_COLUMNS)


def primitives_beside(name: str, a: Trace, b: Trace) -> pl.DataFrame:
    """Return the table of `PRIMITIVE_COLUMNS`, empty unless both traces have library calls."""
    if not all((each.spans["kind"] == Kind.CALL.value).any() for each in (a, b)):
        return pl.DataFrame(schema=_judged_schema("primitive")).select(*PRIMITIVE_COLUMNS)
    sides = (_summed(by_primitive(each), "primitive", each) for each in (a, b))
    return _judged(name, "primitive", *sides).select(*PRIMITIVE_COLUMNS)


def _judged_schema(key: str) -> pl.Schema:
    texts = {"trace", key, "verdict"}
    counts = {"calls_a", "calls_b"}
    types = {
        column: pl.String if column in texts else pl.Int64 if column in counts else pl.Float64
        for column in ("trace", key, *_SIDES)
    }
    return pl.Schema(types)


def _summed(table: pl.DataFrame, key: str, trace: Trace) -> pl.DataFrame:
    """Return calls and own times by a key, with what processes may differ by in the intervals."""
    ends = [
        pl.when(pl.col(end).null_count() == 0).then(pl.sum(end)).alias(end) for end in _TIMES[1:]
    ]
    sums = table.group_by(key, maintain_order=True).agg(pl.sum("calls", "own_ns"), *ends)
    times = Estimates(*(_floats(sums[name]) for name in _TIMES))
    if not holds_processes(trace):
        times = times.widened(np.ones(sums.height, np.bool_))
    columns = zip(_TIMES, (times.value, times.low, times.high), strict=True)
    return sums.with_columns(pl.Series(name, values).fill_nan(None) for name, values in columns)


def _judged(name: str, key: str, a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of both traces side by side, with their differences and verdicts."""
    both = a.join(b, on=key, how="full", coalesce=True, nulls_equal=True, suffix="_b")
    absent_a, absent_b = (both[calls].is_null().to_numpy() for calls in ("calls", "calls_b"))
    first, second = (
        Estimates(*(np.where(absent, 0.0, _floats(both[f"{time}{end}"])) for time in _TIMES))
        for absent, end in ((absent_a, ""), (absent_b, "_b"))
    )
    found = Differences.between(first, second)
    p = np.where(absent_a | absent_b, np.nan, found.p)
    corrected_p = corrected(p)
    verdicts = pl.Series(found.verdicts(corrected_p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    ratio = np.full(both.height, np.nan)
    np.divide(second.value, first.value, out=ratio, where=(first.value > 0) & ~absent_b)
    table = both.with_columns(
        trace=pl.lit(name),
        calls_a=pl.col("calls"),
        **{f"own_a{time[3:]}": pl.col(time) for time in _TIMES},
        **{f"own_b{time[3:]}": pl.col(f"{time}_b") for time in _TIMES},
        difference_ns=found.value,
        difference_low_ns=found.value - found.half,
        difference_high_ns=found.value + found.half,
        ratio=ratio,
        p_value=p,
        corrected_p_value=corrected_p,
        verdict=pl.when(pl.Series(~(absent_a | absent_b))).then(verdicts),
    )
    numbers = table.with_columns(pl.col(pl.Float64).fill_nan(None))
    cost = pl.col("difference_ns").abs()
    ordered = numbers.sort(cost, key, descending=[True, False], nulls_last=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in _judged_schema(key).items())


def _floats(values: pl.Series) -> Floats:
    floats: Floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return floats
