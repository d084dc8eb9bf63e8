"""Axes: a column and its largest value in, the unit in which people read that axis out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.analyses import heading_of

Floats = NDArray[np.float64]

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BINARY = tuple((1024.0**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB")))
_DECIMAL = tuple((1000.0**power, unit) for power, unit in enumerate(("", "k", "M", "G", "T", "P")))
# Headings that say too little beside an axis.
_SAID = {"own": "own time"}


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
    if column.endswith("_pct"):
        return Scale(1.0, "%")
    if column.endswith("_ns"):
        return _suited(_TIMES, largest)
    if column.endswith("_bytes"):
        return _suited(_BINARY[::-1], largest)
    if column.endswith("bytes_per_s"):
        return _per_second(_suited(_BINARY[::-1], largest))
    if column.endswith("flops_per_s"):
        scale = _suited(_DECIMAL[::-1], largest)
        return Scale(scale.divisor, f"{scale.unit}FLOP/s")
    if column.endswith("flops"):
        scale = _suited(_DECIMAL[::-1], largest)
        return Scale(scale.divisor, f"{scale.unit}FLOP")
    return Scale(1.0, "")


def _per_second(scale: Scale) -> Scale:
    return Scale(scale.divisor, f"{scale.unit}/s")


def _largest(values: pl.Series) -> float:
    finite = values.cast(pl.Float64).drop_nulls().drop_nans()
    return float(finite.abs().max() or 0.0)  # type: ignore[arg-type]


def _suited(units: Sequence[tuple[float, str]], largest: float) -> Scale:
    for divisor, unit in units:
        if largest >= divisor:
            return Scale(divisor, unit)
    return Scale(*units[-1])
