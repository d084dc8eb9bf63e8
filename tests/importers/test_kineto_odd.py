"""Recordings that begin late, end early, repeat graphs, or hold several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from chrome import (
    MAIN,
    OTHER,
    codes,
    event,
    kernel,
    launch,
    mark,
    module,
    op,
    recording,
    trace,
    written,
)

import xsp
from xsp.trace import Trace

CAPTURED = {"name": "cudaStreamBeginCapture"}, {"name": "cudaStreamEndCapture"}
STEP_US = 1000


def step(number: int, at: int, duration: int = 900, *, called: bool = True) -> list[dict[str, Any]]:
    """Return a step that launches one kernel of 100 µs."""
    id = 50 + number
    work = [op("aten::mm", at + 10, 300), launch(id, at + 20), kernel(id, at + 40, 100)]
    return [mark(f"ProfilerStep#{number}", at, duration), *(work if called else [])]


def warned(made: Trace) -> dict[str, str]:
    """Return the messages of a trace's warnings, by code."""
    return {warning.code: warning.message for warning in made.warnings}


def device_ns(made: Trace) -> float | None:
    """Return how long devices worked in a typical step."""
    return made.root.device_ns


def test_work_launched_before_the_recording_is_of_no_step(tmp_path: Path) -> None:
    earlier = [kernel(900 + n, 10 * n, 10, "of_before") for n in range(4)]
    events = [op("aten::mm", 0, 50), launch(1, 10), *earlier, kernel(1, 60, 20), kernel(999, 90, 5)]
    made = trace(recording(tmp_path, events))
    names = made.spans.filter(pl.col("kind") == "kernel")["name"].to_list()
    assert names == ["gemm", "gemm"]  # one without a call came later: its record was lost
    assert warned(made)["earlier"].startswith("4 kernels or copies of 40.0 µs")


def test_kernels_of_a_recording_without_any_call_stay(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 50), kernel(1, 60, 20), kernel(2, 80, 20)]
    assert device_ns(trace(recording(tmp_path, events))) == 40_000


def test_a_last_step_in_which_nothing_was_called_is_left_out(tmp_path: Path) -> None:
    events = [*step(0, 0), *step(1, STEP_US), *step(2, 2 * STEP_US, 30, called=False)]
    made = trace(recording(tmp_path, events))
    assert made.root.latency_ns == 900_000
    assert list(made.metadata["imported"]["steps"]) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert "ProfilerStep#2" in warned(made)["steps-left-out"]


@pytest.mark.parametrize(("first_us", "steps"), [(5000, 2), (1100, 3)])
def test_a_first_step_much_longer_than_the_others_is_left_out(
    tmp_path: Path, first_us: int, steps: int
) -> None:
    later = [*step(1, 6000), *step(2, 7000)]
    made = trace(recording(tmp_path, [*step(0, 0, first_us), *later]))
    assert len(made.metadata["imported"]["steps"]) == steps
    assert ("steps-left-out" in warned(made)) == (steps == 2)
    assert made.root.latency_ns == 900_000


def test_ranges_are_regions_without_a_type(tmp_path: Path) -> None:
    events = [mark("## forward ##", 0, 100), op("aten::mm", 10, 50), mark("DDP.forward", 70, 10)]
    made = trace(recording(tmp_path, events))
    kinds = dict(made.spans.select("name", "kind").iter_rows())
    assert (kinds["## forward ##"], kinds["DDP.forward"]) == ("region", "op")
    assert made.layers.height == 0
    types = xsp.analyses.layer_type_work(made)
    assert types["classes"].to_list() == [["aten::mm"]] or "##" not in str(types["classes"])


def graph(launched_at: int, id: int, names: list[str]) -> list[dict[str, Any]]:
    """Return the launch of a graph, and its kernels in reverse order of their node numbers."""
    call = launch(id, launched_at, name="cudaGraphLaunch")
    nodes = [
        kernel(id, launched_at + 10 + 10 * n, 8, name, **{"graph id": 1, "graph node id": 20 + n})
        for n, name in enumerate(names)
    ]
    return [call, *reversed(nodes)]


def capture(at: int, ids: list[int]) -> list[dict[str, Any]]:
    """Return a capture of one operator for each call."""
    begin, end = CAPTURED
    calls = [
        each
        for n, id in enumerate(ids)
        for each in (op(f"aten::op{id}", at + 10 + 10 * n, 8), launch(id, at + 12 + 10 * n))
    ]
    return [launch(id=ids[0] + 500, start=at, **begin), *calls,
            launch(id=ids[0] + 600, start=at + 90, **end)]  # fmt: skip


def parents(made: Trace, name: str) -> list[str]:
    """Return the names of the spans around those of a name."""
    names = dict(made.spans.select("span_id", "name").iter_rows())
    return [names[each] for each in made.spans.filter(pl.col("name") == name)["parent_id"]]


def test_what_a_graph_replays_lies_in_the_operators_that_were_captured(tmp_path: Path) -> None:
    events = [*capture(0, [1, 2]), *graph(200, 9, ["a", "b"]), *graph(300, 10, ["a", "b"])]
    made = trace(recording(tmp_path, events))
    assert parents(made, "a") == ["aten::op1"] * 2
    assert parents(made, "b") == ["aten::op2"] * 2
    assert "idle-launches" not in warned(made)


def test_a_graph_that_may_be_of_two_captures_is_of_none(tmp_path: Path) -> None:
    events = [*capture(0, [1, 2]), *capture(100, [3, 4]), *graph(300, 9, ["a", "b"])]
    made = trace(recording(tmp_path, events))
    assert parents(made, "a") == ["cudaGraphLaunch"]
    assert "idle-launches" not in warned(made)


def rank_events(rank: int, lasting: int) -> list[dict[str, Any]]:
    """Return a step of a rank, as tools write it that bring several ranks into one file."""
    pid = rank * 100_000_000 + 47
    found = [
        mark("ProfilerStep#1", rank, 900),
        op("aten::mm", 10, 300),
        launch(7, 20),
        kernel(7, 60, lasting),
    ]
    for each in found:
        each["args"]["rank"] = rank
        if each["cat"] != "kernel":
            each["pid"] = each["tid"] = pid
    return found


def test_ranks_that_share_a_file_are_told_apart(tmp_path: Path) -> None:
    events = [*rank_events(0, 400), *rank_events(1, 300), *rank_events(2, 200)]
    made = xsp.load(written(tmp_path / "merged.json", events))
    made.check()
    processes = made.spans.filter(pl.col("parent_id") == made.root.span_id)
    assert processes.select("name", "device_ns").rows() == [
        ("rank 0", 400_000),
        ("rank 1", 300_000),
        ("rank 2", 200_000),
    ]
    rows = made.tree().splitlines()
    assert sum("rank " in row for row in rows) == 3


def test_processes_without_a_rank_have_their_numbers_as_names(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 50), op("aten::mm", 5, 50)]
    events[1]["pid"] = events[1]["tid"] = 4712
    made = xsp.load(written(tmp_path / "both.json", events))
    names = made.spans.filter(pl.col("parent_id") == made.root.span_id)["name"].to_list()
    assert names == [f"process {MAIN}", "process 4712"]


def test_a_count_of_one_process_is_not_told_of_all(tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        events = [op("aten::mm", 0, 50), launch(1, 10), kernel(1, 60, 20), kernel(99, 90, 5)]
        about = {"rank": rank, "world_size": 2}
        files.append(written(tmp_path / f"rank{rank}.json", events, distributedInfo=about))
    assert warned(xsp.load(*files))["no-launch"].startswith("in each process: 1 kernel ")


def test_ranges_of_a_library_that_differ_in_the_block_alone_share_a_row(tmp_path: Path) -> None:
    marks = [mark(f"FSDP::pre_forward (block.{n})", 100 * n, 50) for n in range(20)]
    made = trace(recording(tmp_path, marks))
    assert sum("FSDP" in row for row in made.tree(rows=100).splitlines()) == 1


def test_modules_share_their_time_with_ranges_in_them(tmp_path: Path) -> None:
    events = [module("Net_0", 0, 100), mark("attention", 10, 50), op("aten::mm", 20, 20)]
    found = recording(tmp_path, events)
    assert "damaged" not in codes(found)
    paths = trace(found).spans["path"].to_list()
    assert paths[-1].endswith("Net/attention/aten::mm")


def test_a_step_marked_as_an_event_of_another_sort_is_none(tmp_path: Path) -> None:
    found = recording(tmp_path, [event("cpu_op", "ProfilerStep#1", 0, 10), op("aten::mm", 2, 5)])
    assert found.roots.height == 1


def test_a_device_that_works_steps_behind_the_host_is_no_idle_device(tmp_path: Path) -> None:
    # The host launches a kernel per step and runs ahead: each begins 3 ms after its launch.
    events = [
        each
        for n in range(4)
        for each in (
            mark(f"ProfilerStep#{n}", n * STEP_US, STEP_US),
            op("aten::mm", n * STEP_US + 10, 50),
            launch(n + 1, n * STEP_US + 20),
            kernel(n + 1, n * STEP_US + 3000, 950),
        )
    ]
    found = xsp.analyses.verdict(trace(recording(tmp_path, events)))
    shares = dict(found.select("candidate", "share_pct").iter_rows())
    assert found.filter("verdict")["candidate"].item() in ("device-bound", "memory-bound")
    assert shares["device-bound"] == pytest.approx(95, abs=1)
    assert shares["host-bound"] == 0


def test_a_loop_that_runs_ahead_of_its_device_says_so(tmp_path: Path) -> None:
    events = [
        each
        for n in range(4)
        for each in (
            mark(f"ProfilerStep#{n}", n * STEP_US, STEP_US),
            launch(n + 1, n * STEP_US + 20),
            kernel(n + 1, 1000 + n * 1500, 1500),
        )
    ]
    told = warned(trace(recording(tmp_path, events)))
    assert "in 1.00 ms, and the device begins one every 1.50 ms" in told["host-ahead"]
    synchronous = [each for n in range(3) for each in step(n, n * STEP_US)]
    assert "host-ahead" not in warned(trace(recording(tmp_path, synchronous)))


def test_the_backward_pass_lies_in_the_range_that_waits_for_it(tmp_path: Path) -> None:
    backward = {"Sequence number": 3, "Fwd thread id": 1}
    events = [
        op("aten::mm", 0, 20, **{"Sequence number": 3}),
        mark("backward pass", 100, 200),
        op("MmBackward0", 120, 50, tid=OTHER, **backward),
        op("aten::mm", 130, 20, tid=OTHER),
        op("MmBackward0", 400, 50, tid=OTHER, **backward),
    ]
    spans = trace(recording(tmp_path, events)).spans
    paths = [path.split("/", 1)[1] for path in spans["path"].to_list()[1:]]
    assert paths == [
        "aten::mm",
        "backward pass",
        "backward pass/MmBackward0",
        "backward pass/MmBackward0/aten::mm",
        "MmBackward0",
    ]
