"""Differences: paired results in, the ratio of their latencies with its verdict out.

As in `xsp compare`: halves of intervals add up as squares, the assumed spread of processes is in
them (a zoo measures in one process), and p-values are corrected for the number of results.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.comparison import FALSE_DISCOVERY_RATE, Differences, Estimates, corrected
from xsp.zoo.results import TYPES, UNTYPED

DIFFERENCE_COLUMNS = {
    "model": "Name of the model, in the first folder.",
    "model_b": "Its name in the second.",
    "confidence": "How sure it is that they are the same model, from 0 to 1, by their names.",
    "settings": "The settings in common, besides the batch size.",
    "batch": "Batch size.",
    "latency_a_ns": "Latency in the first folder.",
    "latency_a_low_ns": "Lower end of its 95 % interval, the spread of processes in it.",
    "latency_a_high_ns": "Upper end of its 95 % interval.",
    "latency_b_ns": "Latency in the second folder.",
    "latency_b_low_ns": "Lower end of its 95 % interval, the spread of processes in it.",
    "latency_b_high_ns": "Upper end of its 95 % interval.",
    "difference_ns": "The second less the first.",
    "difference_high_ns": "Upper end of its 95 % interval.",
    "ratio": "The second over the first: less than 1 is faster.",
    "ratio_low": "Lower end of its 95 % interval.",
    "ratio_high": "Upper end of its 95 % interval.",
    "p_value": "Chance of a difference as large or larger, were there none.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg).",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, else `not "
    "significant`; `unknown` where an interval is missing.",
    "rank_a": "Rank of the model in the first folder, quickest first, among those at this batch "
    "and these settings that both have.",
    "rank_b": "The same in the second folder.",
    "moved_pct": "How much of the latency is of another type of layer: half of the sum of all "
    "differences of shares.",
    "moved_from": "Type of layer whose share fell most.",
    "moved_to": "Type of layer whose share rose most.",
}
_ENDS = ("latency_ns", "latency_low_ns", "latency_high_ns")
_SHARES = (*TYPES, UNTYPED)
Floats = NDArray[np.float64]


def differences(pairs: pl.DataFrame, settings: list[str]) -> pl.DataFrame:
    """Return the columns of `DIFFERENCE_COLUMNS`, those that changed most first.

    Args:
        pairs: Results side by side, as `paired` returns them.
        settings: The settings in common, without the batch.
    """
    words = pl.concat_str(
        [pl.format(name + " {}", pl.col(name)) for name in settings] or [pl.lit("")],
        separator=", ",
        ignore_nulls=True,
    )
    table = pairs.with_columns(settings=words).with_columns(*_judged(pairs), *_moved())
    ranks = [
        pl.col(f"latency_{side}_ns").rank("ordinal").over("batch", "settings").cast(pl.Int64)
        .alias(f"rank_{side}")
        for side in "ab"
    ]  # fmt: skip
    log = pl.col("ratio").log().abs()
    return (
        table.with_columns(ranks)
        .select(*DIFFERENCE_COLUMNS)
        .sort(log, "model", "batch", descending=[True, False, False], nulls_last=True)
    )


def _judged(pairs: pl.DataFrame) -> list[pl.Series]:
    a, b = _estimates(pairs, ""), _estimates(pairs, "_b")
    found = Differences.between(a, b)
    p = corrected(found.p)
    ratio = b.value / a.value
    reach = np.exp(np.hypot(a.half / a.value, b.half / b.value))
    columns = {
        **{f"latency_{s}_ns": each.value for s, each in (("a", a), ("b", b))},
        **{f"latency_{s}_low_ns": each.low for s, each in (("a", a), ("b", b))},
        **{f"latency_{s}_high_ns": each.high for s, each in (("a", a), ("b", b))},
        "difference_ns": found.value,
        "difference_high_ns": found.value + found.half,
        "ratio": ratio,
        "ratio_low": ratio / reach,
        "ratio_high": ratio * reach,
        "p_value": found.p,
        "corrected_p_value": p,
    }
    verdicts = pl.Series("verdict", found.verdicts(p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    return [*(pl.Series(name, each).fill_nan(None) for name, each in columns.items()), verdicts]


def _estimates(pairs: pl.DataFrame, side: str) -> Estimates:
    """Return latencies, with the spread of processes in their intervals."""
    ends: list[Floats] = [
        pairs[f"{end}{side}"].cast(pl.Float64).fill_null(np.nan).to_numpy() for end in _ENDS
    ]
    return Estimates(*ends).widened(np.ones(pairs.height, np.bool_))


def _moved() -> list[pl.Expr]:
    """Return how much of the latency is of another type of layer, and of which."""
    by = [pl.col(f"{name}_b") - pl.col(name) for name in _SHARES]
    half = pl.sum_horizontal(each.abs() for each in by) / 2
    known = pl.all_horizontal(each.is_not_null() for each in by)
    changed = known & (half > 0)
    names = pl.lit(pl.Series([_type_of(name) for name in _SHARES]).implode())
    both = pl.concat_list(by)
    return [
        pl.when(known).then(half).alias("moved_pct"),
        pl.when(changed).then(names.list.get(both.list.arg_min())).alias("moved_from"),
        pl.when(changed).then(names.list.get(both.list.arg_max())).alias("moved_to"),
    ]


def _type_of(column: str) -> str:
    return column.removeprefix("time.").removesuffix("_pct").replace("_", " ")
