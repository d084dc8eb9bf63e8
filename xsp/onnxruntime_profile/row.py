"""Makes rows of the graph's nodes from events of ONNX Runtime's profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.onnxruntime_profile.event import NODE, Event
from xsp.provider import SpanRows, no_rows, span_rows

_DTYPES = {"float": "float32", "double": "float64"}
_SIZES = {
    "attr.parameter_bytes": "parameter_size",
    "attr.input_bytes": "activation_size",
    "attr.output_bytes": "output_size",
}


def rows_of(
    kind: Kind, events: Sequence[Event], columns: Mapping[str, Any] | None = None
) -> SpanRows:
    """Return rows of one kind; names, times and threads are those of events.

    Args:
        kind: What all of them are.
        events: One per row.
        columns: Further columns, and columns in the place of these.
    """
    if not events:
        return no_rows()
    own = {
        "kind": kind.value,
        "name": [event.name for event in events],
        "start_ns": [event.start for event in events],
        "end_ns": [event.end for event in events],
        "thread": [event.thread for event in events],
    }
    return span_rows({**own, **(columns or {})})


def nodes(events: Sequence[Event]) -> SpanRows:
    """Return rows of nodes; the id of each is its place among all events, from 1."""
    places = [place for place, event in enumerate(events, 1) if event.is_node]
    own = [events[place - 1] for place in places]
    node = [event.name.removesuffix(NODE) for event in own]
    columns: dict[str, Any] = {
        "id": places,
        "name": [event.text("op_name") or name for event, name in zip(own, node, strict=True)],
        "attr.framework": "onnxruntime",
        "attr.node": node,
        "attr.execution_provider": pl.Series(
            [event.text("provider") for event in own], dtype=pl.String
        ),
        **_tensors("input", [event.args.get("input_type_shape") for event in own]),
        **_tensors("output", [event.args.get("output_type_shape") for event in own]),
    }
    for column, name in _SIZES.items():
        columns[column] = pl.Series([event.number(name) for event in own], dtype=pl.Int64)
    return rows_of(Kind.OP, own, columns)


def _tensors(side: str, told: Sequence[Any]) -> dict[str, pl.Series]:
    """Return columns of shapes and element types, told as `[{"float": [4, 16]}]`."""
    pairs: list[list[tuple[str, Any]] | None] = [
        [pair for tensor in tensors if isinstance(tensor, dict) for pair in tensor.items()]
        if isinstance(tensors, list)
        else None
        for tensors in told
    ]
    shapes = [None if each is None else [_shape(shape) for _, shape in each] for each in pairs]
    dtypes = [
        None if each is None else [_DTYPES.get(name, name) for name, _ in each] for each in pairs
    ]
    return {
        f"attr.{side}_shapes": pl.Series(shapes, dtype=pl.List(pl.List(pl.Int64))),
        f"attr.{side}_dtypes": pl.Series(dtypes, dtype=pl.List(pl.String)),
    }


def _shape(told: Any) -> list[int]:
    sizes = told if isinstance(told, list) else []
    return [size for size in sizes if isinstance(size, int) and abs(size) < 1 << 62]
