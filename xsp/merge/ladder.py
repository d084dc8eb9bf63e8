"""The ladder: the runs of all rungs in, matrices of how long each span took in each run out.

The spans of one run of the deepest rung, the shown run, are the columns of every matrix
`[runs, spans]`. From these matrices `recording_cost` estimates what recording cost, and
`latency` how long each span takes without that cost.

    rung op    predict   fc    addmm       rung layer    predict   fc    addmm
    run 0         30     20       15       run 0            26     17      NaN
    run 1         31     21       15       run 1            27     17      NaN
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import (
    ROOT,
    Observations,
    Run,
    RunSpans,
    covered,
    observe,
    run_spans,
    standard_error,
    trimmed_mean,
    typical_run,
)
from xsp.merge.device_time import device_times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDS = 1_000_000  # more rounds than any process has
_FEWEST = 3  # bare runs that a process needs to have a factor
_BEYOND_NOISE = 2.5  # standard errors by which a process must differ to have a factor


@dataclass(frozen=True, slots=True)
class RungRuns:
    """The runs of one rung that give latencies.

    Attributes:
        name: The rung's name.
        order: The rung's order, -1 for the bare rung.
        members: The runs, as indices into the observations; empty on the bare rung.
        processes: Process of each run.
        rounds: Round of each run; no two processes share a number.
        factor: Factor by which the host's times in each run are multiplied, so that the times of
            all processes are on one scale.
        root_ns: Latency of each run, on that scale.
        host_ns: Latency of each run without the wait for devices at the end, which hides the
            cost of recording; on that scale.
        page_faults: Minor page faults of each run, NaN where unknown.
    """

    name: str
    order: int
    members: Ints
    processes: Ints
    rounds: Ints
    factor: Floats
    root_ns: Floats
    host_ns: Floats
    page_faults: Floats


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of a measurement, outermost first, seen from the spans of one run.

    Attributes:
        rungs: The runs of each rung.
        seen: The rows of all runs.
        shown: The run whose spans are shown, as an index into `seen.runs`.
        spans: The spans of that run: the columns of each matrix.
        columns: Column of each path in `seen.path`, -1 where the shown run lacks it.
        apart: Largest relative difference of a process's bare latency from the mean of all.
    """

    rungs: tuple[RungRuns, ...]
    seen: Observations
    shown: int
    spans: RunSpans
    columns: Ints
    apart: float

    @property
    def deepest(self) -> RungRuns:
        """The rung on which most was recorded."""
        return self.rungs[-1]

    @property
    def outer(self) -> RungRuns:
        """The rung that the root's latency is taken from: pipeline, else the outermost rung."""
        return next((rung for rung in self.rungs if rung.order == 0), self.rungs[0])

    def durations(self, rung: RungRuns) -> Floats:
        """Return `[runs, spans]`: how long each span took on a rung, NaN where missing."""
        matrix = self._matrix(rung, self.seen.duration_ns)
        np.multiply(matrix, rung.factor[:, None], out=matrix, where=self.spans.host)
        matrix[:, ROOT] = rung.root_ns
        return matrix

    def own_times(self, rung: RungRuns, order: int) -> Floats:
        """Return `[runs, spans]`: each span's time outside of its children of rungs up to `order`.

        The time of the root is `host_ns`, which leaves out the wait for devices at the end.
        """
        own = self.durations(rung)
        own[:, ROOT] = rung.host_ns
        if rung.order >= 0 and order >= 0:
            inside = self._matrix(rung, self._covered(rung, order))
            own -= inside * rung.factor[:, None]
        return own

    def device_times(self, rung: RungRuns) -> Floats | None:
        """Return `[runs, spans]`: device time of each span on a rung; None if no device worked."""
        times = device_times(self.seen, rung.members.tolist())
        return None if times is None else self._matrix(rung, times)

    def _covered(self, rung: RungRuns, order: int) -> Floats:
        """Return for how long children of rungs up to `order` run inside each row."""
        seen = self.seen
        child = (seen.order <= order) & seen.host & (seen.parent >= 0)
        rows = np.flatnonzero(child & np.isin(seen.run, rung.members))
        times = seen.start_ns[rows], seen.end_ns[rows]
        return covered(seen.parent[rows], *times, len(seen.parent))

    def _matrix(self, rung: RungRuns, values: Floats) -> Floats:
        """Return `[runs, spans]` of `values`, which hold one value per row of the observations."""
        matrix = np.full((len(rung.root_ns), len(self.spans.key)), np.nan)
        for times, member in zip(matrix, rung.members.tolist(), strict=False):
            rows = self.seen.of(member)
            column = self.columns[self.seen.path[rows]]
            shown = column >= 0
            times[column[shown]] = values[rows][shown]
        return matrix


def climb(runs: Sequence[Run]) -> Ladder:
    """Return the ladder of a measurement; its shown run is a typical run of the deepest rung.

    Args:
        runs: In the order in which they were made; a run that gives latencies must have rows.
    """
    seen = observe(runs)
    factors, apart = process_factors(runs)
    rungs = []
    for order in sorted({run.rung.order for run in runs if run.rung.timed}):
        source = seen.runs if order >= 0 else runs
        found = [i for i, run in enumerate(source) if run.rung.timed and run.rung.order == order]
        if found:
            members = np.array(found if order >= 0 else [], dtype=np.int64)
            rungs.append(_rung_runs([source[i] for i in found], members, factors))
    shown = typical_run(seen, rungs[-1].members.tolist())
    spans = run_spans(seen, shown)
    columns = np.full(int(seen.path.max()) + 1, -1, dtype=np.int64)
    columns[seen.path[seen.of(shown)]] = np.arange(len(spans.key))
    return Ladder(tuple(rungs), seen, shown, spans, columns, apart)


def process_factors(runs: Sequence[Run]) -> tuple[dict[int, float], float]:
    """Return by what each process's times are multiplied to bring all times to one scale.

    The bare runs of each process say how fast the process is. A process's factor differs from 1
    only where its bare latency differs from the mean of all processes by more than noise.

    Returns:
        The factors by process, and the largest relative difference from that mean.
    """
    bare: dict[int, list[int]] = {}
    for run in runs:
        if run.rung.order < 0 and run.rung.timed:
            bare.setdefault(run.process, []).append(run.latency_ns)
    samples = {p: np.array(times, dtype=float)[:, None] for p, times in bare.items()}
    samples = {p: times for p, times in samples.items() if len(times) >= _FEWEST}
    if len(samples) < 2:
        return {}, 0.0
    means = {p: max(float(trimmed_mean(times)[0]), 1.0) for p, times in samples.items()}
    centre = sum(means.values()) / len(means)
    factors = {}
    for process, times in samples.items():
        apart = abs(means[process] / centre - 1)
        noise = float(standard_error(times)[0]) / means[process]
        factors[process] = centre / means[process] if apart > _BEYOND_NOISE * noise else 1.0
    return factors, max(abs(factor - 1) for factor in factors.values())


def same_process(rounds: Ints, processes: Ints) -> NDArray[np.bool_]:
    """Tell which rounds (`RungRuns.rounds`) are of one of these processes."""
    return np.isin(rounds // _ROUNDS, processes)


def _rung_runs(group: Sequence[Run], members: Ints, factors: dict[int, float]) -> RungRuns:
    factor = np.array([factors.get(run.process, 1.0) for run in group])
    processes = np.array([run.process for run in group], dtype=np.int64)
    host = [run.latency_ns if run.host_ns is None else run.host_ns for run in group]
    return RungRuns(
        name=group[0].rung.name,
        order=group[0].rung.order,
        members=members,
        processes=processes,
        rounds=processes * _ROUNDS + np.array([run.round for run in group]),
        factor=factor,
        root_ns=factor * [run.latency_ns for run in group],
        host_ns=factor * host,
        page_faults=np.array([run.page_faults for run in group], dtype=float),
    )
