"""What share of the devices' time lies under a layer, under an operator, under neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Ints
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.trace.folding import parent_rows

Bools = NDArray[np.bool_]

_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_CAUSES = [kind.value for kind in (Kind.LAYER, Kind.OP, Kind.CALL)]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Where the time of all kernels, copies and sets, added up, belongs.

    Attributes:
        layer: Fraction that lies under a layer; None where the trace has no layers.
        operator: Fraction that lies under an operator; None where it has none.
        nowhere: Fraction that lies under no layer, operator or library call.
    """

    layer: float | None
    operator: float | None
    nowhere: float


def attribution(spans: pl.DataFrame) -> Attribution | None:
    """Return where the devices' time belongs, None where no device worked.

    Args:
        spans: Columns of `trace.spans`.
    """
    kinds = spans["kind"]
    rows = np.flatnonzero(kinds.is_in(_ACTIVITIES).to_numpy())
    time = spans["latency_ns"].gather(rows).fill_null(0.0).to_numpy()
    if not time.sum():
        return None
    under = _ancestors(spans, rows)
    present = set(kinds.unique())
    shares = {
        kind: float(time[found].sum() / time.sum()) if kind in present else None
        for kind, found in under.items()
    }
    somewhere = np.logical_or.reduce(list(under.values()))
    return Attribution(
        shares[Kind.LAYER.value], shares[Kind.OP.value], float(time[~somewhere].sum() / time.sum())
    )


def _ancestors(spans: pl.DataFrame, rows: Ints) -> dict[str, Bools]:
    """Return for each kind of cause which of the rows have such an ancestor."""
    parents = parent_rows(spans)
    kinds = {kind: (spans["kind"] == kind).to_numpy() for kind in _CAUSES}
    found = {kind: np.zeros(len(rows), dtype=np.bool_) for kind in _CAUSES}
    current = parents[rows]
    while np.any(current >= 0):
        for kind, among in kinds.items():
            found[kind] |= (current >= 0) & among[current]
        current = np.where(current >= 0, parents[current], -1)
    return found
