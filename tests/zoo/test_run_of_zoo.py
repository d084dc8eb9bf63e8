"""A zoo's run measures what has no complete result, whatever ended the run before."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psutil
import pytest
from samples import pipeline, trace

from xsp.answer.zoo import core, execution
from xsp.answer.zoo.folder import TABLE, read_results
from xsp.answer.zoo.process import Family, limit_facts
from xsp.answer.zoo.row import row_of, row_without
from xsp.answer.zoo.task import Point
from xsp.answer.zoo.worker import Refusals
from xsp.measuring.target import Spec
from xsp.record.session import settings_of
from xsp.show.cli import app as cli
from xsp.show.cli import exit_code
from xsp.zoo import Limits, Row, Tally, Task, opened, run

Said = pytest.CaptureFixture[str]

JOB = """
import os, time

def make_models():
    return {"a": make, "b": make_b}

def make(batch=1):
    return lambda: time.sleep(0.005 * batch)

def make_b(batch=1):
    while os.path.exists(os.path.join(os.path.dirname(__file__), "wait")):
        time.sleep(0.05)
    return make(batch)
"""

HIDING = """
import sys
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("hidden for this test", name=name)
sys.meta_path.insert(0, Hiding())
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(core, "FOLDER", tmp_path / "cores")  # tests run side by side
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # what is killed leaves files there
    (tmp_path / "job.py").write_text(JOB)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDING)
    monkeypatch.setenv(
        "PYTHONPATH", str(hidden), prepend=os.pathsep
    )  # without PyTorch they start at once
    return tmp_path


def task(model: str, *batches: int, **more: Any) -> Task:
    points = tuple(Point(Spec("job.py:make", batch=batch)) for batch in batches)
    return Task(model, points, settings_of(1, runs=3, budget=1.0), **more)


@dataclass
class Processes:
    """Stand for the processes: what becomes of each point is what `ends` says of its batch."""

    monkeypatch: pytest.MonkeyPatch
    ends: dict[tuple[str, int], str] = field(default_factory=dict)
    measured: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(execution, "carry_out", self._carry_out)

    def _carry_out(
        self, work: Task, points: Sequence[Point], scratch: Path, tell: Any, *, basis: Any
    ) -> Generator[tuple[Row, Path | None], None, None]:
        for point in points:
            batch = point.spec.batch or 0
            self.measured.append((work.model, batch))
            tell(point, "measuring")
            yield self._end(work, point, scratch, basis)

    def _end(
        self, work: Task, point: Point, scratch: Path, basis: dict[str, str]
    ) -> tuple[Row, Path | None]:
        end = self.ends.get((work.model, point.spec.batch or 0), "measured")
        if end == "interrupted":
            raise KeyboardInterrupt
        if end != "measured":
            limits = limit_facts(work.limits)
            limit = {"time limit": limits["time limit"]} if end == "time-out" else {}
            return row_without(work, point, end, "so", took_s=1.0, basis=basis | limit), None
        made = trace(pipeline("make", own_ns=1_000_000))
        return row_of(work, point, made, took_s=2.0, basis=basis), made.save(scratch / "made.xsp")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


@dataclass
class Watched:
    """Messages of a run."""

    told: list[str] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    def planned(self, points: int, kept: int, left_s: float) -> None:
        self.told.append(f"{points} points, {kept} kept")
        self.left.append(left_s)

    def began(self, work: Task, point: Point, again: str) -> None:
        self.told.append(f"began {work.model} {point}{' again: ' * bool(again)}{again}")

    def state(self, work: Task, point: Point, state: str) -> None:
        pass

    def ended(self, work: Task, point: Point, row: Row, left_s: float) -> None:
        self.told.append(f"{row['status']} {work.model} {point}")
        self.left.append(left_s)

    def stopped(self, points: int, why: str) -> None:
        self.told.append(f"{points} left out: {why}")


def ran(*tasks: Task, **more: Any) -> tuple[Tally, Watched]:
    watched = Watched()
    with opened(Path("out")) as folder:
        return run(tasks, folder, watched, **more), watched


def test_a_run_repeats_nothing_that_is_complete(processes: Processes) -> None:
    first, watched = ran(task("a", 1, 2), task("b", 1))
    assert watched.told[:3] == ["3 points, 0 kept", "began a batch 1", "measured a batch 1"]
    again, watched = ran(task("a", 1, 2, 4), task("b", 1))
    assert processes.measured == [("a", 1), ("a", 2), ("b", 1), ("a", 4)]
    assert (first.counts["measured"], again.counts["measured"]) == (3, 4)
    assert watched.told == ["4 points, 3 kept", "began a batch 4", "measured a batch 4"]
    assert read_results(Path("out")).height == 4


def test_what_failed_or_crashed_is_tried_again(processes: Processes) -> None:
    processes.ends = {("a", 1): "failed", ("b", 1): "crashed"}
    tally, _ = ran(task("a", 1, 2), task("b", 1))
    assert [row["status"] for row in tally.failures] == ["failed", "crashed"]
    processes.ends = {}
    tally, _ = ran(task("a", 1, 2), task("b", 1))
    assert processes.measured[3:] == [("a", 1), ("b", 1)]
    assert tally.failures == []
    assert read_results(Path("out"))["status"].to_list() == ["measured"] * 3


def test_a_time_out_is_tried_again_with_a_higher_limit_alone(processes: Processes) -> None:
    processes.ends = {("a", 1): "time-out"}
    ran(task("a", 1))
    tally, _ = ran(task("a", 1))
    assert processes.measured == [("a", 1)]
    assert len(tally.failures) == 1
    _, watched = ran(task("a", 1, limits=Limits(time_s=1200.0)))
    assert watched.told[1] == "began a batch 1 again: time limit was 600 s and is 1200 s"


def test_batches_above_one_that_ran_out_of_memory_are_skipped_later_as_well(
    processes: Processes,
) -> None:
    processes.ends = {("a", 2): "out-of-memory"}
    ran(task("a", 1, 2))
    tally, _ = ran(task("a", 1, 2, 4))
    assert processes.measured == [("a", 1), ("a", 2)]
    assert tally.counts == {"measured": 1, "out-of-memory": 1, "skipped": 1}
    assert read_results(Path("out"))["status"].to_list()[-1] == "skipped"


def test_no_measurement_begins_when_others_were_waited_for_too_long(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    @contextmanager
    def held(waiting: Any) -> Iterator[None]:
        now[0] += 100.0
        yield

    monkeypatch.setattr(execution, "held", held)
    monkeypatch.setattr(execution, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tally, _ = ran(task("a", 1), total_s=60.0)
    assert (processes.measured, tally.left_out) == ([], 1)


def test_interrupted_it_keeps_what_is_complete(processes: Processes) -> None:
    processes.ends = {("a", 2): "interrupted"}
    with pytest.raises(KeyboardInterrupt):
        ran(task("a", 1, 2))
    assert read_results(Path("out"))["batch"].to_list() == [1]
    assert not Path("out/.work").exists()


def test_memory_that_children_share_counts_once() -> None:
    code = "import os, time; held = bytearray(b'x') * (100 << 20); [os.fork() for _ in 'ab']; "
    code += "print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        family = Family(process.pid)
        assert family.exceeds(250 << 20) == 0  # 4 processes, of 100 MB together
        assert 90 << 20 < family.exceeds(50 << 20) < 200 << 20
        assert family.left()
        os.killpg(process.pid, signal.SIGKILL)
    _wait(lambda: not family.left())


def test_connections_to_this_machine_alone_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    refusals = Refusals()
    refusals.begin()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    with pytest.raises(ConnectionRefusedError, match="downloads none"):
        socket.create_connection(("models.example.org", 443))
    with socket.socket() as plain, pytest.raises(ConnectionRefusedError, match=r"to 192\.0\.2\.1"):
        plain.connect(("192.0.2.1", 80))
    assert list(refusals.hosts) == ["models.example.org", "192.0.2.1"]
    said = "it tried to reach models.example.org, 192.0.2.1, and xsp measures models with"
    assert refusals.explain("no weights").startswith(said)


LINE = ["zoo", "run", "job.py:make_models", "-o", "out", "--levels", "1", "--budget", "0.2"]


def test_the_end_of_a_run_is_a_summary_that_says_what_failed_and_what_comes_next(
    processes: Processes, capsys: Said
) -> None:
    processes.ends = {("b", 0): "crashed"}
    line = ["zoo", "run", "job.py:make_models", "-o", "a folder"]
    assert cli.run([*line, "--only", "a", "--threads", "1"]) == exit_code.OK
    capsys.readouterr()
    assert cli.run([*line, "--threads", "2"]) == exit_code.TARGET_FAILED
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "1 model, 1 measurement"
    assert out[1].startswith("model ")
    assert out[2].startswith("a ")
    assert out[-4:-2] == [
        "b, threads 2: crashed: so",
        "the folder has 1 further result, of models or settings that were not asked for; the "
        "report shows them as well",
    ]
    assert re.match(r"1 measured, 1 crashed, in \d+ s; the table is a folder/", out[-2])
    assert out[-1] == "next: xsp zoo report 'a folder'"


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_where_it_was(here: Path, capsys: Said) -> None:
    with _running() as running:
        _wait(lambda: any(b'"b"' in job.read_bytes() for job in here.glob("out/.work/*/job.json")))
        children = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    _, alive = psutil.wait_procs(children, 10)
    assert alive == []
    done = read_results(here / "out")
    assert done.height == 1
    assert len(list((here / "temporary").glob("xsp-zoo-*"))) == 1  # of the process under way
    assert cli.run([*LINE, "--json"]) == exit_code.OK
    out, err = capsys.readouterr()
    assert "2 measurements, 1 complete from before; about" in err
    assert json.loads(out)["counts"] == {"measured": 2}
    after = pl.read_parquet(here / "out" / TABLE)
    assert after["model"].to_list() == ["a", "b"]
    assert after["started"][0] == done["started"][0]
    assert not (here / "out" / ".work").exists()
    assert list((here / "temporary").glob("xsp-zoo-*")) == []


@pytest.mark.slow
def test_a_run_lets_no_other_into_its_folder_and_ends_when_told(here: Path, capsys: Said) -> None:
    with _running() as running:
        assert cli.run(LINE) == exit_code.NOT_MEASURED
        assert "another run writes into out" in capsys.readouterr().err
        children = psutil.Process(running.pid).children(recursive=True)
        running.terminate()
        _, err = running.communicate(timeout=60)
    assert running.returncode == exit_code.INTERRUPTED
    assert b"interrupted; the same command goes on, with what is complete in out" in err
    _, alive = psutil.wait_procs(children, 10)
    assert alive == []
    assert pl.read_parquet(here / "out" / TABLE).height == 1


@contextmanager
def _running() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a run of two models, of which the first is complete, and the second waits."""
    command = [sys.executable, "-m", "xsp", *LINE]
    wait = Path("wait")
    wait.touch()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, bufsize=0, stdout=pipe, stderr=pipe) as running:
        assert running.stderr is not None
        while b"[1/2" not in running.stderr.readline():
            assert running.poll() is None
        yield running
    wait.unlink()


def _wait(until: Any) -> None:
    end = time.monotonic() + 120
    while not until() and time.monotonic() < end:
        time.sleep(0.05)
    assert until()
