"""Settings: the metadata of traces in, what differs in how and where they were measured out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.comparison.whole import calls_of
from xsp.text import NOTHING
from xsp.trace import Trace, attribute_column

# Facts of the environment that differ between any two processes, and say nothing of speed.
_FLEETING = frozenset({"pid", "executable", "available_memory_bytes", "host", "host_id"})
_CALLED = {"gpus": "devices"}  # as importers call them
_SHAPES, _TYPES = pl.List(pl.List(pl.Int64)), pl.List(pl.String)


def differing_settings(names: Sequence[str], traces: Sequence[Trace]) -> pl.DataFrame:
    """Return a row for each setting in which traces differ.

    Returns:
        Columns `setting`, and one with the name of each trace; null where a trace does not tell.
    """
    known = [dict(_settings(trace)) for trace in traces]
    keys = dict.fromkeys(key for settings in known for key in settings)
    # Of what one of xsp's own traces lacks it says something, of what another tool told nothing.
    imported = any(tool_of(trace) for trace in traces)
    rows = [
        {"setting": key, **dict(zip(names, values, strict=True))}
        for key in keys
        if _differ(values := [settings.get(key) for settings in known], skip_unknown=imported)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("setting", *names), pl.String))


def _differ(values: Sequence[str | None], *, skip_unknown: bool) -> bool:
    return len({value for value in values if value is not None or not skip_unknown}) > 1


def intervals_of(trace: Trace) -> str | None:
    """Return what a trace says that its intervals hold; None where it does not tell."""
    told = trace.metadata.get("intervals")
    return told if isinstance(told, str) else None


def holds_processes(trace: Trace) -> bool:
    """Return whether the differences between processes are in the trace's intervals."""
    return (intervals_of(trace) or "").startswith("across")


def tool_of(trace: Trace) -> str | None:
    """Return the tool that recorded the trace, None for xsp itself."""
    imported = trace.metadata.get("imported")
    return None if imported is None else str(imported.get("tool") or "another tool")


def _settings(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield the settings that may explain a difference, those that explain most first."""
    metadata = trace.metadata
    environment = metadata.get("environment") or {}
    yield "recorded by", tool_of(trace) or "xsp"
    yield from _inputs(trace)
    if host := environment.get("host_id"):
        yield "machine", f"{environment.get('host', NOTHING)} ({str(host)[:8]})"
    for key, value in environment.items():
        if key not in _FLEETING:
            yield from _flat(_CALLED.get(key, key.replace("_", " ")), value)
    for key, value in (metadata.get("plan") or {}).items():
        yield from _flat(f"plan: {key}", value)
    yield "intervals", intervals_of(trace) or NOTHING
    yield "problems", ", ".join(sorted({each.code for each in trace.problems})) or NOTHING


def _inputs(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield shapes and types of what the outermost module was called with."""
    shapes = attribute_column(calls_of(trace), "input_shapes", _SHAPES).drop_nulls()
    types = attribute_column(calls_of(trace), "input_dtypes", _TYPES).drop_nulls()
    if len(shapes):
        sizes = ["×".join(map(str, shape or ())) for shape in shapes[0].to_list()]
        yield "inputs", ", ".join(sizes)
    if len(types):
        yield "input types", ", ".join(str(each) for each in types[0].to_list())


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for inner, part in value.items():
            prefix = "" if key == "versions" else f"{key}: "
            yield from _flat(f"{prefix}{inner}", part)
    elif isinstance(value, (list, tuple)):
        texts = [_text(part) for part in value]
        yield key, ", ".join(texts) or NOTHING
    else:
        yield key, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(_text(part) for part in value.values())
    return NOTHING if value is None else str(value)
