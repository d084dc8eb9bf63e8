"""Cores are held by one at a time, whoever asks, and whatever becomes of the holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from xsp.errors import MeasurementError
from xsp.zoo import core

# Takes cores again and again, and tells from when to when each was held, by a clock of the machine.
HOLDER = """
import sys, time
from xsp.zoo import core
core._POLL_S = 0.001
core.usable = lambda: tuple((cpu,) for cpu in (0, 1, 2))
core._TOPOLOGY = "/nowhere/{}"
from contextlib import nullcontext
core.pinned = lambda cores: nullcontext()
for _ in range(int(sys.argv[2])):
    with core.held(int(sys.argv[1])) as cores:
        began = time.monotonic_ns()
        time.sleep(0.002)
        for each in cores:
            print(each[0], began, time.monotonic_ns(), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(core.FOLDER, str(tmp_path / "cores"))
    monkeypatch.setattr(core, "_POLL_S", 0.001)
    return tmp_path / "cores"


def holder(number: int, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(number), str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_no_core_is_held_by_two_at_once() -> None:
    holders = [holder(number, 40) for number in (1, 1, 2, 3)]
    lines = [line for each in holders for line in each.communicate()[0].splitlines()]
    held = sorted(tuple(int(number) for number in line.split()) for line in lines)
    assert len(held) == 40 * (1 + 1 + 2 + 3)
    for (first, _, end), (second, begin, _) in pairwise(held):
        assert first != second or end <= begin


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_cores_of_a_holder_that_was_killed_are_free() -> None:
    process = holder(1, 10**6)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with core.held():
        pass


def test_processes_started_meanwhile_stay_on_the_cores(folder: Path) -> None:
    before = os.sched_getaffinity(0)
    with core.held(1) as cores:
        command = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert tuple(int(cpu) for cpu in said.split()) == cores[0]
    assert os.sched_getaffinity(0) == before


def test_asking_for_all_cores_or_for_too_many_gives_all(folder: Path) -> None:
    with core.held() as cores:
        assert sorted(cores) == sorted(core.usable())
    with core.held(10**6) as cores:
        assert sorted(cores) == sorted(core.usable())


def test_who_waits_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    naps = iter(range(3))

    def nap(seconds: float) -> None:
        if next(naps, None) is None:
            raise TimeoutError

    with core.held():
        monkeypatch.setattr("xsp.zoo.core.time.sleep", nap)
        with pytest.raises(TimeoutError), core.held(1, lambda: told.append("waiting")):
            pytest.fail("held by two")
    assert told == ["waiting"]


def test_siblings_of_one_physical_core_are_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2")):
        (tmp_path / str(cpu)).write_text(f"{siblings}\n", encoding="ascii")
    monkeypatch.setattr(core, "_TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(core, "_cpus", lambda: [0, 1, 2, 7])
    assert core.usable() == ((0, 2), (1,), (7,))


@pytest.mark.usefixtures("folder")
def test_a_core_is_held_from_those_who_may_use_another_of_its_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nap(seconds: float) -> None:
        raise TimeoutError

    for cpu in (0, 2):
        (tmp_path / str(cpu)).write_text("0,2\n", encoding="ascii")
    monkeypatch.setattr(core, "_TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(core, "pinned", lambda cores: nullcontext())
    monkeypatch.setattr(core, "_cpus", lambda: [0])
    with core.held():
        monkeypatch.setattr(core, "_cpus", lambda: [2])
        monkeypatch.setattr("xsp.zoo.core.time.sleep", nap)
        with pytest.raises(TimeoutError), core.held():
            pytest.fail("held by two")


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(core.FOLDER, str(tmp_path / "missing" / "cores"))
    with (
        pytest.raises(MeasurementError, match=r"missing/cores cannot be made.*XSP_CORES"),
        core.held(),
    ):
        pytest.fail("held")
