"""Makes a matrix for each pass of how long each span took in each run.

The spans of one run of the deepest pass, the shown run, are the columns of every matrix
`[runs, spans]`. From these matrices `recording_cost` estimates what recording cost, and
`latency` how long each span takes without that cost.

    pass op    predict   fc    addmm       pass layer    predict   fc    addmm
    run 0         30     20       15       run 0            26     17      NaN
    run 1         31     21       15       run 1            27     17      NaN
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.matching import (
    ROOT,
    Observations,
    ProcessSpeeds,
    Run,
    RunSpans,
    Series,
    SlowLevel,
    covered,
    has_usual_structure,
    matched,
    nearest,
    observe,
    process_speeds,
    run_spans,
    slow_level,
    typical_run,
)
from xsp.reading.merge.device_time import device_times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OTHERS = 0.05  # of a pass's runs: as many may differ from what is shown


@dataclass(frozen=True, slots=True)
class PassRuns:
    """The runs of one pass that give latencies.

    Attributes:
        name: The pass's name.
        order: The pass's order, -1 for the bare pass.
        members: The runs, as indices into the observations; empty on the bare pass.
        processes: Process of each run.
        rounds: Round of each run, -1 for warming up. Processes take turns, so that rounds of one
            number are close in time in all of them.
        began_ns: When each run began.
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
    began_ns: Ints
    factor: Floats
    root_ns: Floats
    host_ns: Floats
    page_faults: Floats


@dataclass(frozen=True, slots=True)
class Ladder:
    """The passes of a measurement, outermost first, seen from the spans of one run.

    Attributes:
        passes: The runs of each pass.
        seen: The rows of all runs.
        shown: The run whose spans are shown, as an index into `seen.runs`.
        spans: The spans of that run: the columns of each matrix.
        columns: Column of each path in `seen.path`, -1 where the shown run lacks it.
        place: Column of each row of `seen`; -1 where the shown run lacks the row's path, or where
            the row cannot be told from its siblings (see `xsp.matching.matched`).
        varies: Which spans have no column in more than 5 % of the runs of their pass.
        speeds: How fast the processes are.
        level: How the machine's speed moved during the measurement.
    """

    passes: tuple[PassRuns, ...]
    seen: Observations
    shown: int
    spans: RunSpans
    columns: Ints
    place: Ints
    varies: Bools
    speeds: ProcessSpeeds
    level: SlowLevel

    @property
    def deepest(self) -> PassRuns:
        """The pass on which most was recorded."""
        return self.passes[-1]

    @property
    def usual(self) -> bool:
        """Whether enough runs of the deepest pass have the structure that is shown."""
        return has_usual_structure(self.seen, self.deepest.members.tolist())

    @property
    def foreign(self) -> bool:
        """Whether another tool recorded the runs (`Pass.foreign`)."""
        return any(run.pass_.foreign for run in self.seen.runs)

    @property
    def outer(self) -> PassRuns:
        """The pass that the root's latency is taken from: of regions, else the outermost pass."""
        return next((pass_ for pass_ in self.passes if pass_.order == 0), self.passes[0])

    def durations(self, pass_: PassRuns) -> Floats:
        """Return `[runs, spans]`: how long each span took on a pass, NaN where missing."""
        matrix = self._matrix(pass_, self.seen.duration_ns)
        np.multiply(matrix, pass_.factor[:, None], out=matrix, where=self.spans.host)
        matrix[:, ROOT] = pass_.root_ns
        return matrix

    def paths(self, pass_: PassRuns) -> Bools:
        """Return which paths of `seen` were seen on a pass, in a run that is like the shown one."""
        return self._paths(pass_, int(self.seen.order.max()))

    def shared(self, pass_: PassRuns, above: PassRuns) -> Bools:
        """Return which paths were really seen on both passes, and are timed on the pass above."""
        return self.paths(pass_) & self._paths(above, above.order)

    def of_paths(self, values: Bools) -> Bools:
        """Return for each span the value of its path."""
        return values[self.seen.path[self.seen.of(self.shown)]]

    def self_times(self, pass_: PassRuns, shared: Bools) -> Floats:
        """Return `[runs, spans]`: each span's time outside of the spans in it with `shared` paths.

        The time of the root is `host_ns`, which leaves out the wait for devices at the end.
        """
        own = self.durations(pass_)
        own[:, ROOT] = pass_.host_ns
        if pass_.order >= 0 and shared.any():
            inside = self._matrix(pass_, self._covered(pass_, shared))
            own -= inside * pass_.factor[:, None]
        return own

    def device_times(self, pass_: PassRuns) -> Floats | None:
        """Return `[runs, spans]`: device time of each span on a pass; None if no device worked."""
        times = device_times(self.seen, pass_.members.tolist())
        return None if times is None else self._matrix(pass_, times)

    def _covered(self, pass_: PassRuns, shared: Bools) -> Floats:
        """Return for how long rows with a `shared` path run inside each such row of a pass.

        A row counts in its nearest ancestor with a shared path: between the two may lie rows
        that only the deeper of two passes records, such as an operator around a layer.
        """
        seen = self.seen
        rows = self._rows(pass_)
        rows = rows[shared[seen.path[rows]] & seen.host[rows] & (seen.parent[rows] >= 0)]
        around = seen.parent[rows]
        between = ~shared[seen.path[around]]
        if between.any():
            around[between] = nearest(seen.parent, around[between], shared[seen.path])
            rows, around = rows[around >= 0], around[around >= 0]
        return covered(around, seen.start_ns[rows], seen.end_ns[rows], len(seen.parent))

    def _paths(self, pass_: PassRuns, order: int) -> Bools:
        """Return which paths were seen on a pass and have their own pass up to `order`."""
        seen, rows = self.seen, self._rows(pass_)
        path = seen.path[rows]
        alike = (self.place[rows] >= 0) | (self.columns[path] < 0)
        found = np.zeros(len(self.columns), dtype=bool)
        found[path[alike & (seen.order[rows] <= order)]] = True
        return found

    def _rows(self, pass_: PassRuns) -> Ints:
        runs = [self.seen.of(run) for run in pass_.members.tolist()]
        return np.concatenate([np.arange(0), *(np.arange(run.start, run.stop) for run in runs)])

    def _matrix(self, pass_: PassRuns, values: Floats) -> Floats:
        """Return `[runs, spans]` of `values`, which hold one value per row of the observations."""
        matrix = np.full((len(pass_.root_ns), len(self.spans.key)), np.nan)
        for times, member in zip(matrix, pass_.members.tolist(), strict=False):
            rows = self.seen.of(member)
            place = self.place[rows]
            shown = place >= 0
            times[place[shown]] = values[rows][shown]
        return matrix


def climb(runs: Sequence[Run]) -> Ladder:
    """Return the ladder of a measurement; its shown run is a typical run of the deepest pass.

    Args:
        runs: In the order in which they were made; a run that gives latencies must have rows.
    """
    seen = observe(runs)
    speeds = process_speeds(_bare_series(runs))
    passes = []
    for order in sorted({run.pass_.order for run in runs if run.pass_.timed}):
        source = seen.runs if order >= 0 else runs
        found = [i for i, run in enumerate(source) if run.pass_.timed and run.pass_.order == order]
        if found:
            members = np.array(found if order >= 0 else [], dtype=np.int64)
            group = [source[i] for i in found]
            factor = np.array([speeds.factors.get(run.process, 1.0) for run in group])
            host = [run.latency_ns if run.host_ns is None else run.host_ns for run in group]
            pass_runs = PassRuns(
                name=group[0].pass_.name,
                order=group[0].pass_.order,
                members=members,
                processes=np.array([run.process for run in group], dtype=np.int64),
                rounds=np.array([run.round for run in group], dtype=np.int64),
                began_ns=np.array([run.began_ns for run in group], dtype=np.int64),
                factor=factor,
                root_ns=factor * [run.latency_ns for run in group],
                host_ns=factor * host,
                page_faults=np.array([run.page_faults for run in group], dtype=float),
            )
            passes.append(pass_runs)
    shown = typical_run(seen, passes[-1].members.tolist())
    spans = run_spans(seen, shown)
    columns = np.full(int(seen.path.max()) + 1, -1, dtype=np.int64)
    columns[seen.path[seen.of(shown)]] = np.arange(len(spans.key))
    place = np.where(matched(seen, shown), columns[seen.path], -1)
    # Which spans have no place in more than 5 % of the runs of their pass.
    varies = np.zeros(len(spans.key), dtype=bool)
    orders = np.array([pass_.order for pass_ in passes])
    own = np.minimum(np.searchsorted(orders, spans.order), len(passes) - 1)
    for number, pass_ in enumerate(passes):
        if len(pass_.members):
            rows = np.isin(seen.run, pass_.members) & (place >= 0)
            lacking = len(pass_.members) - np.bincount(place[rows], minlength=len(varies))
            varies |= (own == number) & (lacking > OTHERS * len(pass_.members))
    return Ladder(
        tuple(passes), seen, shown, spans, columns, place, varies, speeds, _slow_level(passes)
    )


def _bare_series(runs: Sequence[Run]) -> dict[int, Series]:
    bare: dict[int, list[Run]] = {}
    for run in runs:
        if run.pass_.order < 0 and run.pass_.timed:
            bare.setdefault(run.process, []).append(run)
    return {
        process: Series(
            np.array([run.began_ns for run in group]),
            np.array([run.round for run in group]),
            np.array([run.latency_ns for run in group], dtype=float),
        )
        for process, group in bare.items()
    }


def _slow_level(passes: Sequence[PassRuns]) -> SlowLevel:
    """Return how the machine's speed moved, from the runs of every pass in every process."""
    return slow_level(
        [
            Series(pass_.began_ns[chosen], pass_.rounds[chosen], pass_.root_ns[chosen])
            for pass_ in passes
            for process in np.unique(pass_.processes)
            for chosen in [pass_.processes == process]
        ]
    )
