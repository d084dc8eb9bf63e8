from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from xsp.session.settings import settings_of
from xsp.target import rotation
from xsp.target.spec import Spec
from xsp.target.worker import AGAIN, GO, Failure, Job


class Process:
    """Stands for a worker: notes what it is told, and makes some visits."""

    log: list[tuple[str, str]]
    call_s = first_use_s = 0.0
    visits = 2
    failure: Failure | None = None

    job: Job

    def __init__(self, folder: Path, environment: object = None) -> None:
        self.name = folder.name
        self.fraction, self.loaded, self.running = 0.0, False, True
        self.memory_bytes = 1
        self._done = 0

    def take(self, job: Job, name: str) -> None:
        self.job, self.name = job, name
        self._note("start")

    def _note(self, what: str) -> None:
        self.log.append((what, self.name))

    @property
    def failed_early(self) -> Failure | None:
        return self.failure if self.loaded else None

    def await_imports(self) -> None:
        self._note("imports")

    def load(self) -> None:
        self.loaded = True
        self._note("load")

    def listen(self) -> None:
        if self.fraction >= 1:
            self.running = False
        self._note("listen")

    def begin(self) -> None:
        self._note("begin")

    def turn(self, step: bytes = GO) -> bool:
        first = step == GO and self.job.alone is not None
        if step == AGAIN or first:
            clock.now += self.call_s + first * self.first_use_s
            self.job = Job(self.job.spec, self.job.settings, self.job.rungs)
            self._note("trial")
            return True
        self._done += 1
        self.fraction = self._done / self.visits
        self._note("visit")
        return True

    def turn_alone(self) -> bool:
        self._note("alone")
        return self.turn()

    def end(self) -> None:
        self.running = False
        self._note("end")

    def await_end(self) -> None:
        if not self.running:
            self._note("await")

    def close(self) -> None:
        self._note("close")


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(Process, "log", noted, raising=False)
    monkeypatch.setattr(rotation, "Worker", Process)
    monkeypatch.setattr(rotation, "time", clock)
    monkeypatch.setattr(rotation, "usable_cores", lambda: 2.0)
    return noted


def carry_out(folder: Path, *, alone: bool = True, **spec: Any) -> list[float]:
    """Carry out three jobs, and return the fractions that were reported."""
    settings = settings_of(3, budget=5.0)
    names: tuple[tuple[str, ...], ...] = (("pipeline", "layer"), ("op",), ("call",))
    target = Spec("job.py:work", **spec)
    jobs = [Job(target, settings, rungs) for rungs in names]
    if alone:
        jobs[0] = Job(target, settings, names[0], alone=settings)
    told: list[float] = []
    with ExitStack() as stack:
        taking = rotation.Rotation([], len(jobs), told.append)
        rotation.take_turns(jobs, folder, taking, stack)
    return told


def test_libraries_are_imported_side_by_side_and_the_first_alone_loads_before_the_others(
    tmp_path: Path, log: list[tuple[str, str]]
) -> None:
    carry_out(tmp_path)
    first = [("start", "pipeline,layer"), ("start", "op"), ("imports", "pipeline,layer")]
    assert log[:5] == [*first, ("start", "call"), ("load", "pipeline,layer")]  # on two cores
    trial = log.index(("trial", "pipeline,layer"))
    assert [name for what, name in log[:trial] if what == "load"] == ["pipeline,layer"]
    assert [what for what, _ in log[:trial]].count("imports") == 3  # none disturbs the trial
    later = [entry for entry in log[trial:] if entry[0] in ("load", "listen")]
    assert later[:4] == [("load", "op"), ("load", "call"), ("listen", "op"), ("listen", "call")]


def test_a_worker_that_was_started_before_takes_the_first_job(
    tmp_path: Path, log: list[tuple[str, str]]
) -> None:
    settings = settings_of(3, budget=5.0)
    jobs = [Job(Spec("job.py:work"), settings, rungs) for rungs in (("layer",), ("op",))]
    with ExitStack() as stack:
        waiting = stack.enter_context(rotation.open_worker(tmp_path / "early"))
        taking = rotation.Rotation([waiting], len(jobs), lambda done: None)
        rotation.take_turns(jobs, tmp_path, taking, stack)
    assert (waiting.name, waiting.job) == ("layer", jobs[0])
    assert [name for what, name in log if what == "start"] == ["layer", "op"]
    assert [worker.name for worker in taking.workers] == ["layer", "op"]


def test_no_process_interprets_while_another_measures(
    tmp_path: Path, log: list[tuple[str, str]]
) -> None:
    told = carry_out(tmp_path)
    last = max(at for at, (what, _) in enumerate(log) if what == "visit")
    assert not [what for what, _ in log[:last] if what == "begin"]
    assert [what for what, _ in log[last + 1 : last + 4]] == ["begin"] * 3  # and side by side
    visits = [name for what, name in log if what == "visit"]
    assert visits == ["pipeline,layer", "op", "call"] * 2
    assert told == [0.5, 1.0]


def test_a_slow_model_is_measured_in_the_first_process_and_the_others_are_ended(
    tmp_path: Path, log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "call_s", 0.8)
    told = carry_out(tmp_path)
    assert ("alone", "pipeline,layer") in log
    assert {name for what, name in log if what == "end"} == {"op", "call"}
    assert {name for what, name in log if what == "visit"} == {"pipeline,layer"}
    assert told[-1] == 1.0


def test_where_memory_has_no_room_the_processes_measure_one_after_the_other(
    tmp_path: Path, log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "_MEMORY_FRACTION", 0.0)
    carry_out(tmp_path)
    visits = [name for what, name in log if what == "visit"]
    assert visits == ["pipeline,layer"] * 2 + ["op"] * 2 + ["call"] * 2
    assert log.index(("load", "op")) > log.index(("await", "pipeline,layer"))


def test_on_a_device_a_process_starts_when_the_one_before_has_ended(
    tmp_path: Path, log: list[tuple[str, str]]
) -> None:
    carry_out(tmp_path, alone=False, device="cuda")
    assert log.index(("start", "op")) > log.index(("await", "pipeline,layer"))
    assert [name for what, name in log if what == "start"] == ["pipeline,layer", "op", "call"]


def test_a_target_that_cannot_be_loaded_is_loaded_once(
    tmp_path: Path, log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "failure", Failure("target", "no", early=True))
    with pytest.raises(Exception, match="no"):
        carry_out(tmp_path)
    assert [what for what, _ in log].count("load") == 1
    assert [what for what, _ in log].count("close") == 3


def test_a_first_call_that_is_slow_by_itself_makes_no_slow_model(
    tmp_path: Path, log: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "first_use_s", 5.0)
    carry_out(tmp_path)
    assert [what for what, _ in log].count("trial") == 2
    assert {name for what, name in log if what == "visit"} == {"pipeline,layer", "op", "call"}
