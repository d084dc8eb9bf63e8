"""Records of one visit in; rows of runs, and of nodes in the layers they came from, out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.onnxruntime_profile import NODE, US, Event, nodes
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp_levels.framework.onnxruntime.layer import NodeOrigin, described
from xsp_levels.framework.onnxruntime.record import Integers, NodeEvents, OrtRecords, Part
from xsp_levels.framework.scope import layered
from xsp_levels.native.thread import named

_ROOT = 0  # the id of the evaluation


def part_rows(parts: Sequence[Part]) -> SpanRows:
    """Return a row of kind pipeline per run, or part of making a session; ids count from 1."""
    if not parts:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": [part.name for part in parts],
            "start_ns": [part.start_ns for part in parts],
            "end_ns": [part.end_ns for part in parts],
            "thread": [part.thread for part in parts],
            "id": list(range(1, len(parts) + 1)),
            "attr.error": pl.Series([part.error for part in parts], dtype=pl.String),
        }
    )


def node_rows(records: OrtRecords) -> SpanRows:
    """Return a row of kind op per node, inside rows of kind layer that are derived from these."""
    frames = [
        _layered(events, records, number)
        for number, events in enumerate(records.events)
        if len(events.node)
    ]
    return concat_rows(frames)


def _layered(events: NodeEvents, records: OrtRecords, number: int) -> SpanRows:
    """Return the nodes and layers of one session; ids differ from those of other sessions."""
    first = len(records.parts) + 1 + sum(len(each.node) for each in records.events[:number])
    rows = _nodes(events, records, first)
    origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
    attributes = described(events.layers.layers)
    return layered(
        rows,
        pl.Series([list(each.layers) for each in origins], dtype=pl.List(pl.String)),
        steps=pl.Series(events.run),
        describe=attributes.get,
    )


def _nodes(events: NodeEvents, records: OrtRecords, first: int) -> SpanRows:
    start, end = _times(events)
    thread = named(events.thread, records.threads)
    rows = nodes(_events(events, start, end))
    origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
    if events.arguments:
        rows = rows.with_columns(_inputs(rows, origins))
    return rows.with_columns(
        pl.Series("thread", thread),
        pl.Series("id", np.arange(first, first + rows.height)),
        pl.Series("parent_id", _parents(events, start, records), dtype=pl.Int64),
        pl.lit(US + events.uncertainty_ns, pl.Int64).alias("uncertainty_ns"),
        pl.lit("onnxruntime").alias("attr.framework"),
        _texts("attr.scope", (".".join(each.layers) or None for each in origins)),
        _texts("attr.source_ops", (", ".join(each.sources) or None for each in origins)),
        pl.Series(
            "attr.fused_layers",
            [list(each.fused_layers) or None for each in origins],
            dtype=pl.List(pl.String),
        ),
    )


def _inputs(rows: SpanRows, origins: Sequence[NodeOrigin]) -> list[pl.Series]:
    """Return all inputs of nodes, with the weights that ONNX Runtime packed, and then forgot.

    Of such weights its profile tells neither shape nor size.
    """
    shapes, dtypes, sizes = [], [], []
    columns = ("attr.input_shapes", "attr.input_dtypes", "attr.parameter_bytes")
    for shape, dtype, size, origin in zip(*(rows[name] for name in columns), origins, strict=True):
        told = [] if shape is None else list(zip(shape.to_list(), dtype, strict=True))
        weights = [each for each in origin.weights if each is not None]
        if len(told) == len(origin.weights) - len(weights):
            rest = iter(told)
            told = [
                next(rest) if each is None else (list(each.shape), each.dtype)
                for each in origin.weights
            ]
            size = sum(each.nbytes for each in weights)  # noqa: PLW2901
        shapes.append([each for each, _ in told])
        dtypes.append([each for _, each in told])
        sizes.append(size)
    return [
        pl.Series(columns[0], shapes, dtype=pl.List(pl.List(pl.Int64))),
        pl.Series(columns[1], dtypes, dtype=pl.List(pl.String)),
        pl.Series(columns[2], sizes, dtype=pl.Int64),
    ]


def _texts(name: str, values: Iterable[str | None]) -> pl.Series:
    return pl.Series(name, list(values), dtype=pl.String)


def _times(events: NodeEvents) -> tuple[Integers, Integers]:
    """Return start and end of each event; on its thread none begins before the last has ended.

    Both times were cut to whole microseconds, so that on average half of one is missing.
    """
    start = events.start_ns + US // 2
    end = start + events.duration_ns + US // 2
    order = np.lexsort((-events.duration_ns, start, events.thread))
    before, after = order[:-1], order[1:]
    follows = (events.thread[before] == events.thread[after]) & (
        events.start_ns[before] + events.duration_ns[before] <= events.start_ns[after]
    )
    end[before] = np.where(follows, np.minimum(end[before], start[after]), end[before])
    return start, end


def _events(events: NodeEvents, start: Integers, end: Integers) -> list[Event]:
    told: Sequence[Mapping[str, Any]]
    if events.arguments:
        told = [msgspec.json.decode(text) for text in events.arguments]
    else:
        facts = [{"op_name": op, "provider": provider} for _, op, provider in events.nodes]
        told = [facts[number] for number in events.node.tolist()]
    names = [name + NODE for name, _, _ in events.nodes]
    times = zip(start.tolist(), end.tolist(), strict=True)
    return [
        Event(names[number], "Node", 0, *when, args)
        for number, when, args in zip(events.node.tolist(), times, told, strict=True)
    ]


def _parents(events: NodeEvents, start: Integers, records: OrtRecords) -> list[int | None]:
    """Return the run that each node on a thread of ONNX Runtime lies in; others lie by time."""
    runs = [(number, part) for number, part in enumerate(records.parts, 1)]
    own = np.isin(events.thread, list(records.threads))
    return [
        None if here else _around(runs, at) for here, at in zip(own, start.tolist(), strict=True)
    ]


def _around(runs: Sequence[tuple[int, Part]], at: int) -> int:
    inside = (number for number, run in runs if run.start_ns <= at <= run.end_ns)
    return next(inside, _ROOT)
