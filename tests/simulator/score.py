"""Scores measurements of a simulated machine by bias, error, coverage and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost import cost_of
from simulator.machine import Layout, Machine
from simulator.measurement import Measurement
from simulator.mood import Mood
from simulator.tree import Tree
from xsp.level import Kind
from xsp.matching import ROOT
from xsp.matching.summary import trimmed_mean

Floats = NDArray[np.float64]

LARGE_NS = 5_000.0  # operators above are judged in percent
_COURSES = 200
_CELLS = 4_000_000  # spans times steps of which a truth is made
NAMED = {"wide-interval"}  # codes of warnings that say that a latency may be far off
GROUPS = ("model", "layers", "ops", "small ops")


def true_latencies(tree: Tree, mood: Mood) -> Floats:
    """Return the 20 % trimmed mean of each span over the long run, nothing recorded.

    That is over steps that begin at moments which are equally likely.
    Of a mood whose truth moves: at a factor of 1 (see `Score`).
    """
    machine = Machine(tree, cost_of(tree, "none"), mood, seed=1_000_003)
    layout = Layout(tree, frozenset(Kind))
    each = max(_CELLS // len(tree.kind) // _COURSES, 20)
    parts = []
    for _ in range(_COURSES):
        batch = machine.draw(layout, each)
        starts = np.insert(batch.starts, 0, 0.0, axis=1)
        ends = np.insert(batch.ends, 0, batch.total, axis=1)
        if mood.moving:
            parts.append(ends - starts)
            continue
        course = mood.course(machine.random)
        began = course.work_until(machine.random.uniform(0, 40e9, (each, 1)))
        parts.append(course.time_of(began + ends) - course.time_of(began + starts))
    return trimmed_mean(np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Score:
    """One measurement beside the truth; one number per span.

    Attributes:
        error: Relative error of each latency.
        half: Half width of each interval, relative to the truth.
        held: Whether the interval holds the truth.
        seconds: Simulated time that the measurement took.
        runs: Steps on the pass with the fewest.
        warnings: Codes of the warnings that xsp names.
    """

    error: Floats
    half: Floats
    held: NDArray[np.bool_]
    seconds: float
    runs: int
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, machine: Machine, found: Measurement, truth: Floats, *, moving: bool) -> Score:
        """Return the score of a measurement; with `moving`, for the moments of its runs."""
        spans = found.merged.spans
        if spans["name"].to_list() != machine.tree.name:
            raise AssertionError("the measurement shows other spans than the machine has")
        if moving:
            began = np.array([run.began_ns for run in found.runs], dtype=float)
            truth = truth * trimmed_mean(machine.course.factors_at(began)[:, None])
        value, low, high = (
            spans[name].cast(float).fill_null(np.nan).to_numpy()
            for name in ("latency_ns", "latency_low_ns", "latency_high_ns")
        )
        return cls(
            value / truth - 1,
            (high - low) / 2 / truth,
            (low <= truth) & (truth <= high),
            found.seconds,
            int(found.merged.passes["runs"].min()),  # type: ignore[arg-type]
            tuple(warning.code for warning in found.merged.warnings),
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is estimated from replicates, and its standard error."""

    value: float
    error: float

    def within(self, low: float, high: float) -> bool:
        """Return whether the number may lie in a band, as far as two standard errors tell."""
        return low - 2 * self.error <= self.value <= high + 2 * self.error


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of many measurements for one kind of span.

    Attributes:
        bias: Mean relative error.
        p50: Median of the absolute relative errors.
        p95: Their 95th percentile.
        coverage: Share of the intervals that hold the truth.
        width: Mean half width over that of an oracle, who knows how estimates spread: 1.96
            standard deviations of the latencies of equal measurements.
        half: Mean half width, relative to the truth.
    """

    bias: Estimate
    p50: float
    p95: float
    coverage: Estimate
    width: Estimate
    half: Estimate


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of many measurements of one tree.

    Attributes:
        tree: The tree.
        truth: True latency of each span.
        scores: One per measurement.
    """

    tree: Tree
    truth: Floats
    scores: Sequence[Score]

    @property
    def seconds(self) -> float:
        """Simulated seconds that a measurement took on average."""
        return float(np.mean([score.seconds for score in self.scores]))

    @property
    def runs(self) -> float:
        """Steps on the pass with the fewest, on average."""
        return float(np.mean([score.runs for score in self.scores]))

    def misled(self, limit: float = 0.05) -> tuple[int, int]:
        """Return how many measurements are wrong, and how many of these do not say so.

        Args:
            limit: Relative error of the model, of a layer or of a large operator.
        """
        judged = np.setdiff1d(np.arange(len(self.truth)), self._members("small ops"))
        wrong = [score for score in self.scores if np.abs(score.error[judged]).max() > limit]
        silent = [score for score in wrong if not NAMED & set(score.warnings)]
        return len(wrong), len(silent)

    def group(self, name: str) -> Group:
        """Summarize the scores of one of `GROUPS`."""
        chosen = self._members(name)
        error = np.array([score.error[chosen] for score in self.scores])
        half = np.array([score.half[chosen] for score in self.scores])
        held = np.array([score.held[chosen] for score in self.scores])
        apart = np.abs(error)
        return Group(
            _mean(error),
            float(np.quantile(apart, 0.5)),
            float(np.quantile(apart, 0.95)),
            _share(held),
            _width(half, error),
            _mean(half),
        )

    def held_or_near(self, limit: float) -> Estimate:
        """Return the share of the model's latencies that the interval or a distance holds."""
        near = [score.held[ROOT] or abs(score.error[ROOT]) <= limit for score in self.scores]
        return _share(np.array(near)[:, None])

    def _members(self, name: str) -> NDArray[np.int64]:
        kinds = np.array([kind.value for kind in self.tree.kind])
        large = self.truth > LARGE_NS
        return np.flatnonzero(
            {
                "model": kinds == Kind.REGION.value,
                "layers": kinds == Kind.LAYER.value,
                "ops": (kinds == Kind.OP.value) & large,
                "small ops": (kinds == Kind.OP.value) & ~large,
            }[name]
        )


def _mean(values: Floats) -> Estimate:
    """Return the mean of `[measurements, spans]`; spans of one measurement may be alike."""
    return Estimate(
        float(values.mean()), float(values.mean(axis=1).std(ddof=1) / len(values) ** 0.5)
    )


def _share(held: NDArray[np.bool_]) -> Estimate:
    """Return the share of what is held, at least as uncertain as independent spans make it."""
    found = _mean(held.astype(float))
    return Estimate(found.value, max(found.error, (0.95 * 0.05 / held.size) ** 0.5))


def _width(half: Floats, error: Floats) -> Estimate:
    """Return the mean half width over the oracle's; the error is that of the jackknife."""
    times = len(half)
    ratios = [
        _ratio(np.delete(half, left_out, axis=0), np.delete(error, left_out, axis=0))
        for left_out in range(times)
    ]
    return Estimate(_ratio(half, error), float(np.std(ratios) * (times - 1) ** 0.5))


def _ratio(half: Floats, error: Floats) -> float:
    return float(half.mean() / (1.96 * error.std(axis=0, ddof=1).mean()))
