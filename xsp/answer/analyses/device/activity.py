"""Device work: a tree in, a row per kernel, copy and set with its place, its sort and its launch.

All analyses of devices read this table. It is sorted by device and start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, covered

Bools = NDArray[np.bool_]

COMPUTING, COPYING, COMMUNICATING = "computing", "copying", "communicating"

# Kernels of the libraries that communicate, and of frameworks that do so by themselves.
COMMUNICATION = (
    r"(?i)nccl|rccl|nvshmem|oneccl|cross_device_reduce|all_?reduce|all_?gather"
    r"|reduce_?scatter|all_?to_?all"
)


@dataclass(frozen=True, slots=True)
class Work:
    """What devices worked on.

    Attributes:
        table: A row for each kernel, copy and set, with the columns `row` (in the tree), `process`,
            `rank`, `device`, `stream`, `name`, `start_ns`, `end_ns`, `sort` (computing, copying or
            communicating), `launch` (row of the call that launched it in the tree, null where that
            is not known), `call_start_ns`, `call_end_ns`, and numbers from 0: `place`, its device
            in its process, and `lane`, its stream there.
        places: A row for each place, with `rank` and `device`.
        lanes: A row for each lane, with `rank`, `device`, `stream` and `place`.
    """

    table: pl.DataFrame
    places: pl.DataFrame
    lanes: pl.DataFrame

    @classmethod
    def of(cls, tree: Tree) -> Work:
        """Return the work of all devices of a trace."""
        return _work_of(tree)

    @classmethod
    def _made(cls, tree: Tree) -> Work:
        rows = tree.rows(*DEVICE_ACTIVITIES)
        names = ["name", "kind", "device", "stream", "start_ns", "end_ns", "correlation_id"]
        table = tree.spans.select(*names)[rows].with_columns(pl.Series("row", rows))
        collective = tree.attribute("collective")[rows]
        communicating = pl.col("name").str.contains(COMMUNICATION) | collective.is_not_null()
        sorts = table.select(
            pl.when(pl.col("kind") == Kind.MEMCPY.value)
            .then(pl.lit(COPYING))
            .when(communicating & (pl.col("kind") == Kind.KERNEL.value))
            .then(pl.lit(COMMUNICATING))
            .otherwise(pl.lit(COMPUTING))
        ).to_series()
        table = table.hstack(processes_of(tree)[rows]).with_columns(sort=sorts)
        table = table.join(_launches(tree), on=("process", "correlation_id"), how="left")
        place = _numbers(table, "process", "device")
        lane = _numbers(table, "process", "device", "stream")
        table = table.with_columns(place.alias("place"), lane.alias("lane"))
        table = table.sort("place", "start_ns", "row")
        return cls(table, _each(table, "place"), _each(table, "lane", "stream", "place"))

    def column(self, name: str) -> Ints:
        """Return a column without nulls, as numbers."""
        return self.table[name].cast(pl.Int64).to_numpy()

    def is_sort(self, *sorts: str) -> Bools:
        """Return which rows are of some sorts."""
        return self.table["sort"].is_in(sorts).to_numpy()

    def covered_ns(self, *sorts: str) -> Floats:
        """Return for each place how long it did work of some sorts, side by side counting once."""
        rows = np.flatnonzero(self.is_sort(*sorts))
        place, start, end = (self.column(name)[rows] for name in ("place", "start_ns", "end_ns"))
        return covered(place, start, end, self.places.height)

    def gaps(self, group: str) -> tuple[Ints, Ints]:
        """Return the work that ends an idle time, and when that idle time began.

        Args:
            group: `place` for times in which a device did nothing at all, `lane` for those in which
                a stream did nothing.

        Returns:
            Rows of the table, and times in ns.
        """
        order = np.lexsort((self.column("start_ns"), self.column(group)))
        groups, start, end = (self.column(c)[order] for c in (group, "start_ns", "end_ns"))
        reached, first = reached_before(groups, end)
        idle = np.flatnonzero(~first & (start > reached))
        return order[idle], reached[idle]

    def worked_ns(self, place: Ints, since: Ints, until: Ints, *sorts: str) -> Ints:
        """Return how long the devices at some places worked between two times each.

        Args:
            place: Number of the place of each question.
            since: When the time asked for begins.
            until: When it ends.
            sorts: Which sorts of work; all if none is named.
        """
        rows = np.flatnonzero(self.is_sort(*(sorts or (COMPUTING, COPYING, COMMUNICATING))))
        places, start, end = apart(*(self.column(c)[rows] for c in ("place", "start_ns", "end_ns")))
        done = np.concatenate(([0], np.cumsum(end - start)))
        stride = int(max(end.max(initial=0), until.max(initial=0))) + 1

        def worked(time: Ints) -> Ints:
            """Return all work at places before, and at this place until a time."""
            if not len(end):
                return np.zeros(len(time), np.int64)
            index = np.searchsorted(places * stride + start, place * stride + time, "right")
            last = np.maximum(index - 1, 0)
            ahead = np.where((index > 0) & (places[last] == place), end[last] - time, 0)
            return done[index] - np.maximum(ahead, 0)

        return worked(until) - worked(since)


@once_per_trace
def _work_of(tree: Tree) -> Work:
    return Work._made(tree)


def apart(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the same time in each group, in parts that do not overlap.

    >>> apart(np.array([0, 0, 0]), np.array([0, 2, 3]), np.array([4, 9, 8]))
    (array([0, 0]), array([0, 4]), array([4, 9]))
    """
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    reached, first = reached_before(group, end)
    start = np.where(first, start, np.maximum(start, reached))
    some = end > start
    return group[some], start[some], end[some]


def reached_before(group: Ints, end: Ints) -> tuple[Ints, Bools]:
    """Return the latest end before each row in its group, and which rows are first in theirs.

    Args:
        group: Number of each row's group; rows are sorted by group and start.
        end: End of each row.

    >>> reached_before(np.array([0, 0, 0, 1]), np.array([9, 4, 10, 3]))
    (array([0, 9, 9, 0]), array([ True, False, False,  True]))
    """
    if not len(end):
        return end, np.zeros(0, bool)
    first = np.ones(len(group), bool)
    first[1:] = group[1:] != group[:-1]
    apart = np.cumsum(first) * (int(end.max()) - int(end.min()) + 1)  # keeps the groups apart
    reached = np.roll(np.maximum.accumulate(end + apart) - apart, 1)
    reached[first] = 0
    return reached, first


@once_per_trace
def processes_of(tree: Tree) -> pl.DataFrame:
    """Return the process of each span, -1 in traces of one, and its rank, null where not known."""
    process = tree.attribute("process", pl.Int64)
    if process.null_count() == len(process):
        return pl.DataFrame({"process": process.fill_null(-1), "rank": process.alias("rank")})
    around = tree.nearest(process.is_not_null().to_numpy())
    inside, known = pl.Series(np.maximum(around, 0)), pl.Series(around >= 0)
    rank = tree.attribute("rank", pl.Int64).gather(inside)
    return pl.select(
        process=pl.when(known).then(process.gather(inside)).otherwise(-1),
        rank=pl.when(known).then(pl.coalesce(rank, process.gather(inside))),
    )


def _launches(tree: Tree) -> pl.DataFrame:
    """Return the calls that may have launched something; of several with one number the first."""
    rows = tree.rows(Kind.LAUNCH)
    calls = tree.spans.select(
        "correlation_id", call_start_ns="start_ns", call_end_ns="end_ns", api="name"
    )[rows]
    calls = calls.with_columns(processes_of(tree)["process"][rows], pl.Series("launch", rows))
    known = calls.filter(pl.col("correlation_id").is_not_null())
    return known.unique(("process", "correlation_id"), keep="first", maintain_order=True)


def _numbers(table: pl.DataFrame, *columns: str) -> pl.Series:
    """Return numbers from 0 for sets of values of some columns, in the order of these."""
    number = pl.Series([0]).new_from_index(0, table.height)
    for column in columns:
        inner = _places(table[column].fill_null(-1))
        number = _places(number * (table.height + 1) + inner)
    return number


def _places(values: pl.Series) -> pl.Series:
    """Return the place of each value in the order of different values, from 0."""
    return values.rank("dense").cast(pl.Int64) - 1


def _each(table: pl.DataFrame, number: str, *more: str) -> pl.DataFrame:
    columns = ("rank", "device", *more)
    return table.unique(number).sort(number).select(*(c for c in columns if c != number))
