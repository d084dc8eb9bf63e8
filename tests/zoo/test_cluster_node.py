"""A node of a cluster says what it is, and takes what it has room for."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from xsp import __version__
from xsp.answer.zoo.cluster import Node, _node, checksums, connected, examined
from xsp.errors import MeasurementError
from xsp.measuring.target import Spec
from xsp.zoo import Limits, Point, Task

GIB = 2**30


def node(cores: int = 4, gpus: int = 0) -> Node:
    usable = tuple(float(number) for number in range(1, cores + 1))
    return Node("a", "host-a", cores, gpus, 8 * GIB, {"usable cores": "?"}, usable)


def task(
    threads: int | None = None, *, device: str | None = None, memory: int | None = None
) -> Task:
    specs = [Spec("torchvision:resnet18", batch=batch, device=device) for batch in (1, 2)]
    limits = Limits(memory_bytes=memory)
    return Task("resnet18", tuple(Point(spec, threads) for spec in specs), limits=limits)


@pytest.mark.parametrize(
    ("made", "on", "cores"),
    [
        (task(), node(4), 4),
        (task(2), node(4), 2),
        (task(16), node(4), 4),
        (task(device="cuda"), node(8, 2), 4),
        (task(1, device="cuda"), node(8, 2), 1),
    ],
    ids=["all cores", "its threads", "no more than there are", "a GPU's share", "one"],
)
def test_a_task_takes_cores_and_its_results_rest_on_these(made: Task, on: Node, cores: int) -> None:
    taken, basis = on.place(made)
    assert taken == cores
    assert basis["usable cores"] == f"{cores}.0"


def test_a_task_fits_where_its_gpu_and_memory_are() -> None:
    assert node().fits(task(memory=GIB))
    assert not node().fits(task(memory=9 * GIB))
    assert not node().fits(task(device="cuda"))
    assert node(4, 1).fits(task(device="cuda"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((None, None), "node a has no xsp"),
        (("0.0.7", None), r"node a has xsp 0\.0\.7"),
        ((__version__, ({}, [1.0], {})), r"node a has no zoo\.py"),
        ((__version__, ({}, [1.0], {"zoo.py": "1"})), r"node a has another zoo\.py"),
        (RuntimeError("no /proc"), "node a could not say what it is: no /proc"),
    ],
    ids=["none", "another", "no file", "another file", "error"],
)
def test_a_node_that_cannot_do_what_is_asked_is_named(answer: Any, said: str) -> None:
    listed = {"NodeID": "1", "NodeManagerHostname": "a", "Resources": {"CPU": 1.0}}
    with pytest.raises(MeasurementError, match=said):
        _node(listed, answer, {"zoo.py": "0"})


def test_a_node_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zoo.py").write_text("", encoding="utf-8")
    facts, usable, sums = examined(["zoo.py", "other.py"], str(tmp_path))
    assert sums == checksums(["zoo.py"])
    assert set(sums) == {"zoo.py"}
    assert len(usable) >= 1
    assert "python" in facts


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return real(name, *given, **options)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MeasurementError, match=r"pip install 'xsp\[ray\]'"), connected():
        pytest.fail("connected")
