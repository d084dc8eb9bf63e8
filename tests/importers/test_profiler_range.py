"""Profiler ranges of torch.profiler, whose counters the launches get."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import xsp
from xsp.importers import Recording, Source
from xsp.reading.importers.kineto import Kineto

REAL = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

SASS = [
    f"smsp__sass_thread_inst_executed_op_{width}{name}_pred_on.sum"
    for width in "dfh"
    for name in ("add", "mul", "fma")
]


def span(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    place = {"pid": 7, "tid": 7} if cat != "cuda_profiler_range" else {"pid": 0, "tid": 0}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": ts, "dur": dur, "args": args}


def launch(number: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return span("cuda_runtime", name, 100 + 10 * number, 5, correlation=number, cbid=211)


def ranges(*counters: Mapping[str, float], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return ranges that share the time from 100 µs to 200 µs."""
    each = 100 / len(counters)
    names = names or [f"void kernel{at}<float>(int)" for at in range(len(counters))]
    return [
        span("cuda_profiler_range", name, 100 + at * each, each, **told)
        for at, (name, told) in enumerate(zip(names, counters, strict=True))
    ]


def read(tmp_path: Path, events: Sequence[dict[str, Any]], cut: int = 0) -> Recording:
    path = tmp_path / "trace.json"
    op = span("cpu_op", "aten::mm", 90, 200)
    text = json.dumps({"schemaVersion": 1, "traceEvents": [op, *events]})
    path.write_text(text[: len(text) - cut])
    (recording,) = Kineto().read(Source(path))
    assert isinstance(recording, Recording)
    return recording


def launches(recording: Recording) -> list[dict[str, Any]]:
    return list(recording.rows.filter(kind="launch").sort("start_ns").iter_rows(named=True))


def codes(recording: Recording) -> list[str]:
    return [warning.code for warning in recording.warnings]


def test_each_launch_has_the_counters_of_its_kernel(tmp_path: Path) -> None:
    told = [dict.fromkeys(SASS, at) for at in (1, 10)]
    events = [launch(0), launch(1, "cudaMemsetAsync"), launch(2), *ranges(*told)]
    recording = read(tmp_path, events)
    first, memset, second = launches(recording)
    assert first["attr.launched_kernel"] == "void kernel0<float>(int)"
    assert (first["attr.flops"], second["attr.flops"]) == (12, 120)
    assert first[f"attr.ncu.{SASS[0]}"] == 1.0
    assert (memset["attr.flops"], memset["attr.launched_kernel"]) == (None, None)
    assert not recording.rows.filter(kind="kernel").height
    assert codes(recording) == ["no-kernel-times", "no-tensor-cores"]


def test_ranges_that_are_not_one_per_launch_are_left_out_and_counted(tmp_path: Path) -> None:
    recording = read(tmp_path, [launch(0), *ranges({"a__b.sum": 1}, {"a__b.sum": 2})])
    assert "attr.ncu.a__b.sum" not in recording.rows.columns
    (warning,) = recording.warnings
    assert (warning.code, "2 kernels" in warning.message) == ("unmatched-metrics", True)


def test_counters_are_left_out_where_a_range_is_damaged(tmp_path: Path) -> None:
    sound = ranges({"a__b.sum": 1})
    odd = [{**sound[0], "args": None}, {**sound[0], "ts": "early"}]
    for damaged in odd:
        recording = read(tmp_path, [launch(0), launch(1), *sound, damaged])
        assert "attr.ncu.a__b.sum" not in recording.rows.columns
        assert "unmatched-metrics" in codes(recording)
        assert "unmatched-metrics" in codes(read(tmp_path, [launch(0), damaged]))


def test_counters_of_a_file_that_is_cut_short_are_read(tmp_path: Path) -> None:
    two = ranges({"a__b.sum": 1}, {"a__b.sum": 2})
    recording = read(tmp_path, [launch(0), *two], cut=40)
    assert launches(recording)[0]["attr.ncu.a__b.sum"] == 1.0
    assert "cut-short" in codes(recording)


@pytest.mark.skipif(not (REAL / "kineto").exists(), reason="needs real traces (XSP_TRACES)")
def test_the_real_file() -> None:
    path = REAL / "kineto" / "counters.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    told = [each for each in events if each.get("cat") == "cuda_profiler_range"]
    operations = [
        sum(
            value * (2 if "fma" in name else 1)
            for name, value in each["args"].items()
            if name in SASS
        )
        for each in told
    ]
    trace = xsp.read(path)
    trace.check()
    found = trace.spans.filter(name="cudaLaunchKernel").sort("measured_start_ns")
    found = found.unnest("attributes")
    assert found["flops"].to_list() == operations
    # Kernels lie where one expects them: clamping in clamp_min_, pooling in max_pool2d.
    clamp = found.filter(found["launched_kernel"].str.contains("launch_clamp_scalar"))
    assert clamp.height
    assert clamp["path"].str.contains("clamp_min_").all()
    pool = found.filter(found["launched_kernel"].str.contains("max_pool_forward"))
    assert pool["path"].str.contains("max_pool2d").all()
