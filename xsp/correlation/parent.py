"""Puts the rows of a visit under the evaluations they belong to: rows in, trees out.

Rows are sorted by time once. Then each rule of correlation is one
function that gives some rows their parent: by time (`xsp.correlation.interval`), by what the
provider stated, and for backward operators by the layer whose forward made them
(`xsp.correlation.backward`). Whatever the rule, no row hangs below a deeper kind than its
own: a layer never below an operator. Merging relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.correlation.backward import derive_backward
from xsp.correlation.interval import Integers, Placed, enclosing, sort_outside_in
from xsp.correlation.launch import Launched, attach, part_launched
from xsp.correlation.open_ended import end_with_launches
from xsp.correlation.thread import settle_places
from xsp.correlation.wait import waiting_rows
from xsp.level import EXECUTIONS, Kind
from xsp.provider import SpanRows, concat_rows, mark_doubtful, orders

_EXECUTIONS = [kind.value for kind in EXECUTIONS]


@dataclass(frozen=True, slots=True)
class Correlated:
    """The trees of one visit.

    Attributes:
        frames: One frame per root, in the order in which the roots were given: the
            rows with a column `parent` (index of the parent's row in this frame,
            -1 for the root), and `doubtful` where some row may as well have another. The
            root comes first, parents come before their children, otherwise rows are in the
            order of their start; what ran on a device stands behind its launch.
        orphans: How many rows inside a root's time found no parent on their own
            thread or device; they hang under the root. Pipeline spans, which may
            well run beside the root on another thread, are not counted.
        outside: How many rows began, or were launched, outside of every root's time; they
            are left out.
        ambiguous: How many rows that know no thread may be on several; they are taken
            to be on their root's.
        unlaunched: How many of the orphans are kernels, copies and sets without a launch.
        contested: How many launches, or rows of devices, may as well belong to another
            span (see `launch`); they are taken to belong to the one that began last.
    """

    frames: tuple[pl.DataFrame, ...]
    orphans: int
    outside: int
    ambiguous: int = 0
    unlaunched: int = 0
    contested: int = 0


def correlate(roots: SpanRows, rows: SpanRows, *, serial: bool = False) -> Correlated:
    """Return the tree of every root, made of the rows that began, or were launched, in its time.

    A row's parent is the one that it states (`parent_id`; 0 is the root), wherever
    in time that lies; without one, or if that is not among the rows of the same
    root, the innermost row that encloses it on its own thread, else the root.
    A row with neither thread nor device is taken to be on its root's thread; for library
    calls, and for times that are uncertain, see `xsp.correlation.thread`; for rows without an end
    `xsp.correlation.open_ended`.

    Args:
        roots: Evaluations, of kind pipeline, one after the other in time.
        rows: Everything that providers saw in the meantime, in any order.
        serial: Whether the host waited for each kernel. Then one without a launch lies in
            what enclosed it in time (`xsp.correlation.wait`).

    >>> from xsp.provider.row import span_rows
    >>> roots = span_rows({"kind": ["pipeline"], "name": ["predict"],
    ...                    "start_ns": [0], "end_ns": [9]})
    >>> rows = span_rows({"kind": ["op", "layer", "op"], "name": ["add", "fc", "addmm"],
    ...                   "start_ns": [7, 2, 3], "end_ns": [8, 6, 5]})
    >>> correlate(roots, rows).frames[0].select("name", "parent").rows()
    [('predict', -1), ('fc', 0), ('addmm', 1), ('add', 0)]
    """
    if not roots.height:
        return Correlated((), 0, rows.height)
    in_time = np.lexsort(_numbers(roots, "end_ns", "start_ns"))
    rows = end_with_launches(roots[in_time], rows)
    rows, executions = part_launched(rows)
    rows, ambiguous = settle_places(roots[in_time], rows)
    placed = _place(roots[in_time], rows)
    by_time = _enclosing(placed)
    settled, parent = derive_backward(placed, _settle(placed, by_time))
    orphans = _orphans(placed, by_time, parent)
    lost = orphans[placed.rows["kind"].gather(orphans).is_in(_EXECUTIONS).to_numpy()]
    if serial:
        around = waiting_rows(settled, lost)
        parent[lost] = np.where(around < 0, parent[lost], around)
        orphans, lost = (np.setdiff1d(rows, lost[around >= 0]) for rows in (orphans, lost))
    launched = attach(settled, parent, by_time, executions)
    frames = _split(launched, np.append(lost, launched.contested))
    return Correlated(
        frames=tuple(frames[i] for i in _inverse(in_time)),
        orphans=len(orphans),
        outside=roots.height + rows.height - len(placed) + launched.outside,
        ambiguous=ambiguous,
        unlaunched=len(lost),
        contested=len(launched.contested),
    )


def _place(roots: SpanRows, rows: SpanRows) -> Placed:
    """Return the roots, which are sorted by time, each before the rows that began in it."""
    root_start, root_end = _numbers(roots, "start_ns", "end_ns")
    start, end = _numbers(rows, "start_ns", "end_ns")
    number = np.searchsorted(root_start, start, side="right") - 1
    last_moment = (start == root_end[number]) & (start == end)
    kept = np.flatnonzero((number >= 0) & ((start < root_end[number]) | last_moment))
    order = orders(rows)[kept]
    outside_in = sort_outside_in(start[kept], end[kept], order)
    kept, number = kept[outside_in], number[kept[outside_in]]
    take = np.insert(kept + roots.height, np.searchsorted(number, np.arange(roots.height)), -1)
    root_at = np.flatnonzero(take < 0)
    take[root_at] = np.arange(roots.height)
    return _measure(concat_rows([roots, rows])[take], root_at)


def _measure(rows: SpanRows, root_at: Integers) -> Placed:
    """Return rows, each root before its own, with what the rules ask of each of them."""
    start, end = _numbers(rows, "start_ns", "end_ns")
    lengths = np.diff(np.append(root_at, rows.height))
    root = np.repeat(root_at, lengths)
    return Placed(
        rows=rows,
        root=root,
        lane=_lanes(rows, root) * len(root_at) + np.repeat(np.arange(len(root_at)), lengths),
        start=start,
        end=end,
        order=orders(rows),
    )


def _enclosing(placed: Placed) -> Integers:
    """Return the index of the row that each row lies in; on a device no row holds another."""
    by_time = enclosing(placed.lane, placed.start, placed.end, placed.order)
    device = placed.rows["device"].is_not_null() & placed.rows["thread"].is_null()
    by_time[device.to_numpy()] = -1
    return by_time


def _lanes(rows: SpanRows, root: Integers) -> Integers:
    """Return a number for every thread, or stream of a device, that rows were seen on."""
    thread, device = pl.col("thread"), pl.col("device")
    on_device = thread.is_null() & device.is_not_null()
    keys = rows.select(
        thread=pl.when(on_device).then(None).otherwise(pl.coalesce(thread, thread.gather(root))),
        device=pl.when(on_device).then(device),
        stream=pl.when(on_device).then("stream"),
    )
    known = keys.unique().with_row_index("lane")
    lane = keys.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return lane["lane"].to_numpy().astype(np.int64)


def _settle(placed: Placed, by_time: Integers) -> Integers:
    """Return every row's parent: the stated one, else that by time, else its root."""
    enclosed = np.where(by_time < 0, placed.root, by_time)
    enclosed[placed.root == np.arange(len(placed))] = -1
    stated = _stated(placed)
    if not np.any(stated >= 0):
        return enclosed
    parent = np.where(stated < 0, enclosed, stated)
    if not _is_forward(parent):  # only then can rows be each other's ancestors
        astray = _lineage(parent, parent)[0] != placed.root
        parent[astray] = enclosed[astray]
    return _raise_to_kind(parent, placed.order)


def _stated(placed: Placed) -> Integers:
    """Return the index of the parent that each row states, -1 where it is none or not there."""
    stated = np.full(len(placed), -1, np.int64)
    asked = placed.rows["parent_id"].is_not_null().to_numpy() & (
        placed.root != np.arange(len(placed))
    )
    if not asked.any():
        return stated
    rows = placed.rows.select("id", "parent_id", root=placed.root).with_row_index("row")
    owners = rows.filter(pl.col("id").is_not_null()).unique(["root", "id"], keep="first")
    asking = rows.filter(asked).join(
        owners.select("root", "id", owner="row"),
        left_on=["root", "parent_id"],
        right_on=["root", "id"],
        how="left",
    )
    to_root = pl.when(pl.col("parent_id") == 0).then("root").otherwise("owner")
    found = asking.select("row", parent=to_root.cast(pl.Int64).fill_null(-1))
    stated[found["row"].to_numpy()] = found["parent"].to_numpy()
    return stated


def _raise_to_kind(parent: Integers, order: Integers) -> Integers:
    """Return parents of which none is of a deeper kind than its child, going up from those."""
    parent = parent.copy()
    below = np.flatnonzero((parent >= 0) & (order[parent] > order))
    while len(below):
        parent[below] = parent[parent[below]]
        below = below[order[parent[below]] > order[below]]
    return parent


def _orphans(placed: Placed, by_time: Integers, parent: Integers) -> Integers:
    """Return rows that no rule gave a parent: neither enclosed, nor stated, nor made by a layer."""
    unplaced = (by_time < 0) & (parent[: len(placed)] == placed.root)
    stated_root = (placed.rows["parent_id"] == 0).fill_null(value=False).to_numpy()
    return np.flatnonzero(unplaced & (placed.order > Kind.PIPELINE.order) & ~stated_root)


def _split(launched: Launched, doubtful: Integers) -> list[pl.DataFrame]:
    """Return one frame per root, in time, with parents counted from its first row."""
    placed, parent = launched.placed, launched.parent
    rows = mark_doubtful(placed.rows, doubtful)
    if not (_is_forward(parent) and _in_time(placed)):
        sequence = _outside_in(placed, parent)
        rows, parent = rows[sequence], _renumber(parent, sequence)
    root_at = np.flatnonzero(parent < 0)
    lengths = np.diff(np.append(root_at, rows.height))
    relative = np.where(parent < 0, -1, parent - np.repeat(root_at, lengths))
    rows = rows.with_columns(parent=relative)
    begins = root_at.tolist()
    return [rows.slice(at, length) for at, length in zip(begins, lengths.tolist(), strict=True)]


def _outside_in(placed: Placed, parent: Integers) -> Integers:
    """Return the permutation that sorts rows by root and time, but parents before children."""
    by_time = sort_outside_in(placed.start, placed.end, placed.order)
    by_time = by_time[np.argsort(placed.root[by_time], kind="stable")]
    if _is_forward(_renumber(parent, by_time)):
        return by_time
    rank = _inverse(by_time)
    _, depth, latest = _lineage(parent, rank)
    return np.lexsort((rank, depth, latest))


def _renumber(parent: Integers, sequence: Integers) -> Integers:
    """Return the parents of rows that were permuted, by their new index."""
    moved = parent[sequence]
    return np.where(moved < 0, -1, _inverse(sequence)[moved])


def _inverse(sequence: Integers) -> Integers:
    """Return where a permutation puts each row."""
    index = np.empty_like(sequence)
    index[sequence] = np.arange(len(sequence))
    return index


def _lineage(parent: Integers, rank: Integers) -> tuple[Integers, Integers, Integers]:
    """Return each row's topmost ancestor, its depth, and the highest rank from there to it.

    Every round doubles how far a row has looked up. The top of a row that goes
    round in a circle is some row of that circle, and so never a root.
    """
    top = np.where(parent < 0, np.arange(len(parent)), parent)
    depth, latest = (parent >= 0).astype(np.int64), rank
    for _ in range(len(parent).bit_length()):
        latest = np.maximum(latest, latest[top])
        depth = depth + depth[top]
        top = top[top]
    return top, depth, latest


def _is_forward(parent: Integers) -> bool:
    """Return whether every row comes after its parent."""
    return bool(np.all(parent < np.arange(len(parent))))


def _in_time(placed: Placed) -> bool:
    """Return whether rows stand by root and start."""
    step = np.diff(placed.root)
    return not np.any((step < 0) | ((step == 0) & (np.diff(placed.start) < 0)))


def _numbers(rows: SpanRows, first: str, second: str) -> tuple[Integers, Integers]:
    return rows[first].to_numpy(), rows[second].to_numpy()
