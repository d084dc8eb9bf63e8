from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from xsp.measurement.interpretation import Interpretation
from xsp.measurement.process_runs import ProcessRuns
from xsp.session.settings import Settings, settings_of
from xsp.target import part, worker
from xsp.target.spec import Spec
from xsp.testing import FakeClock, FakeProvider, only_providers

GO, AGAIN, ALONE, STOP = b"g", b"t", b"a", b"s"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "job.py").write_text("def work():\n    return sum(range(20_000))\n")
    return Spec(f"{tmp_path}/job.py:work")


def process(
    tmp_path: Path,
    spec: Spec,
    rungs: tuple[str, ...] | None,
    turns: bytes,
    environment: Mapping[str, str] = MappingProxyType({}),
    alone: Settings | None = None,
) -> tuple[int, list[float]]:
    """Run the process's part in this one, with turns given beforehand and a fake provider."""
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    listen, speak = os.pipe()
    wait, ask = os.pipe()
    os.write(ask, GO + turns)  # the first one says that the job is there
    os.close(ask)
    settings = settings_of(2, runs=3, budget=1.0)
    job = worker.Job(spec, settings, rungs, environment, alone)
    job.save(tmp_path / "job.json")
    with only_providers(FakeProvider(FakeClock())), os.fdopen(listen) as said:
        code = part.main(str(tmp_path), speak, wait)
        os.close(wait)
        return code, [float(line) for line in said]


def test_it_saves_what_it_collected(tmp_path: Path, spec: Spec) -> None:
    code, told = process(tmp_path, spec, ("layer",), GO * 1000)
    assert code == 0
    names = {run.rung.name for run in ProcessRuns.load(tmp_path / "runs").runs}
    assert names == {"bare", "layer"}
    assert told[0] == 0.0
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_without_a_rung_it_climbs_the_whole_ladder(tmp_path: Path, spec: Spec) -> None:
    assert process(tmp_path, spec, None, GO * 1000)[0] == 0
    names = {run.rung.name for run in ProcessRuns.load(tmp_path / "runs").runs}
    assert names == {"bare", "pipeline", "layer", "detail"}


def test_after_a_trial_call_it_may_be_told_to_climb_the_whole_ladder(
    tmp_path: Path, spec: Spec
) -> None:
    for told, rungs in ((GO, {"bare", "layer"}), (ALONE, {"bare", "pipeline", "layer", "detail"})):
        turns = GO * 2 + told + GO * 1000  # load, trial call, and what comes after it
        assert process(tmp_path, spec, ("layer",), turns, alone=settings_of(2, runs=3))[0] == 0
        names = {run.rung.name for run in ProcessRuns.load(tmp_path / "runs").runs}
        assert names == rungs


@pytest.mark.parametrize("trials", [1, 2])
def test_the_last_trial_call_is_the_first_evaluation_of_the_bare_rung(
    tmp_path: Path, trials: int
) -> None:
    code = "import time\ndef work():\n    with open(__file__ + '.began', 'a') as file:\n"
    code += "        print(time.monotonic_ns(), file=file)\n"
    (tmp_path / "noting.py").write_text(code)
    spec, alone = Spec(f"{tmp_path}/noting.py:work"), replace(settings_of(2, runs=1), warmup=0)
    turns = GO * 2 + AGAIN * (trials - 1) + ALONE + GO * 1000
    assert process(tmp_path, spec, None, turns, alone=alone)[0] == 0
    began = [int(line) for line in (tmp_path / "noting.py.began").read_text().split()]
    runs = ProcessRuns.load(tmp_path / "runs").runs
    bare = min((run for run in runs if run.rung.name == "bare"), key=lambda run: run.round)
    assert bare.began_ns <= began[trials - 1] <= bare.began_ns + bare.latency_ns


def test_a_target_that_raises_in_its_trial_call_would_do_so_anywhere(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def work():\n    raise ValueError('no')\n")
    spec = Spec(f"{tmp_path}/bad.py:work")
    assert process(tmp_path, spec, ("layer",), GO * 9, alone=settings_of(2))[0] == 1
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["cause"], failure["early"]) == ("target", True)


@pytest.mark.parametrize("serial", [False, True])
def test_time_tells_what_caused_a_kernel_only_in_a_job_that_has_the_host_wait(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch, serial: bool
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")  # the user's own is not ours
    asked: list[bool] = []

    def interpret(*visits: object, inside_costs: object, serial: bool = False) -> Interpretation:
        asked.append(serial)
        return Interpretation((), (), ())

    monkeypatch.setattr("xsp.measurement.callable.interpret", interpret)
    environment = worker.SERIALISED if serial else {}
    process(tmp_path, spec, None, GO * 1000, environment)
    assert asked == [serial]


@pytest.mark.parametrize("ending", [STOP, b""])
def test_told_to_stop_or_left_alone_it_saves_what_there_is(
    tmp_path: Path, spec: Spec, ending: bytes
) -> None:
    code, told = process(tmp_path, spec, ("layer",), GO * 8 + ending)
    assert code == 0
    assert 0 < told[-1] < 1
    assert 0 < len(ProcessRuns.load(tmp_path / "runs").runs) < 6


def test_stopped_before_its_first_turn_it_has_no_runs(tmp_path: Path, spec: Spec) -> None:
    for turns, told in ((STOP, [0.0]), (GO + STOP, [0.0, 0.0])):
        assert process(tmp_path, spec, ("layer",), turns) == (0, told)
    assert ProcessRuns.load(tmp_path / "runs").runs == ()


def test_it_says_why_it_cannot(tmp_path: Path) -> None:
    code, _ = process(tmp_path, Spec("torchvision:resnet18", device="cuda:nine"), ("layer",), GO)
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert code == 1
    assert (failure["cause"], failure["early"]) == ("usage", True)


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


@pytest.mark.parametrize("ended", [False, True])
def test_ending_a_worker_ends_every_process_that_it_started(tmp_path: Path, ended: bool) -> None:
    told = tmp_path / "told"
    last = "os._exit(3)" if ended else "time.sleep(60)"
    begin = STUBBORN.replace("PLACE", str(told)).replace("STAYING", str(not ended))
    (tmp_path / "job.py").write_text(f"{begin}{last}\n")
    job = worker.Job(Spec(f"{tmp_path}/job.py:work"), settings_of(2), ("layer",))
    working = worker.Worker(tmp_path / "work")
    working.take(job)
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


# What a process does when it ends: it notes so, a while after it was told to.
LINGERING = """
import atexit, os, pathlib, signal, time
def end():
    time.sleep(1)
    pathlib.Path(__file__).with_name("ended").touch()
    LAST
atexit.register(end)
def work():
    return sum(range(20_000))
"""


def done(tmp_path: Path, last: str) -> worker.Worker:
    """Return a worker that has left its runs, and whose process ends for a while."""
    (tmp_path / "job.py").write_text(LINGERING.replace("LAST", last))
    job = worker.Job(Spec(f"{tmp_path}/job.py:work"), settings_of(1, runs=3), ("pipeline",))
    working = worker.Worker(tmp_path / "work")
    working.take(job)
    working.listen()
    while working.turn():
        pass
    return working


@pytest.mark.parametrize("last", ["", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_worker_is_done_before_its_process_has_ended_however_that_ends(
    tmp_path: Path, last: str
) -> None:
    working = done(tmp_path, last)
    assert isinstance(working.outcome(), ProcessRuns)
    assert not (tmp_path / "ended").exists()
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


def test_a_process_that_gets_no_job_ends(tmp_path: Path) -> None:
    listen, speak = os.pipe()
    wait, ask = os.pipe()
    os.close(ask)  # as when the parent process dies
    assert part.main(str(tmp_path), speak, wait) == 1
    for end in (listen, speak, wait):
        os.close(end)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_imports_nothing_from_the_current_folder(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "psutil.py").write_text("raise SystemExit(77)\n")
    monkeypatch.chdir(tmp_path / "here")
    working = worker.Worker(tmp_path / "work")
    try:
        working.take(worker.Job(spec, settings_of(1, runs=3), ("pipeline",)))
        working.listen()
        while working.turn():
            pass
        assert isinstance(working.outcome(), ProcessRuns)
    finally:
        working.close()
