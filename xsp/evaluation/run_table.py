"""Observations: the rows of all runs in, one frame with equal numbers for equal spans out.

Spans of two runs are the same span if their paths are equal (`path`). Merging works on the numbers:

                name   path
    run 0    predict      0
             fc           1
    run 1    predict      0
             fc           1
             addmm        2      this path is missing in run 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation.path import Keys, path_keys
from xsp.evaluation.run import Run
from xsp.evaluation.tree_row import has_provenance, on_device, rung_orders
from xsp.provider import Provenance

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_CORE = [
    "kind",
    "name",
    "provenance",
    "start_ns",
    "end_ns",
    "thread",
    "device",
    "correlation_id",
    "parent",
]

# Row of the root in every run. So the root's path is number 0, and in the matrices
# `[runs, spans]` the root's column is column 0.
ROOT = 0


@dataclass(frozen=True, slots=True)
class Observations:
    """The rows of several runs, one run after the other.

    Attributes:
        runs: The runs; all have rows.
        rows: What was recorded: columns of `xsp.provider.ROW_SCHEMA`, and `run`.
        run: Index of each row's run, as in `runs`.
        first: Row of each run's root; one more entry at the end is the number of all rows.
        parent: Row of each row's parent, -1 for roots.
        key: Hash of each row's path.
        path: Number of each row's path, from 0; a span has the same number in every run.
        order: Order of the rung that each row's latency is taken from.
        recorded: Whether a provider recorded the row; False: it was derived from other rows.
        endless: Whether the row's end is not known, neither from its library nor by a launch.
        host: Whether the row ran on a thread of the host; False: on a device.
        start_ns: Start of each row, from the start of its root.
        end_ns: End of each row, from the start of its root.
    """

    runs: tuple[Run, ...]
    rows: pl.DataFrame
    run: Ints
    first: Ints
    parent: Ints
    key: Keys
    path: Ints
    order: Ints
    recorded: Bools
    endless: Bools
    host: Bools
    start_ns: Ints
    end_ns: Ints

    def of(self, run: int) -> slice:
        """Return the place of a run's rows."""
        return slice(int(self.first[run]), int(self.first[run + 1]))


def observe(runs: Sequence[Run]) -> Observations:
    """Return the rows of all runs; runs without rows are left out."""
    runs = tuple(run for run in runs if run.rows is not None and run.rows.height)
    frames = [run.rows[_CORE] for run in runs if run.rows is not None]
    heights = np.array([frame.height for frame in frames], dtype=np.int64)
    first = np.concatenate([[0], heights.cumsum()])
    of_run = np.repeat(np.arange(len(runs)), heights)
    rows = pl.concat(frames).with_columns(run=of_run)
    origin = np.repeat(first[:-1], heights)
    parent = rows["parent"].to_numpy().astype(np.int64)
    parent = np.where(parent < 0, -1, parent + origin)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    key = path_keys(rows.with_columns(parent=parent))
    return Observations(
        runs=runs,
        rows=rows,
        run=of_run,
        first=first,
        parent=parent,
        key=key,
        path=_numbered(key),
        order=rung_orders(rows),
        recorded=~has_provenance(rows, Provenance.DERIVED, Provenance.REPLAYED),
        endless=has_provenance(rows, Provenance.ENDED_BY_LAUNCH) & (start == end),
        host=~on_device(rows),
        start_ns=start - start[origin],
        end_ns=end - start[origin],
    )


def _numbered(keys: Keys) -> Ints:
    """Return a number for each key, equal for equal keys, from 0 in the order of first use."""
    frame = pl.DataFrame({"key": keys})
    numbers = frame.unique(maintain_order=True).with_row_index("number")
    joined = frame.join(numbers, on="key", how="left", maintain_order="left")
    return joined["number"].cast(pl.Int64).to_numpy()
