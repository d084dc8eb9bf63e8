"""The tree of a program: nested parts and the traces of groups in, one table of spans out.

Parts of one name, within parts of one name, are one span, whose times are sums over all of them.
Below the span of a group lies the tree of the group's trace, with times multiplied accordingly.

    block           90        evaluation of the group       block               90
    ├─ load         10        decode    20                  ├─ load             20    2 calls
    ├─ decode       20        └─ fc     15                  └─ decode           40    2 calls
    ├─ load         10                                         └─ fc            30    2 calls
    └─ decode       20
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.composition.nested import Made, Node, Part, nodes_of
from xsp.composition.own_time import Sampled, own_time
from xsp.composition.typical import SUMMED, SUMMED_ATTRIBUTES, Average
from xsp.evaluation import generations, mix, path_names
from xsp.inexact import Inexact
from xsp.text import margin
from xsp.trace import SPAN_SCHEMA, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ATTRIBUTE = "\0attribute."


def compose(
    parts: Sequence[Part],
    lasting_ns: Floats,
    made: Made,
    traces: Mapping[int, Trace],
    averages: Mapping[int, Average],
    sampled: Sampled,
) -> pl.DataFrame:
    """Return the spans of a program, as `Trace.spans`.

    Args:
        parts: The parts, the block first, parents before children.
        lasting_ns: How long each part takes without xsp.
        made: The evaluations of the journal.
        traces: The traces of groups, by their numbers.
        averages: An average evaluation of each group that calls its model unlike numbers of times.
        sampled: What was seen of what ran outside of evaluations.
    """
    traces = {**traces, **{number: average.trace for number, average in averages.items()}}
    nodes, children, of = nodes_of(parts, lasting_ns, made)
    order = _depth_first(children)
    paths = _paths(nodes)
    intervals = _intervals(nodes, order, traces, made.varying)
    reasons = _reasons(nodes, order, traces)
    own_ns = [_self_ns(nodes, number, children) for number in range(len(nodes))]
    ran = own_time(sampled, parts, of, own_ns)
    frames = []
    for number in order:
        node, trace = nodes[number], traces.get(nodes[number].group)
        columns = _columns(node, paths, number) | intervals[number] | {"self_ns": own_ns[number]}
        frames.append(_row(node, columns, reasons[number], trace, ran.get(number, {})))
        if trace is not None:
            often: int | Ints = node.calls
            if node.group in averages:
                trace, often = averages[node.group].in_calls(node.calls)
            frames.append(_below(node, paths[number], trace, often))
    return _table(frames)


def _depth_first(children: Mapping[int, Sequence[int]]) -> list[int]:
    order, waiting = [], [0]
    while waiting:
        order.append(waiting.pop())
        waiting += reversed(children.get(order[-1], ()))
    return order


def _paths(nodes: Sequence[Node]) -> list[str]:
    parent = np.array([node.parent for node in nodes], dtype=np.int64)
    names = pl.Series([node.part.name for node in nodes], dtype=pl.String)
    paths: list[str] = path_names(names, parent, list(generations(parent))).to_list()
    return paths


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) or 1


def _self_ns(nodes: Sequence[Node], number: int, children: Mapping[int, Sequence[int]]) -> float:
    node = nodes[number]
    same = [n for n in children.get(number, ()) if nodes[n].part.thread == node.part.thread]
    return max(node.lasts_ns - sum(nodes[n].lasts_ns for n in same), 0.0)


def _columns(node: Node, paths: Sequence[str], number: int) -> dict[str, Any]:
    """Return the columns of a node's row that do not depend on a group's trace."""
    part = node.part
    return {
        "span_id": _key(paths[number]),
        "parent_id": _key(paths[node.parent]) if number else None,
        "level": part.kind.level.label,
        "kind": part.kind.value,
        "name": part.name,
        "path": paths[number],
        "start_ns": node.start,
        "end_ns": node.start + node.length,
        "latency_ns": node.lasts_ns,
        "overhead_ns": node.measured_ns - node.lasts_ns,
        "measured_start_ns": node.measured[0],
        "measured_end_ns": node.measured[1],
        "runs": node.calls,
        "thread": part.thread,
    }


def _row(
    node: Node,
    columns: dict[str, Any],
    reasons: frozenset[str],
    trace: Trace | None,
    ran: Mapping[str, Any],
) -> pl.DataFrame:
    """Return the row of a node, which for a group also stands for the root of its trace."""
    attributes: dict[str, Any] = {"exact": not reasons, **(node.part.attributes or {}), **ran}
    if reasons:
        attributes["inexact"] = [each.value for each in Inexact if each.value in reasons]
    if trace is not None:
        root = trace.root
        factor = _factor(node.lasts_ns, root)
        attributes = {k: v for k, v in root.attributes.items() if v is not None}
        columns["self_ns"] = (root.self_ns or 0.0) * factor
        columns["runs"] = root.runs
        columns["device_ns"] = None if root.device_ns is None else root.device_ns * factor
    attributes |= {"program_part": True, "whole_block": node.parent < 0 or None}
    attributes |= {"calls": node.calls, "busy_ns": node.busy_ns}
    if node.calls > 1:
        attributes |= {"least_ns": node.least_ns, "most_ns": node.most_ns}
    plain = {name: [columns.get(name)] for name in SPAN_SCHEMA}
    known = ((name, value) for name, value in attributes.items() if value is not None)
    named = [pl.Series(_ATTRIBUTE + name, [value]) for name, value in known]
    return pl.DataFrame(plain, schema=SPAN_SCHEMA).with_columns(named)


def _intervals(
    nodes: Sequence[Node], order: Sequence[int], traces: Mapping[int, Trace], vary: Collection[int]
) -> list[dict[str, float]]:
    """Return the ends of the interval of each node's latency; none where it was simply measured.

    Of what a group's evaluations took together, as much is in doubt as was estimated. How far the
    intervals of groups reach is added up, as if their errors were fully correlated. What an
    interval leaves unknown took no longer, at any rate, than it did with xsp. Of unlike evaluations
    the sum is known as it ran: only what was removed from that may be wrong.
    """
    result: list[dict[str, float]] = [{} for _ in nodes]
    reaches: dict[int, Floats] = {}
    for number in reversed(order):
        node = nodes[number]
        root = traces[node.group].root if node.group in traces else None
        wide = margin(root.latency_ns, root.latency_low_ns, root.latency_high_ns) if root else None
        if root is not None and wide is not None and (told_ns := node.estimated_ns):
            reach = wide * _factor(told_ns, root)
            removed = max(node.ran_ns - node.lasts_ns, 0.0)
            reach = min(reach, removed) if node.group in vary else reach
            most = reach if reach < told_ns else removed
            reaches[number] = np.array([min(reach, told_ns), min(reach, most)])
        if number in reaches:
            below, above = reaches[number].tolist()
            result[number]["latency_low_ns"] = max(node.lasts_ns - below, 0.0)
            result[number]["latency_high_ns"] = node.lasts_ns + above
            reaches[node.parent] = reaches.get(node.parent, 0.0) + reaches[number]
    return result


def _reasons(
    nodes: Sequence[Node], order: Sequence[int], traces: Mapping[int, Trace]
) -> list[frozenset[str]]:
    """Return why each latency is not exact: the reasons of all groups in it."""
    result: list[frozenset[str]] = [frozenset()] * len(nodes)
    for number in reversed(order):
        node = nodes[number]
        if node.group in traces:
            result[number] = frozenset(traces[node.group].root.attributes.get("inexact") or ())
        if node.parent >= 0:
            result[node.parent] |= result[number]
    return result


def _factor(lasts_ns: float, root: Any) -> float:
    """Return by what the times of one evaluation are multiplied to be those of so many ns."""
    return lasts_ns / root.latency_ns if root.latency_ns else 0.0


def _below(node: Node, path: str, trace: Trace, often: int | Ints) -> pl.DataFrame:
    """Return the spans below the root of a group's trace, as they stand below the node."""
    root, spans = trace.root, trace.spans
    factor, key = _factor(node.lasts_ns, root), _key(path)
    ids = spans.select("span_id", "parent_id")
    moved = {
        name: mix(values.fill_null(0).to_numpy() ^ np.uint64(key))
        for name, values in ids.to_dict().items()
    }
    top = spans["parent_id"] == root.span_id
    drawn = _placed(spans, ("start_ns", "end_ns"), root.end_ns, node.start, node.length)
    measured = _placed(
        spans,
        ("measured_start_ns", "measured_end_ns"),
        root.measured_end_ns or root.end_ns,
        node.measured[0],
        node.measured[1] - node.measured[0],
    )
    frame = spans.with_columns(
        pl.Series("span_id", moved["span_id"], dtype=pl.UInt64),
        pl.when(top)
        .then(pl.lit(key, dtype=pl.UInt64))
        .otherwise(pl.Series(moved["parent_id"]))
        .alias("parent_id"),
        (pl.lit(path) + pl.col("path").str.slice(len(root.path))).alias("path"),
        *(pl.col(name) * factor for name in SUMMED),
        *drawn,
        *measured,
        pl.when(pl.col("thread").eq_missing(root.thread))
        .then(pl.lit(node.part.thread, dtype=pl.Int64))
        .otherwise("thread")
        .alias("thread"),
    )[1:]
    fields = frame["attributes"].struct.unnest().rename(lambda name: _ATTRIBUTE + name)
    more = [pl.lit(pl.Series(np.broadcast_to(often, spans.height)[1:])).alias(_ATTRIBUTE + "calls")]
    if node.busy_ns is not None:
        at_once = node.busy_ns / max(node.lasts_ns, 1.0)
        more.append((pl.col("latency_ns") * at_once).alias(_ATTRIBUTE + "busy_ns"))
    told = [_ATTRIBUTE + name for name in SUMMED_ATTRIBUTES]
    more += [pl.col(name) * factor for name in told if name in fields.columns]
    return frame.drop("attributes").hstack(fields).with_columns(more)


def _placed(
    spans: pl.DataFrame, names: tuple[str, str], whole_ns: int, start_ns: int, room_ns: int
) -> list[pl.Series]:
    """Return two columns of times within the root, moved and stretched to where the node is."""
    scale = room_ns / max(whole_ns, 1)
    return [
        pl.Series(name, start_ns + np.floor(spans[name].fill_null(0).to_numpy() * scale)).cast(
            pl.Int64
        )
        for name in names
    ]


def _table(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    table = pl.concat(frames, how="diagonal_relaxed")
    fields = [name for name in table.columns if name.startswith(_ATTRIBUTE)]
    attributes = table.select(pl.col(name).alias(name.removeprefix(_ATTRIBUTE)) for name in fields)
    plain = table.select(pl.col(name).cast(dtype) for name, dtype in SPAN_SCHEMA.items())
    return plain.with_columns(attributes=attributes.to_struct())
