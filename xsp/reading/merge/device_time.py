"""Adds up the time that devices worked for each row of a run.

Kernels, copies and sets count; a synchronization only waits for these. Time in which several
streams or devices work at once counts once (`union`). What ties launches to devices is here as
well: the launch of each activity, and launches after which no device worked.

    op "mm" with two kernels, 10-20 and 15-30       device time of "mm": 20
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import ON_DEVICE, Observations, covered_below
from xsp.provider import ATTRIBUTE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_CREATED = f"{ATTRIBUTE}created_nodes"  # of a captured launch, which starts nothing yet
_COUNTED = f"{ATTRIBUTE}launched_kernel"  # where events of kernels were counted, but no times
_ALWAYS = "LaunchKernel"  # in the names of calls that always start a kernel
_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_WORK = ON_DEVICE & pl.col("kind").is_in(_ACTIVITIES)


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


def idle_launches(rows: pl.DataFrame) -> pl.DataFrame:
    """Return launches after which no device did anything, by name.

    Not every call on the launch level is to start a device activity. The calls of a name are to,
    if a call of that name did, or if the name says so (`_ALWAYS`).

    Args:
        rows: Columns `run`, `kind`, `name`, `correlation_id`, and `excused`: true of launches of
            which nothing is to be seen on a device.

    Returns:
        A row per name with idle launches: `name`, `launches` and `idle`, the most idle first.

    >>> frame = pl.DataFrame({
    ...     "run": 0, "kind": ["launch", "launch", "launch", "memset"],
    ...     "name": ["set", "set", "wait", "Memset"], "correlation_id": [1, 2, 3, 1],
    ...     "excused": False})
    >>> idle_launches(frame).rows()
    [('set', 2, 1)]
    """
    known = rows.filter(pl.col("correlation_id").is_not_null() & ~pl.col("excused"))
    both = ["run", "correlation_id"]
    worked = known.filter(pl.col("kind").is_in(_ACTIVITIES)).select(*both, idle=0).unique()
    asked = known.filter(pl.col("kind") == Kind.LAUNCH.value).join(worked, on=both, how="left")
    idle = pl.col("idle").is_null().sum().cast(pl.Int64)
    sums = asked.group_by("name").agg(pl.len().cast(pl.Int64).alias("launches"), idle=idle)
    due = (pl.col("idle") < pl.col("launches")) | pl.col("name").str.contains(_ALWAYS, literal=True)
    return sums.filter(due & (pl.col("idle") > 0)).sort("idle", "name", descending=[True, False])


def launches(seen: Observations, members: Ints) -> pl.DataFrame:
    """Return the columns that `idle_launches` asks for, of some runs.

    Args:
        seen: The rows of all runs.
        members: The runs, as indices into `seen.runs`.

    Returns:
        No rows where nothing was launched.
    """
    rows = seen.rows.select("run", "kind", "name", "correlation_id")
    if not (rows["kind"] == Kind.LAUNCH.value).any():
        return rows.clear().with_columns(excused=pl.lit(value=False))
    rows = rows.filter(np.isin(seen.run, members))
    excused = [_excused(seen.runs[int(run)].rows) for run in np.sort(members)]
    return rows.with_columns(excused=pl.concat(excused))


def _excused(rows: pl.DataFrame | None) -> pl.Series:
    """Return which rows are launches that leave no activity on a device."""
    assert rows is not None
    if _COUNTED in rows.columns and rows[_COUNTED].is_not_null().any():
        return pl.repeat(value=True, n=rows.height, eager=True)
    if _CREATED in rows.columns:
        return rows[_CREATED].is_not_null()
    return pl.repeat(value=False, n=rows.height, eager=True)
