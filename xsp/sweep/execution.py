"""Execution: a grid in, the result of each point out, measured now or kept from before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from xsp.session import Settings
from xsp.sweep.curve import worth_no_more
from xsp.sweep.folder import Folder
from xsp.sweep.grid import Grid
from xsp.sweep.measuring import measure_point
from xsp.sweep.point import Point
from xsp.sweep.result import Result, Status, without_trace
from xsp.target import Spec

# Seconds that a point takes beside measuring, until one was measured: importing and loading.
_LOADING_S = {"model": 15.0, "function": 8.0}
_HOPELESS = 2  # failures in a row at which doubling ends


class Watch(Protocol):
    """What is told of a sweep while it runs."""

    def began(self, point: Point, again: str, left_s: float) -> None:
        """A point is now measured.

        Args:
            point: The point.
            again: Why the result of an earlier sweep is not good any more; empty: there is none.
            left_s: Estimate of the seconds until the sweep's end, this point included.
        """

    def progress(self, fraction: float) -> None:
        """So much of the point under way is done."""

    def ended(self, point: Point, result: Result, *, kept: bool) -> None:
        """A point has its result, measured now or kept from an earlier sweep."""

    def stopped(self, points: Sequence[Point], why: str) -> None:
        """These points are left out, and have no result."""


def run(
    grid: Grid, plan: Settings, folder: Folder, watch: Watch, *, total_s: float | None = None
) -> list[Result]:
    """Measure the points of a grid that have no result yet, and return the results of all.

    What cannot be measured is a result as well, and the next point follows. After a batch that ran
    out of memory larger ones of its curve are skipped.

    Args:
        grid: The points.
        plan: How each is measured.
        folder: Where results are kept.
        watch: What is told of it.
        total_s: Seconds after which no further point begins; None: no limit.

    Raises:
        ExportError: A result could not be kept.
        KeyboardInterrupt: Interrupted; the results so far are kept.
    """
    deadline = None if total_s is None else time.monotonic() + total_s
    sweep = _Sweep(grid, plan, folder, watch, deadline)
    for curve in grid.curves:
        sweep.measure(curve)
    return sweep.results


def expected_s(points: Sequence[Point], folder: Folder, plan: Settings) -> float:
    """Return an estimate of the seconds that a sweep of these points takes."""
    kept = [folder.kept(point) for point in points]
    took = [result.took_s for result in kept if result and result.took_s]
    return sum(result is None for result in kept) * _each_s(points[0].spec, plan, took)


def _each_s(spec: Spec, plan: Settings, took: Sequence[float]) -> float:
    """Return an estimate of the seconds that a point takes: the mean of those that are done."""
    return sum(took) / len(took) if took else plan.budget_s + _LOADING_S[spec.kind]


class _Sweep:
    """A sweep that runs: the results so far, and how long points take."""

    def __init__(
        self, grid: Grid, plan: Settings, folder: Folder, watch: Watch, deadline: float | None
    ) -> None:
        self.results: list[Result] = []
        self._grid, self._plan, self._folder, self._watch = grid, plan, folder, watch
        self._deadline = deadline
        # Results of earlier sweeps are looked through once, for their traces are read for that.
        self._kept = {point.key: folder.kept(point) for point in grid.points}
        self._left = [point for point in grid.points if self._kept[point.key] is None]
        self._took = [kept.took_s for kept in self._kept.values() if kept and kept.took_s]

    def measure(self, curve: Sequence[Point]) -> None:
        """Measure the points of a curve, until there is a reason to end it."""
        found: list[Result] = []
        for number, point in enumerate(curve):
            if why := self._why_stop(found, point):
                self._stop(curve[number:], why)
                return
            found.append(self._skipped(point, found) or self._result(point))
            self.results.append(found[-1])

    def _result(self, point: Point) -> Result:
        kept = self._kept[point.key]
        if kept is not None:
            self._watch.ended(point, kept, kept=True)
            return kept
        self._watch.began(point, self._folder.why_again(point), self._left_s(point))
        result = measure_point(point, self._plan, self._folder.path, self._watch.progress)
        result = replace(result, basis=self._folder.basis)
        self._done(point, result)
        self._took += [result.took_s] if result.took_s else []
        return result

    def _skipped(self, point: Point, found: Sequence[Result]) -> Result | None:
        """Return the result of a point with a larger batch than one that ran out of memory."""
        full = next((one for one in found if one.status is Status.OUT_OF_MEMORY), None)
        if full is None:
            return None
        why = f"batch {full.settings['batch']} ran out of memory, and this one is larger"
        result = without_trace(point, Status.SKIPPED, why)
        result = replace(result, basis=self._folder.basis)
        self._done(point, result)
        return result

    def _done(self, point: Point, result: Result) -> None:
        self._folder.keep(result)
        self._left = [other for other in self._left if other != point]
        self._watch.ended(point, result, kept=False)

    def _why_stop(self, found: Sequence[Result], point: Point) -> str:
        """Return why a curve ends before a point; empty where it goes on."""
        late = self._deadline is not None and time.monotonic() > self._deadline
        if late and self._kept[point.key] is None:
            return "the total budget is over"
        if not self._grid.doubling:
            return ""
        if any(one.status is Status.OUT_OF_MEMORY for one in found):
            return f"batch {found[-1].settings['batch']} ran out of memory"
        if [one.status for one in found[-_HOPELESS:]] == [Status.FAILED] * _HOPELESS:
            return "two batches in a row failed"
        if worth_no_more(found, self._folder):
            return "throughput has risen no more in two doublings"
        return ""

    def _stop(self, points: Sequence[Point], why: str) -> None:
        self._left = [point for point in self._left if point not in points]
        self._watch.stopped(points, why)

    def _left_s(self, point: Point) -> float:
        return len(self._left) * _each_s(point.spec, self._plan, self._took)
