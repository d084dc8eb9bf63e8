"""Sums the bytes that are allocated and freed within each interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Integers = npt.NDArray[np.int64]

_COLUMNS = ("attr.allocated_bytes", "attr.freed_bytes", "attr.peak_bytes")


@dataclass(frozen=True, slots=True)
class Allocations:
    """Every allocation and release that was seen, on all devices, by thread and time.

    Releases of memory that was allocated before the recording are not seen.

    Attributes:
        time_ns: Time of each change, on the clock of the measurement.
        size: Bytes; negative where memory was released.
        thread: Thread of each change as rows bear it, the major sort key.
        threads: Threads on which memory was watched; elsewhere nothing is known.
    """

    time_ns: Integers
    size: Integers
    thread: Integers
    threads: frozenset[int]


def sorted_allocations(
    time_ns: Integers, size: Integers, *, thread: Integers, threads: frozenset[int]
) -> Allocations:
    """Return allocations given in any order, sorted as `Allocations` says."""
    order = np.lexsort((time_ns, thread))
    return Allocations(time_ns[order], size[order], thread[order], threads)


def no_allocations() -> Allocations:
    """Return the allocations of a run that did not record memory: none, on no thread."""
    empty = np.empty(0, np.int64)
    return Allocations(empty, empty, empty, frozenset())


def memory_columns(
    allocations: Allocations, start_ns: Integers, end_ns: Integers, thread: Integers
) -> dict[str, pl.Series]:
    """Return the bytes allocated and released within each of n intervals.

    Args:
        allocations: The recorded allocations.
        start_ns: Beginnings, shape [n].
        end_ns: Ends, shape [n].
        thread: The thread of each interval, shape [n].

    Returns:
        Columns of n values in bytes: `attr.allocated_bytes`, `attr.freed_bytes`, and
        `attr.peak_bytes`, the highest running total above the level at the
        interval's start; null on threads where memory was not watched. No columns
        if it was watched nowhere.

    >>> import numpy as np
    >>> seen = sorted_allocations(np.array([10, 20, 30]), np.array([64, 32, -64]),
    ...                           thread=np.array([7, 7, 7]), threads=frozenset({7}))
    >>> columns = memory_columns(seen, np.array([5, 25]), np.array([40, 40]), np.array([7, 7]))
    >>> [series.to_list() for series in columns.values()]
    [[96, 0], [64, 64], [96, 0]]
    """
    if not allocations.threads:
        return {}
    values = np.zeros((len(_COLUMNS), len(start_ns)), np.int64)
    for each in np.unique(allocations.thread):
        rows = np.flatnonzero(thread == each)
        mine = allocations.thread == each
        time, size = allocations.time_ns[mine], allocations.size[mine]
        first = np.searchsorted(time, start_ns[rows], "left")
        last = np.maximum(np.searchsorted(time, end_ns[rows], "right"), first)
        values[:, rows] = _within(size, first, last)
    unknown = ~np.isin(thread, list(allocations.threads))
    return {
        name: pl.Series(name, column).set(pl.Series(unknown), None)
        for name, column in zip(_COLUMNS, values, strict=True)
    }


def _within(size: Integers, first: Integers, last: Integers) -> Integers:
    """Return allocated, freed and peak bytes of half-open ranges, shape [3, ranges]."""
    allocated, freed, level = (
        np.concatenate([[0], np.cumsum(part)])
        for part in (np.maximum(size, 0), np.maximum(-size, 0), size)
    )
    # The maximum of `values[first:last]` for each range, 0 for empty ones.
    # The sparse-table method, one power of two at a time: a range is covered by two overlapping
    # blocks of the largest power that fits.
    values = level[1:]
    length = last - first
    range_max = np.zeros(len(first), np.int64)
    block, table = 1, values
    while block <= length.max(initial=0):
        fits = (length >= block) & (length < 2 * block)
        range_max[fits] = np.maximum(table[first[fits]], table[last[fits] - block])
        table = np.maximum(table[:-block], table[block:])
        block *= 2
    peak = range_max - level[first]
    return np.stack(
        [
            allocated[last] - allocated[first],
            freed[last] - freed[first],
            np.where(last > first, np.maximum(peak, 0), 0),
        ]
    )
