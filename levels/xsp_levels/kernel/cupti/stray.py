"""Counts missing and impossible records in CUPTI's tables, and removes impossible ones. Pure.

Kernels, copies and sets of which CUPTI tells no times, or times that cannot be, are left out of
the rows and counted; launches of CUDA graphs without a kernel are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from xsp_levels.kernel.cupti.table import Table
from xsp_levels.native.alignment import Alignment

WORK = ("kernel", "memcpy", "peer", "memset")  # tables of device activities
CALLS = ("runtime", "driver")  # tables of launches

_SLACK_NS = 100_000  # of 23,000 kernels in traces of others none begins before its launch

Integers = npt.NDArray[np.int64]


def untimed(tables: Mapping[str, Table]) -> int:
    """Return the count of kernels, copies and sets for whose times CUPTI had no memory."""
    return sum(int(np.count_nonzero(t["start"] == 0)) for t in _work(tables))


def unfinished(tables: Mapping[str, Table]) -> int:
    """Return the count of kernels, copies and sets that had begun, but not ended."""
    return sum(int(np.count_nonzero((t["start"] > 0) & (t["end"] == 0))) for t in _work(tables))


def without_strays(
    tables: Mapping[str, Table], alignment: Alignment, begin_ns: int, end_ns: int
) -> tuple[dict[str, Table], int]:
    """Return tables without device activities at impossible times, and the count of these.

    An activity cannot begin before the call that launched it, nor end after the recording.
    Sessions of a profiler that gives CUPTI a clock anew each time were seen to leave as many
    records with another clock's times, a day away from those of their launches.

    Args:
        tables: Columns of CUPTI's records, by name of the table.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
        begin_ns: Begin of the recording, before which no activity without a launch begins.
        end_ns: End of the recording.
    """
    ids, starts = _calls(tables, alignment)
    slack = _SLACK_NS + alignment.error_ns
    kept, count = dict(tables), 0
    for name in WORK:
        if name in tables:
            table = tables[name]
            earliest = _looked_up(table["correlation_id"], ids, starts, begin_ns)
            start, end = (alignment.convert(table[at].astype(np.int64)) for at in ("start", "end"))
            possible = (start >= earliest - slack) & (end <= end_ns + slack)
            possible |= (table["start"] == 0) | (table["end"] == 0)
            count += int(np.count_nonzero(~possible))
            kept[name] = {column: values[possible] for column, values in table.items()}
    return kept, count


def empty_graph_launches(
    tables: Mapping[str, Table], calls: Mapping[tuple[str, int], str]
) -> tuple[int, int]:
    """Return the count of CUDA graph launches without any activity, and the count of all.

    Args:
        tables: Columns of CUPTI's records, by name of the table.
        calls: Name of each call, by table and number.
    """
    made = [t["correlation_id"] for t in _work(tables)]
    busy = np.concatenate(made) if made else np.zeros(0, np.uint32)
    launches = [np.zeros(0, np.uint32)]
    for name in CALLS:
        numbers = [
            n
            for (table, n), call in calls.items()
            if table == name and call.startswith(("cudaGraphLaunch", "cuGraphLaunch"))
        ]
        if name in tables and numbers:
            table = tables[name]
            launches.append(table["correlation_id"][np.isin(table["cbid"], numbers)])
    launched = np.unique(np.concatenate(launches))
    return int(np.count_nonzero(~np.isin(launched, busy))), len(launched)


def _work(tables: Mapping[str, Table]) -> Iterator[Table]:
    return (tables[name] for name in WORK if name in tables)


def _calls(tables: Mapping[str, Table], alignment: Alignment) -> tuple[Integers, Integers]:
    """Return the ids of all calls in order, and when each began; of several, the first."""
    found = [tables[name] for name in CALLS if name in tables]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ids = np.concatenate([table["correlation_id"] for table in found]).astype(np.int64)
    starts = alignment.convert(np.concatenate([table["start"] for table in found]).astype(np.int64))
    order = np.lexsort((starts, ids))
    known, first = np.unique(ids[order], return_index=True)
    return known, starts[order][first]


def _looked_up(
    wanted: npt.NDArray[np.uint32], ids: Integers, values: Integers, other: int
) -> Integers:
    """Return the value of each wanted id, or another value for an id that is not known."""
    if not len(ids):
        return np.full(len(wanted), other, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, values[at], other)
