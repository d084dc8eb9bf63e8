"""Compares what is known of traces as a whole: quantities of the model, and settings.

The settings say how and where traces were measured, and of which frameworks they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses import DeviceWork, Tree, batch_of, step_device_ns
from xsp.answer.comparison.significance import Differences, Estimates, Verdict, with_ends
from xsp.level import Kind
from xsp.matching import half_width, summarize
from xsp.text import NOTHING
from xsp.trace import Trace, attribute_column

LATENCY, DEVICE, THROUGHPUT, MEMORY = "latency_ns", "device_ns", "throughput_per_s", "peak_bytes"
ENERGY = "energy_j"
QUANTITIES = (LATENCY, DEVICE, THROUGHPUT, MEMORY, ENERGY)

SUMMARY_COLUMNS = {
    "trace": "Name of the trace that is compared with the first.",
    "quantity": "What is compared, with its unit: `latency_ns`, `device_ns` (time in which a "
    "device worked), `throughput_per_s` (samples per second), `peak_bytes` (most memory that an "
    "step held above what it began with) or `energy_j`.",
    **with_ends("a", "", "Of the first trace."),
    **with_ends("b", "", "Of the trace that is compared."),
    **with_ends("difference", "", "`b` less `a`."),
    "ratio": "`b` over `a`.",
    "p_value": "Chance of a difference as large or larger, were there none; each quantity is "
    "tested alone.",
    "verdict": "`slower`, `faster`, `more` or `less` where that chance is below 5 %, otherwise "
    "`not significant`; `unknown` where an interval is missing.",
}

_LIST = pl.List(pl.List(pl.Int64))
# Facts of the environment that differ between any two processes, and say nothing of speed.
_FLEETING = frozenset({"pid", "executable", "available_memory_bytes", "host", "host_id"})
_CALLED = {"gpus": "devices"}  # as importers call them


def quantities(trace: Trace, *, widen: bool) -> Estimates:
    """Return the `QUANTITIES` of a trace, NaN where the trace does not have one.

    Args:
        trace: Any trace.
        widen: Whether the assumed spread of processes goes into the intervals.
    """
    root = trace.root
    latency = _estimate(root.latency_ns, root.latency_low_ns, root.latency_high_ns)
    if widen:
        latency = latency.widened(np.ones(1, np.bool_))
    # The most memory held within a span; it is counted, and so without an error.
    peak = attribute_column(trace.spans, "peak_bytes", pl.Int64).max()
    value = float(peak) if isinstance(peak, int) else None
    memory = _estimate(value, value, value)
    energy = _estimate(*map(root.attributes.get, (ENERGY, "energy_low_j", "energy_high_j")))
    parts = (latency, _device(trace), _throughput(trace, latency), memory, energy)
    return Estimates(
        *(np.concatenate([getattr(each, end) for each in parts]) for end in Estimates.__slots__)
    )


def summary(name: str, a: Estimates, b: Estimates) -> pl.DataFrame:
    """Return the table of `SUMMARY_COLUMNS`, without quantities that a trace does not have."""
    found = Differences.between(a, b)
    # Verdicts in words that fit: more throughput is faster; memory and energy have no speed.
    other: dict[str, dict[str, str]] = {
        THROUGHPUT: {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER},
        MEMORY: {Verdict.SLOWER: Verdict.MORE, Verdict.FASTER: Verdict.LESS},
        ENERGY: {Verdict.SLOWER: Verdict.MORE, Verdict.FASTER: Verdict.LESS},
    }
    verdicts = found.verdicts(found.p, 0.05)
    words = [
        str(other.get(quantity, {}).get(verdict, verdict))
        for quantity, verdict in zip(QUANTITIES, verdicts, strict=True)
    ]
    columns = {
        "trace": pl.Series([name] * len(QUANTITIES), dtype=pl.String),
        "quantity": QUANTITIES,
        **{"a": a.value, "a_low": a.low, "a_high": a.high},
        **{"b": b.value, "b_low": b.low, "b_high": b.high},
        "difference": found.value,
        "difference_low": found.value - found.half,
        "difference_high": found.value + found.half,
        "ratio": b.value / np.where(a.value == 0, np.nan, a.value),
        "p_value": found.p,
        "verdict": words,
    }
    table = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    return table.filter(pl.col("a").is_not_null(), pl.col("b").is_not_null())


def inputs_of(trace: Trace) -> tuple[pl.Series, pl.Series]:
    """Return the shapes and the types of what each layer was given, without those not known.

    Operators do not tell: the first of a model may be given its weights before its inputs.
    """
    layers = trace.layers
    shapes = attribute_column(layers, "input_shapes", _LIST).drop_nulls()
    return shapes, attribute_column(layers, "input_dtypes", pl.List(pl.String)).drop_nulls()


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimates:
    ends = (math.nan if end is None else float(end) for end in (value, low, high))
    return Estimates(*(np.array([end]) for end in ends))


def _device(trace: Trace) -> Estimates:
    """Return how long devices worked, with the interval over steps.

    Where steps are not kept, the interval is in proportion to that of the work's sum.
    """
    value, steps_ns = trace.root.device_ns, step_device_ns(trace)
    if steps_ns is not None:
        steps_ns = steps_ns[:, None]
        value, half = float(summarize(steps_ns)[0]), float(half_width(steps_ns)[0])
        return _estimate(value, value - half, value + half)
    total, low, high = (float(end.sum()) for end in DeviceWork.of(trace).parts_ns)
    if value is None or not total > 0:
        return _estimate(value, None, None)
    return _estimate(value, value * low / total, value * high / total)


def _throughput(trace: Trace, latency: Estimates) -> Estimates:
    samples = batch_of(trace)
    if samples is None:
        return _estimate(None, None, None)
    with np.errstate(divide="ignore"):
        value, low, high = (
            samples * 1e9 / end for end in (latency.value, latency.high, latency.low)
        )
    return Estimates(value, low, high)


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
    """Read the scope of a trace's intervals; None if the trace does not say it."""
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
    # Yield shapes and types of what the outermost module was called with.
    shapes, types = inputs_of(trace)
    if len(shapes):
        sizes = ["×".join(map(str, shape or ())) for shape in shapes[0].to_list()]
        yield "inputs", ", ".join(sizes)
    if len(types):
        yield "input types", ", ".join(str(each) for each in types[0].to_list())
    if host := environment.get("host_id"):
        yield "machine", f"{environment.get('host', NOTHING)} ({str(host)[:8]})"
    for key, value in environment.items():
        if key not in _FLEETING:
            yield from _flat(_CALLED.get(key, key.replace("_", " ")), value)
    for key, value in (metadata.get("plan") or {}).items():
        yield from _flat(f"plan: {key}", value)
    yield "intervals", intervals_of(trace) or NOTHING
    yield "warnings", ", ".join(sorted({each.code for each in trace.warnings})) or NOTHING


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


def frameworks_of(trace: Trace) -> frozenset[str]:
    """Return the frameworks that a trace's layers are of; its operators, where it has no layers.

    Spans without a statement are PyTorch's where a class of a module or a namespace says so.
    """
    tree = Tree.of(trace)
    layers = tree.is_of(Kind.LAYER)
    among = pl.Series(layers if layers.any() else tree.is_of(Kind.OP))
    classes, names = tree.attribute("module_class"), tree.spans["name"]
    torch = pl.select(
        pl.when(classes.is_not_null() | names.str.contains("::")).then(pl.lit("pytorch"))
    ).to_series()
    stated = pl.select(pl.coalesce(tree.attribute("framework"), torch)).to_series()
    return frozenset(stated.filter(among).drop_nulls().unique().to_list())
