"""Converts times of a visit to a clock that stands still while the program waits for xsp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.matching import ON_DEVICE
from xsp.provider import Samples, SpanRows
from xsp.record.session import Visit

Ints = NDArray[np.int64]


def without_pauses(visit: Visit) -> Visit:
    """Return a visit whose steps last as long as they ran; the pauses are those before."""
    if not visit.pauses:
        return visit
    windows = np.array(visit.windows, dtype=np.int64)
    shown = (windows - _paused(visit, windows)).tolist()
    return replace(visit, windows=tuple((begin, end) for begin, end in shown))


def rows_without_pauses(rows: SpanRows, visit: Visit) -> SpanRows:
    """Return the rows of a visit by the same clock; devices work on, so their rows keep lengths."""
    if not visit.pauses or not rows.height:
        return rows
    start, end = (rows[name].fill_null(0).to_numpy() for name in ("start_ns", "end_ns"))
    before, inside = _paused(visit, start), _paused(visit, end)
    late = pl.when(ON_DEVICE).then(pl.lit(before)).otherwise(pl.lit(inside))
    return rows.with_columns(
        start_ns=pl.col("start_ns") - pl.lit(before), end_ns=pl.col("end_ns") - late
    )


def samples_without_pauses(samples: Samples, visit: Visit) -> Samples:
    """Return the samples of a visit by the same clock."""
    if not visit.pauses or not samples.height:
        return samples
    time_ns = samples["time_ns"].to_numpy()
    return samples.with_columns(time_ns=pl.Series(time_ns - _paused(visit, time_ns)))


def with_pauses(visit: Visit, time_ns: Ints) -> Ints:
    """Convert times of the clock that stood still to times of the session's clock."""
    if not visit.pauses:
        return time_ns
    begin, end = np.array(visit.pauses, dtype=np.int64).T
    before = np.append(0, np.cumsum(end - begin))
    later: Ints = time_ns + before[np.searchsorted(begin - before[:-1], time_ns, side="right")]
    return later


def _paused(visit: Visit, time_ns: Ints) -> Ints:
    """Return how long the clock of a visit has stood still until each time."""
    begin, end = np.array(visit.pauses, dtype=np.int64).T
    last = np.searchsorted(begin, time_ns, side="right") - 1
    total = np.append(0, np.cumsum(end - begin))
    under_way = np.where(last >= 0, np.maximum(end[last] - time_ns, 0), 0)
    paused: Ints = total[last + 1] - under_way
    return paused
