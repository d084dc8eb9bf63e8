from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import xsp
from xsp.answer.zoo import core
from xsp.show.cli import app as cli
from xsp.show.cli import exit_code
from xsp.zoo import TABLE, read_results

Said = pytest.CaptureFixture[str]

JOB = """
import os, signal, time

def sleepy(batch=1, each=2):
    time.sleep(0.02 if each * batch <= 8 else 0.004 * each * batch)

def greedy(batch=1):
    if batch > 1:
        raise MemoryError(f"{batch} are too many")

def dying(batch=1):
    if batch > 1:
        os.kill(os.getpid(), signal.SIGKILL)

def plain():
    time.sleep(0.001)
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
    # Without PyTorch processes start at once.
    monkeypatch.setenv("PYTHONPATH", str(hidden), prepend=os.pathsep)
    monkeypatch.setattr(core, "FOLDER", tmp_path / "cores")  # tests run side by side
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sweep", "Missing argument 'TARGET'"),
        ("sweep job.py", "sweep cannot set options of a script (job.py). Give path.py:function"),
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
        ("sweep job.py:sleepy --levels 9", "Unknown level"),
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


@pytest.mark.slow
def test_a_sweep_finds_the_optimum_and_keeps_traces_and_table(here: Path, capsys: Said) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1..16", "--target-latency", "60ms"]
    assert cli.run(line) == exit_code.OK
    out, err = capsys.readouterr()
    # 20 ms up to a batch of 4, then 8 ms for each sample: the throughput falls.
    assert "optimal batch: 4, the smallest measured of which a doubling raises" in out
    assert "within 60.0 ms: batch 4" in out
    assert err.startswith("5 measurements; about ")
    assert "[5/5] job.py:sleepy, batch 16: " in err
    table = pl.read_parquet(here / "out" / TABLE)
    assert table["batch"].to_list() == [1, 2, 4, 8, 16]
    assert (table["latency_ns"] > 19e6).all()
    trace = xsp.load(here / "out" / table["trace"][1])
    trace.check()
    assert dict(trace.metadata["settings"]) == {"batch": 2}
    assert trace.root.latency_ns == table["latency_ns"][1]
    assert cli.run([*line, "--dry-run"]) == exit_code.OK
    assert capsys.readouterr().out.count(": complete") == 5


@pytest.mark.slow
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
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_sweep_that_was_ended_goes_on_where_it_was(here: Path, capsys: Said, how: str) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1,2,4"]
    running = subprocess.Popen(
        [sys.executable, "-m", "xsp", *line],
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stderr is not None
    while b"[1/3" not in running.stderr.readline():  # the first result is kept
        assert running.poll() is None
    os.kill(running.pid, getattr(signal, how))
    _, err = running.communicate(timeout=60)
    expected = -signal.SIGKILL if how == "SIGKILL" else exit_code.INTERRUPTED
    assert running.returncode == expected, err.decode()
    if how != "SIGKILL":
        assert "interrupted; the same command goes on" in err.decode()
    done = read_results(here / "out")
    assert 1 <= done.height < 3
    assert cli.run(line) == exit_code.OK
    said = capsys.readouterr().err
    assert f"3 measurements, {done.height} complete from before" in said
    after = pl.read_parquet(here / "out" / TABLE)
    assert after["batch"].to_list() == [1, 2, 4]
    assert after["latency_ns"].head(done.height).to_list() == done["latency_ns"].to_list()
    assert not list((here / "out").glob(".*.part"))


@pytest.mark.slow
def test_two_sweeps_into_one_folder_are_refused(here: Path, capsys: Said) -> None:
    line = ["sweep", "job.py:sleepy", *QUICK, "--batch", "1,2,4,8"]
    first = subprocess.Popen(
        [sys.executable, "-m", "xsp", *line], bufsize=0, stderr=subprocess.PIPE
    )
    assert first.stderr is not None
    try:
        while b"[1/4" not in first.stderr.readline():  # it measures
            assert first.poll() is None
        first.send_signal(signal.SIGSTOP)  # it holds the folder for as long as this takes
        assert cli.run(line) == exit_code.NOT_MEASURED
        assert "another run writes into out" in capsys.readouterr().err
    finally:
        first.send_signal(signal.SIGCONT)
        first.terminate()
        first.communicate(timeout=60)


def test_a_setting_that_a_function_lacks_is_named_as_it_was_typed(capsys: Said) -> None:
    assert cli.run(["sweep", "job.py:plain", "--set", "seq=3"]) == exit_code.USAGE
    said = capsys.readouterr().err
    assert "--set seq:" in said
    assert "sequence" not in said
