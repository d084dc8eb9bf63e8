"""Correlates the rows that providers recorded in windows of operators with the log's items.

Calls in such windows are a sample of structure and of shares: recording makes small operators twice
as long, so that no latency is taken from them that a window of layers can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import ON_DEVICE, innermost, nearest
from xsp.provider import ATTRIBUTE, Provider, concat_rows, span_rows
from xsp.reading.correlation import correlate
from xsp.reading.runs import read_visit
from xsp.record.program import Window
from xsp.record.session import PlannedVisit, Visit
from xsp.warning import TraceWarning, WarningCount

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ITEM = f"{ATTRIBUTE}item"


@dataclass(frozen=True, slots=True)
class ItemRows:
    """Items of the log as rows that enclose the rows of providers.

    Attributes:
        item: Number of each item.
        cut: Whether it is a call, or the like, of which the window has but a part.
        is_layer: Whether it is a layer, or a model's call.
        name: Its name.
        path: Path of its module; empty of others.
        class_name: Class of its module; empty of others.
        begin: When it began.
        end: When it ended.
        thread: Identifier of its thread.
    """

    item: Ints
    cut: NDArray[np.bool_]
    is_layer: NDArray[np.bool_]
    name: Sequence[str]
    path: Sequence[str]
    class_name: Sequence[str]
    begin: Ints
    end: Ints
    thread: Ints


@dataclass(frozen=True, slots=True)
class Deep:
    """All rows of all windows of operators, parents before children.

    Attributes:
        rows: The rows as providers made them.
        parent: Index of the row around each, -1 for those that stand for windows.
        item: Number of the item that a row is; -1: it is none.
        timed: Whether it was recorded without what costs time.
        window: Number of the window.
        warnings: What could not be recorded, or interpreted.
        counts: How many rows were lost or ambiguous.
    """

    rows: pl.DataFrame
    parent: Ints
    item: Ints
    timed: NDArray[np.bool_]
    window: Ints
    warnings: tuple[TraceWarning, ...] = ()
    counts: tuple[WarningCount, ...] = ()

    def operator_begins(self, thread: int) -> Ints:
        """Return when operators and deeper spans began that were recorded on a thread, sorted."""
        if not self.rows.height:
            return np.zeros(0, np.int64)
        own = (self.rows["thread"] == thread).fill_null(value=False).to_numpy() & (self.item < 0)
        recorded = own & self.rows["kind"].is_in([Kind.OP.value]).to_numpy()
        derived = (self.rows["provenance"] == "inferred").fill_null(value=False).to_numpy()
        return np.sort(self.rows["start_ns"].to_numpy()[recorded & ~derived])


def read_deep(
    windows: Sequence[Window], providers: Sequence[Provider], items: Sequence[ItemRows]
) -> Deep:
    """Interpret the records of windows of operators.

    Args:
        windows: The windows, those of operators alone, one after the other in time.
        providers: The providers of the session, in their order.
        items: The items that lie in each window, on whatever thread.
    """
    frames, parents, numbers, timed, which = [], [], [], [], []
    warnings: dict[TraceWarning, None] = {}
    counts: list[WarningCount] = []
    offset = 0
    for number, (window, inside) in enumerate(zip(windows, items, strict=True)):
        assert window.pass_ is not None
        assert window.end_ns is not None
        visit = Visit(
            PlannedVisit(window.pass_), "window", window.thread,
            ((window.begin_ns, window.end_ns),), window.kept, (0,),
        )  # fmt: skip
        read = read_visit(visit, providers)
        warnings |= dict.fromkeys(read.warnings)
        counts += read.counts
        root = span_rows(
            {
                "kind": [Kind.REGION.value],
                "name": ["window"],
                "start_ns": [window.begin_ns],
                "end_ns": [window.end_ns],
                "thread": [window.thread],
            }
        )
        [frame] = correlate(root, concat_rows([_rows(inside), read.rows])).frames
        frame = _without_cut(frame, inside.item[inside.cut])
        own = _items(frame)
        parent = _in_waiting(frame, own, window.thread)
        frames.append(frame)
        parents.append(np.where(parent < 0, -1, parent + offset))
        numbers.append(own)
        timed.append(np.full(frame.height, window.pass_.timed))
        which.append(np.full(frame.height, number))
        offset += frame.height
    if not frames:
        nothing = np.zeros(0, np.int64)
        return Deep(pl.DataFrame(), nothing, nothing, nothing.astype(bool), nothing)
    return Deep(
        pl.concat(frames, how="diagonal_relaxed"),
        np.concatenate(parents),
        np.concatenate(numbers),
        np.concatenate(timed),
        np.concatenate(which),
        tuple(warnings),
        tuple(counts),
    )


def _items(frame: pl.DataFrame) -> Ints:
    if _ITEM not in frame.columns:
        return np.full(frame.height, -1, np.int64)
    return frame[_ITEM].fill_null(-1).to_numpy().astype(np.int64)


def _without_cut(frame: pl.DataFrame, cut: Ints) -> pl.DataFrame:
    """Return rows without these items, and without what was recorded in them.

    Other items in them lie in what is around. Such calls of other threads began before the window,
    or went on after it: what it has of them is no sample of their structure.
    """
    own, parent = _items(frame), frame["parent"].to_numpy()
    lost = np.isin(own, cut)
    for row in np.flatnonzero((own < 0) & (parent >= 0)).tolist():  # parents before children
        lost[row] = lost[parent[row]]
    rank = np.append(np.cumsum(~lost) - 1, -1)
    kept = rank[nearest(parent, parent, ~lost)][~lost]
    return frame.filter(~lost).with_columns(parent=pl.Series(kept))


def _in_waiting(frame: pl.DataFrame, item: Ints, thread: int) -> Ints:
    """Return parents; work on another thread lies in the row that waits for it.

    That is how it is with the backward pass of what is on a device, with collectives, and with
    operators that run on a pool of threads.
    """
    parent: Ints = frame["parent"].to_numpy(writable=True)
    own = frame["thread"].fill_null(-1).to_numpy()
    device = frame.select(ON_DEVICE).to_series().to_numpy()
    asking = np.flatnonzero((parent == 0) & (item < 0) & (own != thread) & ~device)
    around = np.flatnonzero(((item >= 0) | (parent < 0)) & (own == thread))
    if not len(asking) or not len(around):
        return parent
    place = np.full(len(parent), -1)
    place[around] = np.arange(len(around))
    above = parent[around]
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    found = innermost(
        start[around], end[around], own[around],
        np.where(above >= 0, place[np.maximum(above, 0)], -1),
        start[asking], np.full(len(asking), thread),
    )  # fmt: skip
    parent[asking] = np.where(found >= 0, around[np.maximum(found, 0)], 0)
    return parent


def _rows(inside: ItemRows) -> pl.DataFrame:
    kinds = np.where(inside.is_layer, Kind.LAYER.value, Kind.REGION.value)
    known = [each or None for each in inside.class_name]
    paths = [p if c else None for p, c in zip(inside.path, inside.class_name, strict=True)]
    return span_rows(
        {
            "kind": kinds.tolist(),
            "name": list(inside.name),
            "start_ns": inside.begin,
            "end_ns": inside.end,
            "thread": inside.thread,
            _ITEM: pl.Series(inside.item, dtype=pl.Int64),
            f"{ATTRIBUTE}module_path": pl.Series(paths, dtype=pl.String),
            f"{ATTRIBUTE}module_class": pl.Series(known, dtype=pl.String),
        }
    )


def corrected(deep: Deep, operator_ns: float, layer_ns: float) -> Floats:
    """Return how long each row took, less what was recorded inside of it on its own thread.

    A row is never shorter than what lies in it on its thread.
    """
    rows = deep.rows
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    took = (end - start).astype(np.float64)
    device = rows.select(ON_DEVICE).to_series().to_numpy()
    derived = (rows["provenance"] == "inferred").fill_null(value=False).to_numpy()
    thread = rows["thread"].fill_null(-1).to_numpy()
    kind = rows["kind"].cast(pl.String).to_numpy()
    cost = np.where(kind == Kind.OP.value, operator_ns, 0.0)
    cost = np.where((deep.item >= 0) & (kind == Kind.LAYER.value), layer_ns, cost)
    cost[derived | device] = 0.0
    for one in np.unique(thread[~device]):
        own = np.flatnonzero((thread == one) & ~device)
        by_begin = own[np.argsort(start[own], kind="stable")]
        sums = np.concatenate([[0.0], np.cumsum(cost[by_begin])])
        begins = start[by_begin]
        first = np.searchsorted(begins, start[own], side="right")
        last = np.searchsorted(begins, end[own], side="left")
        took[own] -= np.maximum(sums[np.maximum(last, first)] - sums[first], 0.0)
    took = np.maximum(took, 0.0)
    took[device] = (end - start)[device]
    inside = np.zeros(len(took))
    for at in range(len(took) - 1, -1, -1):  # children come after their parents
        took[at] = max(took[at], inside[at])
        around = deep.parent[at]
        if around >= 0 and not device[at] and thread[around] == thread[at]:
            inside[around] += took[at]
    return took
