"""Adds the layers and operators that captured a CUDA graph to each replay of the graph.

A graph is captured once and replayed often. In a replay no operator runs, and no layer is called;
but the step in which the graph was captured tells, by the node's number, which operator
captured a node. So the launch of a replay gets rows derived from its nodes: the same layers and
operators, each as long as its nodes took on the device.

    captured   layer "fc" > op "mm" > launch, which creates node 7
    replayed   graph launch > kernel "gemm" of node 7
    result     graph launch > layer "fc" > op "mm" > kernel "gemm"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.level import Kind
from xsp.matching import Run, depths, lineage, nearest, rearranged
from xsp.provider import ATTRIBUTE, PROVENANCE, ROW_SCHEMA, Provenance, SpanRows, concat_rows

Ints = NDArray[np.int64]

_CREATED = f"{ATTRIBUTE}created_nodes"  # of a launch: numbers of the nodes that it captured
_CAPTURED = f"{ATTRIBUTE}captured_node"  # of a device activity: number of the node captured
_NODE = f"{ATTRIBUTE}graph_node"
_REPLAYED = f"{ATTRIBUTE}replayed"
_KEPT = ("kind", "name")
# Attributes of work on the host at the capture of a graph, which a replay does not repeat.
_OF_THE_HOST = {
    _CREATED,
    *(f"{ATTRIBUTE}{name}" for name in ("allocated_bytes", "freed_bytes", "peak_bytes", "error")),
}
_NOTHING: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Captures:
    """The rows in which nodes of CUDA graphs were captured.

    Attributes:
        rows: Layers, operators, library calls and the user's spans, one capture after the
            other, parents before children.
        parent: Index of each row's parent, -1 for children of a step's root.
        around: The innermost row around each captured node, by the node's number; -1 for the
            root.
    """

    rows: SpanRows
    parent: Ints
    around: dict[int, int]


def any_captured(rows: SpanRows) -> bool:
    """Tell whether a launch among these rows captured nodes."""
    return _CREATED in rows.columns and rows[_CREATED].null_count() < rows.height


def captures(frames: Iterable[pl.DataFrame]) -> Captures:
    """Return the rows in which nodes were captured, of some trees."""
    parts = [_capture(frame) for frame in frames if any_captured(frame)]
    heights = np.cumsum([0, *(part.rows.height for part in parts)]).tolist()
    moved = list(zip(parts, heights, strict=False))
    return Captures(
        concat_rows([part.rows for part in parts]),
        np.concatenate([_NOTHING, *(_moved(part.parent, by) for part, by in moved)]),
        {
            node: row + by if row >= 0 else row
            for part, by in moved
            for node, row in part.around.items()
        },
    )


def with_captured(runs: Iterable[Run], known: Captures) -> list[Run]:
    """Return the runs with derived rows in the launches of graphs (`replayed`)."""
    return [
        run if run.rows is None else replace(run, rows=replayed(run.rows, known)) for run in runs
    ]


def unseen(runs: Iterable[Run], known: Captures) -> int:
    """Return how many nodes of graphs ran whose capture was not seen."""
    nodes: set[int] = set()
    for run in runs:
        if run.rows is not None and _CAPTURED in run.rows.columns:
            ran = run.rows.select(_NODE, _CAPTURED).filter(pl.col(_NODE).is_not_null()).unique()
            nodes |= {node for node, captured in ran.iter_rows() if captured not in known.around}
    return len(nodes)


def replayed(frame: pl.DataFrame, known: Captures) -> pl.DataFrame:
    """Return a tree in which nodes of graphs lie in copies of the rows that captured them.

    Args:
        frame: The tree (`xsp.matching.TREE_SCHEMA`).
        known: The rows in which nodes were captured.
    """
    parent = frame["parent"].to_numpy().astype(np.int64)
    nodes, around = _nodes(frame, parent, known)
    if not len(nodes):
        return frame
    derived = _Derived(frame, parent, nodes, around, known)
    rows = concat_rows([frame.drop("parent"), derived.rows])
    above = np.append(parent, derived.parent)
    above[nodes] = derived.innermost
    sequence = np.lexsort(
        (
            np.append(np.zeros(len(parent), np.int64), derived.depth),
            np.append(2 * np.arange(len(parent)), 2 * derived.first - 1),
        )
    )
    return rows[sequence].with_columns(parent=rearranged(above, sequence))


def _capture(frame: pl.DataFrame) -> Captures:
    """Return the rows in which nodes were captured, of one tree."""
    made = frame.with_row_index("row").filter(pl.col(_CREATED).is_not_null())
    parent = frame["parent"].to_numpy().astype(np.int64)
    no_launch = (frame["kind"] != Kind.LAUNCH.value).to_numpy()
    around = nearest(parent, made["row"].to_numpy().astype(np.int64), no_launch)
    kept = np.zeros(len(parent), np.bool_)
    kept[lineage(parent, np.unique(around))[0]] = True
    kept &= parent >= 0
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    columns = [n for n in frame.columns if n in ROW_SCHEMA or n.startswith(ATTRIBUTE)]
    columns = [name for name in columns if name not in _OF_THE_HOST]
    lists = zip(made[_CREATED].to_list(), place[around].tolist(), strict=True)
    return Captures(
        frame.select(columns).filter(kept),
        place[parent[kept]],
        {node: row for created, row in lists for node in created},
    )


def _nodes(frame: pl.DataFrame, parent: Ints, known: Captures) -> tuple[Ints, Ints]:
    """Return the nodes whose capture was seen, and the captured row around each of them."""
    if _CAPTURED not in frame.columns or not known.around:
        return _NOTHING, _NOTHING
    rows = np.flatnonzero(frame[_CAPTURED].is_not_null().to_numpy())
    numbers = frame[_CAPTURED].gather(rows).to_list()
    around = np.array([known.around.get(number, -1) for number in numbers], np.int64)
    rows, around = rows[around >= 0], around[around >= 0]
    in_launch = (frame["kind"].gather(parent[rows]) == Kind.LAUNCH.value).to_numpy()
    return rows[in_launch], around[in_launch]


class _Derived:
    """Rows derived for the replays in one tree: one per launch and captured row.

    Attributes:
        rows: The derived rows.
        parent: Index of each derived row's parent: of a launch if less than the height of the
            tree, else of a derived row, counted on from that height.
        innermost: Index of the innermost derived row around each node, counted likewise.
        first: Row of the first node in each derived row.
        depth: How deep each derived row lies in its launch, from 1.
    """

    def __init__(
        self, frame: pl.DataFrame, parent: Ints, nodes: Ints, around: Ints, known: Captures
    ) -> None:
        count = len(known.parent)
        place, node = lineage(known.parent, around)
        codes, own = np.unique(parent[nodes[node]] * count + place, return_inverse=True)
        launch, captured = codes // count, codes % count
        self.first = np.full(len(codes), len(parent))
        np.minimum.at(self.first, own, nodes[node])
        self.depth = depths(known.parent)[captured] + 1
        above = known.parent[captured]
        inner = len(parent) + np.searchsorted(codes, launch * count + above)
        self.parent = np.where(above < 0, launch, inner)
        self.innermost = len(parent) + np.searchsorted(codes, parent[nodes] * count + around)
        start, end = (_numbers(frame, name)[nodes[node]] for name in ("start_ns", "end_ns"))
        begins, ends = np.full(len(codes), start.max()), np.full(len(codes), end.min())
        np.minimum.at(begins, own, start)
        np.maximum.at(ends, own, end)
        self.rows = _as_rows(known.rows[captured], frame[launch], frame[self.first], begins, ends)


def _moved(parent: Ints, by: int) -> Ints:
    return np.where(parent < 0, -1, parent + by)


def _as_rows(
    captured: SpanRows, launch: pl.DataFrame, first: pl.DataFrame, start: Ints, end: Ints
) -> SpanRows:
    """Return copies of captured rows that lie on a device, in a launch, from `start` to `end`."""
    nothing = [pl.lit(None, t).alias(name) for name, t in ROW_SCHEMA.items() if name not in _KEPT]
    return captured.with_columns(nothing).with_columns(
        start_ns=start,
        end_ns=end,
        device=first["device"],
        correlation_id=launch["correlation_id"],
        provenance=pl.lit(Provenance.REPLAYED.value, PROVENANCE),
        **{_REPLAYED: pl.lit(value=True)},
    )


def _numbers(frame: pl.DataFrame, name: str) -> Ints:
    return frame[name].to_numpy()
