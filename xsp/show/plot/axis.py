"""Chooses the unit of an axis by the largest value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses import heading_of

Floats = NDArray[np.float64]

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BYTES = tuple((1024.0**at, ("B", "KiB", "MiB", "GiB", "TiB")[at]) for at in (4, 3, 2, 1, 0))
_DECIMAL = tuple((1000.0**at, ("", "k", "M", "G", "T", "P")[at]) for at in (5, 4, 3, 2, 1, 0))
# Units of columns by the ends of their names, the largest first, and what follows the unit.
_UNITS: Mapping[str, tuple[Sequence[tuple[float, str]], str]] = {
    "_pct": (((1.0, "%"),), ""),
    "_ns": (_TIMES, ""),
    "bytes_per_s": (_BYTES, "/s"),
    "bytes": (_BYTES, ""),
    "flops_per_s": (_DECIMAL, "FLOP/s"),
    "flops": (_DECIMAL, "FLOP"),
}
# Headings that say too little beside an axis.
_SAID = {
    "at": "time",
    "index": "position in the order of execution",
    "own": "self time",
    "own allocated": "allocated, without layers inside",
    "own device": "device time, without layers inside",
    "own difference": "difference, without that of spans inside",
    "throughput per s": "throughput (per second)",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of an axis.

    Attributes:
        divisor: A value of the column divided by it is in the unit.
        unit: The unit, empty for counts.
    """

    divisor: float
    unit: str

    def of(self, values: pl.Series) -> Floats:
        """Return values in the unit; NaN where they are null, which draws nothing."""
        floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
        scaled: Floats = floats / self.divisor
        return scaled

    def label(self, column: str) -> str:
        """Return the label of an axis of that column."""
        said = heading_of(column).removesuffix(" %")
        said = _SAID.get(said, said)
        return f"{said} ({self.unit})" if self.unit else said


def scale_of(column: str, *values: pl.Series) -> Scale:
    """Return the unit in which the largest of a column's values is at least 1.

    Args:
        column: Name of the column, which ends in its unit.
        values: Values that share the axis.

    >>> scale_of("latency_ns", pl.Series([1.0, 41_234_567.0])).label("latency_ns")
    'latency (ms)'
    >>> scale_of("share_pct", pl.Series([12.5])), scale_of("layers", pl.Series([1, 2]))
    (Scale(divisor=1.0, unit='%'), Scale(divisor=1.0, unit=''))
    """
    largest = max((_largest(series) for series in values), default=0.0)
    for suffix, (units, said) in _UNITS.items():
        if column.endswith(suffix):
            divisor, unit = next((one for one in units if largest >= one[0]), units[-1])
            return Scale(divisor, unit + said)
    return Scale(1.0, "")


def _largest(values: pl.Series) -> float:
    known = values.cast(pl.Float64).drop_nulls().drop_nans()
    return float(known.abs().to_numpy().max(initial=0.0))
