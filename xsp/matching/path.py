"""Computes a key and a readable name for the path of each row.

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

from xsp.level import Kind
from xsp.matching.ancestry import Ints, generations, inverse, nearest_outer
from xsp.matching.tree_row import PASS, pass_orders
from xsp.provider import ATTRIBUTE

Keys = NDArray[np.uint64]

# Column of the name of an operator's node in the graph that was compiled; many rows have none.
NODE = ATTRIBUTE + "node"

_ROOT = np.uint64(0x9E3779B97F4A7C15)


def path_keys(rows: pl.DataFrame) -> Keys:
    """Return the hash of each row's path; the same in every run and every process.

    The pass that a row's latency is taken from (`tree_row.PASS`) is a part of the path, so
    that a layer derived from backward operators differs from another call of the forward layer
    with the same name. Ancestors of a deeper pass are no part of the path, for the row's own
    pass does not record them.

    Args:
        rows: Columns `kind`, `provenance`, `name`, and `parent` (row index, -1 for roots);
            siblings in their order. Several runs may follow one another. Equal siblings that
            also have a `NODE` are told apart by its name first: threads of a pool take the nodes
            of a graph in another order in every run.
    """
    parent = nearest_outer(rows["parent"].to_numpy(), pass_orders(rows))
    label, hashes = _labels(rows)
    own = mix(hashes[label] + _ordinals(parent, label, node_ranks(rows)))
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


def node_ranks(rows: pl.DataFrame) -> Ints | None:
    """Return the place of each row's node in the order of nodes' names; None without nodes."""
    if NODE not in rows.columns or rows[NODE].null_count() == rows.height:
        return None
    ranks: Ints = rows[NODE].rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
    return ranks


def path_names(
    names: pl.Series, parent: Ints, levels: Sequence[Ints], nodes: Ints | None = None
) -> pl.Series:
    """Return for each row the names from the root down, joined by `/`.

    The second of several siblings with one name is called `name#2`, and so on. A slash or hash
    in a name is written with a backslash before it.

    Args:
        names: Name of each row.
        parent: Row index of each row's parent, -1 for the root.
        levels: The rows of each depth, as `generations` yields them.
        nodes: What `node_ranks` returns for the rows.

    >>> parent = np.array([-1, 0, 0])
    >>> levels = list(generations(parent))
    >>> path_names(pl.Series(["model", "conv", "conv"]), parent, levels).to_list()
    ['model', 'model/conv', 'model/conv#2']
    """
    # The escaped name of each row, with its number where siblings before have the name.
    different, name = _numbered(names)
    for character in "\\/#":
        different = different.str.replace_all(character, f"\\{character}", literal=True)
    ordinal = _ordinals(parent, name, nodes)
    later = np.flatnonzero(ordinal)
    numbers = pl.Series(ordinal[later] + 1).cast(pl.String)
    escaped = different.gather(name)
    labels = escaped.scatter(later, escaped.gather(later) + "#" + numbers)
    place = np.zeros(len(parent), dtype=np.int64)  # of each row in its generation
    paths: list[pl.Series] = []
    for rows in levels:
        place[rows] = np.arange(len(rows))
        own = labels.gather(rows)
        paths.append(paths[-1].gather(place[parent[rows]]) + "/" + own if paths else own)
    return pl.concat(paths).gather(inverse(np.concatenate(levels))).rename("path")


def _ordinals(parent: Ints, label: Ints, nodes: Ints | None = None) -> Keys:
    """Return how many siblings with the same label come before each row.

    Rows come in their order, or in that of their `nodes`, where these are given.

    >>> _ordinals(np.array([-1, 0, 0, 0]), np.array([0, 1, 2, 1]))
    array([0, 0, 0, 1], dtype=uint64)
    >>> _ordinals(np.array([-1, 0, 0, 0]), np.array([0, 1, 2, 1]), np.array([0, 5, 0, 4]))
    array([0, 1, 0, 0], dtype=uint64)
    """
    group = parent * (int(label.max(initial=0)) + 1) + label
    order = np.argsort(group, kind="stable") if nodes is None else np.lexsort((nodes, group))
    heads = np.flatnonzero(np.diff(group[order], prepend=group.min(initial=0) - 1))
    ordinal = np.empty(len(group), dtype=np.uint64)
    ordinal[order] = np.arange(len(group)) - np.repeat(heads, np.diff(heads, append=len(group)))
    return ordinal


def _labels(rows: pl.DataFrame) -> tuple[Ints, Keys]:
    """Return a number for the label (kind, pass, name) of each row, and a hash for each number."""
    names, name = _numbered(rows["name"])
    columns = rows.select(pl.col("kind"), PASS.alias("pass"))
    kind, pass_ = (
        columns[each].to_physical().to_numpy().astype(np.int64) for each in columns.columns
    )
    label, number = np.unique((name * len(Kind) + kind) * len(Kind) + pass_, return_inverse=True)
    kinds = [each.value for each in Kind]
    texts = names.gather(label // len(Kind) ** 2).to_list()
    hashes = [
        blake2b(f"{kinds[k]}\0{kinds[r]}\0{text}".encode(), digest_size=8).digest()
        for k, r, text in zip(
            (label // len(Kind) % len(Kind)).tolist(),
            (label % len(Kind)).tolist(),
            texts,
            strict=True,
        )
    ]
    return number, np.frombuffer(b"".join(hashes), dtype=">u8").astype(np.uint64)


def _numbered(values: pl.Series) -> tuple[pl.Series, Ints]:
    """Return the different values in the order of first use, and for each value its number there.

    >>> _numbered(pl.Series(["conv", "relu", "conv"]))[1]
    array([0, 1, 0])
    """
    values = values.alias("value")
    different = values.unique(maintain_order=True)
    numbers = different.to_frame().with_row_index("number")
    joined = values.to_frame().join(numbers, on="value", how="left", maintain_order="left")
    return different, joined["number"].to_numpy().astype(np.int64)


def mix(values: Keys) -> Keys:
    """Return well-spread 64-bit numbers for 64-bit numbers (SplitMix64, Steele 2014)."""
    values = values + _ROOT
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
