from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from xsp import measure  # noqa: E402
from xsp.clock import SystemClock  # noqa: E402
from xsp.level import Kind  # noqa: E402
from xsp.provider.contract import Records, Request  # noqa: E402
from xsp.provider.packing import pack, unpack  # noqa: E402
from xsp.provider.row import SpanRows  # noqa: E402
from xsp.testing import only_providers  # noqa: E402
from xsp_levels.framework.torch.provider import Torch  # noqa: E402
from xsp_levels.library.mkl import provider as mkl  # noqa: E402
from xsp_levels.library.mkl.provider import (  # noqa: E402
    Mkl,
    MklRecords,
    Output,
)
from xsp_levels.library.mkl.verbose import MklLibrary  # noqa: E402
from xsp_levels.native import perf_event  # noqa: E402
from xsp_levels.native.perf_event import Hit  # noqa: E402
from xsp_levels.native.symbol import Place  # noqa: E402

CALLS = Request(frozenset({Kind.CALL}))


@pytest.fixture(autouse=True)
def mkl_is_there() -> None:
    if reason := Mkl().unavailable():
        pytest.skip(f"{reason}: on an x86-64 CPU, pip install torch brings one")


def matrix(rows: int = 8, columns: int = 64) -> Any:
    return torch.ones(rows, columns)


def record(provider: Mkl) -> SpanRows:
    provider.start(SystemClock(), CALLS)
    try:
        matrix() @ matrix(64, 16)
    finally:
        kept = provider.stop()
    return provider.spans(kept)


def refuse(*arguments: object) -> None:
    raise PermissionError(13, "Permission denied")


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | variables,
    )


def test_records_are_interpreted_without_mkl() -> None:
    text = "MKL_VERBOSE SGEMM(N,N,2,3,4) 10us NThr:2\n"
    rows = Mkl().spans(Records(MklRecords((Output(text, (Hit(50_000, 1),)),), {1: 9}, "2024.2")))
    assert rows.select("name", "start_ns", "end_ns", "thread").rows() == [
        ("SGEMM", 40_000, 50_000, 9)
    ]


def test_mkl_that_cannot_write_to_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    old = MklLibrary("/opt/libtorch_cpu.so", Place(1, "/opt/libtorch_cpu.so", 1), complete=False)
    monkeypatch.setattr(mkl, "loaded", lambda: (old,))
    assert "since 2023.1" in str(Mkl().unavailable())
    provider = Mkl()
    provider.start(SystemClock(), CALLS)
    assert provider.spans(provider.stop()).height == 0


def test_without_mkl_it_says_what_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "loaded", lambda: ())
    monkeypatch.setattr(mkl, "mentions", lambda path, name: False)
    assert "PyTorch for x86-64 brings one" in str(Mkl().unavailable())


def test_calls_on_threads_that_begin_later_are_left_out_and_said_so() -> None:
    if reason := perf_event.refusal():
        pytest.skip(f"breakpoints: {reason}")
    provider = Mkl()
    provider.start(SystemClock(), CALLS)
    thread = threading.Thread(target=lambda: matrix() @ matrix(64, 4))
    thread.start()
    thread.join()
    kept = provider.stop()
    assert (provider.spans(kept).height, kept.dropped) == (0, 1)
    assert "threads that began during" in kept.warnings[0]


def test_call_is_recorded_with_its_warning_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (row,) = record(Mkl()).to_dicts()
    matrix() @ matrix(64, 16)
    assert (row["name"], row["attr.problem"]) == ("SGEMM", "NN m16 n8 k64")
    assert row["attr.flops"] == 2 * 16 * 8 * 64
    assert row["attr.threads"] == torch.get_num_threads()
    assert row["attr.library"].startswith("MKL")
    assert capfd.readouterr().out == ""


def test_call_lies_in_the_time_it_was_made_in_and_on_its_thread() -> None:
    if reason := perf_event.refusal():
        pytest.skip(f"breakpoints: {reason}")
    rows: list[SpanRows] = []
    provider, threads = Mkl(), []
    ready, go = threading.Barrier(2), threading.Barrier(2)

    def other() -> None:
        threads.append(threading.get_ident())
        ready.wait()
        go.wait()
        matrix() @ matrix(64, 4)

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    provider.start(SystemClock(), CALLS)
    before = SystemClock.now()
    matrix() @ matrix(64, 16)
    between = SystemClock.now()
    go.wait()
    thread.join()
    kept = provider.stop()
    rows.append(provider.spans(kept))
    first, second = rows[0].to_dicts()
    assert before < first["start_ns"] < first["end_ns"] < between < second["end_ns"]
    assert first["thread"] == threading.get_ident()
    # The other thread is gone, and with it what Python called it.
    assert second["thread"] in (threads[0], None)
    assert first["attr.placement"] == "end"


def test_every_call_of_a_model_lies_inside_the_operator_that_made_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    with only_providers(Torch(), Mkl()), torch.inference_mode():
        trace = measure(model.eval(), matrix(), levels=3, budget=1, runs=3)
    spans = trace.spans
    above = spans.select(parent_id="span_id", above="name")
    calls = spans.filter(pl.col("kind") == "call").join(above, on="parent_id", how="left")
    assert calls.select("name", "above").rows() == [("SGEMM", "aten::addmm")] * 2
    assert calls["attributes"].struct.field("problem").to_list() == [
        "TN m32 n8 k64",
        "TN m16 n8 k32",
    ]
    trace.check()


def test_where_the_kernel_refuses_calls_are_placed_by_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(perf_event, "watch", refuse)
    monkeypatch.setattr(perf_event, "open_all", refuse)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    provider = Mkl()
    assert "by their order" in str(provider.remark())
    with only_providers(Torch(), provider), torch.inference_mode():
        trace = measure(model.eval(), matrix(), levels=3, budget=1, runs=3)
    spans = trace.spans
    above = spans.select(parent_id="span_id", above="name")
    calls = spans.filter(pl.col("kind") == "call").join(above, on="parent_id", how="left")
    assert calls.select("name", "above").rows() == [("SGEMM", "aten::addmm")] * 2
    assert set(calls["attributes"].struct.field("placement")) == {"order"}
    assert any("placed by their order" in warning.message for warning in trace.warnings)


def test_nothing_stays_behind() -> None:
    provider = Mkl()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        record(provider)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_file_that_the_user_named_is_named_again(tmp_path: Path) -> None:
    path = tmp_path / "mkl.txt"
    script = """
        import torch
        from xsp_levels.library.mkl.verbose import MklRecorder, loaded
        torch.ones(8, 8) @ torch.ones(8, 8)
        recorder = MklRecorder(loaded()[0])
        recorder.start()
        torch.ones(4, 4) @ torch.ones(4, 4)
        assert recorder.stop().count("SGEMM") == 1
        torch.ones(2, 2) @ torch.ones(2, 2)
    """
    result = run(script, MKL_VERBOSE="1", MKL_VERBOSE_OUTPUT_FILE=str(path))
    lines = [line for line in path.read_text().splitlines() if "SGEMM" in line]
    assert ["N,N,8,8" in lines[0], "N,N,4,4" in lines[1], "N,N,2,2" in lines[2]] == [True] * 3
    assert len(lines) == 3
    assert "SGEMM" not in result.stdout


@pytest.mark.slow
def test_lines_that_the_user_asked_for_still_come() -> None:
    script = """
        import torch
        from xsp_levels.library.mkl.verbose import MklRecorder, loaded
        recorder = MklRecorder(loaded()[0])
        recorder.start()
        torch.ones(4, 4) @ torch.ones(4, 4)
        recorder.stop()
        torch.ones(2, 2) @ torch.ones(2, 2)
    """
    out = run(script, MKL_VERBOSE="1").stdout
    assert [line.split("(")[1][:7] for line in out.splitlines() if "SGEMM" in line] == [
        "N,N,4,4",
        "N,N,2,2",
    ]


@pytest.mark.slow
def test_child_of_a_fork_is_not_recorded_and_its_parent_still_is() -> None:
    script = """
        import os, torch
        from xsp_levels.library.mkl.provider import MklWatch
        from xsp_levels.library.mkl.verbose import loaded
        torch.set_num_threads(1)
        watch = MklWatch(loaded()[0])
        torch.ones(4, 4) @ torch.ones(4, 4)
        child = os.fork()
        if child == 0:
            torch.ones(2, 2) @ torch.ones(2, 2)
            os._exit(0)
        os.waitpid(child, 0)
        torch.ones(3, 3) @ torch.ones(3, 3)
        output = watch.stop()
        sizes = [line[18:25] for line in output.text.splitlines() if "SGEMM" in line]
        assert sizes == ["N,N,4,4", "N,N,3,3"], sizes
        assert output.hits is None or len(output.hits) == 2
        assert output.lost == 0
    """
    assert "SGEMM" not in run(script).stdout


@pytest.mark.slow
def test_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import os, signal, torch
        from xsp_levels.library.mkl.provider import MklWatch
        from xsp_levels.library.mkl.verbose import loaded
        watch = MklWatch(loaded()[0])
        print("said", flush=True)
        torch.ones(4, 4) @ torch.ones(4, 4)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert (result.returncode, result.stdout) == (-9, "said\n")
    assert list(tmp_path.iterdir()) == []


def test_records_are_kept_as_bytes_and_make_the_same_rows() -> None:
    provider = Mkl()
    text = "MKL_VERBOSE SGEMM(N,N,2,3,4) 10us NThr:2\n"
    outputs = (Output(text, (Hit(50_000, 1),)), Output(text))
    kept = Records(MklRecords(outputs, {1: 9}, "2024.2"), 3, ("a problem",))
    unpacked = unpack(provider, pack(provider, kept))
    assert (unpacked.dropped, unpacked.warnings) == (kept.dropped, kept.warnings)
    rows = provider.spans(kept)
    assert rows.height
    assert provider.spans(unpacked).equals(rows)


@pytest.mark.timing
def test_what_mkl_does_first_is_done_before_the_first_recorded_call() -> None:
    # In its first call in verbose mode MKL measures the processor's frequency for half a second.
    made = run("""
        import time, torch
        from xsp.clock import SystemClock
        from xsp.level import Kind
        from xsp.provider.contract import Request
        from xsp_levels.library.mkl.provider import Mkl

        left, right = torch.ones(8, 64), torch.ones(64, 16)
        left @ right
        for provider in (Mkl(), Mkl()):
            provider.start(SystemClock(), Request(frozenset({Kind.CALL})))
            begin = time.perf_counter()
            left @ right
            took_s = time.perf_counter() - begin
            records = provider.stop()
            print(took_s < 0.1, len(provider.spans(records)), bool(records.data.version))
    """)
    assert made.stdout.split() == ["True", "1", "True"] * 2


def test_line_of_a_call_under_way_at_the_end_does_not_reach_standard_output() -> None:
    done = run("""
        import ctypes, torch
        from xsp.clock import SystemClock
        from xsp.level import Kind
        from xsp.provider import Request
        from xsp_levels.library.mkl.provider import Mkl

        mkl, clock = Mkl(), SystemClock()
        mkl.start(clock, Request(frozenset({Kind.CALL})))
        recorder = mkl._watches[0]._recorder
        records = mkl.stop()
        for when in ("a call under way", "the user's own mode"):
            print(when, flush=True)
            recorder._switch(1)
            torch.ones(8, 64) @ torch.ones(64, 16)
            recorder._switch(0)
            mkl.spans(records)
    """)
    before, _, after = done.stdout.partition("the user's own mode")
    assert "KL_VERBOSE" not in before
    assert "KL_VERBOSE" in after
