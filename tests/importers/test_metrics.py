"""Metrics of kernels, joined to the kernels of recordings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.importers import KernelMetrics, Recording, Source
from xsp.provider import concat_rows, no_rows, span_rows
from xsp.reading.importers.format import contents_of
from xsp.reading.importers.metrics import joined
from xsp.reading.importers.metrics.joining import kernels_of

REAL = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))


def recording(
    names: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
    *,
    steps: Sequence[int] = (),
    launched: bool = True,
) -> Recording:
    """Return kernels one after the other, launched in this order; a step has so many of them."""
    count = len(names)
    at = [10 * number for number in range(count)]
    kernels = span_rows(
        {
            "kind": "kernel",
            "name": names,
            "start_ns": [start + 5 for start in at],
            "end_ns": [start + 9 for start in at],
            "device": 0,
            "correlation_id": range(1, count + 1),
            **(attributes or {}),
        }
    )
    launches = span_rows(
        {
            "kind": "launch",
            "name": "cudaLaunchKernel",
            "start_ns": at,
            "end_ns": [start + 1 for start in at],
            "thread": 1,
            "correlation_id": range(1, count + 1),
        }
    )
    ends = [sum(steps[: number + 1]) * 10 for number in range(len(steps))]
    roots = span_rows(
        {
            "kind": "region",
            "name": "step",
            "start_ns": [0, *ends[:-1]][: len(steps)],
            "end_ns": ends,
            "thread": 1,
        }
    )
    rows = concat_rows([kernels, launches]) if launched else kernels
    return Recording("a tool", rows, roots if steps else no_rows())


def measured(names: Sequence[str], attributes: Mapping[str, Any] | None = None) -> KernelMetrics:
    """Return metrics of kernels: of the first `attr.flops` is 0, of the second 1, ..."""
    flops = pl.Series("attr.flops", range(len(names)), dtype=pl.Int64)
    given_ = {"name": pl.Series(names, dtype=pl.String), "attr.flops": flops, **(attributes or {})}
    rows = pl.DataFrame(given_)
    return KernelMetrics("ncu", rows.with_columns(duration_ns=pl.lit(7, pl.Int64)))


def flops(found: Recording) -> list[int | None]:
    kernels = found.rows.filter(kind="kernel").sort("start_ns")
    return kernels["attr.flops"].to_list()


def codes(found: Recording) -> list[str]:
    return [warning.code for warning in found.warnings]


def join(names: Sequence[str], of: Sequence[str]) -> Recording:
    (found,) = joined([recording(names)], [measured(of)])
    return found


def test_equal_sequences_are_joined_one_to_one() -> None:
    found = join(["add", "gemm", "add"], ["add", "gemm", "add"])
    assert flops(found) == [0, 1, 2]
    assert not found.warnings
    assert found.rows.filter(kind="launch")["attr.flops"].null_count() == 3


def test_names_are_compared_without_what_tools_write_differently() -> None:
    names = ["void at::native::(anonymous namespace)::copy<float, 4>(int, float const*)"]
    found = join(names, ["void at::native::<unnamed>::copy<float, (int)4>(int, const T1 *)"])
    assert flops(found) == [0]


def test_grid_and_block_belong_to_the_name() -> None:
    grids = [[1, 1, 1], [2, 1, 1], [1, 1, 1]]
    kernels = recording(["copy"] * 3, {"attr.grid": grids})
    metrics = measured(["copy"] * 2, {"attr.grid": grids[1:]})
    assert flops(joined([kernels], [metrics])[0]) == [None, 0, 1]
    metrics = measured(["copy"], {"attr.grid": [[9, 9, 9]]})
    found = joined([kernels], [metrics])[0]
    assert flops(found) == [None, None, None]
    assert "unmatched-metrics" in codes(found)


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=30)


@given(NAMES, st.data())
def test_metrics_are_only_of_kernels_of_their_name(names: list[str], data: st.DataObject) -> None:
    of = data.draw(NAMES)
    found = join(names, of)
    numbers = [number for number in flops(found) if number is not None]
    assert len(set(numbers)) == len(numbers)
    for name, number in zip(names, flops(found), strict=True):
        assert number is None or of[number] == name
    for name in "abc":  # those of one name are in order
        own = [n for n in numbers if of[n] == name]
        assert own == sorted(own)


@given(st.permutations([f"kernel {number}" for number in range(12)]), st.data())
def test_any_part_of_a_sequence_is_found(names: list[str], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(names) - 1))
    end = data.draw(st.integers(begin + 1, len(names)))
    expected = [at - begin if begin <= at < end else None for at in range(len(names))]
    assert flops(join(names, names[begin:end])) == expected


HEADER = '"ID","Process ID","Kernel Name","Block Size","Grid Size",'
HEADER += '"Section Name","Metric Name","Metric Unit","Metric Value"\n'


def details(path: Path, kernels: Sequence[str]) -> Path:
    lines = [
        f'"{at}","7","{name}","(64, 1, 1)","(2, 1, 1)","S","Duration","us","{at + 1}.5"\n'
        for at, name in enumerate(kernels)
    ]
    path.write_text(HEADER + "".join(lines))
    return path


def profile(path: Path, kernels: Sequence[str]) -> Path:
    """Write what torch.profiler writes of an operator that launches kernels."""
    place = {"ph": "X", "pid": 7, "tid": 7}
    events: list[dict[str, Any]] = [
        {**place, "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 90, "args": {}}
    ]
    for at, name in enumerate(kernels):
        tied = {"correlation": at + 1}
        device = {**tied, "device": 0, "stream": 7, "grid": [2, 1, 1], "block": [64, 1, 1]}
        call = {**place, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": tied}
        work = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": name, "args": device}
        events += [{**call, "ts": at * 10 + 1, "dur": 2}, {**work, "ts": at * 10 + 50, "dur": 5}]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_trace_is_made_of_a_profile_and_a_table(tmp_path: Path) -> None:
    recorded = profile(tmp_path / "a.json", ["void mm<float>(int)", "void relu<float>(int)"])
    table = details(tmp_path / "b.csv", ["void relu<float>(int)"])
    for files in ((recorded, table), (table, recorded)):
        trace = xsp.read(*files)
        trace.check()
        kernels = trace.spans.filter(kind="kernel").unnest("attributes")
        assert kernels.select("name", "ncu.duration_ns").rows() == [("mm", None), ("relu", 1_500.0)]
        assert kernels["latency_ns"].to_list() == [5_000.0, 5_000.0]  # not what the table has
        assert "Nsight Compute" in trace.tree()


def test_a_table_alone_is_a_trace(tmp_path: Path) -> None:
    trace = xsp.read(details(tmp_path / "b.csv", ["mm", "relu", "mm"]))
    trace.check()
    names = trace.spans.filter(kind="kernel").select("name", "latency_ns").rows()
    assert names == [("mm", 1_500.0), ("relu", 2_500.0), ("mm", 3_500.0)]
    assert "no-timeline" in [warning.code for warning in trace.warnings]


@pytest.mark.skipif(not (REAL / "kineto").exists(), reason="needs real traces (XSP_TRACES)")
@pytest.mark.parametrize("name", ["h100-bert-small", "h100-vit", "b200-eager", "a100-queue"])
def test_any_part_of_a_real_program_is_found(name: str) -> None:
    (found, *_) = contents_of(Source(REAL / "kineto" / f"{name}.json.gz"))[0]
    assert isinstance(found, Recording)
    recorded = kernels_of(found)
    kernels = found.rows[recorded["row"].to_list()]
    for begin, count in ((0, 10), (17, 30), (3, 1), (0, kernels.height)):
        part = kernels[begin : begin + count]
        short = part["name"].to_list()
        given_ = {"attr.grid": part["attr.grid"], "attr.block": part["attr.block"]}
        (joined_,) = joined([found], [measured(short, given_)])
        flops_ = joined_.rows[recorded["row"].to_list()]["attr.flops"].drop_nulls()
        assert len(flops_) >= part.height  # more where all steps are equal
        of = joined_.rows.filter(pl.col("attr.flops").is_not_null())
        assert of["name"].to_list() == [short[at] for at in of["attr.flops"]]
        if count == 30:
            sequence = [*range(part.height)]
            placed = joined_.rows[recorded["row"].to_list()]["attr.flops"].to_list()
            assert any(placed[at : at + len(sequence)] == sequence for at in range(len(placed)))
