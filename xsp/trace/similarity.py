"""Shapes: which subtrees of a trace look alike, so that repeats can be folded when it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Structure:
    """The tree over a frame's rows as arrays; every index is a row of that frame.

    Attributes:
        parents: Row of each row's parent, -1 for the root.
        order: All rows, those of one parent together and as they stand in the frame.
        starts: Where each row's children begin in `order`; one more entry than rows.
        shapes: A hash that is equal where two subtrees look alike.
    """

    parents: Rows
    order: Rows
    starts: Rows
    shapes: Hashes

    def children(self, rows: Rows) -> Rows:
        """Return the children of rows of one shape, `[row, child]`."""
        first = self.starts[rows]
        count = int(self.starts[rows[0] + 1] - first[0])
        children: Rows = self.order[first[:, None] + np.arange(count)]
        return children


def structure(spans: pl.DataFrame) -> Structure:
    """Return the tree over `spans` (columns of `trace.spans`), with its shapes.

    Two subtrees look alike when their roots have the same kind, class and
    parameters (what has no class: the same name), and their children have the
    same names and look alike in the same order.
    """
    parents = parent_rows(spans)
    order = np.argsort(parents, kind="stable").astype(np.int64)[1:]
    starts = np.searchsorted(parents[order], np.arange(len(parents) + 1)).astype(np.int64)
    shapes = _shapes(spans, order, starts)
    return Structure(parents, order, starts, shapes)


def field(spans: pl.DataFrame, name: str, dtype: Any = pl.String) -> pl.Series:
    """Return one attribute as a series, null throughout where the trace has none of it.

    A user's own attribute may bear the name and be of another type: it is not ours.
    """
    if pl.Field(name, dtype) not in getattr(spans.schema["attributes"], "fields", ()):
        return pl.Series(name, [None] * spans.height, dtype=dtype)
    found: pl.Series = spans["attributes"].struct.field(name)
    return found


def parent_rows(spans: pl.DataFrame) -> Rows:
    """Return the row of each span's parent, -1 for the root."""
    ids = spans["span_id"].to_numpy()
    wanted = spans["parent_id"].fill_null(0).to_numpy()
    by_id = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[by_id], wanted), len(ids) - 1)
    found = by_id[place].astype(np.int64)
    # An unchecked trace may name parents it lacks: such spans are shown under the root.
    found[ids[found] != wanted] = 0
    found[0] = -1
    return found


def _shapes(spans: pl.DataFrame, order: Rows, starts: Rows) -> Hashes:
    shapes = _own_hashes(spans)
    names = _mixed(_hashes(spans["name"]))
    for parents in reversed(_generations(order, starts)):
        firsts = starts[parents]
        counts = starts[parents + 1] - firsts
        ordinals = _ranges(counts)
        kids = order[np.repeat(firsts, counts) + ordinals]
        parts = _mixed(shapes[kids] + names[kids] + ordinals.astype(np.uint64))
        edges = np.cumsum(counts) - counts
        shapes[parents] = _mixed(shapes[parents] + np.add.reduceat(parts, edges))
    return shapes


def _generations(order: Rows, starts: Rows) -> list[Rows]:
    """Return the rows that have children, by depth from the root down."""
    generations: list[Rows] = []
    level = np.zeros(1, dtype=np.int64)
    while True:
        level = level[starts[level + 1] > starts[level]]
        if not level.size:
            return generations
        generations.append(level)
        counts = starts[level + 1] - starts[level]
        level = order[np.repeat(starts[level], counts) + _ranges(counts)]


def _ranges(counts: Rows) -> Rows:
    """Return 0, 1, … for each count, one after the other.

    >>> _ranges(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    return np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - counts, counts)


def _own_hashes(spans: pl.DataFrame) -> Hashes:
    what = pl.select(pl.coalesce(field(spans, "module_class"), spans["name"])).to_series()
    hashes = _mixed(_hashes(spans["kind"]))
    for series in (what, field(spans, "phase"), field(spans, "parameter_bytes", pl.Int64)):
        hashes = _mixed(hashes + _hashes(series))
    return hashes


def _hashes(series: pl.Series) -> Hashes:
    hashes: Hashes = series.hash(seed=1).to_numpy()
    return hashes


def _mixed(values: Hashes) -> Hashes:
    """Return values with their bits stirred (splitmix64), so that sums of them stay apart."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    stirred: Hashes = values ^ (values >> np.uint64(31))
    return stirred
