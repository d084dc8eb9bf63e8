"""Own time: the trees of evaluations and samples of what Python ran in, trees with names of it out.

A sample belongs to the innermost span around it on its thread. Of pipeline spans and layers, which
are the spans that Python code runs in, the functions are kept:

    layer 0-9, op 2-5; samples at 1 (f), 3 (g), 6 (f), 8 (h)     layer: f 67 %, h 33 %
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.provider import ATTRIBUTE, Samples

Ints = NDArray[np.int64]

MOST_FUNCTIONS = 5  # of a span
_PYTHON = (Kind.PIPELINE.value, Kind.LAYER.value)
_STRUCTURE = ("kind", "name", "parent")


def with_own_time(
    frames: Sequence[pl.DataFrame], samples: Samples
) -> list[tuple[int, pl.DataFrame]]:
    """Return one tree for all evaluations of one structure, with what ran in its spans' own time.

    Args:
        frames: The correlated rows of each evaluation, with the column `parent`.
        samples: Samples of any evaluation, in any order (`xsp.provider.SAMPLE_SCHEMA`).

    Returns:
        The index of the first evaluation of each structure, and its rows with the attributes
        `own_functions`, `own_lines`, `own_shares` and `own_samples`.
    """
    if not frames:
        return []
    rows = pl.concat(frames)
    first = np.cumsum([0, *(frame.height for frame in frames)])
    alike = _alike(rows, first)
    parent = _global_parents(rows, first)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    at = innermost(start, end, rows["thread"].fill_null(-1).to_numpy(), parent, samples)
    python = rows["kind"].is_in(_PYTHON).to_numpy()
    owned = (at >= 0) & python[at]
    model = np.searchsorted(first, at[owned], "right") - 1  # the evaluation of each sample
    place = at[owned] - first[model] + first[alike[model]]
    table = functions(samples.filter(pl.Series(owned)).with_columns(row=pl.Series(place)))
    named = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    named = named.join(table, on="row", how="left", maintain_order="left").drop("row")
    return [
        (int(i), named.slice(int(first[i]), frames[i].height)) for i in np.unique(alike).tolist()
    ]


def _alike(rows: pl.DataFrame, first: Ints) -> Ints:
    """Return for each evaluation the first one with the same spans below one another."""
    hashes = rows.select(_STRUCTURE).hash_rows().to_numpy()
    known: dict[bytes, int] = {}
    return np.array(
        [
            known.setdefault(hashes[begin:end].tobytes(), i)
            for i, (begin, end) in enumerate(pairwise(first))
        ]
    )


def _global_parents(rows: pl.DataFrame, first: Ints) -> Ints:
    parent = rows["parent"].to_numpy()
    return np.where(parent < 0, -1, parent + np.repeat(first[:-1], np.diff(first)))


def innermost(start: Ints, end: Ints, on: Ints, parent: Ints, samples: Samples) -> Ints:
    """Return the number of the innermost span around each sample on its thread, or -1.

    Args:
        start: When each span began, shape `[spans]`; parents come before their children.
        end: When each span ended.
        on: Thread of each span.
        parent: Number of the span around each span; -1: none.
        samples: The samples.
    """
    time, thread = samples["time_ns"].to_numpy(), samples["thread"].to_numpy()
    found = np.full(len(time), -1, np.int64)
    for one in np.unique(thread):
        mine, asking = np.flatnonzero(on == one), np.flatnonzero(thread == one)
        if len(mine):
            mine = mine[np.argsort(start[mine], kind="stable")]  # parents come before children
            latest = np.searchsorted(start[mine], time[asking], "right") - 1
            found[asking] = np.where(latest >= 0, mine[latest], -1)
    return _still_open(found, time, end=end, parent=parent)


def _still_open(found: Ints, time: Ints, *, end: Ints, parent: Ints) -> Ints:
    """Return rows, or of those that have ended the nearest ancestor that has not, or -1."""
    while len(over := np.flatnonzero((found >= 0) & (end[found] < time))):
        found[over] = parent[found[over]]
    return found


def functions(samples: pl.DataFrame) -> pl.DataFrame:
    """Return for each row the functions that ran, those that ran most first.

    Args:
        samples: Samples with the number of the row that each belongs to, `row`.

    Returns:
        `row`, and the attributes `own_functions`, `own_lines`, `own_shares` and `own_samples`.
    """
    line = pl.col("line").value_counts(sort=True).first().struct.field("line")
    counted = (
        samples.group_by("row", "function", "file", maintain_order=True)
        .agg(line, count=pl.len())
        .sort("count", descending=True, maintain_order=True)
    )
    whole = pl.col("count").sum()
    shown: dict[str, Any] = {
        "own_functions": pl.col("function").head(MOST_FUNCTIONS),
        "own_lines": pl.format("{}:{}", "file", "line").head(MOST_FUNCTIONS),
        "own_shares": (pl.col("count") / whole).head(MOST_FUNCTIONS),
        "own_samples": whole.cast(pl.Int64),
    }
    named = (value.alias(ATTRIBUTE + name) for name, value in shown.items())
    return counted.group_by("row", maintain_order=True).agg(*named)
