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
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from samples import pipeline, trace

from xsp.cli import app as cli
from xsp.cli import exit_code
from xsp.session import settings_of
from xsp.sweep import Point
from xsp.target import Spec
from xsp.zoo import Limits, Row, Tally, Task, core, execution, opened, run
from xsp.zoo.results import JOURNAL, TABLE, read_results, row_of, row_without
from xsp.zoo.work.memory import Family
from xsp.zoo.work.network import Refusals
from xsp.zoo.work.process import limit_facts
from xsp.zoo.work.repetition import compared

Said = pytest.CaptureFixture[str]

JOB = """
import time

def make_models():
    return {name: make for name in ("a", "b")}

def make(batch=1):
    return lambda: time.sleep(0.005 * batch)
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
    monkeypatch.setenv(core.FOLDER, str(tmp_path / "cores"))  # tests run side by side
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
    """What a run told, in words."""

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


def test_a_limit_that_was_not_exceeded_may_change(processes: Processes) -> None:
    ran(task("a", 1))
    ran(task("a", 1, limits=Limits(time_s=1200.0, memory_bytes=1 << 33)))
    assert processes.measured == [("a", 1)]


def test_batches_above_one_that_ran_out_of_memory_are_skipped_later_as_well(
    processes: Processes,
) -> None:
    processes.ends = {("a", 2): "out-of-memory"}
    ran(task("a", 1, 2))
    tally, _ = ran(task("a", 1, 2, 4))
    assert processes.measured == [("a", 1), ("a", 2)]
    assert tally.counts == {"measured": 1, "out-of-memory": 1, "skipped": 1}
    assert read_results(Path("out"))["status"].to_list()[-1] == "skipped"


def test_what_was_measured_above_a_batch_that_ran_out_of_memory_since_is_kept(
    processes: Processes,
) -> None:
    processes.ends = {("a", 2): "crashed"}
    ran(task("a", 1, 2, 4))
    processes.ends = {("a", 2): "out-of-memory"}
    ran(task("a", 1, 2, 4))
    tally, _ = ran(task("a", 1, 2, 4, 8))
    assert tally.counts == {"measured": 2, "out-of-memory": 1, "skipped": 1}
    traces = read_results(Path("out"))["trace"].drop_nulls().to_list()
    assert [(Path("out") / name).is_file() for name in traces] == [True, True]


def test_what_the_zoo_says_of_a_model_is_renewed_without_measuring(processes: Processes) -> None:
    ran(task("a", 1))
    ran(task("a", 1, facts={"accuracy_pct": 76.1, "year": 2015}))
    found = read_results(Path("out")).row(0, named=True)
    assert (found["accuracy_pct"], found["fact.year"]) == (76.1, 2015)
    assert (Path("out") / found["trace"]).is_file()
    ran(task("a", 1))
    assert read_results(Path("out"))["accuracy_pct"].to_list() == [None]
    assert processes.measured == [("a", 1)]


def test_outputs_are_compared_where_they_were_not_before(processes: Processes) -> None:
    ran(task("a", 1))
    ran(task("a", 1, check=True))
    assert processes.measured == [("a", 1)] * 2


def test_what_is_complete_is_measured_again_where_that_is_asked_for(processes: Processes) -> None:
    ran(task("a", 1, 2), task("b", 1))
    before = read_results(Path("out"))
    tally, _ = ran(task("a", 2), again=True)
    assert processes.measured[3:] == [("a", 2)]
    assert tally.counts == {"measured": 1}
    assert read_results(Path("out"))["model"].to_list() == ["a", "b", "a"]
    assert len(list(Path("out", "traces").iterdir())) == before.height


def test_a_change_of_the_plan_measures_again_and_says_so(processes: Processes) -> None:
    ran(task("a", 1))
    _, watched = ran(replace(task("a", 1), plan=settings_of(1, runs=3, budget=2.0)))
    assert watched.told[1] == "began a batch 1 again: budget was 1 s and is 2 s"


def test_no_measurement_begins_after_the_total_budget(processes: Processes) -> None:
    tally, watched = ran(task("a", 1), task("b", 1, 2), total_s=1e-9)
    assert processes.measured == []
    assert (tally.left_out, watched.told[-1]) == (3, "3 left out: the total budget is over")


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


def test_the_time_left_is_estimated_from_the_measurements_before(processes: Processes) -> None:
    _, watched = ran(task("a", 1, 2), task("b", 1))
    assert watched.left == [3 * (1.0 + 8.0), 4.0, 2.0, 0.0]  # each took 2 s


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


def test_libraries_that_look_into_their_cache_alone_are_understood() -> None:
    traceback = "huggingface_hub.errors.LocalEntryNotFoundError: not in the cache"
    said = Refusals().explain("no weights", traceback)
    assert said.startswith("it tried to reach huggingface.co, and xsp measures models with random")
    assert Refusals().explain("odd", "ValueError: odd") == "odd"


@pytest.mark.parametrize(
    ("outputs", "same"),
    [
        ([{"a": (np.ones(3),)}, {"a": (np.ones(3),)}], True),
        ([np.array([1.0, np.nan]), np.array([1.0, np.nan])], True),
        ([[np.ones(3)], [np.array([1.0, 1.0, 1.5])]], False),
        ([np.ones(3), np.ones(4)], False),
        ([np.array([2**53]), np.array([2**53 + 1])], False),  # the same as float64
        ([np.array([1 + 1j]), np.array([1 + 2j])], False),
        (["a", "b"], None),
        ([np.array(["a"]), np.array(["b"])], None),
    ],
    ids=["nested", "not a number", "value", "shape", "large", "complex", "no array", "texts"],
)
def test_outputs_are_compared_wherever_they_stand(outputs: list[Any], same: bool | None) -> None:
    rest = iter(outputs)
    found, problems = compared(lambda: next(rest))
    assert found is same
    assert bool(problems) is not (same is True)


@pytest.mark.parametrize(
    ("values", "most"), [((np.nan, 2.0), "0.5"), ((0.0, 1.0), "inf")], ids=["elsewhere", "there"]
)
def test_outputs_that_are_no_numbers_are_told_from_those_that_are(
    values: tuple[float, float], most: str
) -> None:
    rest = iter([np.array([np.nan, 1.0]), np.array(values)])
    _, (problem,) = compared(lambda: next(rest))
    assert f"by up to {most} of the largest value" in problem.message


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
    """Yield a run of two models, once the first is complete."""
    command = [sys.executable, "-m", "xsp", *LINE]
    journal = Path("out") / JOURNAL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        _wait(lambda: journal.exists() and b"\n" in journal.read_bytes())
        yield running


def _wait(until: Any) -> None:
    end = time.monotonic() + 120
    while not until() and time.monotonic() < end:
        time.sleep(0.05)
    assert until()
