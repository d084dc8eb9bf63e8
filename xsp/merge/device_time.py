"""Device time: the rows of runs in, for how long devices worked for each row out.

Kernels, copies and sets count; a synchronisation only waits for these. Time in which several
streams or devices work at once counts once (`union`).

    op "mm" with two kernels, 10-20 and 15-30       device time of "mm": 20
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import ON_DEVICE, Observations, covered_below
from xsp.level import DEVICE_ACTIVITIES, Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_WORK = ON_DEVICE & pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES])


def device_times(seen: Observations, members: Sequence[int]) -> Floats | None:
    """Return the device time of every row of `seen` in ns; rows of other runs get 0.

    The device time of a kernel, copy or set is its own duration; the device time of a launch is
    that of the activities that it launched.

    Args:
        seen: The rows of all runs.
        members: Indices into `seen.runs` of the runs whose device time is asked for.

    Returns:
        None where no device worked in these runs.
    """
    wanted = np.isin(seen.run, members)
    working = np.flatnonzero(seen.rows.select(_WORK).to_series().to_numpy() & wanted)
    if not len(working):
        return None
    parent = seen.parent.copy()
    parent[working] = _through_launches(seen.rows, parent)[working]
    return covered_below(parent, working, (seen.start_ns, seen.end_ns))


def launch_rows(rows: pl.DataFrame) -> Ints:
    """Return for each row on a device the row of its launch, -1 where that is not known.

    Where a call within a call has the same correlation id, the inner call is the launch.

    Args:
        rows: Columns `run`, `kind`, `thread`, `device` and `correlation_id`; correlation ids
            are compared within a run.
    """
    both = ["run", "correlation_id"]
    numbered = rows.select(*both, "kind", "thread", "device").with_row_index("row")
    made = numbered.filter(_LAUNCH & pl.col("correlation_id").is_not_null())
    made = made.select(*both, launch="row").unique(both, keep="last")
    asking = numbered.filter(ON_DEVICE & ~_LAUNCH).join(made, on=both)
    found = np.full(rows.height, -1, dtype=np.int64)
    found[asking["row"].to_numpy()] = asking["launch"].to_numpy()
    return found


def _through_launches(rows: pl.DataFrame, parent: Ints) -> Ints:
    """Return parents, with each launch put between its device activities and their parent."""
    launch = launch_rows(rows)
    is_launch = rows.select(_LAUNCH).to_series().to_numpy()
    launched = np.flatnonzero(launch >= 0)
    above = launch[launched]
    while np.any(going := is_launch[above] & (above != parent[launched])):
        above = np.where(going, parent[above], above)
    between = above == parent[launched]
    parent = parent.copy()
    parent[launched[between]] = launch[launched[between]]
    return parent
