"""Paths: what makes a span of one run the same span in another run.

A path is (kind, name, ordinal among equal siblings) from the root down. Paths are
compared as 64-bit hashes, which also serve as span ids: at a million spans the
chance that two collide is 3 in 100 million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

_ORDERS = np.array([kind.order for kind in Kind])
_ROOT = np.uint64(0x9E3779B97F4A7C15)


def depths(parent: Ints) -> Ints:
    """Return how many ancestors each row has.

    Args:
        parent: Index of each row's parent, -1 for roots.

    >>> depths(np.array([-1, 0, 1, 0]))
    array([0, 1, 2, 1])
    """
    depth = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    active = np.flatnonzero(ancestor >= 0)
    while len(active):
        above = ancestor[active]
        depth[active], ancestor[active] = depth[active] + depth[above], ancestor[above]
        active = active[ancestor[active] >= 0]
    return depth


def generations(parent: Ints) -> Iterator[Ints]:
    """Yield the rows of depth 0, of depth 1, and so on, each in their given order."""
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def subtree_sums(values: Floats, parent: Ints) -> Floats:
    """Return for each row the sum of `values` over the rows nested in it, itself excluded.

    >>> subtree_sums(np.array([1.0, 2.0, 4.0, 8.0]), np.array([-1, 0, 1, 0]))
    array([14.,  4.,  0.,  0.])
    """
    below = np.zeros(len(values))
    for rows in reversed(list(generations(parent))[1:]):
        np.add.at(below, parent[rows], values[rows] + below[rows])
    return below


def path_keys(rows: pl.DataFrame) -> Keys:
    """Return the hash of each row's path; the same in every run and every process.

    The rung is a part of the path, so that a layer derived from backward operators
    is not taken for another call of the forward layer it is named after. Ancestors
    of a deeper rung are no part of it: the span's own rung does not see them.

    Args:
        rows: Columns `kind`, `rung`, `name`, and `parent` (row index, -1 for roots);
            siblings in their order. Several runs may follow one another.
    """
    visible = pl.Series("parent", _visible_parents(rows), dtype=pl.Int64)
    labelled = rows.select("kind", "rung", "name", visible).with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt64)
        .over("parent", "kind", "rung", "name")
        .alias("ordinal")
    )
    own = _label_hashes(labelled)
    own = _mix(own + labelled["ordinal"].to_numpy())
    parent = labelled["parent"].to_numpy()
    keys = np.zeros(len(own), dtype=np.uint64)
    for depth, members in enumerate(generations(parent)):
        # Roots are all the same span, however many runs there are.
        keys[members] = _mix(own[members] ^ keys[parent[members]]) if depth else _ROOT
    keys[keys == 0] = 1  # as a span id, 0 means none
    return keys


def _visible_parents(rows: pl.DataFrame) -> Ints:
    """Return each row's innermost ancestor that is of no deeper rung than the row."""
    parent = rows["parent"].to_numpy()
    order = _ORDERS[rows["rung"].to_physical().to_numpy()]
    visible: Ints = parent.copy()
    hidden = np.flatnonzero((parent >= 0) & (order[parent] > order))
    while len(hidden):
        visible[hidden] = parent[visible[hidden]]
        hidden = hidden[order[visible[hidden]] > order[hidden]]
    return visible


def path_names(names: Sequence[str], parent: Sequence[int]) -> list[str]:
    """Return for each row the names from the root down, joined by `/`.

    The second of several siblings with one name is called `name#2`, and so on. A
    slash or hash that belongs to a name is written with a backslash before it.

    Args:
        names: Name of each row, parents before children.
        parent: Row index of each row's parent, -1 for the root.

    >>> path_names(["model", "conv", "conv"], [-1, 0, 0])
    ['model', 'model/conv', 'model/conv#2']
    """
    paths: list[str] = []
    seen: dict[tuple[int, str], int] = {}
    for name, above in zip(names, parent, strict=True):
        ordinal = seen[above, name] = seen.get((above, name), 0) + 1
        label = name.replace("\\", "\\\\").replace("/", "\\/").replace("#", "\\#")
        label = label if ordinal == 1 else f"{label}#{ordinal}"
        paths.append(f"{paths[above]}/{label}" if above >= 0 else label)
    return paths


def _label_hashes(rows: pl.DataFrame) -> Keys:
    labels = rows.select("kind", "rung", "name").unique(maintain_order=True)
    hashes = [
        int.from_bytes(blake2b("\0".join(map(str, label)).encode(), digest_size=8).digest(), "big")
        for label in labels.iter_rows()
    ]
    labels = labels.with_columns(pl.Series("hash", hashes, dtype=pl.UInt64))
    joined = rows.join(
        labels, on=["kind", "rung", "name"], how="left", maintain_order="left", nulls_equal=True
    )
    return joined["hash"].to_numpy()


def _mix(values: Keys) -> Keys:
    """Return well-spread 64-bit numbers for 64-bit numbers (SplitMix64, Steele 2014)."""
    values = values + _ROOT
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = values ^ (values >> np.uint64(31))
    return mixed
