"""Folding: a trace's spans in, groups of spans that look alike out, with what each sums up to.

The rows of a tree and the spans of a reduced export are both such groups. What may
become one differs (neighbours that are alike to the bottom; small spans of one name),
and so does how it is drawn; what alike means and how it is summed do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Ints, Keys, lineage_keys, mix
from xsp.trace.attribute import attribute_column

SUMMED = ("latency_ns", "self_ns", "overhead_ns", "device_ns")
# A pattern of siblings that recurs is folded from so many times on, and up to this length.
_RECURRENCES, _LONGEST_PATTERN = 4, 32
_BOUNDS = ("latency_low_ns", "latency_high_ns")


@dataclass(frozen=True, slots=True)
class Folding:
    """Spans in groups, in the order of their first members.

    Members of a group hang in one span, or in spans of one group.

    Attributes:
        of: Number of each span's group; the root's is 0.
        first: Index of each group's first member.
        count: How many members each group has.
        parent: Number of the group that each group hangs in, -1 for the root's.
    """

    of: Ints
    first: Ints
    count: Ints
    parent: Ints


def fold(own: Keys, parent: Ints, levels: Sequence[Ints]) -> Folding:
    """Return spans in groups: siblings of one key become one, and so on within them.

    Args:
        own: Key of each span.
        parent: Index of each span's parent, -1 for the root.
        levels: Indexes of the spans of depth 0, of depth 1, and so on.

    >>> levels = [np.array([0]), np.array([1, 2]), np.array([3, 4])]
    >>> own = np.array([0, 7, 7, 5, 5], dtype=np.uint64)
    >>> fold(own, np.array([-1, 0, 0, 1, 2]), levels).of
    array([0, 1, 1, 2, 2])
    """
    keys = lineage_keys(own, parent, levels)
    _, first, of, count = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    by_first = np.argsort(first)
    of, first = np.argsort(by_first)[of], first[by_first]
    above = np.where(parent[first] < 0, -1, of[parent[first]])
    return Folding(of, first, count[by_first], above)


def parent_rows(spans: pl.DataFrame) -> Ints:
    """Return the row of each span's parent, -1 for the root.

    An unchecked trace may name parents that it lacks, or that stand below the span: such
    spans hang in the root, so that whoever goes up from any span arrives there.
    """
    ids = spans["span_id"].to_numpy()
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    wanted = spans["parent_id"].fill_null(0).to_numpy()
    by_id = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[by_id], wanted), len(ids) - 1)
    found = by_id[place].astype(np.int64)
    found[(ids[found] != wanted) | (found >= np.arange(len(ids)))] = 0
    found[0] = -1
    return found


def alike(spans: pl.DataFrame, *more: str, named: bool = True) -> Keys:
    """Return keys that are equal where spans look alike.

    That is where they are of one kind, class (what has no class: name) and phase, and
    were left by the same exception.

    Args:
        spans: Columns of `trace.spans`.
        more: Columns that must be equal as well.
        named: Whether class, name and phase count.
    """
    looks = spans.select("kind", *more, attribute_column(spans, "error"))
    if named:
        label = pl.coalesce(attribute_column(spans, "module_class"), "name").alias("label")
        looks = looks.hstack(spans.select(label, attribute_column(spans, "phase")))
    return looks.hash_rows().to_numpy()


def shapes(spans: pl.DataFrame, parent: Ints, levels: Sequence[Ints]) -> Keys:
    """Return keys that are equal where spans are alike down to the bottom.

    That is where they look alike, have the same number of parameters, and their
    children have the same names and shapes in the same order.
    """
    parameters = attribute_column(spans, "parameter_bytes", pl.Int64).hash().to_numpy()
    keys, names = mix(alike(spans) + mix(parameters)), mix(spans["name"].hash().to_numpy())
    ordinals = _ordinals(parent)
    for rows in reversed(levels[1:]):
        keys[rows] = mix(keys[rows])
        np.add.at(keys, parent[rows], mix(keys[rows] + names[rows] + ordinals[rows]))
    return keys


def neighbours(shapes: Keys, parent: Ints) -> Keys:
    """Return keys that are equal where siblings of one shape follow one another.

    So they are where a pattern of such runs recurs often enough (a model called again
    and again, the same few operators after each call). Siblings' keys count the runs, so
    in parents of one shape they are the same.

    >>> shapes = np.array([9, 7, 7, 5, 7], dtype=np.uint64)
    >>> neighbours(shapes, np.array([-1, 0, 0, 0, 0]))[1:]
    array([0, 0, 1, 2], dtype=uint64)
    """
    order = np.argsort(parent, kind="stable")
    families, shapes = _changes(parent[order]), shapes[order]
    heads = np.flatnonzero(families | _changes(shapes))
    lengths = np.diff(heads, append=len(order))
    kinds = mix(shapes[heads] + lengths.astype(np.uint64))
    runs = _first_alike(kinds, np.cumsum(families, dtype=np.int64)[heads])
    return _from_first(np.repeat(runs, lengths), order, families)


def _first_alike(kinds: Keys, family: Ints) -> Ints:
    """Return for each run of siblings the first one in its place of a pattern that recurs.

    >>> kinds = np.array([9, 1, 2, 1, 2, 1, 2, 1, 2, 1], dtype=np.uint64)
    >>> _first_alike(kinds, np.zeros(10, dtype=np.int64))
    array([0, 1, 2, 1, 2, 1, 2, 1, 2, 1])
    """
    found = np.arange(len(kinds))
    rows = np.flatnonzero(np.bincount(family)[family] >= 2 * _RECURRENCES)
    kinds, family, free = kinds[rows], family[rows], np.ones(len(rows), dtype=np.bool_)
    for period in range(2, _LONGEST_PATTERN + 1):
        starts, size = _patterns(kinds, family, free, period)
        place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        start = np.repeat(starts, size)
        found[rows[start + place]] = rows[start + place % period]
        free[start + place] = False
    return found


def _patterns(kinds: Keys, family: Ints, free: NDArray[np.bool_], period: int) -> tuple[Ints, Ints]:
    """Return where free runs recur with a period often enough, and how many runs that are."""
    before, after = slice(None, -period), slice(period, None)
    same = (kinds[before] == kinds[after]) & (family[before] == family[after])
    same &= free[before] & free[after]
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
    starts, size = edges[::2], edges[1::2] - edges[::2] + period
    often = size >= _RECURRENCES * period
    return starts[often], size[often]


def sums(spans: pl.DataFrame, of: Ints, *more: pl.Expr) -> pl.DataFrame:
    """Return what the members of each group add up to, one row per group.

    What is not known is left out of a sum, which is null where nothing is known; sums of
    bounds are null where that of a known latency is missing. Bounds are added up as if
    latencies erred together: the safe assumption.

    Args:
        spans: Columns of `trace.spans`, and what else `more` is made of.
        of: Number of each span's group.
        more: Further columns of the result, made of a group's rows.
    """
    floats = pl.col(*SUMMED, *_BOUNDS).fill_nan(None)
    known = pl.col("latency_ns").is_not_null()
    return (
        spans.with_columns(floats, pl.Series("group", of))
        .group_by("group", maintain_order=True)
        .agg(
            *(total(pl.col(name)).alias(name) for name in SUMMED),
            *(_whole_total(pl.col(name).filter(known)).alias(name) for name in _BOUNDS),
            pl.len().cast(pl.Int64).alias("count"),
            pl.min("latency_ns").alias("least_ns"),
            pl.max("latency_ns").alias("most_ns"),
            *more,
        )
        .sort("group")
        .drop("group")
    )


def total(values: pl.Expr) -> pl.Expr:
    """Return the sum of what is known, null where nothing is: missing is not 0."""
    return pl.when(values.count() > 0).then(values.sum())


def _whole_total(values: pl.Expr) -> pl.Expr:
    """Return the sum, null where some of it is not known."""
    return pl.when(values.null_count() == 0).then(total(values))


def agreed(values: pl.Series, folding: Folding, rows: Ints) -> pl.Series:
    """Return the value that all members of a group share, null where they differ.

    Args:
        values: A value per row of a frame.
        folding: Groups of some of these rows.
        rows: The row that each index in `folding` stands for.
    """
    heads = rows[folding.first]
    first = values.gather(heads)
    if values.null_count() == values.len():
        return first
    # Hashes stand for the values: some types (lists of lists) are slow to compare.
    hashes = values.to_frame().hash_rows().to_numpy()
    odd = hashes[rows] != hashes[heads][folding.of]
    differ = np.bincount(folding.of[odd], minlength=len(heads)) > 0
    shared = pl.when(pl.Series(differ)).then(None).otherwise(first)
    return pl.select(shared.alias(values.name)).to_series()


def _ordinals(parent: Ints) -> Keys:
    """Return how many siblings stand before each row."""
    order = np.argsort(parent, kind="stable")
    return _from_first(np.arange(len(parent)), order, _changes(parent[order]))


def _from_first(values: Ints, order: Ints, families: NDArray[np.bool_]) -> Keys:
    """Return for each row how much its value, one in `order`, is above its first sibling's."""
    firsts = np.maximum.accumulate(np.where(families, values, 0))
    above = np.empty(len(order), dtype=np.uint64)
    above[order] = values - firsts
    return above


def _changes(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether each value differs from the one before it; the first one does."""
    return np.append(True, values[1:] != values[:-1])
