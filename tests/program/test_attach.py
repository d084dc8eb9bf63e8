"""`xsp attach` from one process to another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xsp
from xsp.measuring.program import attach
from xsp.measuring.program.remote import announce, serve
from xsp.show.cli.app import run

WORK = """
import time
import xsp

xsp.profile_on_signal(levels=1)
print("ready", flush=True)
while True:
    with xsp.span("work"):
        time.sleep(0.002)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def started() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_process_that_allows_it_is_profiled_and_goes_on(
    tmp_path: Path,
    started: Callable[[str], subprocess.Popen[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = started(WORK)
    file = tmp_path / "work.xsp"
    with pytest.raises(ValueError, match="level"):
        attach(process.pid, file, levels=[1, "everything"])
    attach(process.pid, file, seconds=0.2, levels=[1])
    for levels in ("1", "region"):
        arguments = [str(process.pid), "--seconds", "0.5", "--levels", levels, "-o", str(file)]
        assert run(["attach", *arguments]) == 0
        assert "work" in capsys.readouterr().out
        spans = xsp.load(file).spans
        assert spans.filter(name="work")["latency_ns"].sum() > 0.1e9
    assert process.poll() is None


@pytest.mark.slow
def test_other_processes_are_left_alone_and_the_way_in_is_said(
    tmp_path: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    with pytest.raises(xsp.MeasurementError, match=r"Python 3\.\d+.*profile_on_signal"):
        attach(process.pid, tmp_path / "x.xsp", seconds=1)
    announcement = tmp_path / "state" / "xsp" / "attach" / f"{process.pid}.json"
    announcement.write_text('{"signal": 9, "began": "1"}')  # of an earlier process of this number
    with pytest.raises(xsp.MeasurementError, match="profile_on_signal"):
        attach(process.pid, tmp_path / "x.xsp", seconds=1)
    assert process.poll() is None


def test_what_cannot_be_attached_to_is_named(tmp_path: Path) -> None:
    program = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(xsp.MeasurementError, match="no Python program"):
            attach(program.pid, tmp_path / "x.xsp")
    finally:
        program.kill()
        program.wait()
    with pytest.raises(xsp.MeasurementError, match="pgrep"):
        attach(program.pid, tmp_path / "x.xsp")
    with pytest.raises(ValueError, match="seconds"):
        attach(os.getpid(), tmp_path / "x.xsp", seconds=0)
    with pytest.raises(ValueError, match="level"):
        attach(os.getpid(), tmp_path / "x.xsp", levels="everything")


def test_what_runs_inside_ends_by_itself_and_answers(tmp_path: Path) -> None:
    """What a script does that Python 3.14 runs in another process."""
    request = {"levels": "1", "seconds": 0.2, "output": str(tmp_path / "x.xsp")}
    serve({**request, "folder": str(tmp_path)})
    assert (tmp_path / "begun").exists()
    while not (tmp_path / "saved").exists():
        with xsp.span("work"):
            time.sleep(0.001)
    assert "work" in xsp.load(tmp_path / "x.xsp").spans["name"].to_list()
    (tmp_path / "refused").mkdir()
    with xsp.profile(levels=1):
        serve({**request, "folder": str(tmp_path / "refused")})
    assert "measurement" in (tmp_path / "refused" / "failed").read_text()


RESETS = """
import signal, time
import xsp

xsp.profile_on_signal(levels=1)
signal.signal(signal.SIGUSR1, signal.{})
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_signal_that_would_kill_is_not_sent(
    tmp_path: Path, started: Callable[[str], subprocess.Popen[str]], handler: str
) -> None:
    process = started(RESETS.format(handler))
    with pytest.raises(xsp.MeasurementError, match="no longer handles signal"):
        attach(process.pid, tmp_path / "x.xsp", seconds=1)
    assert process.poll() is None


ENDS = """
import time
import xsp

xsp.profile_on_signal(levels=1)
print("ready", flush=True)
with xsp.span("first work"):
    time.sleep(1.5)
with xsp.span("last work"):
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_program_that_ends_meanwhile_keeps_its_trace_and_only_one_attaches(
    tmp_path: Path, started: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = started(ENDS)
    refusals: list[str] = []

    def attach_again() -> None:
        with pytest.raises(xsp.MeasurementError) as refused:
            attach(process.pid, tmp_path / "y.xsp")
        refusals.append(str(refused.value))

    attach(process.pid, tmp_path / "x.xsp", seconds=60, begun=attach_again)
    assert ["Another xsp is attached" in said for said in refusals] == [True]
    assert "last work" in xsp.load(tmp_path / "x.xsp").spans["name"].to_list()


def test_announcements_of_processes_that_ended_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "xsp" / "attach"
    folder.mkdir(parents=True)
    (folder / "999999999.json").write_text("{}")
    announce(10)
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.json"]
