"""Makes a row of each model that was evaluated in a trace, with its batch size and latency.

The trace of a model has one row. The trace of a program has one for each group of like steps,
whose times are those of one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.matching import Ints
from xsp.trace import Trace

MEANINGS = {
    "model": "Name of what was evaluated: that of the trace, or of a group of like steps.",
    "settings": "With what settings it ran, besides the batch size, as far as they are known.",
    "batch": "Samples in a step: as was set, or the leading size of the first input.",
    "latency_ns": "Latency of a step without the profiler.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "throughput_per_s": "Samples per second: the batch size over the latency.",
    "throughput_low_per_s": "Lower end of its 95 % interval.",
    "throughput_high_per_s": "Upper end of its 95 % interval.",
}

_SCHEMA: dict[str, Any] = {
    "trace": pl.Int64, "series": pl.String, "spans": pl.List(pl.Int64),
    "model": pl.String, "settings": pl.String, "batch": pl.Int64,
    "latency_ns": pl.Float64, "latency_low_ns": pl.Float64, "latency_high_ns": pl.Float64,
}  # fmt: skip


def step_rows(traces: tuple[Trace, ...]) -> pl.DataFrame:
    """Return a row for each model evaluated in some traces, in the order of the traces.

    Returns:
        The columns of `MEANINGS`; `trace`, the number of the trace; `series`, what steps of
        one model at several batch sizes have in common; and `spans`, the rows in the trace of the
        spans that stand for these steps, of which the first shows one of them whole.
    """
    found = [
        {"trace": number, **row}
        for number, trace in enumerate(traces)
        for row in (_of_groups(trace) or [_of_root(trace)])
    ]
    latency = [pl.col(name) for name in ("latency_ns", "latency_high_ns", "latency_low_ns")]
    names = ("throughput_per_s", "throughput_low_per_s", "throughput_high_per_s")
    rates = (
        pl.when(each > 0).then(1e9 * pl.col("batch") / each).alias(name)
        for name, each in zip(names, latency, strict=True)
    )
    return pl.DataFrame(found, schema=_SCHEMA, orient="row").with_columns(rates)


def inside(tree: Tree, evaluations: Sequence[int]) -> Ints:
    """Return for each span which of some steps it is in, by their order; -1 for none."""
    number = np.full(len(tree.parent) + 1, -1)
    number[list(evaluations)] = np.arange(len(evaluations))
    among = number[:-1] >= 0
    return number[np.where(among, np.arange(len(among)), tree.nearest(among))]


def _of_root(trace: Trace) -> dict[str, Any]:
    root = trace.root
    return {
        "series": trace.name,
        "model": trace.name,
        "settings": _text(_said(trace.metadata.get("settings", {}))),
        "batch": batch_of(trace),
        "spans": [0],
        "latency_ns": root.latency_ns,
        "latency_low_ns": root.latency_low_ns,
        "latency_high_ns": root.latency_high_ns,
    }


def _of_groups(trace: Trace) -> list[dict[str, Any]]:
    """Return a row for each group of a program, that with most time first."""
    groups = trace.metadata.get("groups", ())
    if not groups:
        return []
    spans = trace.spans
    regions = np.flatnonzero((spans["kind"] == Kind.REGION.value).to_numpy())
    names = spans["name"][regions].to_numpy()
    return [_of_group(group, regions[names == group["name"]]) for group in groups]


def _of_group(group: Mapping[str, Any], rows: Ints) -> dict[str, Any]:
    return {
        "series": f"{group.get('model')} {group.get('phase')}",
        "model": group["name"],
        "settings": _text(_kept(group)),
        "batch": group.get("samples"),
        "spans": rows.tolist(),
        "latency_ns": group.get("latency_ns"),
        "latency_low_ns": group.get("latency_low_ns"),
        "latency_high_ns": group.get("latency_high_ns"),
    }


def _text(parts: Iterator[str]) -> str | None:
    return ", ".join(parts) or None


def _said(settings: Mapping[str, Any]) -> Iterator[str]:
    """Return each setting besides the batch size in words.

    >>> list(_said({"batch": 8, "threads": 2, "compiled": False, "train": True}))
    ['threads 2', 'train']
    """
    for name, value in settings.items():
        if value is True:
            yield name
        elif name != "batch" and value is not None and value is not False:
            yield f"{name} {value}"


def _kept(group: Mapping[str, Any]) -> Iterator[str]:
    """Write a group's shape without its batch size, as `n×3×224×224`.

    >>> list(_kept({"variant": "SGD", "samples": 8, "shapes": ["8×3 float32", "8 int64"]}))
    ['SGD', 'n×3 float32', 'n int64']
    """
    if group.get("variant"):
        yield group["variant"]
    for shape in group.get("shapes", ()):
        size, *rest = re.split("([× ])", shape, maxsplit=1)
        yield "".join(["n" if size == str(group.get("samples")) else size, *rest])


def batch_of(trace: Trace) -> int | None:
    """How many samples a step of a trace takes; None where that is not known.

    It is the batch size that was set, else the leading size of the first input of the layer that
    lies around all others. It is not known where there are several such layers, where the input
    has one dimension, where no layer tells what it was given, and of whole programs.
    """
    if batch := trace.metadata.get("settings", {}).get("batch"):
        return int(batch)
    tree = Tree.of(trace)
    if tree.attribute("whole_block", pl.Boolean)[0]:
        return None
    layers = (
        tree.is_of(Kind.LAYER)
        & (tree.attribute("phase") != "backward").fill_null(value=True).to_numpy()
    )
    outermost = np.flatnonzero(layers & (tree.nearest(layers) < 0))
    if len(outermost) != 1:
        return None
    shape = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))[int(outermost[0])]
    if shape is None or not len(shape) or shape[0] is None or len(shape[0]) < 2:
        return None
    return int(shape[0][0])
