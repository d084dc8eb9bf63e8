"""Makes a tree of rows for each step from the rows of some visits.

`correlate` gives every row its parent, by these rules, in this order:

1. A call of which only the start is known ends with its last launch (`open_ended`).
2. Device activities (kernels, copies, sets) whose launch was seen are put aside for rule 8.
3. A row without a thread, or without exact times, gets these from the rows around it
   (`thread`). Else a row with neither thread nor device is on its step's thread.
4. A row belongs to the step in whose time it began; a row that began outside of every
   step is left out, and counted.
5. A row's parent is the innermost row that encloses it in time on its own thread, of whatever
   kind (`interval`), unless the row states another span of the user's around it (`parent_id`);
   else the root: such a row is an orphan, and counted. On a device no row encloses another. A
   row that a provider derived from others (layers, of operators on any threads) encloses none by
   time, and without a statement lies in what is around it on its step's thread. A call that
   stated no thread (oneDNN's, and MKL's on workers of the framework's) may run beside its
   neighbors: it encloses nothing, and lies in no library's call.
6. A backward operator belongs to the layer whose forward made it (`backward`).
7. In a synchronous run a device activity without a launch lies in the row of the host that
   waited for it (`wait`).
8. A device activity belongs to the step of its launch, and lies in the row that the
   launch lies in (`launch`).

A parent may be of a deeper kind than its child: a layer called in an autograd function, or in a
mark of the user's, lies in an operator. On a pass that records no operators the layer lies in the
nearest ancestor of its own kind or an outer kind; merging relies on it (`xsp.matching.path`).

Two rules need less or more than `correlate` is given, so they are applied elsewhere:

* before, one visit at a time: rows of which only order and duration are known get a place in
  time (`place_by_order`);
* after, with the trees of all visits: what a CUDA graph replays lies in the layers and operators
  that captured it (`with_captured`).

Example: three rows of one step, and the tree that they make:

    op "add" 7-8, layer "fc" 2-6, op "addmm" 3-5        predict
                                                        ├── fc
                                                        │   └── addmm
                                                        └── add
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import (
    ON_DEVICE,
    depths,
    has_provenance,
    highest,
    inverse,
    is_forward,
    mark_ambiguous,
    nearest,
    on_device,
    orders,
    rearranged,
    roots_of,
)
from xsp.provider import ATTRIBUTE, Provenance, SpanRows, concat_rows
from xsp.reading.correlation.backward import derive_backward
from xsp.reading.correlation.forest import Forest
from xsp.reading.correlation.interval import Integers, enclosing_sorted, sort_outside_in
from xsp.reading.correlation.launch import attach, part_launched
from xsp.reading.correlation.open_ended import end_with_launches
from xsp.reading.correlation.thread import locate
from xsp.reading.correlation.wait import waiting_rows

Bools = NDArray[np.bool_]

_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
# Attributes that rules read or write: `launch` those of graphs, `backward` those of modules.
_RULED = ("graph_node", "captured_node", "module_path", "module_class", "module_type", "phase")
_NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Trees:
    """The trees of some steps, and what is uncertain about them.

    Attributes:
        frames: One frame per root (`xsp.matching.TREE_SCHEMA`, and attributes), in the order in
            which the roots were given. The root comes first, parents come before their
            children, otherwise rows are in the order of their start; device activities stand
            behind their launches.
        orphans: How many rows inside a root's time have no parent on their own thread or
            device, and hang under the root. region spans, which may well run beside the root
            on another thread, are not counted.
        outside: How many rows began, or were launched, outside of every root's time, and are
            left out.
        unlaunched: How many of the orphans are device activities without a launch.
        ambiguous_threads: How many rows without a thread may be on several threads; they are
            taken to be on the thread of their root.
        ambiguous_parents: How many launches, or device activities, may belong to any of several
            spans (`launch`); they are taken to belong to the span that began last.
    """

    frames: tuple[pl.DataFrame, ...]
    orphans: int
    outside: int
    unlaunched: int = 0
    ambiguous_threads: int = 0
    ambiguous_parents: int = 0


def correlate(roots: SpanRows, rows: SpanRows, *, synchronous: bool = False) -> Trees:
    """Return the tree of every root, made of the rows that began, or were launched, in its time.

    The module's docstring lists the rules.

    Args:
        roots: Steps, of kind region, one after the other in time.
        rows: The rows of all providers in the time of the roots, in any order.
        synchronous: Whether the host waited for each kernel (rule 7).

    >>> from xsp.provider import span_rows
    >>> roots = span_rows({"kind": ["region"], "name": ["predict"],
    ...                    "start_ns": [0], "end_ns": [9]})
    >>> rows = span_rows({"kind": ["op", "layer", "op"], "name": ["add", "fc", "addmm"],
    ...                   "start_ns": [7, 2, 3], "end_ns": [8, 6, 5]})
    >>> correlate(roots, rows).frames[0].select("name", "parent").rows()
    [('predict', -1), ('fc', 0), ('addmm', 1), ('add', 0)]
    """
    if not roots.height:
        return Trees((), 0, rows.height)
    roots, rows, others = _set_aside(roots, rows)
    in_time = np.lexsort(_numbers(roots, "end_ns", "start_ns"))
    rows = end_with_launches(roots[in_time], rows)
    rows, activities = part_launched(rows)
    anywhere = rows["thread"].is_null() & (rows["kind"] == Kind.CALL.value)
    rows, ambiguous_threads = locate(roots[in_time], rows)
    by_time = _by_time(roots[in_time], rows, anywhere.to_numpy())
    forest = derive_backward(replace(by_time, parent=_parents(by_time)))
    # No rule gives orphans a parent: neither a statement, nor time, nor a layer.
    unplaced = (by_time.parent < 0) & (forest.parent[: len(by_time)] == by_time.root)
    stated_root = (by_time.rows["parent_id"] == 0).fill_null(value=False).to_numpy()
    orphans = np.flatnonzero(unplaced & (by_time.order > Kind.REGION.order) & ~stated_root)
    lost = orphans[by_time.rows["kind"].gather(orphans).is_in(_ACTIVITIES).to_numpy()]
    if synchronous:
        around = waiting_rows(forest, lost)
        forest.parent[lost] = np.where(around < 0, forest.parent[lost], around)
        orphans, lost = (np.setdiff1d(rows, lost[around >= 0]) for rows in (orphans, lost))
    launches = attach(forest, by_time.parent, activities)
    frames = _split(launches.forest, np.append(lost, launches.ambiguous), others)
    return Trees(
        frames=tuple(frames[i] for i in inverse(in_time)),
        orphans=len(orphans),
        outside=roots.height + rows.height - len(by_time) + launches.outside,
        unlaunched=len(lost),
        ambiguous_threads=ambiguous_threads,
        ambiguous_parents=len(launches.ambiguous),
    )


def _set_aside(roots: SpanRows, rows: SpanRows) -> tuple[SpanRows, SpanRows, pl.DataFrame]:
    """Return roots and rows without the attributes that no rule needs, and these attributes.

    Rules move rows about, and attributes may be long lists. The column `number` says in which line
    of the attributes a row has its own; in rows that rules derive it is null.
    """
    everything = concat_rows([roots, rows])
    others = [name for name in everything.columns if name.startswith(ATTRIBUTE)]
    others = [name for name in others if name.removeprefix(ATTRIBUTE) not in _RULED]
    if not others:
        return roots, rows, pl.DataFrame()
    kept = everything.drop(others).with_columns(pl.int_range(pl.len()).alias(_NUMBER))
    return kept.head(roots.height), kept.tail(rows.height), everything.select(others)


def _by_time(roots: SpanRows, rows: SpanRows, anywhere: Bools) -> Forest:
    """Return the roots, sorted by time, each with the rows that began in its time, nested by time.

    The parent of a row is -1 where no row encloses it on its lane.

    Args:
        roots: The steps, sorted by time.
        rows: All other rows.
        anywhere: Which of these may have run beside what they seem to enclose.
    """
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
    anywhere = np.append(np.full(roots.height, False), anywhere)[take]
    return _nested(concat_rows([roots, rows])[take], root_at, anywhere)


def _nested(rows: SpanRows, root_at: Integers, anywhere: Bools) -> Forest:
    """Return rows nested by time alone; each root stands before the rows of its time."""
    start, end = _numbers(rows, "start_ns", "end_ns")
    lengths = np.diff(np.append(root_at, rows.height))
    root = np.repeat(root_at, lengths)
    rows = _with_one_place(rows, root)
    lane = _lanes(rows) * len(root_at) + np.repeat(np.arange(len(root_at)), lengths)
    order = orders(rows)
    parent = enclosing_sorted(lane, start, end, order)
    parent[on_device(rows)] = -1
    if anywhere.any():
        calls = (order == Kind.CALL.order) & rows["id"].is_null().to_numpy()  # no user's span
        parent = np.where(anywhere, nearest(parent, parent, ~calls), parent)
    loose = anywhere | has_provenance(rows, Provenance.DERIVED)
    if loose.any():
        parent = nearest(parent, parent, ~loose)
    return Forest(rows, root, lane, start, end, order, parent)


def _with_one_place(rows: SpanRows, root: Integers) -> SpanRows:
    """Return rows that have either a device or a thread: their own, else the thread of the root."""
    if rows["thread"].has_nulls():
        own = pl.coalesce("thread", pl.col("thread").gather(root))
        rows = rows.with_columns(thread=pl.when(~ON_DEVICE).then(own))
    if rows["device"].null_count() < rows.height:
        device = [pl.when(ON_DEVICE).then(name).alias(name) for name in ("device", "stream")]
        rows = rows.with_columns(device)
    return rows


def _lanes(rows: SpanRows) -> Integers:
    """Return a number for every thread, or stream of a device, that rows were seen on."""
    keys = rows.select("thread", "device", pl.when(ON_DEVICE).then("stream").alias("stream"))
    known = keys.unique().with_row_index("lane")
    lane = keys.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return lane["lane"].to_numpy().astype(np.int64)


def _parents(by_time: Forest) -> Integers:
    """Return every row's parent: the stated parent, else the enclosing row, else the root."""
    is_root = by_time.root == np.arange(len(by_time))
    enclosed = np.where(by_time.parent < 0, by_time.root, by_time.parent)
    enclosed[is_root] = -1
    stated = by_time.stated_parents(by_time.rows, by_time.root)
    stated[is_root | _between(by_time, enclosed, stated)] = -1
    if not np.any(stated >= 0):
        return enclosed
    parent = np.where(stated < 0, enclosed, stated)
    if not is_forward(parent):  # only then can rows be each other's ancestors
        astray = roots_of(parent) != by_time.root
        parent[astray] = enclosed[astray]
    return parent


def _between(by_time: Forest, enclosed: Integers, stated: Integers) -> Integers:
    """Return which rows lie in layers, operators or calls that lie in the stated parent in time.

    Tasks take turns in spans that others can state as parents, but not within a layer, an
    operator or a call. So what a row lies in there is around it, and the statement tells no more
    than time does.
    """
    asking = np.flatnonzero((stated >= 0) & (stated != enclosed) & (by_time.parent >= 0))
    found = np.full(len(stated), False)
    if len(asking):
        marked = by_time.rows["id"].is_not_null().to_numpy() | (enclosed < 0)
        found[asking] = nearest(enclosed, enclosed[asking], marked) == stated[asking]
    return found


def _split(forest: Forest, ambiguous: Integers, others: pl.DataFrame) -> list[pl.DataFrame]:
    """Return one frame per root, in the order of time, with parents as indices in the frame."""
    rows, parent = mark_ambiguous(forest.rows, ambiguous), forest.parent
    step = np.diff(forest.root)
    in_time = not np.any((step < 0) | ((step == 0) & (np.diff(forest.start) < 0)))
    if not (in_time and is_forward(parent)):
        sequence = _outside_in(forest)
        rows, parent = rows[sequence], rearranged(parent, sequence)
    root_at = np.flatnonzero(parent < 0)
    lengths = np.diff(np.append(root_at, rows.height))
    relative = np.where(parent < 0, -1, parent - np.repeat(root_at, lengths))
    rows = rows.with_columns(parent=relative)
    if others.width:
        rows = rows.drop(_NUMBER).hstack(others.select(pl.all().gather(rows[_NUMBER])))
    begins = root_at.tolist()
    return [rows.slice(at, length) for at, length in zip(begins, lengths.tolist(), strict=True)]


def _outside_in(forest: Forest) -> Integers:
    """Return the permutation that sorts rows by root and time, but parents before children."""
    by_time = sort_outside_in(forest.start, forest.end, forest.order)
    by_time = by_time[np.argsort(forest.root[by_time], kind="stable")]
    if is_forward(rearranged(forest.parent, by_time)):
        return by_time
    rank = inverse(by_time)
    return np.lexsort((rank, depths(forest.parent), highest(forest.parent, rank)))


def _numbers(rows: SpanRows, first: str, second: str) -> tuple[Integers, Integers]:
    return rows[first].to_numpy(), rows[second].to_numpy()
