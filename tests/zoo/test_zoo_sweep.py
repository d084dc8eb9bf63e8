"""A sweep is a zoo of one model: its tasks, when doubling ends, and the best batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from samples import pipeline, trace

from xsp.answer.zoo import core, execution
from xsp.answer.zoo.row import row_of, row_without
from xsp.answer.zoo.task import basis_of, changes
from xsp.errors import MeasurementError, TargetFailedError, UnknownTargetError
from xsp.measuring.target.spec import Spec
from xsp.record.session.settings import settings_of
from xsp.zoo import (
    Curve,
    Point,
    Row,
    Task,
    curves_of,
    opened,
    run,
    sweep_results,
    sweep_tasks,
    verdict,
)

PLAN = settings_of(1, runs=3, budget=1.0)
LARGEST = 1024
MS = 1_000_000

FUNCTIONS = """
def work(batch=1, layers=2): ...
def plain(): ...
def strict(batch, width): ...
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(FUNCTIONS)
    return f"{tmp_path}/job.py"


def test_the_grid_is_the_product_of_all_settings_with_a_curve_of_batches_each(job: str) -> None:
    spec = Spec(f"{job}:work")
    grid = sweep_tasks(spec, PLAN, (1, 8), threads=(1, 2), inputs={"layers": (2, 4)})
    assert [[str(point) for point in task.points] for task in grid] == [
        ["batch 1, threads 1, layers 2", "batch 8, threads 1, layers 2"],
        ["batch 1, threads 2, layers 2", "batch 8, threads 2, layers 2"],
        ["batch 1, threads 1, layers 4", "batch 8, threads 1, layers 4"],
        ["batch 1, threads 2, layers 4", "batch 8, threads 2, layers 4"],
    ]
    assert not any(task.doubling for task in grid)
    assert grid[0].points[0].settings == {"threads": 1, "batch": 1, "layers": 2}


def test_without_batches_they_double_if_the_target_takes_a_batch(job: str) -> None:
    (task,) = sweep_tasks(Spec(f"{job}:work"), PLAN, None, inputs={})
    assert task.doubling
    assert [point.spec.batch for point in task.points][:4] == [1, 2, 4, 8]
    assert task.points[-1].spec.batch == LARGEST
    tasks = sweep_tasks(Spec(f"{job}:plain"), PLAN, None, threads=(1, 2), inputs={})
    assert not any(task.doubling for task in tasks)
    assert [str(point) for task in tasks for point in task.points] == ["threads 1", "threads 2"]
    (task,) = sweep_tasks(Spec(f"{job}:strict"), PLAN, None, inputs={"width": (3,)})
    assert len(task.points) > 2


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        ("plain", {"batches": (1,)}, UnknownTargetError, "cannot be called with --batch"),
        ("work", {"inputs": {"seq": (1,)}}, UnknownTargetError, "with --batch --set seq"),
        ("work", {"precisions": ("float16",)}, UnknownTargetError, "--precision"),
        ("work", {"compiled": (True,)}, UnknownTargetError, "--compile"),
        ("wrk", {}, UnknownTargetError, "did you mean work"),
        ("strict", {}, UnknownTargetError, "missing a required argument"),
    ],
)
def test_what_a_function_does_not_take_is_refused_before_anything_is_measured(
    job: str, name: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    chosen = {"batches": None, "inputs": {}} | options
    if "inputs" in options:
        chosen["batches"] = (1,)
    with pytest.raises(error, match=said):
        sweep_tasks(Spec(f"{job}:{name}"), PLAN, chosen.pop("batches"), **chosen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("raise KeyError('x')", TargetFailedError, "the target raised KeyError"),
        ("import os\nos._exit(3)", MeasurementError, "its process ended with code 3"),
        ("import time\nprint('loud')\ndef work(batch): ...", None, ""),
    ],
    ids=["raises", "exits", "prints"],
)
def test_a_file_is_imported_in_a_process_of_its_own(
    tmp_path: Path, text: str, error: type[Exception] | None, said: str
) -> None:
    (tmp_path / "job.py").write_text(text)
    if error is None:
        assert sweep_tasks(Spec(f"{tmp_path}/job.py:work"), PLAN, (1,), inputs={})
        return
    with pytest.raises(error, match=said):
        sweep_tasks(Spec(f"{tmp_path}/job.py:work"), PLAN, (1,), inputs={})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "inputs", "said"),
    [
        ("transformers:bert", {"sequence": (128, 600)}, "a bert takes texts of 512 tokens at most"),
        ("torchvision:resnet19", {}, "did you mean resnet18"),
    ],
)
def test_what_a_model_does_not_take_is_refused_before_anything_is_measured(
    target: str, inputs: dict[str, Any], said: str
) -> None:
    pytest.importorskip(target.partition(":")[0], reason="needs models: pip install 'xsp[zoo]'")
    with pytest.raises(UnknownTargetError, match=said):
        sweep_tasks(Spec(target), PLAN, None, inputs=inputs)


def test_the_basis_changes_with_the_file_and_the_plan(job: str) -> None:
    spec = Spec(f"{job}:work")
    before = basis_of(spec, settings_of(1, budget=5))
    assert changes(before, basis_of(spec, settings_of(1, budget=5))) == []
    (said,) = changes(before, basis_of(spec, settings_of(1, budget=6)))
    assert said == "budget was 5 s and is 6 s"
    Path(job).write_text(FUNCTIONS + "\n")
    (said,) = changes(before, basis_of(spec, settings_of(1, budget=5)))
    assert said.startswith("file was ")


@dataclass
class Processes:
    """Stand for the processes: the latency of each batch, or another status than `measured`."""

    monkeypatch: pytest.MonkeyPatch
    ends: dict[int, str] = field(default_factory=dict)
    measured: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(execution, "carry_out", self._carry_out)

    def _carry_out(
        self, task: Task, points: Sequence[Point], scratch: Path, tell: Any, *, basis: Any
    ) -> Generator[tuple[Row, Path | None], None, None]:
        for point in points:
            batch = point.spec.batch or 1
            self.measured.append(batch)
            tell(point, "measuring")
            if batch in self.ends:
                yield row_without(task, point, self.ends[batch], "so", took_s=1, basis=basis), None
                continue
            latency = 10 * MS * max(1, batch // 4)  # four samples are worked on at once
            root, settings = pipeline("work", own_ns=latency), dict(point.settings)
            made = trace(root, settings=settings)
            saved = made.save(scratch / "made.xsp")
            yield row_of(task, point, made, took_s=1, basis=basis), saved


class Watched:
    """The last thing that a sweep told."""

    said = ""

    def planned(self, points: int, kept: int, left_s: float) -> None:
        self.said = f"{points} points, {kept} kept"

    def began(self, task: Task, point: Point, again: str) -> None: ...
    def state(self, task: Task, point: Point, state: str) -> None: ...
    def ended(self, task: Task, point: Point, row: Row, left_s: float) -> None: ...

    def stopped(self, points: int, why: str) -> None:
        self.said = f"{points} left out: {why}"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Processes:
    monkeypatch.setattr(core, "FOLDER", tmp_path / "cores")
    return Processes(monkeypatch)


def task_of(*batches: int, doubling: bool = True) -> Task:
    points = (Point(Spec("job.py:work", batch=size)) for size in batches)
    return Task("job.py:work", tuple(points), PLAN, doubling=doubling)


DOUBLING = task_of(*(1 << power for power in range(11)))


def swept(path: Path, task: Task = DOUBLING, target_ns: float | None = None) -> tuple[Curve, str]:
    watched = Watched()
    with opened(path) as folder:
        run([task], folder, watched)
    (curve,) = curves_of([task], sweep_results([task], folder), target_ns)
    return curve, watched.said


def test_doubling_ends_when_throughput_has_risen_no_more_twice(
    tmp_path: Path, processes: Processes
) -> None:
    curve, said = swept(tmp_path / "out", target_ns=25 * MS)
    assert processes.measured == [1, 2, 4, 8, 16]
    assert said == "6 left out: throughput has risen no more in two doublings"
    assert (curve.batch, curve.within_target) == (4, 4)
    assert "optimal batch: 4, the smallest" in curve.sentences[0]
    assert "no more than 5 % (+0.0 %)" in curve.sentences[0]
    again, said = swept(tmp_path / "out")
    assert (again.batch, said) == (4, "5 points, 5 kept")
    assert len(processes.measured) == 5


Latency = tuple[float, float | None, float | None]


def points_of(*measured: tuple[int, int, Latency]) -> tuple[list[Task], pl.DataFrame]:
    """Return curves and rows of points: threads, batch, and latency with its interval (ms)."""
    points = [
        Point(Spec("torchvision:resnet18", batch=batch), threads) for threads, batch, _ in measured
    ]
    tasks = [Task("net", (point,), PLAN) for point in points]
    rows = [
        {
            "settings": point.key,
            "batch": point.spec.batch,
            "status": "measured",
            **{
                name: None if value is None else value * MS
                for name, value in zip(
                    ("latency_ns", "latency_low_ns", "latency_high_ns"), latency, strict=True
                )
            },
        }
        for point, (_, _, latency) in zip(points, measured, strict=True)
    ]
    return tasks, pl.DataFrame(rows, schema_overrides={"latency_low_ns": pl.Float64})


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        ((20.0, 19.5, 20.5), "100 % more, more than noise"),
        ((20.0, 9.0, 31.0), "100 % more, which may be noise"),
        ((10.15, 10.14, 10.16), "1.5 % more, which may be noise"),  # as two processes may differ
        ((20.0, None, None), "100 % more, of so few steps that noise is not known"),
    ],
)
def test_the_settings_of_least_latency_are_named_and_whether_that_is_noise(
    slower: Latency, said: str
) -> None:
    fast = 10.0, 9.99, 10.01
    tasks, results = points_of((1, 1, slower), (2, 1, fast), (2, 8, (5.0, 4.9, 5.1)))
    text = verdict(tasks, results)
    assert text.startswith("least latency of batch 1: threads 2, 10.0 ms; next threads 1, ")
    assert text.endswith(said)


def test_one_curve_has_no_other_to_be_better_than() -> None:
    assert not verdict(*points_of((2, 1, (10.0, 9.9, 10.1)), (2, 8, (80.0, 79.0, 81.0))))
