"""Real files of torch.profiler, against what other tools say of them and a slow reference."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from chrome import codes, read

from xsp.importers import Recording
from xsp.provider import span_rows
from xsp.reading.correlation import correlate

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
KINETO = TRACES / "kineto"
FILES = sorted(path.name.removesuffix(".json.gz") for path in KINETO.glob("*.json.gz"))
WITH_EXPECTED = sorted({path.name.split(".")[0] for path in KINETO.glob("expected/*timeline.csv")})
WITH_KERNELS = sorted({path.name.split(".")[0] for path in KINETO.glob("expected/*kernel*.csv")})
DEVICE = ["kernel", "memcpy", "memset"]

pytestmark = pytest.mark.skipif(not KINETO.is_dir(), reason="needs the real traces (XSP_TRACES)")


@cache
def recording(name: str) -> Recording:
    return read(KINETO / f"{name}.json.gz")


@cache
def events(name: str) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress((KINETO / f"{name}.json.gz").read_bytes()))
    return found["traceEvents"] if isinstance(found, dict) else found


def expected(name: str, what: str) -> list[dict[str, str]]:
    with (KINETO / "expected" / f"{name}.{what}.csv").open() as file:
        return list(csv.DictReader(file))


def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return times in which at least one span lasts, as spans apart from each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in union(spans))


def times(rows: pl.DataFrame, *kinds: str) -> list[tuple[int, int]]:
    of_kinds = rows.filter(pl.col("kind").is_in(kinds))
    return of_kinds.select("start_ns", "end_ns").rows()


@pytest.mark.parametrize("name", WITH_EXPECTED)
def test_busy_idle_and_exposed_times_are_those_of_another_tool(name: str) -> None:
    rows = recording(name).rows
    kernels, copies = times(rows, "kernel", "memset"), times(rows, "memcpy")
    busy = length([*kernels, *copies])
    total = max(end for _, end in [*kernels, *copies]) - min(s for s, _ in [*kernels, *copies])
    known = {
        "computation_time": length(kernels),
        "exposed_memcpy_time": busy - length(kernels),
        "total_memcpy_time": length(copies),
        "busy_time": busy,
        "total_time": total,
    }
    told = {line["type"]: float(line["time ms"]) for line in expected(name, "gpu_timeline")}
    assert {key: ns / 1e6 for key, ns in known.items()} == pytest.approx(
        {key: told[key] for key in known}, rel=1e-3, abs=1e-5
    )
    # The other tool's times are 64-bit floats of µs since 1970, exact to a quarter of a µs only.
    assert (total - busy) / 1e6 == pytest.approx(told["idle_time"], rel=1e-3, abs=5e-4)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_sum_and_count_of_kernels_per_operator_and_name_are_those_of_another_tool(
    name: str,
) -> None:
    with_operator = "Parent cpu_op" in expected(name, "kernel_summary")[0]
    told: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0])
    for line in expected(name, "kernel_summary"):
        key = (line["Kernel name"], line["Parent cpu_op"] if with_operator else "")
        told[key][0] += float(line["Kernel duration (µs)_sum"])
        told[key][1] += int(float(line["Kernel duration (µs)_count"]))
    found: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0])
    for kernel, around in zip(*under(name), strict=True):
        if kernel["kind"] == "kernel":
            key = (kernel["attr.full_name"], around[0] if with_operator and around else "")
            found[key][0] += (kernel["end_ns"] - kernel["start_ns"]) / 1e3
            found[key][1] += 1
    assert {key: count for key, (_, count) in found.items()} == {
        key: count for key, (_, count) in told.items() if key in found or count
    }
    assert {key: total for key, (total, _) in found.items()} == pytest.approx(
        {key: told[key][0] for key in found}, rel=1e-3
    )


def under(name: str) -> tuple[list[dict[str, Any]], list[tuple[str, int] | None]]:
    """Return the work of devices, and name and start of the operator that each of it lies in.

    The whole recording is one tree, of operators and of ranges that people marked.
    """
    rows = recording(name).rows
    start, end = rows["start_ns"].min(), rows["end_ns"].max()
    root = {"kind": ["region"], "name": ["all"], "start_ns": [start], "end_ns": [end]}
    (frame,) = correlate(span_rows(root), rows).frames
    parent = frame["parent"].to_list()
    module = "attr.module_class"
    is_op = frame.select(
        pl.col("kind").is_in(["op", "layer", "region"])
        & (pl.col("parent") >= 0)
        & (pl.col("provenance") == "recorded")
        & (pl.col(module).is_null() if module in frame.columns else True)
    ).to_series()
    names, starts = frame["name"].to_list(), frame["start_ns"].to_list()
    work = frame.with_row_index("at").filter(pl.col("kind").is_in(DEVICE)).to_dicts()
    found: list[tuple[str, int] | None] = []
    for each in work:
        at = parent[each["at"]]
        while at >= 0 and not is_op[at]:
            at = parent[at]
        found.append((names[at], starts[at]) if at >= 0 else None)
    return work, found


def reference(name: str) -> dict[tuple[int, int], tuple[str, int] | None]:
    """Return the innermost operator open at the call of each device's work, slowly.

    The key is what ties work and call, and the start of the work.
    """
    ops: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    calls: dict[int, tuple[int, int, int]] = {}
    work = []
    for event in events(name):
        category = str(event.get("cat")).lower()
        if event.get("ph") != "X":
            continue
        begin = round(event["ts"] * 1000)  # whole numbers stay whole
        end = begin + round(event["dur"] * 1000)
        if category in ("cpu_op", "operator", "user_annotation"):
            if not event["name"].startswith("ProfilerStep"):
                ops[int(event["tid"])].append((begin, end, event["name"]))
        elif category in ("cuda_runtime", "cuda_driver", "runtime"):
            calls[event["args"]["correlation"]] = (int(event["tid"]), begin, end)
        elif category.removeprefix("gpu_") in DEVICE:
            work.append((event["args"]["correlation"], begin))
    arrays = {tid: np.array([(b, e) for b, e, _ in own]) for tid, own in ops.items()}
    found: dict[Any, tuple[str, int] | None] = {}
    for correlation, begin in work:
        if correlation in calls:
            tid, called, returned = calls[correlation]
            known = arrays.get(tid, np.empty((0, 2)))
            around = np.flatnonzero((known[:, 0] <= called) & (known[:, 1] >= returned))
            inner = max(around, key=lambda at: (known[at, 0], -known[at, 1], at), default=None)
            own = None if inner is None else (ops[tid][inner][2], ops[tid][inner][0])
            found[correlation, begin] = own
    return found


@pytest.mark.parametrize("name", FILES)
def test_work_lies_under_the_innermost_operator_open_at_its_call(name: str) -> None:
    known = reference(name)
    work, around = under(name)
    keys = [(each["correlation_id"], each["start_ns"]) for each in work]
    found = {key: where for key, where in zip(keys, around, strict=True) if key in known}
    assert found == known


@pytest.mark.parametrize("name", FILES)
def test_every_event_is_a_row_or_counted(name: str) -> None:
    rows, warnings = recording(name).rows, codes(recording(name))
    assert not {"damaged", "cut-short", "repeated-id"} & warnings.keys()
    of_device = [
        e for e in events(name) if str(e.get("cat")).lower().removeprefix("gpu_") in DEVICE
    ]
    assert rows["kind"].is_in(DEVICE).sum() == len(of_device)
    categories = {"cpu_op", "operator", "cuda_runtime", "cuda_driver", "runtime"}
    marks = {"user_annotation"}
    of_host = [
        e
        for e in events(name)
        if e.get("ph") == "X"
        and str(e["cat"]).lower() in categories | marks
        and not e["name"].startswith("ProfilerStep")
    ]
    modules = [e for e in events(name) if str(e.get("name")).startswith("nn.Module")]
    assert rows["thread"].is_not_null().sum() == len(of_host) + len(modules)
    assert "not-understood" not in warnings
