"""Makes rows of layers, and of model calls around them, from records of calls. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.call_row import call_index, model_rows, shape_columns
from xsp_levels.framework.keras.record import LayerRecords, ThreadCalls


def layer_rows(records: LayerRecords) -> SpanRows:
    """Return a row of kind layer per call of a layer."""
    # A visit has few rows: queries would take longer than the rows themselves.
    threads = [thread for thread in records.threads if len(thread.layer)]
    if not threads:
        return no_rows()
    calls = pl.concat([_calls(thread) for thread in threads], how="diagonal_relaxed")
    # `[calls, 4]`: number of the thread, group, outermost layer and layer of each.
    keys = np.concatenate(
        [
            np.stack([np.full_like(t.group, number), t.group, t.outermost, t.layer], axis=1)
            for number, t in enumerate(threads)
        ]
    )
    calls = calls.hstack([call_index(keys)])
    homes = {home: at for at, home in enumerate(records.homes)}
    at = [homes[outermost, layer] for _, _, outermost, layer in keys.tolist()]
    calls = calls.hstack(_layers(records)[at])
    return span_rows({"kind": Kind.LAYER.value, **calls.to_dict(as_series=True)})


def predict_rows(records: LayerRecords, name: str) -> SpanRows:
    """Return a row of kind region per outermost call of a model.

    Left out are calls of layers without variables, and of layers that another layer called
    outermost holds.
    """
    calls = (
        (int(thread.start_ns[i]), int(thread.end_ns[i]), thread.thread, thread.errors.get(i))
        for thread in records.threads
        for i in np.unique(thread.group, return_index=True)[1].tolist()
        if _is_model(records, int(thread.layer[i]))
    )
    return model_rows(calls, name)


def _is_model(records: LayerRecords, layer: int) -> bool:
    known = records.layers[layer]
    held = known.parameter_bytes or known.buffer_bytes
    return bool(held) and layer not in records.nested_roots


def _calls(thread: ThreadCalls) -> pl.DataFrame:
    count = len(thread.layer)
    columns: dict[str, Any] = {
        "start_ns": thread.start_ns,
        "end_ns": thread.end_ns,
        "thread": np.full(count, thread.thread, np.int64),
        "attr.error": pl.Series([thread.errors.get(i) for i in range(count)], dtype=pl.String),
    }
    return pl.DataFrame(columns | (shape_columns(thread.notes) if thread.notes else {}))


def _layers(records: LayerRecords) -> pl.DataFrame:
    """Return name and attributes of each pair of `LayerRecords.homes`, in their order."""
    facts = [records.layers[layer] for _, layer in records.homes]
    paths = [None if path is None else ".".join(path) for path in records.homes.values()]
    names = [
        path[-1] if path else records.names[layer] for (_, layer), path in records.homes.items()
    ]
    return pl.DataFrame(
        {
            "name": names,
            "attr.framework": ["keras"] * len(names),
            "attr.module_path": pl.Series(paths, dtype=pl.String),
            "attr.module_class": [fact.class_name for fact in facts],
            "attr.module_type": [fact.type_name for fact in facts],
            "attr.phase": ["forward"] * len(names),
            "attr.parameter_bytes": [fact.parameter_bytes for fact in facts],
            "attr.buffer_bytes": [fact.buffer_bytes for fact in facts],
        }
    )
