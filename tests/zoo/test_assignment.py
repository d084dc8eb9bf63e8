"""Work goes to nodes that have room for it, in order, and what is lost goes first."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from xsp import __version__
from xsp.errors import MeasurementError
from xsp.sweep import Point
from xsp.target import Spec
from xsp.zoo import Limits, Task
from xsp.zoo.cluster.assignment import Assignment, Queue, Work
from xsp.zoo.cluster.connection import connected
from xsp.zoo.cluster.need import Need, need_of, room_of
from xsp.zoo.cluster.node import Node, _checked, _question
from xsp.zoo.cluster.part import Examined, checksums

GIB = 2**30


def node(cores: int = 4, gpus: int = 0, *, name: str = "a") -> Node:
    usable = tuple(float(number) for number in range(1, cores + 1))
    return Node(name, f"host-{name}", cores, gpus, 8 * GIB, {"usable cores": "?"}, usable)


def task(
    threads: int | None = None, *, device: str | None = None, memory: int | None = None
) -> Task:
    specs = [Spec("torchvision:resnet18", batch=batch, device=device) for batch in (1, 2)]
    limits = Limits(memory_bytes=memory)
    return Task("resnet18", tuple(Point(spec, threads) for spec in specs), limits=limits)


def work(*given: Any, **settings: Any) -> Work:
    made = task(*given, **settings)
    return Work(made, list(made.points))


@pytest.mark.parametrize(
    ("made", "on", "need"),
    [
        (task(), node(4), Need(4, 0, 0)),
        (task(2), node(4), Need(2, 0, 0)),
        (task(16), node(4), Need(4, 0, 0)),
        (task(device="cuda"), node(8, 2), Need(4, 1, 0)),
        (task(1, device="cuda"), node(8, 2), Need(1, 1, 0)),
        (task(memory=GIB), node(4), Need(4, 0, GIB)),
    ],
    ids=["all cores", "its threads", "no more than there are", "a GPU's share", "one", "memory"],
)
def test_need_of_a_task(made: Task, on: Node, need: Need) -> None:
    assert need_of(made, on) == need


def test_a_node_is_filled_and_no_more() -> None:
    queue, running = Queue([work(2), work(1), work(2)]), list[Assignment]()
    while (given := queue.assign(node(4), running)) is not None:
        running.append(given)
    assert [given.need.cores for given in running] == [2, 1]
    assert len(queue.works) == 1
    assert queue.assign(node(4, name="b"), running) is not None


def test_what_was_lost_goes_first() -> None:
    first, second = work(1), work(1)
    queue = Queue([first, second])
    given = queue.assign(node(1), [])
    assert given is not None
    queue.again(given.work)
    assert queue.works == [first, second]


def test_work_for_which_no_node_has_room_is_told_apart() -> None:
    queue = Queue([work(1), work(device="cuda"), work(memory=9 * GIB)])
    without = queue.without([node(4)])
    needs = [str(need_of(each.task, node(4))) for each in without]
    assert needs == ["4 cores, 1 GPU", "4 cores, 9 GiB of memory"]
    assert len(queue.works) == 1
    assert room_of(node(4)) == Need(4, 0, 8 * GIB)


def test_a_result_is_taken_once() -> None:
    left = work(1)
    key = left.left[0].key
    assert left.done(key) is not None
    assert left.done(key) is None
    assert [point.spec.batch for point in left.left] == [2]


def test_a_basis_tells_the_cores_that_were_held() -> None:
    assert node(4).basis(task(), 2)["usable cores"] == "2.0"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((None, None), "node a has no xsp"),
        (("0.0.7", None), r"node a has xsp 0\.0\.7"),
        ((__version__, Examined({}, (1.0,), {})), r"node a has no zoo\.py"),
        ((__version__, Examined({}, (1.0,), {"zoo.py": "1"})), r"node a has another zoo\.py"),
        (RuntimeError("no /proc"), "node a could not say what it is: no /proc"),
    ],
    ids=["none", "another", "no file", "another file", "error"],
)
def test_a_node_that_cannot_do_what_is_asked_is_named(answer: Any, said: str) -> None:
    with pytest.raises(MeasurementError, match=said):
        _checked(answer, "a", {"zoo.py": "0"})


def test_a_node_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "zoo.py").write_text("", encoding="utf-8")
    version, said = _question(["zoo.py", "other.py"], str(tmp_path))(__version__)
    assert version == __version__
    assert set(said.files) == {"zoo.py"}
    assert said.files == {"zoo.py": checksums([str(tmp_path / "zoo.py")])[str(tmp_path / "zoo.py")]}
    assert len(said.usable) >= 1
    assert "python" in said.facts


def test_another_version_is_not_asked_further() -> None:
    assert _question([], ".")("0.0.7") == (__version__, None)


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
