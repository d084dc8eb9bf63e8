"""A sweep without processes: traces of known latency come from a function instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from samples import pipeline, trace

from xsp.session.settings import Settings, settings_of
from xsp.sweep import Folder, Grid, Point, Result, measuring, opened, run
from xsp.target.spec import Spec
from xsp.trace.document import Trace

PLAN = settings_of(1, runs=3, budget=1.0)
BASIS = {"target": "job.py:work", "torch": "1.0"}

Latency = Callable[[Spec], int]


def grid(*batches: int, doubling: bool = False, **threads: Any) -> Grid:
    counts = threads.get("threads", (None,))
    spec = Spec("job.py:work")
    curves = [[Point(_at(spec, size), count) for size in batches] for count in counts]
    return Grid(tuple(map(tuple, curves)), doubling=doubling)


def _at(spec: Spec, batch: int) -> Spec:
    return Spec(spec.target, batch=batch)


@dataclass
class Watched:
    """What a sweep told, in words."""

    told: list[str] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    def began(self, point: Point, again: str, left_s: float) -> None:
        self.told.append(f"began {point}{' again: ' * bool(again)}{again}")
        self.left.append(left_s)

    def progress(self, fraction: float) -> None:
        self.told.append("progress")

    def ended(self, point: Point, result: Result, *, kept: bool) -> None:
        self.told.append(f"{'kept' if kept else result.status} {point}")

    def stopped(self, points: Sequence[Point], why: str) -> None:
        self.told.append(f"left out {len(points)}: {why}")


@dataclass
class Machine:
    """Stands for the processes: each target has the latency, or the error, that `work` says."""

    monkeypatch: pytest.MonkeyPatch
    work: Latency
    measured: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(measuring, "measure_isolated", self._measure)

    def _measure(self, spec: Spec, plan: Settings, report: Callable[[float], None]) -> Trace:
        self.measured.append(spec.batch)
        latency = self.work(spec)
        report(1.0)
        environment = {"peak_memory_bytes": 1 << 20}
        return trace(pipeline("work", own_ns=latency), environment=environment)


def swept(
    path: Path, points: Grid, basis: dict[str, str] | None = None, total_s: float | None = None
) -> tuple[list[Result], Watched, Folder]:
    watched = Watched()
    with opened(path, basis or BASIS) as folder:
        results = run(points, PLAN, folder, watched, total_s=total_s)
    return results, watched, folder
