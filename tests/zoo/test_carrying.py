"""Models that crash, hang, hog, print, fork, move or download have a result, and others go on."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import xsp
from xsp.answer.zoo.process import carry_out
from xsp.answer.zoo.task import Point
from xsp.errors import ExportError
from xsp.measuring.target import Spec
from xsp.record.session import settings_of
from xsp.zoo import Limits, Row, Task

pytestmark = pytest.mark.slow

BASIS = {"host id": "0123456789abcdef"}

JOB = """
import os, resource, sys, time
from pathlib import Path

def aborts(batch=1):
    if batch == 2:
        os.write(1, b"line\\n" * 10**6 + b"the last words\\n")
        os.abort()

def hogs(batch=1):
    held = []
    while batch > 1:
        held.append(bytearray(b"x") * (32 << 20))
        time.sleep(0.001)

def killed():
    os.kill(os.getpid(), 9)

def exhausts():
    raise MemoryError

def sleeps(batch=1):
    while True:
        time.sleep(1)

def downloads():
    from urllib.request import urlopen
    urlopen("https://models.example.org/weights.pth")

def prints():
    for _ in range(40):  # 40 MB a call
        os.write(1, b"all work and no play makes a log\\n" * 30_000)

def forks():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(f"child-{os.getpid()}").touch()
            time.sleep(600)
        os._exit(0)
    time.sleep(0.05)

def moves(batch=1):
    import numpy as np
    os.chdir("/")
    return {"same": np.arange(batch)}

def varies(batch=1):
    import numpy as np
    return [np.array([time.monotonic_ns(), 1])]

def fills(batch=1):
    if batch > 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDING)
    monkeypatch.setenv(
        "PYTHONPATH", str(hidden), prepend=os.pathsep
    )  # without PyTorch they start at once
    return tmp_path


def task(function: str, *batches: int, check: bool = False, **limits: Any) -> Task:
    points = [Point(Spec(f"job.py:{function}", batch=batch), 1) for batch in batches or (None,)]
    plan = settings_of(1, runs=2, budget=0.2)
    return Task(function, tuple(points), plan, Limits(**limits), check)


def carried(work: Task, points: Sequence[Point] = ()) -> list[Row]:
    """Return the rows of a task, of which the traces of all that were measured can be read."""
    rows = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        asked = points or work.points
        for row, trace in carry_out(work, asked, Path(scratch), lambda *_: None, basis=BASIS):
            rows.append(row)
            assert (trace is not None) == (row["status"] == "measured")
            if trace is not None:
                xsp.load(trace).check()
        assert os.listdir(scratch) == []
    return rows


def states(rows: Sequence[Row]) -> list[str]:
    return [row["status"] for row in rows]


def test_a_crash_is_a_result_with_the_last_words_and_the_next_batch_is_measured() -> None:
    rows = carried(task("aborts", 1, 2, 4))
    assert states(rows) == ["measured", "crashed", "measured"]
    reason = rows[1]["reason"]
    assert "ended by SIGABRT while it was measuring: line" in reason
    assert reason.endswith("the last words")
    assert len(reason) < 300


def test_memory_above_the_limit_is_a_result_and_larger_batches_are_skipped() -> None:
    rows = carried(task("hogs", 1, 2, 4, memory_bytes=1 << 29))
    assert states(rows) == ["measured", "out-of-memory", "skipped"]
    assert "above the limit of 512 MiB, and was ended" in rows[1]["reason"]
    assert rows[2]["reason"] == "batch 2 ran out of memory, and this one is larger"
    assert '"memory limit": "512 MiB"' in rows[1]["basis"]


@pytest.mark.parametrize("function", ["killed", "exhausts"])
def test_without_memory_another_limit_is_a_reason_to_try_again(function: str) -> None:
    (row,) = carried(task(function))
    assert row["status"] == "out-of-memory"
    assert '"memory limit": "none"' in row["basis"]


def test_a_measurement_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    (row,) = carried(task("sleeps", 1, time_s=3.0))
    assert row["status"] == "time-out"
    assert "it took more than the limit of 3 s while it was" in row["reason"]
    assert 3.0 <= row["took_s"] <= time.monotonic() - began < 60.0
    assert '"time limit": "3 s"' in row["basis"]


def test_a_download_is_refused_and_the_host_named() -> None:
    (row,) = carried(task("downloads"))
    assert row["status"] == "failed"
    said = "it tried to reach models.example.org, and xsp measures models with random weights"
    assert row["reason"].startswith(said)


def test_a_full_disk_ends_the_run_and_keeps_what_was_complete(tmp_path: Path) -> None:
    work = task("fills", 1, 2, 4)
    rows = carry_out(work, work.points, tmp_path, lambda *_: None, basis=BASIS)
    row, trace = next(rows)
    assert trace is not None
    assert (row["status"], xsp.load(trace).root.runs) == ("measured", 2)
    with pytest.raises(ExportError, match=r"no room for .*: File too large"):
        next(rows)


def test_closing_ends_the_process(tmp_path: Path) -> None:
    def interrupted(point: Point, state: str) -> None:
        if state == "measuring":
            raise KeyboardInterrupt

    work = task("sleeps", 1)
    before = set(psutil.Process().children())
    with pytest.raises(KeyboardInterrupt):
        next(carry_out(work, work.points, tmp_path, interrupted, basis=BASIS))
    assert not [
        each for each in psutil.Process().children() if each not in before and _runs(each.pid)
    ]
    assert list(tmp_path.glob("tmp*")) == []


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
