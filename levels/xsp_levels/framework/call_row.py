"""Makes the columns that rows of layer calls share in all frameworks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.provider import SpanRows, list_column, no_rows, span_rows

_SHAPES = pl.List(pl.List(pl.Int64))
_DTYPES = pl.List(pl.String)


def call_index(keys: NDArray[Any]) -> pl.Series:
    """Number each call among those with equal keys, from 0; null where it is alone.

    Args:
        keys: Whole numbers from 0, shape `[calls, keys]`.

    >>> call_index(np.array([[0, 7], [0, 8], [0, 7]])).to_list()
    [0, None, 1]
    """
    one = np.ravel_multi_index(tuple(keys.T), tuple(keys.max(axis=0) + 1))
    _, key, counts = np.unique(one, return_inverse=True, return_counts=True)
    ordinal = np.empty(len(key), np.int64)
    first = np.cumsum(counts) - counts
    ordinal[np.argsort(key, kind="stable")] = np.arange(len(key)) - np.repeat(first, counts)
    known = zip(ordinal.tolist(), (counts[key] > 1).tolist(), strict=True)
    numbers = [number if among else None for number, among in known]
    return pl.Series("attr.call_index", numbers, dtype=pl.Int64)


def shape_columns(notes: Sequence[Any]) -> dict[str, Any]:
    """Return attribute columns of shapes and element types.

    Args:
        notes: For each call what went in and what came out, each as (shapes, element types), or
            None where that is not known.
    """
    columns = {}
    for at, side in enumerate(("input", "output")):
        told = [note[at] or (None, None) for note in notes]
        columns[f"attr.{side}_shapes"] = list_column([shapes for shapes, _ in told], _SHAPES)
        columns[f"attr.{side}_dtypes"] = list_column([dtypes for _, dtypes in told], _DTYPES)
    return columns


def model_rows(calls: Iterable[tuple[int, int, int, str | None]], name: str) -> SpanRows:
    """Return a row of kind region for each call of a model.

    Args:
        calls: Start and end in ns, thread, and the exception that left the call or None.
        name: Name of the rows.
    """
    columns = [list(column) for column in zip(*calls, strict=True)]
    if not columns:
        return no_rows()
    start, end, thread, error = columns
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": name,
            "start_ns": start,
            "end_ns": end,
            "thread": thread,
            "attr.error": pl.Series(error, dtype=pl.String),
        }
    )
