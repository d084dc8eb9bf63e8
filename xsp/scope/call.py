"""Derives the calls of layers around operators from the operators' numbered paths.

Layers are derived depth by depth, the outermost first: within one call of a layer, the operators
of each layer inside are sorted by time and cut into calls (`occurrence`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.provider import ATTRIBUTE, SpanRows
from xsp.scope.occurrence import Pauses, begins_anew, reached
from xsp.scope.path import Paths

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of layers, outer ones first.

    Attributes:
        layer: Number of the layer that each call is of.
        parent: Index of the call that each call lies in, -1 for the outermost.
        first: Index of the operator that began first in each call.
        start_ns: Start of each call.
        end_ns: End of each call.
        busy_ns: Time in which at least one operator ran in each call.
        innermost: Index of the call that each operator lies in, -1 for none.
    """

    layer: Integers
    parent: Integers
    first: Integers
    start_ns: Integers
    end_ns: Integers
    busy_ns: Integers
    innermost: Integers


def derive(ops: SpanRows, paths: Paths, home: Integers, world: Integers) -> Calls:
    """Return the calls of layers around operators.

    Args:
        ops: The operators.
        paths: Their paths.
        home: Index of the operator that each operator lies in, or -1.
        world: Number of each operator's world; operators of different worlds share no call.
    """
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    pauses = Pauses(world, start, end)
    # A number for name and path of each operator, equal for equal ones.
    names = ops["name"]
    number = names.rank("dense").cast(pl.Int64).to_numpy()
    same = number * (int(paths.number.max()) + 1) + paths.number
    what, nodes = same, _nodes(ops)
    before = _before(world, ops["thread"].fill_null(0).to_numpy(), start)
    shared, length = _shared(paths, home), paths.lengths()
    innermost = np.full(ops.height, -1, np.int64)
    count, lines = 0, [np.zeros((6, 0), np.int64)]
    for depth in range(paths.layers.shape[1]):
        rows = np.flatnonzero((shared <= depth) & (depth < length))
        layer = paths.around(rows, depth)
        rows = rows[np.lexsort((start[rows], layer, innermost[rows], world[rows]))]
        layer = paths.around(rows, depth)
        begins = _changes(world[rows]) | _changes(innermost[rows]) | _changes(layer)
        group = np.full(ops.height + 1, -1)
        group[rows] = np.cumsum(begins)
        continued = group[before[rows]] == group[rows]
        begins |= _later_calls(group[rows], (what, nodes), pauses, rows, continued)
        lines.append(_lines(begins, rows, layer, innermost, (start, end)))
        innermost[rows] = count + np.cumsum(begins) - 1
        count += int(np.count_nonzero(begins))
    layer, parent, first, begin, finish, busy = np.concatenate(lines, axis=1)
    return Calls(layer, parent, first, begin, finish, busy, innermost)


def _later_calls(
    group: Integers,
    what: tuple[Integers, Integers],
    pauses: Pauses,
    rows: Integers,
    continued: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return with which operators of sorted groups a second or later call of the layer begins."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    before = reached(group, pauses.start[rows], pauses.end[rows])
    filled = pauses.filled(before, pauses.start[rows])
    key, node = (each[rows] for each in what)
    return begins_anew(group, key, node, filled, continued)


def _lines(
    begins: NDArray[np.bool_],
    rows: Integers,
    layer: Integers,
    innermost: Integers,
    times: tuple[Integers, Integers],
) -> Integers:
    """Return `[6, calls]`: the columns of `Calls` for calls that begin with some of sorted rows."""
    start, end = (time[rows] for time in times)
    head = np.flatnonzero(begins)
    if not len(head):
        return np.zeros((6, 0), np.int64)
    covered = reached(np.cumsum(begins), start, end)
    added = np.maximum(end - np.maximum(start, covered), 0)
    finish = np.maximum.reduceat(end, head)
    busy = np.add.reduceat(added, head)
    return np.stack([layer[head], innermost[rows[head]], rows[head], start[head], finish, busy])


def _shared(paths: Paths, home: Integers) -> Integers:
    """Return how many layers the path of each operator shares with the operator that it lies in.

    An operator without a path is where the operator around it is.
    """
    known = paths.lengths() > 0
    around = home.copy()
    climbing = np.flatnonzero(around >= 0)
    while len(climbing := climbing[~known[around[climbing]]]):
        around[climbing] = home[around[climbing]]
        climbing = climbing[around[climbing] >= 0]
    inside = np.flatnonzero((around >= 0) & known)
    own, other = (paths.layers[paths.number[rows]] for rows in (inside, around[inside]))
    shared = np.zeros(len(home), np.int64)
    shared[inside] = np.count_nonzero((own == other) & (own >= 0), axis=1)
    return shared


def _before(world: Integers, thread: Integers, start: Integers) -> Integers:
    """Return the operator before each on its thread, in its world; -1 for the first."""
    order = np.lexsort((start, thread, world))
    same = ~(_changes(world[order]) | _changes(thread[order]))
    before = np.full(len(order), -1, np.int64)
    before[order[same]] = order[np.flatnonzero(same) - 1]
    return before


def _nodes(ops: SpanRows) -> Integers:
    """Return a number for the node of each operator, 0 where it is not known."""
    name = f"{ATTRIBUTE}node"
    if name not in ops.columns:
        return np.zeros(ops.height, np.int64)
    return ops[name].rank("dense").fill_null(0).cast(pl.Int64).to_numpy()


def _changes(values: Integers) -> NDArray[np.bool_]:
    """Return whether each value differs from the value before; the first one does."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]
