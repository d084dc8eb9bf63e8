"""The ladder: what was measured on each rung, and what recording cost there.

Goes from outside in. A span's latency is its summary over the runs of its own rung,
less what recording the spans inside it cost there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import (
    Observations,
    Run,
    Structure,
    bootstrap_interval,
    covered,
    durations,
    summarise,
    trimmed_mean,
)
from xsp.merge.device_time import device_times
from xsp.merge.difference import Sample, difference
from xsp.merge.drift import speeds
from xsp.merge.recording_cost import Shares, estimate_shares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Z95 = 1.96
_FEW = 3  # runs of the same process from which on they are preferred to all others
_ROUNDS = 1_000_000  # more rounds than any process has
_LEAST_ROOM_NS = 10.0
_NOBODY: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Step:
    """The runs of one rung.

    Attributes:
        name: Of the rung.
        order: Of the rung: -1 for the bare one.
        runs: The runs.
        members: The runs, as indices into the observations; empty on the bare rung.
        root_ns: Latency of each run, all processes on one scale.
        host_ns: The same without the wait for devices in the end, which hides what
            recording cost before.
        slower: How much slower than usual the machine was at each run.
    """

    name: str
    order: int
    runs: tuple[Run, ...]
    members: Ints
    root_ns: Floats
    host_ns: Floats
    slower: Floats

    @property
    def processes(self) -> Ints:
        """Process of each run."""
        return np.array([run.process for run in self.runs], dtype=np.int64)

    @property
    def rounds(self) -> Ints:
        """Round of each run, different in different processes."""
        rounds: Ints = self.processes * _ROUNDS + np.array([run.round for run in self.runs])
        return rounds

    def sample(self, values: Floats) -> Sample:
        """Return `values` (`[runs, spans]`) with what is known of when they were measured."""
        return Sample(values, self.rounds, self.slower)


@dataclass(frozen=True, slots=True)
class Cost:
    """What recording cost on one rung.

    Attributes:
        shares: Cost per span; None where no rung above says what a run takes without.
        parents: Rows of the spans that `shares` speaks of.
        count: Recorded spans that each of them pays for.
        charge_ns: What each span's own recording cost; 0 for spans of rungs above.
        nested_ns: What recording the rung's own kinds inside each span cost.
        error_ns: Standard error of that.
    """

    shares: Shares | None
    parents: Ints
    count: Floats
    charge_ns: Floats
    nested_ns: Floats
    error_ns: Floats


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latency of each span without overhead.

    Attributes:
        value_ns: The latency.
        low_ns: Lower end of its 95 % interval, NaN where a single run says nothing of it.
        high_ns: Upper end.
        runs: Evaluations that it rests on.
        order: Order of the rung that it was taken from.
        exact: Whether that is the span's own rung and its overhead is known.
    """

    value_ns: Floats
    low_ns: Floats
    high_ns: Floats
    runs: Ints
    order: Ints
    exact: Bools


def climb(runs: Sequence[Run], seen: Observations, *, factors: dict[int, float]) -> list[Step]:
    """Return the rungs that give latencies, outermost first.

    Args:
        runs: All runs.
        seen: The rows of those that have any.
        factors: What the times of each process are multiplied by.
    """
    place = {id(run): i for i, run in enumerate(seen.runs)}
    orders = sorted({run.rung.order for run in runs if run.rung.timed})
    steps = []
    for order in orders:
        group = tuple(run for run in runs if run.rung.order == order and run.rung.timed)
        if order >= 0:
            group = tuple(run for run in group if id(run) in place)
        if not group:
            continue
        scale = np.array([factors.get(run.process, 1.0) for run in group])
        root = scale * [run.latency_ns for run in group]
        host = scale * [run.latency_ns if run.host_ns is None else run.host_ns for run in group]
        members = [place[id(run)] for run in group] if order >= 0 else []
        rows = np.array(members, dtype=np.int64)
        name = group[0].rung.name
        steps.append(Step(name, order, group, rows, root, host, np.ones(len(group))))
    return _with_drift(steps)


def _with_drift(steps: Sequence[Step]) -> list[Step]:
    """Return the rungs with how much slower than usual the machine was at each run."""
    sizes = [len(step.runs) for step in steps]
    rounds = np.concatenate([step.rounds for step in steps])
    group = np.repeat(np.arange(len(steps)), sizes) * _ROUNDS + rounds // _ROUNDS
    slower = speeds(np.concatenate([step.root_ns for step in steps]), rounds, group)
    parts = np.split(slower, np.cumsum(sizes)[:-1])
    return [replace(step, slower=part) for step, part in zip(steps, parts, strict=True)]


class Ladder:
    """All rungs, measured against one structure. Matrices are made when first needed."""

    def __init__(
        self,
        steps: Sequence[Step],
        structure: Structure,
        *,
        seen: Observations,
        factors: dict[int, float],
    ) -> None:
        self.steps = tuple(steps)
        self._structure = structure
        self._seen = seen
        self._factors = factors
        self._sorted = np.argsort(structure.key)
        self._back = np.argsort(self._sorted)
        self._durations: dict[int, Floats] = {}
        self._own: dict[tuple[int, int], Floats] = {}

    def durations(self, step: Step) -> Floats:
        """Return `[runs, spans]`: how long each span took on a rung, NaN where missing."""
        if step.order not in self._durations:
            if step.order < 0:
                matrix = np.full((len(step.runs), len(self._back)), np.nan)
                matrix[:, 0] = step.root_ns
            else:
                columns = self._structure.key[self._sorted]
                matrix = durations(self._seen, step.members.tolist(), columns=columns)[
                    :, self._back
                ]
                matrix[:, self._structure.host] *= self._scale(step)
            self._durations[step.order] = matrix
        return self._durations[step.order]

    def own_times(self, step: Step, order: int) -> Floats:
        """Return `[runs, spans]`: time less that of children no deeper than rung `order`.

        That of the root is the host's: without the wait for devices in the end.
        """
        if (step.order, order) in self._own:
            return self._own[step.order, order]
        own: Floats = self.durations(step).copy()
        own[:, 0] += step.host_ns - step.root_ns
        if step.order >= 0 and order >= 0:
            own -= self._covered(step, order)
        self._own[step.order, order] = own
        return own

    def _covered(self, step: Step, order: int) -> Floats:
        """Return `[runs, spans]`: how much of each span children take, to rung `order`."""
        columns = self._structure.key[self._sorted]
        members = step.members.tolist()
        inside = covered(self._seen, members, columns=columns, order=order)[:, self._back]
        scaled: Floats = inside * self._scale(step)
        return scaled

    def device_times(self, step: Step) -> Floats | None:
        """Return `[runs, spans]`: device time of each span on a rung; None if no device worked."""
        columns = self._structure.key[self._sorted]
        found = device_times(self._seen, step.members.tolist(), columns=columns)
        return None if found is None else found[:, self._back]

    def costs(self) -> list[Cost]:
        """Return what recording cost on each rung."""
        before = (None, *self.steps[:-1])
        return [self._cost(step, above) for step, above in zip(self.steps, before, strict=True)]

    def _scale(self, step: Step) -> Floats:
        return np.array([[self._factors.get(run.process, 1.0)] for run in step.runs])

    def _cost(self, step: Step, above: Step | None) -> Cost:
        spans = self._structure
        nothing = np.zeros(len(spans.parent))
        if step.order < 0:
            return Cost(None, _NOBODY, nothing[:0], nothing, nothing, nothing)
        before = above.order if above else -1
        pinned = spans.order <= before
        pinned[0] = True
        own = ~pinned & (spans.first > before) & (spans.first <= step.order) & spans.paid
        if above is None:
            return Cost(None, _NOBODY, nothing[:0], np.where(own, np.nan, 0.0), nothing, nothing)
        pin = np.maximum(spans.pins(pinned), 0)
        count = np.bincount(pin[own], minlength=len(pinned)).astype(float)
        parents = np.flatnonzero(pinned & (count > 0))
        shares = self._shares((step, above), parents, count[parents], self._room(step, own))
        charge, error = nothing.copy(), nothing.copy()
        value, value_error = nothing.copy(), nothing.copy()
        value[parents], value_error[parents] = shares.value_ns, shares.error_ns
        charge[own], error[own] = value[pin[own]], value_error[pin[own]]
        inside = spans.nested(own.astype(float))
        left = np.clip(1 - inside / np.maximum(count[pin], 1), 0, 1) * ~pinned
        unequal = shares.spread_ns * np.sqrt(inside * left)
        nested_error = np.hypot(spans.nested(error), unequal)
        return Cost(shares, parents, count[parents], charge, spans.nested(charge), nested_error)

    def _shares(
        self, pair: tuple[Step, Step], parents: Ints, count: Floats, room_ns: float
    ) -> Shares:
        step, above = pair
        sample = step.sample(self.own_times(step, above.order)[:, parents])
        reference = above.sample(self.own_times(above, above.order)[:, parents])
        bare = self.steps[0]
        if parents.tolist() == [0] and above.order >= 0 > bare.order and self._only_root(above):
            reference = reference.joined(bare.sample(bare.host_ns[:, None]))
        near = np.isin(reference.rounds // _ROUNDS, step.processes)
        if near.sum() >= _FEW:
            reference = reference.of(near)
        excess, error = difference(sample, reference)
        return estimate_shares(excess, error, count=count, room_ns=room_ns)

    def _only_root(self, step: Step) -> bool:
        """Tell whether a rung records no span but the root, as little as the bare one."""
        return int((self._structure.order <= step.order).sum()) == 1

    def _room(self, step: Step, own: Bools) -> float:
        """Return what usually lies between recorded spans, per span, in ns.

        The lower quartile over spans: in some parents much else lies between.
        """
        parent = self._structure.parent
        children = np.bincount(parent[own], minlength=len(parent))
        holders = np.flatnonzero(children)
        if not len(holders):
            return _LEAST_ROOM_NS
        gaps = trimmed_mean(self.own_times(step, step.order)[:, holders]) / children[holders]
        gaps = np.repeat(gaps, children[holders])
        gaps = gaps[np.isfinite(gaps)]
        return max(float(np.quantile(gaps, 0.25)) if len(gaps) else 0.0, _LEAST_ROOM_NS)


def latencies(
    ladder: Ladder, costs: Sequence[Cost], *, structure: Structure, statistic: str
) -> Latencies:
    """Return each span's latency, from its own rung or the next deeper one that saw it."""
    count = len(structure.parent)
    value, low, high = np.full((3, count), np.nan)
    runs, order = np.zeros((2, count), dtype=np.int64)
    exact = np.zeros(count, dtype=bool)
    overhead, error = np.zeros((2, count))
    known = np.ones(count, dtype=bool)
    for step, cost in sorted(
        zip(ladder.steps, costs, strict=True), key=lambda pair: _turn(pair[0])
    ):
        matrix = ladder.durations(step)
        overhead, error = overhead + cost.nested_ns, error + cost.error_ns
        known &= np.isfinite(structure.nested(cost.charge_ns))
        seen = np.count_nonzero(~np.isnan(matrix), axis=0)
        new = np.isnan(value) & (seen > 0) & (structure.order <= max(step.order, 0))
        removed, removed_error = _removed(structure, cost, overhead, error)
        summary = summarise(matrix[:, new], statistic)
        ends = bootstrap_interval(matrix[:, new], statistic, rounds=step.rounds)
        value[new] = np.maximum(summary - removed[new], 0.0)
        wide = _Z95 * removed_error[new]
        low[new] = np.maximum(value[new] - np.hypot(summary - ends[0], wide), 0.0)
        high[new] = value[new] + np.hypot(ends[1] - summary, wide)
        runs[new], order[new] = seen[new], step.order
        exact[new] = known[new] & (structure.order[new] >= step.order)
    return Latencies(value, low, high, runs, order, exact)


def _turn(step: Step) -> tuple[bool, int]:
    """Put the bare rung behind the pipeline rung: it gives the root's latency only without."""
    return (step.order != 0, step.order)


def _removed(
    structure: Structure, cost: Cost, overhead: Floats, error: Floats
) -> tuple[Floats, Floats]:
    """Return what recording added to each span, and its standard error.

    A derived span begins with its first operator and ends with its last: the cost
    of one of those inside it lies outside; where launches only end it, half of one's.
    """
    inside = structure.nested((cost.charge_ns > 0).astype(float))
    outside = structure.derived + structure.ended / 2
    part = np.where(inside > 0, (inside - outside) / np.maximum(inside, 1), 1.0)
    return overhead * part, error * part
