"""Thirds: results in, which third of each model's layers needs most of what out.

The thirds are those of `xsp.analyses.layer_thirds`: of the modules, in the order in which they are
first called.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from xsp.zoo.characterisation.entry import IDENTITY, best_rows
from xsp.zoo.characterisation.table import ZooTable
from xsp.zoo.results import THIRDS

# What the thirds are compared by: the name in columns, and in words.
QUANTITIES: Final = {
    "latency": "latency",
    "allocated": "allocated memory",
    "flops": "operations",
    "accessed": "memory accesses",
}

_COLUMNS = {
    **IDENTITY,
    "batch": "The best batch, or the only one.",
    **{
        f"{third}_{name}_pct": f"Share of the {third} third of the layers in the {said}."
        for name, said in QUANTITIES.items()
        for third in THIRDS
    },
}
_COUNTS = {
    "quantity": "What the thirds are compared by.",
    **{f"{third}_models": f"Models whose {third} third has most of it." for third in THIRDS},
    "unknown_models": "Models of which that is not known.",
}


def most_of(quantity: str) -> pl.Expr:
    """Return which third has most of a quantity; null where none is known."""
    shares = [pl.col(f"{third}_{quantity}_pct") for third in THIRDS]
    most = pl.max_horizontal(shares)
    chosen: pl.Expr = pl.lit(None, dtype=pl.String)
    for third, share in reversed([*zip(THIRDS, shares, strict=True)]):
        chosen = pl.when(share == most).then(pl.lit(third)).otherwise(chosen)
    return chosen


def _counts(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    counts = [
        _count(best.select(most_of(name)).to_series(), QUANTITIES[name]) for name in QUANTITIES
    ]
    return pl.DataFrame(counts, schema=dict.fromkeys(_COUNTS, pl.Int64) | {"quantity": pl.String})


def _count(most: pl.Series, said: str) -> dict[str, str | int]:
    counts = {f"{third}_models": int((most == third).sum()) for third in THIRDS}
    return {"quantity": said, **counts, "unknown_models": most.null_count()}


thirds = ZooTable("thirds", "Which third of the layers needs most?", _COLUMNS, best_rows)
thirds_by_quantity = ZooTable(
    "thirds-by-quantity", "In how many models is which third the heaviest?", _COUNTS, _counts
)
