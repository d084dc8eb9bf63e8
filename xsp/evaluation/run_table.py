"""Observations: the rows of all runs as columns, and the matrices runs x spans made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation.path import Keys, path_keys
from xsp.evaluation.run import Run
from xsp.evaluation.summary import standard_error, trimmed_mean
from xsp.level import Kind
from xsp.provider import ENDED_BY_LAUNCH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ORDERS = np.array([kind.order for kind in Kind])
_CORE = ("kind", "name", "rung", "start_ns", "end_ns", "thread", "parent")


@dataclass(frozen=True, slots=True)
class Observations:
    """The rows of several runs, one run after the other.

    Attributes:
        runs: The runs; all have rows.
        first: Row of each run's root, and the number of rows at the end.
        parent: Row of each row's parent, -1 for roots.
        key: Hash of each row's path.
        order: Order of the rung that each row's latency is taken from.
        recorded: Whether a row was recorded, or derived from what was.
        endless: Whether its library did not tell when it ended, and no launch did.
        host: Whether it ran on a thread, or else on a device.
        start_ns: From the root's start.
        end_ns: The same.
    """

    runs: tuple[Run, ...]
    first: Ints
    parent: Ints
    key: Keys
    order: Ints
    recorded: Bools
    endless: Bools
    host: Bools
    start_ns: Ints
    end_ns: Ints

    def of(self, run: int) -> slice:
        """Return where the rows of a run are."""
        return slice(int(self.first[run]), int(self.first[run + 1]))


def observe(runs: Sequence[Run]) -> Observations:
    """Return the rows of those runs that have any."""
    runs = tuple(run for run in runs if run.rows is not None and run.rows.height)
    frames = [run.rows.select(_CORE) for run in runs if run.rows is not None]
    heights = np.array([frame.height for frame in frames], dtype=np.int64)
    first = np.concatenate([[0], heights.cumsum()])
    rows = pl.concat(frames).with_columns(pl.col("rung").fill_null(pl.col("kind")))
    origin = np.repeat(first[:-1], heights)
    parent = rows["parent"].to_numpy().astype(np.int64)
    parent = np.where(parent < 0, -1, parent + origin)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    by_launch = rows.select(ENDED_BY_LAUNCH).to_series().to_numpy()
    return Observations(
        runs=runs,
        first=first,
        parent=parent,
        key=path_keys(rows.with_columns(parent=parent)),
        order=_ORDERS[rows["rung"].to_physical().to_numpy()],
        recorded=(rows["kind"] == rows["rung"]).to_numpy() | by_launch,
        endless=by_launch & (start == end),
        host=rows["thread"].is_not_null().to_numpy(),
        start_ns=start - start[origin],
        end_ns=end - start[origin],
    )


def durations(seen: Observations, members: Sequence[int], *, columns: Keys) -> Floats:
    """Return `[runs, spans]`: how long each span took, NaN where a run does not tell.

    Args:
        seen: All rows.
        members: The runs that are wanted, as indices into `seen.runs`.
        columns: Paths of the spans, sorted. The root's time is the clock's.
    """
    matrix = np.full((len(members), len(columns)), np.nan)
    for i, run in enumerate(members):
        rows = seen.of(run)
        place, known = columns_of(seen.key[rows], columns)
        known &= ~seen.endless[rows]
        matrix[i, place[known]] = (seen.end_ns[rows] - seen.start_ns[rows])[known]
        if known[0]:
            matrix[i, place[0]] = seen.runs[run].latency_ns
    return matrix


def covered(seen: Observations, members: Sequence[int], *, columns: Keys, order: int) -> Floats:
    """Return `[runs, spans]`: how much of each span its children take, side by side.

    Args:
        seen: All rows.
        members: The runs that are wanted, as indices into `seen.runs`.
        columns: Paths of the spans, sorted.
        order: Children of a deeper rung than this are left out.
    """
    matrix = np.zeros((len(members), len(columns)))
    for i, run in enumerate(members):
        rows = seen.of(run)
        child = np.flatnonzero((seen.order[rows] <= order) & seen.host[rows])
        child = child[seen.parent[rows][child] >= 0] + rows.start
        parent = seen.parent[child] - rows.start
        total = _union(parent, seen.start_ns[child], seen.end_ns[child])
        sums = np.bincount(total[0], weights=total[1], minlength=rows.stop - rows.start)
        place, known = columns_of(seen.key[rows], columns)
        matrix[i, place[known]] = sums[known]
    return matrix


def columns_of(keys: Keys, columns: Keys) -> tuple[Ints, Bools]:
    """Return where each key stands among the sorted `columns`, and whether it is there."""
    place = np.minimum(np.searchsorted(columns, keys), len(columns) - 1)
    return place, columns[place] == keys


def process_factors(runs: Sequence[Run]) -> tuple[dict[int, float], float]:
    """Return by what each process's times are multiplied to bring all to one scale.

    The bare runs of each process say how fast it is. A factor differs from 1 only
    where they differ by more than their noise.

    Returns:
        The factors, and the largest relative difference from the mean of all.
    """
    bare: dict[int, list[int]] = {}
    for run in runs:
        if run.rung.order < 0 and run.rung.timed:
            bare.setdefault(run.process, []).append(run.latency_ns)
    samples = {p: np.array(times, dtype=float)[:, None] for p, times in bare.items()}
    samples = {p: times for p, times in samples.items() if len(times) >= 3}
    if len(samples) < 2:
        return {}, 0.0
    means = {p: max(float(trimmed_mean(times)[0]), 1.0) for p, times in samples.items()}
    centre = sum(means.values()) / len(means)
    factors = {}
    for process, times in samples.items():
        apart = abs(means[process] / centre - 1)
        noise = float(standard_error(times)[0]) / means[process]
        factors[process] = centre / means[process] if apart > 2.5 * noise else 1.0
    return factors, max(abs(factor - 1) for factor in factors.values())


def _union(parent: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the rows' parents and what each adds to the time that its siblings cover."""
    if not len(parent):
        return parent, parent
    order = np.lexsort((start, parent))
    parent, start, end = parent[order], start[order], end[order]
    group = (np.diff(parent, prepend=-1) != 0).cumsum()
    span = int(end.max()) + 1
    reached = np.maximum.accumulate(end + group * span) - group * span
    before = np.roll(reached, 1)
    head = np.diff(group, prepend=0) != 0
    before[head] = start[head]
    return parent, np.maximum(end - np.maximum(start, before), 0)
