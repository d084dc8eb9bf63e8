"""Puts the rows of all runs into one frame in which equal spans have equal numbers.

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

from xsp.matching.ancestry import inverse
from xsp.matching.path import NODE, Keys, path_keys
from xsp.matching.run import Run
from xsp.matching.tree_row import has_provenance, on_device, pass_orders
from xsp.provider import Provenance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
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

_STRUCTURE = ["kind", "provenance", "name", "parent"]
_TRIES = 8  # structures that a run is compared with: all runs may differ

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
        order: Order of the pass that each row's latency is taken from.
        recorded: Whether a provider recorded the row; False: it was derived from other rows.
        host: Whether the row ran on a thread of the host; False: on a device.
        start_ns: Start of each row, from the start of its root.
        end_ns: End of each row, from the start of its root.
        duration_ns: How long each row took; NaN where its end is not known, neither from its
            library nor by a launch.
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
    host: Bools
    start_ns: Ints
    end_ns: Ints
    duration_ns: Floats

    def of(self, run: int) -> slice:
        """Return the place of a run's rows."""
        return slice(int(self.first[run]), int(self.first[run + 1]))


def observe(runs: Sequence[Run]) -> Observations:
    """Return the rows of all runs; runs without rows are left out."""
    runs = tuple(run for run in runs if run.rows is not None and run.rows.height)
    frames = [run.rows[_CORE] for run in runs if run.rows is not None]
    heights = np.array([frame.height for frame in frames], dtype=np.int64)
    first = np.concatenate([[0], heights.cumsum()])
    rows = pl.concat(frames).with_columns(run=np.repeat(np.arange(len(runs)), heights))
    origin = np.repeat(first[:-1], heights)
    parent = rows["parent"].to_numpy().astype(np.int64)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    endless = has_provenance(rows, Provenance.ENDED_BY_LAUNCH) & (start == end)
    key, path, order, recorded = _structures([run.rows for run in runs if run.rows is not None])
    return Observations(
        runs=runs,
        rows=rows,
        run=rows["run"].to_numpy(),
        first=first,
        parent=np.where(parent < 0, -1, parent + origin),
        key=key,
        path=path,
        order=order,
        recorded=recorded,
        host=~on_device(rows),
        start_ns=start - start[origin],
        end_ns=end - start[origin],
        duration_ns=np.where(endless, np.nan, end - start),
    )


def _structures(frames: Sequence[pl.DataFrame]) -> tuple[Keys, Ints, Ints, Bools]:
    """Return `key`, `path`, `order` and `recorded` of the rows of all frames.

    Most runs of a pass have the same structure, so that these are found once for each structure.
    """
    nodes = any(NODE in frame.columns for frame in frames)
    structures = [_structure(frame, nodes=nodes) for frame in frames]
    different, number = _different(structures)
    first = np.cumsum([0, *(frame.height for frame in different)])
    rows = pl.concat(
        frame.with_columns(
            parent=pl.when(pl.col("parent") >= 0).then(pl.col("parent") + at).otherwise(-1)
        )
        for frame, at in zip(different, first.tolist(), strict=False)
    )
    key = path_keys(rows)
    once = (
        key,
        _numbered(key),
        pass_orders(rows),
        ~has_provenance(rows, Provenance.DERIVED, Provenance.REPLAYED),
    )
    key, path, order, recorded = (
        np.concatenate([column[first[n] : first[n + 1]] for n in number]) for column in once
    )
    return key, path, order, recorded


def _structure(frame: pl.DataFrame, *, nodes: bool) -> pl.DataFrame:
    """Return the columns of a run that make its paths; with `NODE`, where any run has that."""
    structure = frame[_STRUCTURE]
    if not nodes:
        return structure
    node = frame[NODE] if NODE in frame.columns else pl.lit(None, pl.String)
    return structure.with_columns(node.alias(NODE))


def _different(frames: Sequence[pl.DataFrame]) -> tuple[list[pl.DataFrame], list[int]]:
    """Return frames that differ, by their first use, and for each frame its number among these.

    A frame that equals none of the last few of its height may stand among them again.
    """
    different: list[pl.DataFrame] = []
    number: list[int] = []
    of_height: dict[int, list[int]] = {}
    for frame in frames:
        known = of_height.setdefault(frame.height, [])
        found = next((n for n in known[-_TRIES:] if different[n].equals(frame)), len(different))
        if found == len(different):
            different.append(frame)
            known.append(found)
        number.append(found)
    return different, number


def _numbered(keys: Keys) -> Ints:
    """Return a number for each key, equal for equal keys, from 0 in the order of first use."""
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return inverse(np.argsort(first))[number]
