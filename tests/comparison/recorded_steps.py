"""Recordings of steps in which kernels take given times, for tests of what devices did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from xsp.importers import Recording, trace_of
from xsp.provider import span_rows
from xsp.trace import Trace

STEP_NS, GAP_NS = 2_000_000, 60_000
SHAPES = pl.List(pl.List(pl.Int64))
Step = Mapping[str, int]  # durations of kernels in ns by `layer/operator/kernel`


def recorded(*steps: Step, sizes: Mapping[str, int] | None = None) -> Trace:
    """Return the trace of a recording: in each step a model calls a layer for each kernel.

    Args:
        steps: What each step did on the device.
        sizes: Size of the operand of operators, by name; 64 if it is not given.
    """
    table: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        begin = done = number * STEP_NS
        table.append(_host("layer", "Net", begin, begin + 1_000_000))
        for place, (path, length) in enumerate(step.items()):
            layer, operator, kernel = path.split("/")
            id, at = 1_000 * number + place, begin + 1_000 + place * GAP_NS
            size = (sizes or {}).get(operator, 64)
            start = max(at + 8_000, done)  # one stream does one thing after the other
            done = start + length
            table += [
                _host("layer", layer, at, at + 50_000),
                _host("op", operator, at + 1_000, at + 40_000) | {"shapes": [[size, size]]},
                _host("launch", "cudaLaunchKernel", at + 2_000, at + 6_000) | {"id": id},
                {"kind": "kernel", "name": kernel, "begin": start, "end": done, "device": 0,
                 "stream": 7, "id": id},
            ]  # fmt: skip
    return trace_of(Recording("Toy Profiler", _rows(table), _marks(len(steps))), "steps")


def _host(kind: str, name: str, begin: int, end: int) -> dict[str, Any]:
    return {"kind": kind, "name": name, "begin": begin, "end": end, "thread": 1}


def _rows(table: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    def column(name: str) -> list[Any]:
        return [row.get(name) for row in table]

    return span_rows(
        {
            "kind": column("kind"),
            "name": column("name"),
            "start_ns": column("begin"),
            "end_ns": column("end"),
            "thread": column("thread"),
            "device": column("device"),
            "stream": column("stream"),
            "correlation_id": column("id"),
            "attr.input_shapes": pl.Series(column("shapes"), dtype=SHAPES),
        }
    )


def _marks(count: int) -> pl.DataFrame:
    starts = [number * STEP_NS for number in range(count)]
    return span_rows(
        {
            "kind": "region",
            "name": [f"ProfilerStep#{number}" for number in range(count)],
            "start_ns": starts,
            "end_ns": [start + STEP_NS for start in starts],
        }
    )
