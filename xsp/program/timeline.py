"""The timeline: a journal and the groups' latencies in, how long each part takes without xsp out.

The time of a program with xsp is its own time, the pauses in which it waited for xsp, and what
recording added to evaluations. The first is measured, the second is noted in the journal, and the
third is the difference between evaluations that were recorded in one way and the latency of their
group. What is left is what the program takes without xsp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import Rung, trimmed_mean
from xsp.program.journal import Evaluation, Journal

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 3  # evaluations recorded in one way, to say how much longer that made them

_Way = tuple[int, Rung | None, bool]


@dataclass(frozen=True, slots=True)
class GroupLatency:
    """What merging found of a group.

    Attributes:
        latency_ns: Latency of an evaluation without overhead.
        rungs_ns: Latency of an evaluation on each rung, by the rung's name.
    """

    latency_ns: float
    rungs_ns: Mapping[str, float]


class Timeline:
    """Tells how long parts of a program take without xsp.

    Args:
        journal: What the program did.
        latencies: What merging found, by the number of the group.
        final: Returns the number of the group that a group is part of in the end.

    Attributes:
        evaluations_ns: How long each evaluation of the journal takes without xsp.
    """

    def __init__(
        self,
        journal: Journal,
        latencies: Mapping[int, GroupLatency],
        final: Callable[[int], int],
    ) -> None:
        self.evaluations_ns = _without_recording(journal.evaluations, latencies, final)
        self._added: dict[int, tuple[Ints, Floats]] = {}
        pieces: defaultdict[int, list[tuple[int, int, float]]] = defaultdict(list)
        for pause in journal.pauses:
            length = pause.end_ns - pause.begin_ns
            pieces[pause.thread].append((pause.begin_ns, pause.end_ns, float(length)))
        for each, lasts in zip(journal.evaluations, self.evaluations_ns.tolist(), strict=True):
            added = each.end_ns - each.begin_ns - lasts
            pieces[each.thread].append((each.begin_ns, each.end_ns, added))
        for thread, known in pieces.items():
            self._added[thread] = _running(sorted(known))

    def lasting(self, thread: Ints, start_ns: Ints, end_ns: Ints) -> Floats:
        """Return how long parts of the program take without xsp.

        Args:
            thread: Thread of each part, shape `[parts]`.
            start_ns: When each part began, with xsp.
            end_ns: When each part ended, with xsp.
        """
        result = (end_ns - start_ns).astype(np.float64)
        for each in np.unique(thread).tolist():
            if each in self._added:
                mine = thread == each
                result[mine] -= self._until(each, end_ns[mine]) - self._until(each, start_ns[mine])
        return np.maximum(result, 0.0)

    def _until(self, thread: int, time_ns: Ints) -> Floats:
        """Return how much xsp has added on a thread until each time."""
        times, added = self._added[thread]
        # Differences from the first time: as floating-point numbers, clocks are not exact.
        return np.interp(time_ns - times[0], times - times[0], added)


def _running(pieces: Sequence[tuple[int, int, float]]) -> tuple[Ints, Floats]:
    """Return the ends of pieces of time, and how much has been added until each end."""
    begin, end = np.array([piece[:2] for piece in pieces], dtype=np.int64).T
    added = np.cumsum([piece[2] for piece in pieces])
    times = np.stack([begin, end], axis=1).ravel()
    return times, np.stack([np.append(0.0, added[:-1]), added], axis=1).ravel()


def _without_recording(
    evaluations: Sequence[Evaluation],
    latencies: Mapping[int, GroupLatency],
    final: Callable[[int], int],
) -> Floats:
    """Return how long each evaluation takes with nothing recorded."""
    measured = np.array([each.end_ns - each.begin_ns for each in evaluations], dtype=np.float64)
    ways: defaultdict[_Way, list[int]] = defaultdict(list)
    for number, each in enumerate(evaluations):
        ways[final(each.group), each.rung, each.counts].append(number)
    result = measured.copy()
    for (group, rung, counts), members in ways.items():
        known = latencies.get(group)
        untouched = rung is None or (not rung.kinds and counts)
        if known is None or rung is None or untouched:
            continue
        usual = _usual(measured[members], known.rungs_ns.get(rung.name))
        if usual is not None:
            result[members] = _less(measured[members], usual, known.latency_ns)
    return result


def _usual(measured: Floats, of_rung_ns: float | None) -> float | None:
    """Return how long evaluations that were recorded in one way last; None if unknown."""
    if len(measured) >= _FEWEST:
        return float(trimmed_mean(measured[:, None])[0])
    return of_rung_ns


def _less(measured: Floats, usual_ns: float, latency_ns: float) -> Floats:
    """Return times that recording made longer without what it added.

    An evaluation that is slower than usual is so for reasons of its own: recording adds as much
    to it as to others. A quicker one has less to record, and is shortened in proportion.
    """
    added = max(usual_ns - latency_ns, 0.0)
    in_proportion = measured * min(latency_ns / max(usual_ns, 1.0), 1.0)
    return np.where(measured >= usual_ns, measured - added, in_proportion)
