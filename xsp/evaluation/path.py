"""Paths: rows with their parents in, a key and a readable name for the path of each row out.

A path is (kind, name, ordinal among equal siblings) from the root down; spans of two runs with
one path are the same span. Paths are compared as 64-bit hashes, which also serve as span ids:
at a million spans the chance that two collide is 3 in 100 million.

    predict > block > conv, the second of its name     path name "predict/block/conv#2"
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation.ancestry import Ints, generations, nearest_outer
from xsp.evaluation.tree_row import RUNG, rung_orders

Keys = NDArray[np.uint64]

_ROOT = np.uint64(0x9E3779B97F4A7C15)


def path_keys(rows: pl.DataFrame) -> Keys:
    """Return the hash of each row's path; the same in every run and every process.

    The rung that a row's latency is taken from (`tree_row.RUNG`) is a part of the path, so
    that a layer derived from backward operators differs from another call of the forward layer
    with the same name. Ancestors of a deeper rung are no part of the path, for the row's own
    rung does not record them.

    Args:
        rows: Columns `kind`, `provenance`, `name`, and `parent` (row index, -1 for roots);
            siblings in their order. Several runs may follow one another.
    """
    parent = rows["parent"].to_numpy()
    visible = pl.Series("parent", nearest_outer(parent, rung_orders(rows)), dtype=pl.Int64)
    labelled = rows.select("kind", RUNG.alias("rung"), "name", visible).with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt64)
        .over("parent", "kind", "rung", "name")
        .alias("ordinal")
    )
    own = mix(_label_hashes(labelled) + labelled["ordinal"].to_numpy())
    parent = labelled["parent"].to_numpy()
    keys = lineage_keys(own, parent, list(generations(parent)))
    keys[keys == 0] = 1  # as a span id, 0 means no span
    return keys


def lineage_keys(own: Keys, parent: Ints, levels: Sequence[Ints]) -> Keys:
    """Return a hash for each row of the keys of its ancestors, without the root, and its own key.

    Args:
        own: Key of each row; the keys of roots do not matter.
        parent: Index of each row's parent, -1 for roots.
        levels: The rows of each depth, as `generations` yields them.
    """
    keys = np.zeros(len(own), dtype=np.uint64)
    for depth, members in enumerate(levels):
        # The roots of all runs are one span.
        keys[members] = mix(own[members] ^ keys[parent[members]]) if depth else _ROOT
    return keys


def path_names(names: Sequence[str], parent: Sequence[int]) -> list[str]:
    """Return for each row the names from the root down, joined by `/`.

    The second of several siblings with one name is called `name#2`, and so on. A slash or hash
    in a name is written with a backslash before it.

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


def mix(values: Keys) -> Keys:
    """Return well-spread 64-bit numbers for 64-bit numbers (SplitMix64, Steele 2014)."""
    values = values + _ROOT
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
