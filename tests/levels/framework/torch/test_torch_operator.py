from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn  # noqa: E402

from xsp.clock import SystemClock  # noqa: E402
from xsp.provider.row import ROW_SCHEMA  # noqa: E402
from xsp_levels.framework.torch.profiler import kineto as torch_kineto  # noqa: E402
from xsp_levels.framework.torch.profiler.event import find_anchors  # noqa: E402
from xsp_levels.framework.torch.profiler.operator import (  # noqa: E402
    OperatorRecorder,
    OperatorRecords,
    operator_rows,
)
from xsp_levels.native.alignment import PREFIX, align  # noqa: E402

CPU = [torch.profiler.ProfilerActivity.CPU]
IDENT = threading.get_ident


def record(work: Callable[[], Any], *, detail: bool = False) -> OperatorRecords:
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), detail)
    try:
        work()
    finally:
        records = recorder.stop()
    return records


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_operators_become_rows_of_the_right_form() -> None:
    x = torch.ones(3)
    records = record(lambda: torch.add(torch.ones(3), x))
    rows = operator_rows(records)
    assert rows["name"].to_list() == ["aten::ones", "aten::empty", "aten::fill_", "aten::add"]
    assert {name: rows.schema[name] for name in ROW_SCHEMA} == ROW_SCHEMA
    assert rows["kind"].unique().to_list() == ["op"]
    assert rows["thread"].unique().to_list() == [IDENT()]
    assert (rows["end_ns"] >= rows["start_ns"]).all()
    assert records.warnings == ()


def test_users_annotation_is_a_row_and_an_anchor_is_not() -> None:
    def work() -> None:
        with torch.profiler.record_function("mine"):
            torch.ones(3)

    names = operator_rows(record(work))["name"].to_list()
    assert names[0] == "mine"
    assert not [name for name in names if name.startswith((PREFIX, "["))]


def test_rows_nest_as_the_operators_ran() -> None:
    rows = operator_rows(record(lambda: torch.ones(3)))
    outer, inner = rows.row(0, named=True), rows.row(1, named=True)
    assert outer["start_ns"] <= inner["start_ns"] <= inner["end_ns"] <= outer["end_ns"]


@pytest.mark.timing
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_alignment_is_known_to_a_fifth_of_a_microsecond(pause: float) -> None:
    records = record(lambda: time.sleep(pause))
    assert records.handle is not None
    alignment = align(records.readings, find_anchors(records.handle))
    assert alignment is not None
    assert alignment.error_ns <= 1_000  # 0.06 us where nothing disturbs


def test_no_operator_sticks_out_of_clock_reads_around_it() -> None:
    now, bounds = time.monotonic_ns, []
    x, y = torch.ones(4), torch.ones(4)

    def work() -> None:
        for _ in range(500):
            before = now()
            torch.add(x, y)
            bounds.append((before, now()))

    rows = operator_rows(record(work))
    assert rows.height == 500
    for (before, after), start, end in zip(bounds, rows["start_ns"], rows["end_ns"], strict=True):
        assert before <= start <= end <= after


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_operator_lies_within_the_module_that_called_it(mode: Callable[[], Any]) -> None:
    model, spans, x = small(), [], torch.randn(2, 8)
    now = time.monotonic_ns

    def work() -> None:
        with mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            h = x
            for module in model:
                start = now()
                h = module(h)
                spans.append((start, now()))

    rows = operator_rows(record(work))
    for start, end in rows.select("start_ns", "end_ns").iter_rows():
        assert any(a <= start and end <= b for a, b in spans)


def test_backward_operator_names_its_forward_operator() -> None:
    model, x = small(), torch.randn(2, 8)
    rows = operator_rows(record(lambda: model(x).sum().backward()))
    relu = rows.filter(name="aten::relu").row(0, named=True)
    back = rows.filter(name="ReluBackward0").row(0, named=True)
    assert back["sequence"] == relu["sequence"]
    assert back["forward_thread"] == relu["thread"] == IDENT()
    assert (relu["forward_thread"], relu["attr.phase"], back["attr.phase"]) == (
        None, None, "backward",
    )  # fmt: skip
    inner = rows.filter(name="aten::threshold_backward").row(0, named=True)
    assert (inner["attr.phase"], inner["forward_thread"]) == ("backward", None)
    accumulate = rows.filter(pl.col("name") == "torch::autograd::AccumulateGrad")
    assert accumulate["attr.phase"].unique().to_list() == ["backward"]
    assert accumulate["sequence"].null_count() == accumulate.height


def test_backward_on_another_thread_knows_the_thread_of_its_forward() -> None:
    model, x, seen = small(), torch.randn(2, 8), []
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), False)
    loss = model(x).sum()

    def backward() -> None:
        recorder.anchor_thread()
        seen.append(IDENT())
        loss.backward()

    in_thread(backward)
    rows = operator_rows(recorder.stop())
    back = rows.filter(name="ReluBackward0").row(0, named=True)
    assert (back["thread"], back["forward_thread"]) == (seen[0], IDENT())


def test_recording_may_end_on_another_thread() -> None:
    recorder, kept = OperatorRecorder(), []
    recorder.start(SystemClock(), False)
    torch.ones(3)
    in_thread(lambda: kept.append(recorder.stop()))
    assert operator_rows(kept[0])["name"].to_list()[0] == "aten::ones"


def test_detail_adds_shapes_and_memory() -> None:
    rows = operator_rows(record(lambda: torch.ones(4, 8) @ torch.ones(8, 2), detail=True))
    product = rows.filter(name="aten::matmul").row(0, named=True)
    assert product["attr.input_shapes"] == [[4, 8], [8, 2]]
    assert product["attr.input_dtypes"] == ["float32", "float32"]
    assert product["attr.allocated_bytes"] == product["attr.peak_bytes"] == 4 * 2 * 4
    assert product["attr.freed_bytes"] == 0


def test_detailed_recording_that_ends_elsewhere_says_so_and_does_not_stay() -> None:
    recorder, kept = OperatorRecorder(), []
    recorder.start(SystemClock(), True)
    in_thread(lambda: kept.append(recorder.stop()))
    assert "another thread" in kept[0].warnings[0]
    assert operator_rows(kept[0]).height == 0
    assert operator_rows(record(lambda: torch.ones(3))).height == 3
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("scheduled", [False, True])
def test_running_profiler_of_the_user_is_left_alone(scheduled: bool) -> None:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1) if scheduled else None
    with torch.profiler.profile(activities=CPU, schedule=schedule) as users:
        records = record(lambda: torch.ones(3))
        if scheduled:  # it was warming up; now it begins
            users.step()
        torch.zeros(5)
    assert "torch.profiler is already running" in records.warnings[0]
    assert operator_rows(records).height == 0
    assert "aten::zeros" in {event.name for event in users.events()}


def test_profiler_on_another_thread_is_left_alone() -> None:
    began, done, counts = threading.Event(), threading.Event(), []

    def user() -> None:
        with torch.profiler.profile(activities=CPU) as profile:
            began.set()
            done.wait()
            torch.zeros(5)
        counts.append(len(profile.events()))

    thread = threading.Thread(target=user)
    thread.start()
    began.wait()
    records = record(lambda: None)
    done.set()
    thread.join()
    assert "already running" in records.warnings[0]
    assert counts[0] > 0


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_profiler_that_the_user_starts_meanwhile_takes_over(detail: bool, scheduled: bool) -> None:
    untouched = torch.autograd.profiler._prepare_profiler
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1) if scheduled else None
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), detail)
    torch.ones(3)
    with torch.profiler.profile(activities=CPU, schedule=schedule) as users:
        if scheduled:
            users.step()
        torch.zeros(5)
        records = recorder.stop()
    assert "aten::zeros" in {event.name for event in users.events()}
    assert operator_rows(records)["name"].to_list() == ["aten::ones", "aten::empty", "aten::fill_"]
    assert "only until torch.profiler was started" in records.warnings[0]
    assert torch.autograd.profiler._prepare_profiler is untouched


def test_users_profiler_works_after_ours() -> None:
    record(lambda: torch.ones(3), detail=True)
    with torch.profiler.profile(activities=CPU) as users:
        torch.zeros(5)
    assert "aten::zeros" in {event.name for event in users.events()}


def test_exception_while_recording_leaves_nothing_behind() -> None:
    with pytest.raises(RuntimeError, match="size"):
        record(lambda: torch.ones(3) + torch.ones(4))
    assert not torch.autograd.profiler._is_profiler_enabled
    assert torch_kineto._running == []


def test_profiler_that_fails_to_start_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.autograd.profiler.profile, "__enter__", fail)
    records = record(lambda: torch.ones(3))
    assert records.warnings == ("operators were not recorded: no room",)
    assert operator_rows(records).height == 0


def test_vendor_prints_nothing_and_others_do(capfd: pytest.CaptureFixture[str]) -> None:
    unseen = torch.ones(1000)

    def work() -> None:
        nonlocal unseen
        os.write(2, b"mine")
        del unseen

    record(work)
    record(lambda: torch.ones(2), detail=True)
    assert capfd.readouterr().err == "mine"


FORK = """
import os, sys, time
import torch
from xsp.clock import SystemClock
from xsp_levels.framework.torch.profiler.operator import OperatorRecorder, operator_rows

recorder = OperatorRecorder()
recorder.start(SystemClock(), {detail})
torch.ones(3)
if {finished}:
    assert operator_rows(recorder.stop()).height == 3
time.sleep(0.5)  # Kineto's thread sleeps by now, which is when its destructor waits for ever
pid = os.fork()
if pid == 0:
    torch.ones(3)
    if not {finished}:
        records = recorder.stop()
        assert "forked" in records.warnings[0], records.warnings
    again = OperatorRecorder()
    again.start(SystemClock(), False)
    torch.ones(3)
    assert len(again.stop().handle) == 3 + 16  # polars cannot be used in a fork
    print("child", flush=True)
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
if not {finished}:
    assert operator_rows(recorder.stop()).height == 3
print("parent")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("finished", "detail"), [(False, True), (True, False)])
def test_forked_child_neither_records_nor_hangs(finished: bool, detail: bool) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK.format(detail=detail, finished=finished)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert result.stderr == b""
    assert result.stdout == b"child\nparent\n"
