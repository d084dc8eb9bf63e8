"""Device time: how long a device worked for each span, in the runs that saw what it did.

Kernels, copies and sets count; a synchronisation only waits for them. What several
streams or devices do at one time counts once: it is the time in which at least one of
them worked for the span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Keys, Observations, columns_of, depths
from xsp.level import EXECUTIONS, Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_ON_DEVICE = pl.col("device").is_not_null() & pl.col("thread").is_null()
_EXECUTION = _ON_DEVICE & pl.col("kind").is_in([kind.value for kind in EXECUTIONS])


def device_times(seen: Observations, members: Sequence[int], *, columns: Keys) -> Floats | None:
    """Return `[runs, spans]`: device time of each span in ns, NaN where a run lacks it.

    That of an execution is its own duration, that of a launch is what it launched.

    Args:
        seen: All rows.
        members: The runs that are wanted, as indices into `seen.runs`.
        columns: Paths of the spans, sorted.

    Returns:
        None where no run saw a device work.
    """
    matrix = np.full((len(members), len(columns)), np.nan)
    worked = False
    for i, run in enumerate(members):
        rows, frame = seen.of(run), seen.runs[run].rows
        assert frame is not None
        working = np.flatnonzero(frame.select(_EXECUTION).to_series().to_numpy())
        worked |= len(working) > 0
        parent = np.maximum(seen.parent[rows] - rows.start, -1)
        parent[0] = -1
        parent[working] = _through_launches(frame, parent)[working]
        times = times_below(parent, working, (seen.start_ns[rows], seen.end_ns[rows]))
        place, known = columns_of(seen.key[rows], columns)
        matrix[i, place[known]] = times[known]
    return matrix if worked else None


def launch_rows(rows: pl.DataFrame) -> Ints:
    """Return the row of the launch of each row on a device, -1 where it is not known.

    Where calls within calls bear the same id, the innermost is the launch.

    Args:
        rows: Columns `kind`, `thread`, `device` and `correlation_id` of one run.
    """
    numbered = rows.select("kind", "thread", "device", "correlation_id").with_row_index("row")
    made = numbered.filter(_LAUNCH & pl.col("correlation_id").is_not_null())
    made = made.select("correlation_id", launch="row").unique("correlation_id", keep="last")
    asking = numbered.filter(_ON_DEVICE & ~_LAUNCH).join(made, on="correlation_id")
    found = np.full(rows.height, -1, dtype=np.int64)
    found[asking["row"].to_numpy()] = asking["launch"].to_numpy()
    return found


def times_below(parent: Ints, working: Ints, times: tuple[Ints, Ints]) -> Floats:
    """Return how much time the rows `working`, taken together, cover below each row.

    Their own time is that of each of them. Depth by depth from the innermost: sorted by
    start once, they stay so within every row above.

    Args:
        parent: Index of each row's parent, -1 for the root.
        working: Rows of which the time is taken.
        times: Start and end of every row.

    >>> times_below(np.array([-1, 0, 1, 1]), np.array([2, 3]),
    ...             (np.array([0, 0, 2, 3]), np.array([9, 8, 4, 6])))
    array([4., 4., 2., 3.])
    """
    start, end = times
    result = np.zeros(len(parent))
    working = working[np.argsort(start[working], kind="stable")]
    result[working] = (end - start)[working]
    for place, above in _ancestors(parent, working):
        order = np.argsort(above, kind="stable")
        row, begin, finish = above[order], start[working[place[order]]], end[working[place[order]]]
        result += np.bincount(row, weights=_added(row, begin, finish), minlength=len(parent))
    return result


def _ancestors(parent: Ints, rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield for each depth which of the rows have an ancestor there, and that ancestor."""
    depth = depths(parent)
    current = rows.copy()
    for level in range(int(depth[rows].max(initial=0)) - 1, -1, -1):
        deeper = depth[current] > level
        current[deeper] = parent[current[deeper]]
        place = np.flatnonzero((depth[current] == level) & (current != rows))
        if len(place):
            yield place, current[place]


def _added(row: Ints, start: Ints, end: Ints) -> Ints:
    """Return what each interval, sorted by row and start, adds to what those before it cover."""
    group = np.cumsum(np.diff(row, prepend=-1) != 0)
    first = int(start.min())
    span = int(end.max()) - first + 1
    reached = np.maximum.accumulate(end - first + group * span) - group * span + first
    before = np.roll(reached, 1)
    head = np.diff(group, prepend=0) != 0
    before[head] = start[head]
    added: Ints = np.maximum(end - np.maximum(start, before), 0)
    return added


def _through_launches(frame: pl.DataFrame, parent: Ints) -> Ints:
    """Return parents, with launches put between what they launched and what both lie in."""
    launch = launch_rows(frame)
    is_launch = frame.select(_LAUNCH).to_series().to_numpy()
    rows = np.flatnonzero(launch >= 0)
    above = launch[rows]
    while np.any(going := is_launch[above] & (above != parent[rows])):
        above = np.where(going, parent[above], above)
    between = above == parent[rows]
    parent = parent.copy()
    parent[rows[between]] = launch[rows[between]]
    return parent
