"""Records of module calls in; rows of layers, and of the model calls around them, out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.torch.module_path import Integers, LayerRecords, ThreadCalls
from xsp_levels.framework.torch.source_line import caller_columns

Memory = Callable[[Integers, Integers, Integers], Mapping[str, Any]]

_SHAPES = pl.List(pl.List(pl.Int64))
_DTYPES = pl.List(pl.String)


def layer_rows(records: LayerRecords, memory: Memory | None = None) -> SpanRows:
    """Return a row of kind layer per module call.

    Args:
        records: The calls.
        memory: Returns attribute columns, given start, end (ns) and thread of the calls.
    """
    frames = [
        _calls(thread).with_columns(buffer=pl.lit(number))
        for number, thread in enumerate(records.threads)
        if len(thread.module)
    ]
    if not frames:
        return no_rows()
    calls = pl.concat(frames, how="diagonal_relaxed").join(
        _modules(records), on=["outermost", "module"], how="left", maintain_order="left"
    )
    if memory is not None:
        where = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
        calls = calls.with_columns(**memory(*where))
    same = ["buffer", "group", "module"]
    ordinal = pl.when(pl.len().over(same) > 1).then(pl.int_range(pl.len()).over(same))
    calls = calls.with_columns(ordinal.alias("attr.call_index"))
    kept = [c for c in calls.columns if c not in ("outermost", "module", "group", "buffer")]
    return span_rows({"kind": Kind.LAYER.value, **calls.select(kept).to_dict(as_series=True)})


def predict_rows(records: LayerRecords, name: str) -> SpanRows:
    """Return a row of kind pipeline per outermost call of a model.

    Left out are calls of modules without parameters (a loss, a transform), calls of modules
    that are registered inside another module called outermost, and calls that lie within the
    time of a module call on another thread.
    """
    rows = [
        row
        for thread in records.threads
        for row in _outermost(records, thread)
        if not _enclosed(records, thread, row)
    ]
    if not rows:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": name,
            "start_ns": [start for _, start, _, _ in rows],
            "end_ns": [end for _, _, end, _ in rows],
            "thread": [thread for thread, _, _, _ in rows],
            "attr.error": pl.Series([error for _, _, _, error in rows], dtype=pl.String),
        }
    )


def _calls(thread: ThreadCalls) -> pl.DataFrame:
    columns: dict[str, Any] = {
        "start_ns": thread.start_ns,
        "end_ns": thread.end_ns,
        "group": thread.group,
        "outermost": thread.outermost,
        "module": thread.module,
        "attr.error": pl.Series(
            [thread.errors.get(i) for i in range(len(thread.module))], dtype=pl.String
        ),
    }
    if thread.notes:
        columns |= _shape_columns(thread)
    if thread.places:
        columns |= caller_columns(list(thread.places))
    return pl.DataFrame(columns).with_columns(thread=pl.lit(thread.thread, dtype=pl.Int64))


def _shape_columns(thread: ThreadCalls) -> dict[str, Any]:
    given = [note[0] or (None, None) for note in thread.notes]
    got = [note[1] or (None, None) for note in thread.notes]
    return {
        "attr.input_shapes": _series([g[0] for g in given], _SHAPES),
        "attr.input_dtypes": _series([g[1] for g in given], _DTYPES),
        "attr.output_shapes": _series([g[0] for g in got], _SHAPES),
        "attr.output_dtypes": _series([g[1] for g in got], _DTYPES),
    }


def _series(values: list[Any], dtype: Any) -> pl.Series:
    return pl.Series([_lists(value) for value in values], dtype=dtype)


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _modules(records: LayerRecords) -> pl.DataFrame:
    homes = records.homes or {}
    facts = [records.modules[module] for _, module in homes]
    paths = list(homes.values())
    names = [
        path.rpartition(".")[2] if path else fact.class_name
        for path, fact in zip(paths, facts, strict=True)
    ]
    return pl.DataFrame(
        {
            "outermost": [outermost for outermost, _ in homes],
            "module": [module for _, module in homes],
            "name": names,
            "attr.module_path": pl.Series(paths, dtype=pl.String),
            "attr.module_class": [fact.class_name for fact in facts],
            "attr.module_type": [fact.type_name for fact in facts],
            "attr.phase": "forward",
            "attr.parameter_bytes": [fact.parameter_bytes for fact in facts],
            "attr.buffer_bytes": [fact.buffer_bytes for fact in facts],
        }
    )


_Row = tuple[int, int, int, "str | None"]


def _outermost(records: LayerRecords, thread: ThreadCalls) -> list[_Row]:
    first = np.unique(thread.group, return_index=True)[1].tolist()
    return [
        (
            thread.thread,
            int(thread.start_ns[i]),
            int(thread.end_ns[i]),
            thread.errors.get(i),
        )
        for i in first
        if records.modules[thread.module[i]].parameters
        and int(thread.module[i]) not in records.nested_roots
    ]


def _enclosed(records: LayerRecords, thread: ThreadCalls, row: _Row) -> bool:
    _, start, end, _ = row
    return any(
        bool(np.any((other.start_ns < start) & (other.end_ns > end)))
        for other in records.threads
        if other is not thread
    )
