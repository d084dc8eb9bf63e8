from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest

from xsp.measuring.target import part as part_of_process
from xsp.measuring.target import worker
from xsp.measuring.target.spec import Spec
from xsp.reading.runs.interpretation import Interpretation
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.record.session.settings import settings_of
from xsp.testing import FakeClock, FakeProvider, only_providers

GO, WHOLE, STOP = b"p", b"w", b"s"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "job.py").write_text("def work():\n    return sum(range(20_000))\n")
    return Spec(f"{tmp_path}/job.py:work")


def process(
    tmp_path: Path, spec: Spec, turns: bytes, *, part: float = 1.0, synchronous: bool = False
) -> tuple[int, list[str]]:
    """Run the process's part in this one, with turns given beforehand and a fake provider."""
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    listen, speak = os.pipe()
    wait, ask = os.pipe()
    settings = settings_of(2, runs=3, budget=1.0)
    job = {"spec": spec.to_json(), "settings": settings.to_json(), "part": part}
    (tmp_path / "job.json").write_text(json.dumps(job | {"synchronous": synchronous}))
    # All at once would be taken for a wish to end amid a turn.
    said: list[str] = []
    given = Thread(target=give, args=(ask, listen, turns, said))
    with only_providers(FakeProvider(FakeClock())):
        given.start()
        code = part_of_process.main(str(tmp_path), speak, wait)
        given.join()
    os.close(wait)
    return code, said


def give(ask: int, listen: int, turns: bytes, said: list[str]) -> None:
    """Give one turn whenever the process has ended one, and hang up after the last."""
    with os.fdopen(listen) as lines:
        for line in lines:
            said.append(line.strip())
            if line.endswith("!\n") and turns:
                os.write(ask, turns[:1])
                turns = turns[1:]
            elif line.endswith("!\n") and ask >= 0:
                os.close(ask)
                ask = -1
    if ask >= 0:
        os.close(ask)


def test_it_climbs_the_whole_ladder_a_round_at_a_turn_and_saves_its_runs(
    tmp_path: Path, spec: Spec
) -> None:
    code, said = process(tmp_path, spec, GO * 100)
    assert code == 0
    runs = ProcessRuns.load(tmp_path / "runs").runs
    assert {run.pass_.name for run in runs} == {"bare", "region", "layer", "detail"}
    told = [float(line.strip("!")) for line in said]
    assert told == sorted(told)
    assert said[-1] == "1.0000!"
    rounds = {run.round for run in runs}
    # Two turns to import and load, one to warm up, one each round, and then it interprets.
    assert sum(line.endswith("!") for line in said) == 2 + 1 + len(rounds)


@pytest.mark.parametrize("synchronous", [False, True])
def test_time_tells_what_caused_a_kernel_only_in_a_job_that_has_the_host_wait(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch, synchronous: bool
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")  # the user's own is not ours
    asked: list[bool] = []

    def interpret(*_: object, inside_costs: object, synchronous: bool = False) -> Interpretation:
        asked.append(synchronous)
        return Interpretation((), (), ())

    monkeypatch.setattr("xsp.measuring.call.callable.interpret", interpret)
    process(tmp_path, spec, GO * 100, synchronous=synchronous)
    assert asked == [synchronous]


@pytest.mark.parametrize("ending", [STOP, b""])
def test_told_to_stop_or_left_alone_it_saves_what_there_is(
    tmp_path: Path, spec: Spec, ending: bytes
) -> None:
    code, said = process(tmp_path, spec, GO * 3 + ending)  # loaded, warm, and one round
    assert code == 0
    assert 0 < float(said[-1].strip("!")) < 1
    assert 0 < len(ProcessRuns.load(tmp_path / "runs").runs) < 6


def test_stopped_before_its_first_turn_it_has_no_runs(tmp_path: Path, spec: Spec) -> None:
    for turns in (STOP, GO + STOP):
        assert process(tmp_path, spec, turns) == (0, ["0.0000!"] * len(turns))
    assert ProcessRuns.load(tmp_path / "runs").runs == ()


def test_it_says_why_it_cannot(tmp_path: Path) -> None:
    code, _ = process(tmp_path, Spec("torchvision:resnet18", device="cuda:nine"), GO)
    assert code == 1
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "usage"


@pytest.mark.parametrize(
    ("code", "said"),
    [(3, "ended with exit code 3"), (-11, "was ended by SIGSEGV"), (-63, "was ended by signal 63")],
)
def test_how_a_process_ended_is_said_in_words(code: int, said: str) -> None:
    assert worker.ending_of(code) == said


# Says which processes it started, and stays until it is ended: one ignores SIGTERM, another
# has a session of its own.
STUBBORN = """
import os, pathlib, subprocess, sys, time
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
started = [subprocess.Popen([sys.executable, "-c", ignoring]) for _ in range(2)]
if STAYING:  # of one that has ended, whoever left its session cannot be told
    started.append(subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True))
time.sleep(0.5)
numbers = [process.pid for process in started]
pathlib.Path("PLACE").write_text(" ".join(map(str, numbers)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ended", [False, True])
def test_ending_a_worker_ends_every_process_that_it_started(tmp_path: Path, ended: bool) -> None:
    told = tmp_path / "told"
    last = "os._exit(3)" if ended else "time.sleep(60)"
    begin = STUBBORN.replace("PLACE", str(told)).replace("STAYING", str(not ended))
    (tmp_path / "job.py").write_text(f"{begin}{last}\n")
    working = worker.Worker(tmp_path / "work", Spec(f"{tmp_path}/job.py:work"), settings_of(2))
    try:
        working.load()
        deadline = time.monotonic() + 60
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if ended:
            working.wait()
    finally:
        working.close()
    started = told.read_text().split()
    assert len(started) == (2 if ended else 3)
    assert not [number for number in started if alive(int(number))]


# What a process does when it ends: it waits until it may, and notes so.
LINGERING = """
import atexit, os, pathlib, signal, time
def end():
    while not pathlib.Path(__file__).with_name("may end").exists():
        time.sleep(0.01)
    pathlib.Path(__file__).with_name("ended").touch()
    LAST
atexit.register(end)
def work():
    return sum(range(20_000))
"""


def done(tmp_path: Path, last: str) -> worker.Worker:
    """Return a worker that has left its runs, and whose process ends for a while."""
    (tmp_path / "job.py").write_text(LINGERING.replace("LAST", last))
    spec = Spec(f"{tmp_path}/job.py:work")
    return worked(worker.Worker(tmp_path / "work", spec, settings_of(1, runs=3)))


def worked(working: worker.Worker) -> worker.Worker:
    """Give a worker turns until it is done, and return it."""
    working.await_imports()
    while working.running:
        working.turn()
    return working


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_worker_is_done_before_its_process_has_ended_however_that_ends(
    tmp_path: Path, last: str
) -> None:
    working = done(tmp_path, last)
    assert isinstance(working.outcome(), ProcessRuns)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "may end").touch()
    working.close()
    assert (tmp_path / "ended").exists()
    assert isinstance(working.outcome(), ProcessRuns)


def test_a_process_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_ENDING_S", 0.1)
    before = set(psutil.Process().children())
    working = done(tmp_path, "time.sleep(600)")
    (child,) = set(psutil.Process().children()) - before
    working.close()
    assert not alive(child.pid)


def alive(number: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    return False


def test_a_worker_imports_nothing_from_the_current_folder(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "psutil.py").write_text("raise SystemExit(77)\n")
    monkeypatch.chdir(tmp_path / "here")
    working = worker.Worker(tmp_path / "work", spec, settings_of(1, runs=3))
    try:
        assert isinstance(worked(working).outcome(), ProcessRuns)
    finally:
        working.close()
