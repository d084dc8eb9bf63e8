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
    first = len(records.parts) + 1
    frames = []
    for events in records.events:
        if not len(events.node):
            continue
        rows = _nodes(events, records, first)
        origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
        attributes = described(events.layers.layers)
        frames += [
            layered(
                rows,
                pl.Series([list(each.layers) for each in origins], dtype=pl.List(pl.String)),
                steps=pl.Series(events.run),
                describe=attributes.get,
            )
        ]
        first = int(frames[-1]["id"].fill_null(0).max() or 0) + first + 1
    return concat_rows(frames)


def _nodes(events: NodeEvents, records: OrtRecords, first: int) -> SpanRows:
    start, end = _times(events)
    thread = named(events.thread, records.threads)
    rows = nodes(_events(events, start, end))
    origins = [events.layers.nodes.get(name, NodeOrigin()) for name in rows["attr.node"]]
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
