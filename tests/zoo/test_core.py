"""Cores are held by one at a time, whoever asks, and whatever becomes of the holder."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from xsp.answer.zoo import core
from xsp.errors import MeasurementError

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
    monkeypatch.setattr(core, "FOLDER", tmp_path / "cores")
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
        monkeypatch.setattr("xsp.answer.zoo.core.time.sleep", nap)
        with pytest.raises(TimeoutError), core.held():
            pytest.fail("held by two")


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "FOLDER", tmp_path / "missing" / "cores")
    with (
        pytest.raises(MeasurementError, match=r"missing/cores cannot be made"),
        core.held(),
    ):
        pytest.fail("held")
