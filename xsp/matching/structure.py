"""Finds the typical run of a pass, whose spans are the structure of the trace.

A run is typical if its paths are those that most runs of its pass hold. The spans of a typical
run of the deepest pass are the spans of the merged trace; a typical run of each pass is kept
beside the trace.

    runs    predict/fc    predict/fc    predict/fc, predict/relu
    typical: one of the first two, that of the middle latency
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching.ancestry import generations, nearest, nearest_outer, subtree_sums
from xsp.matching.concurrency import Shares, gathering, shares
from xsp.matching.path import Keys, node_ranks, path_names
from xsp.matching.run_table import Observations
from xsp.matching.tree_row import has_provenance, orders
from xsp.provider import Provenance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_UNSTEADY = "attr.unsteady"
_SEVERAL, _USUAL = 5, 1 / 3  # of so many runs or more, this part has the usual structure, if any
_LEVELS = {kind.value: kind.level.label for kind in Kind}


@dataclass(frozen=True, slots=True)
class RunSpans:
    """The spans of one run: root first, parents before children.

    Attributes:
        rows: The run's rows.
        key: Hash of each span's path.
        parent: Row of each span's parent, -1 for the root.
        levels: Rows of each depth, the root's first.
        order: Order of the pass that each span's latency is taken from.
        first: Order of the pass on which each span is recorded first.
        paid: Whether recording the span cost time on a thread. Derived spans, spans on devices
            and the root, which is no more than two readings of the clock, cost none.
        derived: Whether the span was made from the spans inside.
        ended: Whether the span was recorded without an end, and ends with its last launch.
        host: Whether the span ran on a thread of the host; False: on a device.
        start_ns: Measured start of each span, from the root's start.
        end_ns: Measured end of each span, from the root's start.
        shares: By how much spans count in those around them; None: as a whole.
    """

    rows: pl.DataFrame
    key: Keys
    parent: Ints
    levels: tuple[Ints, ...]
    order: Ints
    first: Ints
    paid: Bools
    derived: Bools
    ended: Bools
    host: Bools
    start_ns: Ints
    end_ns: Ints
    shares: Shares | None = None

    def anchors(self, measured: Bools) -> Ints:
        """Return each span's nearest ancestor that is `measured`, or -1."""
        return nearest(self.parent, self.parent, measured)

    def nested(self, values: Floats) -> Floats:
        """Return for each span the sum of `values` (`[…, spans]`) over the spans inside it.

        What ran at once counts in part (`concurrency`).
        """
        if self.shares is not None:
            return self.shares.nested(values)
        return subtree_sums(values, self.parent, self.levels)

    def gathering(self) -> Bools:
        """Return which spans leave as self time what no span in them covers (`concurrency`)."""
        parent = np.where(self.host, self.parent, -1)
        derived = self.derived & self.host
        return gathering(parent, self.lane(), derived, self.start_ns, self.end_ns)

    def lane(self) -> Ints:
        """Return a number for the thread, or stream of a device, of each span."""
        lanes = pl.struct("thread", "device", "stream").rank("dense").cast(pl.Int64)
        return self.rows.select(lanes).to_series().to_numpy()

    def identity(self) -> dict[str, pl.Series]:
        """Return `span_id`, `parent_id`, `level`, `kind`, `name` and `path` of each span."""
        names, kind = self.rows["name"], self.rows["kind"].cast(pl.String)
        columns: dict[str, Any] = {
            "span_id": self.key,
            "parent_id": self.key[np.maximum(self.parent, 0)],
            "level": kind.replace_strict(_LEVELS),
            "kind": kind,
            "name": names,
            "path": path_names(names, self.parent, self.levels, node_ranks(self.rows)),
        }
        child = pl.Series(self.parent >= 0)
        return (
            pl.DataFrame(columns).with_columns(parent_id=pl.when(child).then("parent_id")).to_dict()
        )

    def place(self) -> dict[str, pl.Series]:
        """Return `thread`, `device`, `stream` and `correlation_id` of each span."""
        return self.rows.select("thread", "device", "stream", "correlation_id").to_dict()


def typical_run(seen: Observations, members: Sequence[int]) -> int:
    """Return the run with the most frequent structure and, of those, the middle latency.

    Where hardly two runs are alike, return that which calls the model about as often as they do on
    average, and took about as long: its parts are about as many as they are on average, too.
    """
    latency = {run: seen.runs[run].latency_ns for run in members}
    if not has_usual_structure(seen, members):
        mean_ns = sum(latency.values()) / len(latency)
        mean = sum(seen.runs[run].model_calls for run in members) / len(members)
        return min(
            members,
            key=lambda run: (abs(seen.runs[run].model_calls - mean), abs(latency[run] - mean_ns)),
        )
    alike = _alike(seen, members)
    return sorted(alike, key=latency.__getitem__)[(len(alike) - 1) // 2]


def nearest_run(seen: Observations, members: Sequence[int], apart_ns: Floats) -> int:
    """Return the run with the most frequent structure and, of those, the least `apart_ns`."""
    apart = dict(zip(members, apart_ns.tolist(), strict=True))
    return min(_alike(seen, members), key=apart.__getitem__)


def has_usual_structure(seen: Observations, members: Sequence[int]) -> bool:
    """Return whether enough of the runs hold the same paths that others are unusual.

    Where runs call the model unlike numbers of times, none of them is usual.
    """
    if len({seen.runs[run].model_calls for run in members}) > 1:
        return False
    marks = Counter(steady_signatures(seen, members))
    return len(members) < _SEVERAL or max(marks.values()) >= _USUAL * len(members)


def _alike(seen: Observations, members: Sequence[int]) -> list[int]:
    """Return the runs that have the most frequent structure; of as frequent ones the largest.

    A provider may see less of a program's first steps than of later ones.
    """
    marks = signatures(seen, members)
    height = np.diff(seen.first)
    rows = {mark: height[run] for run, mark in zip(members, marks, strict=True)}
    count = Counter(marks)
    common = max(rows, key=lambda mark: (count[mark], rows[mark]))
    return [run for run, mark in zip(members, marks, strict=True) if mark == common]


def signatures(seen: Observations, members: Sequence[int]) -> list[int]:
    """Return a number for each run; runs that hold the same paths have equal numbers."""
    return _marks(seen.key, seen, members)


def steady_signatures(seen: Observations, members: Sequence[int]) -> list[int]:
    """Return `signatures` without the paths that a profiler may leave out (`unsteady`)."""
    return _marks(np.where(unsteady(seen), np.uint64(0), seen.key), seen, members)


def unsteady(seen: Observations) -> Bools:
    """Return which rows have a path that a profiler may leave out of a run."""
    paths = np.zeros(int(seen.path.max(initial=-1)) + 1, dtype=bool)
    for number, run in enumerate(seen.runs):
        if run.rows is not None and _UNSTEADY in run.rows.columns:
            marked = run.rows[_UNSTEADY].fill_null(value=False).to_numpy()
            paths[seen.path[seen.of(number)][marked]] = True
    return paths[seen.path]


def _marks(key: Keys, seen: Observations, members: Sequence[int]) -> list[int]:
    marks = np.bitwise_xor.reduceat(key, seen.first[:-1])
    return [int(marks[run]) for run in members]


def matched(seen: Observations, shown: int) -> Bools:
    """Return which rows are the same span as the row of the shown run with the same path.

    A path tells siblings of one kind and name apart by their order. Where a run has more or
    fewer of them than the shown run, nobody knows which are missing, and neither they nor the
    rows inside are matched; but where hardly two runs are alike, as with loops over ever another
    number of items, the first is taken for the first, the second for the second.

    Args:
        seen: The rows of all runs.
        shown: The run with which the others are compared, as an index into `seen.runs`.
    """
    result = np.ones(len(seen.path), dtype=bool)
    # Which runs do not hold the paths that the shown run lets expect on their pass.
    spans = run_spans(seen, shown)
    first = np.where(spans.derived, spans.order, spans.first)
    expected = {
        order: int(np.bitwise_xor.reduce(spans.key[first <= order]))
        for order in {run.pass_.order for run in seen.runs}
    }
    marks = signatures(seen, range(len(seen.runs)))
    pairs = zip(marks, seen.runs, strict=True)
    unusual = np.array([mark != expected[run.pass_.order] for mark, run in pairs])
    pass_ = seen.runs[shown].pass_
    peers = [number for number, run in enumerate(seen.runs) if run.pass_ == pass_]
    if not unusual.any() or not has_usual_structure(seen, peers):
        return result
    unusual[shown] = True
    rows = np.flatnonzero(unusual[seen.run])
    parent = nearest_outer(seen.parent, seen.order)[rows]
    place = np.full(len(seen.path), -1)
    place[rows] = np.arange(len(rows))
    parent = np.where(parent < 0, -1, place[parent])
    wrong = _miscounted(seen, rows, parent, shown)
    result[rows] = nearest(parent, np.arange(len(rows)), wrong) < 0
    return result


def _miscounted(seen: Observations, rows: Ints, parent: Ints, shown: int) -> Bools:
    """Return which rows have more or fewer siblings of their kind and name than in `shown`.

    Args:
        seen: The rows of all runs.
        rows: Some of these rows; those of the shown run among them.
        parent: Index of the parent of each of `rows` in `rows`, -1 for roots.
        shown: The run with which the others are compared.
    """
    above = np.where(parent < 0, -1, seen.path[rows[parent]])
    frame = seen.rows.select("run", "kind", "name")[rows].with_columns(
        above=above, order=seen.order[rows]
    )
    alike = ["above", "order", "kind", "name"]
    shown_rows = frame.filter(pl.col("run") == shown)
    usual = shown_rows.group_by(alike).agg(usual=pl.len())
    joined = frame.with_columns(count=pl.len().over("run", *alike)).join(
        usual, on=alike, how="left", maintain_order="left", nulls_equal=True
    )
    wrong = joined.select((pl.col("count") != pl.col("usual")).fill_null(value=False))
    return wrong.to_series().to_numpy()


def run_spans(seen: Observations, run: int) -> RunSpans:
    """Return the spans of one run."""
    rows, frame = seen.of(run), seen.runs[run].rows
    assert frame is not None
    parent = seen.parent[rows] - rows.start
    parent[0] = -1
    paid = seen.recorded[rows] & seen.host[rows]
    paid[0] = False
    start, end = seen.start_ns[rows], seen.end_ns[rows]
    working = paid & (orders(frame) >= Kind.OP.order)
    return RunSpans(
        rows=frame,
        key=seen.key[rows],
        parent=parent,
        levels=tuple(generations(parent)),
        order=seen.order[rows],
        first=np.where(has_provenance(frame, Provenance.MARKER), seen.order[rows], orders(frame)),
        paid=paid,
        derived=~seen.recorded[rows],
        ended=has_provenance(frame, Provenance.ENDED_BY_LAUNCH),
        host=seen.host[rows],
        start_ns=start,
        end_ns=end,
        shares=shares(parent, working, start, end),
    )
