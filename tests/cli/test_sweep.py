from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import xsp
from xsp.cli import app as cli
from xsp.cli import exit_code
from xsp.cli.sweep.answer import _columns
from xsp.sweep import TABLE, Result, Status
from xsp.target import division

Said = pytest.CaptureFixture[str]

JOB = """
import os, signal, time

def sleepy(batch=1, each=2):
    time.sleep(0.001 * max(each * batch, 8))

def greedy(batch=1):
    if batch > 1:
        raise MemoryError(f"{batch} are too many")

def dying(batch=1):
    if batch > 1:
        os.kill(os.getpid(), signal.SIGKILL)

def picky(batch=1):
    if batch == 1:
        raise ValueError("one is no batch")

def plain():
    time.sleep(0.001)

def broken(batch=1):
    raise RuntimeError("never")
"""

# Python imports a `sitecustomize` when it starts; this one makes that `import torch` fails.
HIDING = """
import sys
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("hidden for this test", name=name)
sys.meta_path.insert(0, Hiding())
"""

QUICK = ("--runs", "3", "--budget", "0.5", "-o", "out")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDING)
    monkeypatch.setenv("PYTHONPATH", str(hidden))  # without PyTorch processes start at once
    return tmp_path


@pytest.fixture
def few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each point as few processes as it can have, where its latency does not matter."""
    monkeypatch.setattr(division, "_FEWEST_PROCESSES", 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sweep", "Missing argument 'TARGET'"),
        ("sweep job.py", "job.py is a script, which runs as it is: give path.py:function"),
        ("sweep job.py:sleepy --batch=", "'' has an empty place"),
        ("sweep job.py:sleepy --batch 0", "'0' is no whole number from 1"),
        ("sweep job.py:sleepy --threads 1,x", "'x' is no whole number from 1"),
        ("sweep job.py:sleepy --set each", "write NAME=VALUE,VALUE"),
        ("sweep job.py:sleepy --set size=3", "got an unexpected keyword argument 'size'"),
        ("sweep job.py:sleepy --precision half", "there is no precision 'half'"),
        ("sweep job.py:sleepy --compile 1", "neither no (eager) nor yes"),
        ("sweep job.py:sleepy --compile yes", "job.py:sleepy cannot be called with --compile:"),
        ("sweep job.py:sleepy --target-latency 50", "'50' is no time: write 50ms"),
        ("sweep job.py:sleepy --target-latency 0ms", "is no time"),
        ("sweep job.py:sleepy --levels 9", "there is no level 9"),
        ("sweep job.py:sleepy --train", "--train makes a training step of a model"),
        ("sweep job.py:plain --batch 1,2", "cannot be called with --batch"),
        ("sweep job.py:slepy", "did you mean sleepy?"),
        ("sweep torchvison:resnet50", "did you mean torchvision?"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_measured(
    here: Path, capsys: Said, line: str, said: str
) -> None:
    assert cli.run(line.split()) == exit_code.USAGE
    out, err = capsys.readouterr()
    assert said in " ".join(err.split())
    assert out == ""
    assert not list(here.glob("*-sweep"))


def test_help_has_examples_and_exit_codes(capsys: Said) -> None:
    assert cli.run(["sweep", "--help"]) == exit_code.OK
    said = capsys.readouterr().out
    assert "xsp sweep torchvision:resnet50 --batch 1..64 --threads 1,2" in said
    assert "130  interrupted; the same command goes on" in said


def test_a_folder_that_cannot_be_made_is_told(here: Path, capsys: Said) -> None:
    assert cli.run(["sweep", "job.py:plain", "-o", "job.py/out"]) == exit_code.NOT_MEASURED
    assert "job.py/out cannot be made: Not a directory" in capsys.readouterr().err


def test_a_dry_run_lists_the_points_and_the_time_and_leaves_nothing(
    here: Path, capsys: Said
) -> None:
    line = ["sweep", "job.py:sleepy", "--batch", "1,2", "--threads", "1,2", "--dry-run"]
    assert cli.run(line) == exit_code.OK
    assert capsys.readouterr().out.splitlines() == [
        "4 points, about 52 s, to sleepy-sweep",
        "  batch 1, threads 1: to do",
        "  batch 2, threads 1: to do",
        "  batch 1, threads 2: to do",
        "  batch 2, threads 2: to do",
    ]
    assert not (here / "sleepy-sweep").exists()


def test_numbers_of_a_sweep_whose_intervals_are_wider_than_they_are_bounds() -> None:
    measured = {
        **{"latency_ns": 12.4e6, "latency_low_ns": 12.4e6, "latency_high_ns": 12.4e6},
        **{"throughput_per_s": 257.0, "throughput_low_per_s": 130.0},
        "throughput_high_per_s": 690.0,
    }
    result = Result("batch=1", {"batch": 1}, Status.MEASURED, measured=measured)
    cells = {name: cell(result) for name, cell in _columns([result]).items()}
    assert cells["latency"] == "12.4 ms"
    assert cells["throughput"] == "< 690/s"


@pytest.mark.slow
def test_a_sweep_finds_the_optimum_and_keeps_traces_and_table(here: Path, capsys: Said) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1..16", "--target-latency", "24ms"]
    assert cli.run(line) == exit_code.OK
    out, err = capsys.readouterr()
    # 8 ms up to a batch of 4, then 2 ms for each sample.
    assert "optimal batch: 4, the smallest measured of which a doubling raises" in out
    assert "within 24.0 ms: batch " in out
    assert err.startswith("5 points, about ")
    assert "[5/5] batch 16: " in err
    table = pl.read_parquet(here / "out" / TABLE)
    assert table["batch"].to_list() == [1, 2, 4, 8, 16]
    assert table["latency_ns"].is_between(7e6, 60e6).all()
    trace = xsp.load(here / "out" / table["trace"][1])
    trace.check()
    assert dict(trace.metadata["settings"]) == {"batch": 2}
    assert trace.root.latency_ns == table["latency_ns"][1]
    assert cli.run([*line, "--dry-run"]) == exit_code.OK
    assert capsys.readouterr().out.count(": complete") == 5


@pytest.mark.slow
def test_json_has_points_and_curves_and_nothing_else(capsys: Said) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1,2", "--set", "each=8,16", "--json"]
    assert cli.run([*line, "--threads", "1"]) == exit_code.OK
    said = json.loads(capsys.readouterr().out)
    assert [point["set.each"] for point in said["points"]] == [8, 8, 16, 16]
    assert {point["threads"] for point in said["points"]} == {1}
    assert [curve["name"] for curve in said["curves"]] == [
        "threads 1, each 8",
        "threads 1, each 16",
    ]
    assert [curve["batch"] for curve in said["curves"]] == [1, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
@pytest.mark.parametrize(
    ("function", "said"),
    [("greedy", "MemoryError: 2 are too many"), ("dying", "SIGKILL (often: out of memory)")],
)
def test_memory_that_ends_is_a_result(here: Path, capsys: Said, function: str, said: str) -> None:
    line = ["sweep", f"job.py:{function}", *QUICK, "--batch", "1,2,4"]
    assert cli.run(line) == exit_code.OK
    table = pl.read_parquet(here / "out" / TABLE)
    assert table["status"].to_list() == ["measured", "out-of-memory", "skipped"]
    assert said in table["reason"][1]
    assert "batch 2 runs out of memory" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
@pytest.mark.parametrize(
    ("function", "code"),
    [("picky", exit_code.TARGET_FAILED), ("broken", exit_code.NOT_MEASURED)],
)
def test_points_that_fail_have_their_exit_code(capsys: Said, function: str, code: int) -> None:
    assert cli.run(["sweep", f"job.py:{function}", *QUICK, "--batch", "1,2"]) == code
    assert "failed: the target raised" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
def test_a_function_without_a_batch_is_swept_over_the_rest(here: Path, capsys: Said) -> None:
    assert cli.run(["sweep", "job.py:plain", *QUICK, "--threads", "1,2"]) == exit_code.OK
    table = pl.read_parquet(here / "out" / TABLE)
    assert table["threads"].to_list() == [1, 2]
    assert table["batch"].null_count() == table["throughput_per_s"].null_count() == 2
    assert "optimal" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_sweep_that_was_ended_goes_on_where_it_was(here: Path, capsys: Said, how: str) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1,2,4"]
    running = subprocess.Popen(
        [sys.executable, "-m", "xsp", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 120
    while not (here / "out" / TABLE).exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(running.pid, getattr(signal, how))
    _, err = running.communicate(timeout=60)
    expected = -signal.SIGKILL if how == "SIGKILL" else exit_code.INTERRUPTED
    assert running.returncode == expected, err.decode()
    if how != "SIGKILL":
        assert "interrupted; the same command goes on" in err.decode()
    done = pl.read_parquet(here / "out" / TABLE)
    assert 1 <= done.height < 3
    assert cli.run(line) == exit_code.OK
    said = capsys.readouterr().err
    assert said.count("(complete before)") == done.height
    after = pl.read_parquet(here / "out" / TABLE)
    assert after["batch"].to_list() == [1, 2, 4]
    assert after["latency_ns"].head(done.height).to_list() == done["latency_ns"].to_list()
    assert not list((here / "out").glob(".*.part"))


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
def test_two_sweeps_into_one_folder_are_refused(here: Path, capsys: Said) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1,2,4,8"]
    first = subprocess.Popen(
        [sys.executable, "-m", "xsp", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until = time.monotonic() + 120
        while not (here / "out" / ".sweep.lock").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)  # from the lock's file to the lock
        assert cli.run(line) == exit_code.NOT_MEASURED
        assert "another sweep writes into out" in capsys.readouterr().err
    finally:
        first.terminate()
        first.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.usefixtures("few_processes")
def test_a_model_is_swept_over_precision_and_compilation(
    here: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision", reason="needs torchvision: pip install 'xsp[zoo]'")
    monkeypatch.delenv("PYTHONPATH")
    line = ["sweep", "torchvision:squeezenet1_1", *QUICK, "--batch", "1", "--levels", "2"]
    assert cli.run([*line, "--precision", "float32,bfloat16"]) == exit_code.OK
    table = pl.read_parquet(here / "out" / TABLE)
    assert table["precision"].to_list() == ["float32", "bfloat16"]
    for name, precision in zip(table["trace"], table["precision"], strict=True):
        trace = xsp.load(here / "out" / name)
        types = trace.spans["attributes"].struct.field("input_dtypes").drop_nulls()
        assert any(precision in str(each.to_list()) for each in types)


def test_a_setting_that_a_function_lacks_is_named_as_it_was_typed(capsys: Said) -> None:
    assert cli.run(["sweep", "job.py:plain", "--set", "seq=3"]) == exit_code.USAGE
    said = capsys.readouterr().err
    assert "--set seq:" in said
    assert "sequence" not in said
