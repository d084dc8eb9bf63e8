"""Makes rows of module calls: of layers, and of the model calls around them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.framework.call_row import call_index, model_rows, shape_columns
from xsp_levels.framework.torch.module.module_path import Integers, LayerRecords, ThreadCalls
from xsp_levels.framework.torch.module.source_line import caller_columns

Memory = Callable[[Integers, Integers, Integers], Mapping[str, Any]]


def layer_rows(records: LayerRecords, memory: Memory | None = None) -> SpanRows:
    """Return a row of kind layer per module call.

    Args:
        records: The calls.
        memory: Returns attribute columns, given start, end (ns) and thread of the calls.
    """
    # A visit has few rows: queries would take longer than the rows themselves.
    threads = [thread for thread in records.threads if len(thread.module)]
    if not threads:
        return no_rows()
    calls = pl.concat([_calls(thread) for thread in threads], how="diagonal_relaxed")
    # `[calls, 4]`: number of the thread, group, outermost module and module of each.
    keys = np.concatenate(
        [
            np.stack([np.full_like(t.group, number), t.group, t.outermost, t.module], axis=1)
            for number, t in enumerate(threads)
        ]
    )
    calls = calls.hstack([call_index(keys)])
    homes = {home: at for at, home in enumerate(records.homes or {})}
    at = [homes[outermost, module] for _, _, outermost, module in keys.tolist()]
    calls = calls.hstack(_modules(records)[at])
    if memory is not None:
        where = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
        calls = calls.with_columns(**memory(*where))
    return span_rows({"kind": Kind.LAYER.value, **calls.to_dict(as_series=True)})


def predict_rows(
    records: LayerRecords, name: str, backwards: Sequence[tuple[int, int]] = ()
) -> SpanRows:
    """Return a row of kind region per outermost call of a model.

    Left out are calls of modules without parameters (a loss, a transform), calls of modules
    that are registered inside another module called outermost, and calls that lie within the
    time of a module call on another thread, and calls of functions in which a backward pass ran.

    Args:
        records: The calls.
        name: Name of the rows.
        backwards: Begin and end of each backward pass.
    """
    calls = (
        (int(thread.start_ns[i]), int(thread.end_ns[i]), thread.thread, thread.errors.get(i))
        for thread in records.threads
        for i in np.unique(thread.group, return_index=True)[1].tolist()
        if _is_models(records, thread, i, backwards)
    )
    return model_rows(calls, name)


def _is_models(
    records: LayerRecords, thread: ThreadCalls, i: int, backwards: Sequence[tuple[int, int]]
) -> bool:
    module, start, end = int(thread.module[i]), thread.start_ns[i], thread.end_ns[i]
    facts = records.modules[module]
    if not facts.parameters or module in records.nested_roots:
        return False
    if facts.function and any(start <= b <= e <= end for b, e in backwards):
        return False
    return not any(
        bool(np.any((other.start_ns < start) & (other.end_ns > end)))
        for other in records.threads
        if other is not thread
    )


def _calls(thread: ThreadCalls) -> pl.DataFrame:
    columns: dict[str, Any] = {
        "start_ns": thread.start_ns,
        "end_ns": thread.end_ns,
        "thread": np.full(len(thread.module), thread.thread, np.int64),
        "attr.error": pl.Series(
            [thread.errors.get(i) for i in range(len(thread.module))], dtype=pl.String
        ),
    }
    if thread.notes:
        columns |= shape_columns(thread.notes)
    if thread.places:
        columns |= caller_columns(list(thread.places))
    return pl.DataFrame(columns)


def _modules(records: LayerRecords) -> pl.DataFrame:
    homes = records.homes or {}
    facts = [records.modules[module] for _, module in homes]
    paths = list(homes.values())
    names = [
        path.rpartition(".")[2] if path else fact.name or fact.class_name
        for path, fact in zip(paths, facts, strict=True)
    ]
    of = [fact.framework for fact in facts]
    return pl.DataFrame(
        {
            "name": names,
            **({"attr.framework": pl.Series(of, dtype=pl.String)} if any(of) else {}),
            "attr.module_path": pl.Series(paths, dtype=pl.String),
            "attr.module_class": [fact.class_name for fact in facts],
            "attr.module_type": [fact.type_name for fact in facts],
            "attr.phase": ["forward"] * len(names),
            "attr.parameter_bytes": [fact.parameter_bytes for fact in facts],
            "attr.buffer_bytes": [fact.buffer_bytes for fact in facts],
            **{
                f"attr.{name}": pl.Series([getattr(fact, name) for fact in facts], dtype=pl.Int64)
                for name in ("shared_parameter_bytes", "frozen_parameter_bytes")
            },
        }
    )
