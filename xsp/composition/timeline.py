"""The timeline: a journal and the groups' latencies in, the time of each part without xsp out.

The time of a program with xsp is its own time, the pauses in which it waited for xsp, and what
recording added to evaluations and to what lies between them. The pauses are noted in the journal.
What recording added to evaluations is the difference between those that were recorded in one way
and the latency of their group; between evaluations it is the difference between the times from one
group to the next with and without providers armed. What is left is what the program takes
without xsp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from xsp.composition.group import Size, elements
from xsp.composition.journal import Evaluation, Journal, paused, times_of
from xsp.composition.usual import (
    FEWEST,
    OUTLIER,
    GroupLatency,
    Usual,
    recorded_typical,
    typical_of,
    without_added,
    without_share,
)
from xsp.evaluation import Rung, Times, clipped, free
from xsp.level import Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MANY = 10  # evaluations whose mean says something
_SOME = 5  # evaluations whose mean says more than that of recorded ones
_MUCH_LARGER = 0.5  # than the median: noise is less than what that makes of the latency
_SET_UP_NS = 50_000_000  # no provider takes longer to set itself up within an evaluation

_Way = tuple[int, Rung | None, bool]
_Armed = tuple[Rung, bool]  # what an evaluation recorded, and whether it went on with a streak
_Running = tuple[Ints, Floats]  # times, and what xsp has added until each
_Piece = tuple[int, int, float]  # begin and end of a piece of time, and what xsp added to it
_Gap = tuple[int, Times]  # a thread, begin and end of the free parts of a time


class Timeline:
    """Tells how long parts of a program take without xsp.

    Args:
        journal: What the program did.
        latencies: What merging found, by the number of the group.
        final: Returns the number of the group that a group is part of in the end.
        waits: When each thread waited for xsp's work on the others (`waits_for_others`), which
            the evaluations of the journal know of.

    Attributes:
        evaluations_ns: How long each evaluation of the journal takes without xsp.
        untouched: The evaluations of each group that recorded nothing, and count, by the number of
            the group.
        estimated: The evaluations whose time is not simply what the clock had, by their numbers.
    """

    def __init__(
        self,
        journal: Journal,
        latencies: Mapping[int, GroupLatency],
        final: Callable[[int], int],
        waits: Mapping[int, Times] | None = None,
    ) -> None:
        measured = np.array([each.ran_ns for each in journal.evaluations], dtype=np.float64)
        self.untouched = _untouched(journal.evaluations, final)
        self.estimated = _estimated(journal.evaluations)
        self.evaluations_ns = _without_recording(
            journal.evaluations, measured, self.estimated, self.untouched, latencies, final
        )
        pieces: defaultdict[int, list[_Piece]] = defaultdict(list)
        pauses = paused(journal, waits or {})
        made = times_of(journal.evaluations)
        for thread, mine in pauses.items():
            # What a thread waited for xsp in an evaluation is a part of that.
            pieces[thread] += [
                (begin, end, float(end - begin))
                for wait in mine
                for begin, end in free(made.get(thread, ()), *wait)
            ]
        for each, lasts in zip(journal.evaluations, self.evaluations_ns.tolist(), strict=True):
            added = each.end_ns - each.begin_ns - lasts
            pieces[each.thread].append((each.begin_ns, each.end_ns, added))
        for thread, known in _between(journal.evaluations, pauses, final).items():
            pieces[thread] += known
        self._added = {thread: _running(known) for thread, known in pieces.items() if known}
        here = journal.thread
        own_pauses = pauses.get(here, ()) if waits else ()  # for which the others waited as well
        others = [
            _less_pauses(_outside(pieces[thread], made.get(here, ())), own_pauses)
            for thread in made
            if thread != here
        ]
        if waited := [_running(known) for known in others if known]:
            own = [self._added[here]] if here in self._added else []
            self._added[here] = _sum([_averaged(waited), *own])

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


def _between(
    evaluations: Sequence[Evaluation],
    pauses: Mapping[int, Times],
    final: Callable[[int], int],
) -> dict[int, list[_Piece]]:
    """Return for each thread the times between evaluations, and what recording added to each."""
    gaps: defaultdict[tuple[int, int], defaultdict[_Armed | None, list[_Gap]]]
    gaps = defaultdict(lambda: defaultdict(list))
    last: dict[int, Evaluation] = {}
    for each in sorted(evaluations, key=lambda each: each.begin_ns):
        before = last.get(each.thread)
        last[each.thread] = each
        if before is not None:
            gap = free(pauses.get(each.thread, ()), before.end_ns, each.begin_ns)
            gaps[final(before.group), final(each.group)][_armed(before)].append((each.thread, gap))
    result: defaultdict[int, list[_Piece]] = defaultdict(list)
    for members in gaps.values():
        lengths = {armed: _lengths(mine) for armed, mine in members.items()}
        quiet = Usual.of(lengths.pop(None, np.empty(0)), None)
        if quiet is None or not lengths:
            continue
        usual = {armed: typical_of(ns) for armed, ns in lengths.items() if len(ns) >= FEWEST}
        # A rung that came seldom is taken to add as much as any other.
        most_ns = max(usual.values(), default=quiet.typical_ns)
        less = {}
        for armed, ns in lengths.items():
            assert armed is not None
            rung, _ = armed
            seldom_ns = most_ns if rung.kinds else quiet.typical_ns
            less[armed] = without_added(ns, usual.get(armed, seldom_ns), quiet.typical_ns)
            if rung.detail:  # which comes once, and traces each line
                less[armed] = np.minimum(ns, quiet.typical_ns)
        together = np.concatenate(list(less.values()))
        alike = together[together <= quiet.most_ns]
        own = quiet.share_of_own(alike) if len(alike) >= _MANY else 1.0
        for armed, ns in less.items():
            ns[ns <= quiet.most_ns] *= own
            shares = 1.0 - ns / np.maximum(lengths[armed], 1.0)
            for (thread, gap), share in zip(members[armed], shares.tolist(), strict=True):
                result[thread] += [(start, end, share * (end - start)) for start, end in gap]
    return result


def _armed(evaluation: Evaluation) -> _Armed | None:
    """Return by what xsp makes that slower which comes after an evaluation, if by anything.

    Providers record something after the evaluation as well, or it came soon after work of xsp's,
    and did not count.
    """
    rung = evaluation.rung
    if rung is None or (evaluation.counts and rung.timed and rung.order <= Kind.PIPELINE.order):
        return None
    return rung, evaluation.went_on


def _lengths(gaps: Sequence[_Gap]) -> Floats:
    return np.array([sum(end - start for start, end in gap) for _, gap in gaps], dtype=np.float64)


def _outside(pieces: Sequence[_Piece], evaluations: Sequence[tuple[int, int]]) -> list[_Piece]:
    """Return the pieces of time that overlap none of a thread's evaluations."""
    if not evaluations or not pieces:
        return list(pieces)
    begins, ends = np.array(evaluations, dtype=np.int64).T
    begin, end = np.array([piece[:2] for piece in pieces], dtype=np.int64).T
    apart = np.searchsorted(ends, begin, "right") == np.searchsorted(begins, end, "left")
    return list(compress(pieces, apart.tolist()))


def _less_pauses(pieces: Sequence[_Piece], pauses: Sequence[tuple[int, int]]) -> list[_Piece]:
    """Return pieces of time without what the waiting thread's own pauses added to each."""
    result = []
    for begin, end, added in pieces:
        own = sum(until - since for since, until in clipped(pauses, begin, end))
        result.append((begin, end, max(added - own, 0.0) if own else added))
    return result


def _running(pieces: Sequence[_Piece]) -> _Running:
    """Return the ends of pieces of time, and how much has been added until each end."""
    known = sorted(pieces)
    begin, end = np.array([piece[:2] for piece in known], dtype=np.int64).T
    added = np.cumsum([piece[2] for piece in known])
    times = np.stack([begin, end], axis=1).ravel()
    return times, np.stack([np.append(0.0, added[:-1]), added], axis=1).ravel()


def _averaged(threads: Sequence[_Running]) -> _Running:
    """Return what was added on average to threads that another thread waited for.

    How much of it delayed the waiting thread depends on which thread was the last to end: with
    threads that do alike, as the workers of a server, all were delayed alike.
    """
    times, added = _sum(threads)
    return times, added / len(threads)


def _sum(all_added: Sequence[_Running]) -> _Running:
    times = np.unique(np.concatenate([times for times, _ in all_added]))
    first = times[0]
    added = [np.interp(times - first, known - first, sums) for known, sums in all_added]
    return times, np.sum(added, axis=0)


def _untouched(
    evaluations: Sequence[Evaluation], final: Callable[[int], int]
) -> dict[int, list[int]]:
    """Return the numbers of the evaluations of each group that recorded nothing, and count."""
    result: defaultdict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(evaluations):
        if not _records(each) and (each.rung is None or each.counts):
            result[final(each.group)].append(number)
    return dict(result)


def _estimated(evaluations: Sequence[Evaluation]) -> list[int]:
    """Return the numbers of the evaluations whose time is not simply what the clock had."""
    first_ns = min((each.begin_ns for each in evaluations if _records(each)), default=0)
    return [
        number
        for number, each in enumerate(evaluations)
        # What does not count before anything is recorded is cold, but not by xsp.
        if _records(each)
        or (each.rung is not None and not each.counts and each.begin_ns > first_ns)
    ]


def _without_recording(
    evaluations: Sequence[Evaluation],
    measured: Floats,
    estimated: Sequence[int],
    untouched: Mapping[int, Sequence[int]],
    latencies: Mapping[int, GroupLatency],
    final: Callable[[int], int],
) -> Floats:
    """Return how long each evaluation takes with nothing recorded.

    Args:
        evaluations: The evaluations.
        measured: How long each one ran, in ns.
        estimated: Numbers of those whose time is not simply that.
        untouched: Numbers of those by which the others are judged, by the number of the group.
        latencies: What merging found, by the number of the group.
        final: Returns the number of the group that a group is part of in the end.
    """
    ways: defaultdict[_Way, list[int]] = defaultdict(list)
    sizes: defaultdict[int, set[Size]] = defaultdict(set)
    for each in evaluations:
        sizes[final(each.group)].add(each.size)
    for number in estimated:
        each = evaluations[number]
        ways[final(each.group), each.rung, each.counts].append(number)
    result = measured.copy()
    per_call = measured / [each.size[0] for each in evaluations]
    recorded: defaultdict[int, list[int]] = defaultdict(list)
    settled: defaultdict[int, list[int]] = defaultdict(list)
    for (group, rung, counts), members in ways.items():
        assert rung is not None
        quiet = untouched.get(group, [])
        vary, fewest = len(sizes[group]) > 1, min(len(members), len(quiet))
        took = per_call if vary and fewest >= FEWEST else measured  # of more calls they take longer
        if (known := Usual.of(took[quiet], latencies.get(group))) is None:
            continue
        usual = recorded_typical(took[members], rung, latencies.get(group))
        if vary and usual is not None:
            if counts or len(members) < _MANY or len(quiet) < _SOME:
                result[members] = without_share(measured[members], usual, known.typical_ns)
                continue
            known_sizes = [evaluations[each].size for each in (*quiet, *members)]
            longer = _longer(known_sizes, took[quiet])
            known = Usual.of(took[quiet] / longer[: len(quiet)], None)
            assert known is not None
            result[members] = _alike_on_average(took[members], longer[len(quiet) :], known)
            result[members] *= measured[members] / took[members]
        elif counts and usual is not None and rung.timed:
            result[members] = without_added(measured[members], usual, known.typical_ns)
            recorded[group] += members
        else:
            result[members] = _settled(measured[members], usual, known)
            settled[group] += members
    for members in settled.values():  # together they last no longer than they did
        result[members] *= min(measured[members].sum() / max(result[members].sum(), 1.0), 1.0)
    for group, members in recorded.items():
        quiet = untouched.get(group, [])
        known = Usual.of(measured[quiet], None)
        if known is not None and len(members) >= _MANY and len(quiet) >= _SOME:
            result[members] *= known.share_of_own(result[members])
    return result


def _longer(sizes: Sequence[Size], took_ns: Floats) -> Floats:
    """Return how many times as long as usual evaluations last, for what is put into them.

    The first ones tell by which part those last longer that are larger than the median by 1, from 0
    to 1: the median of theirs, each counted by how much larger it is. What is larger than any of
    them lasts longer in proportion, as all do where too few of the first ones are much larger.

    Args:
        sizes: Sizes of evaluations.
        took_ns: How long the first of them took.
    """
    first = len(took_ns)
    of_each = np.array([elements(inputs) for _, inputs in sizes], dtype=np.float64)
    larger = np.maximum(of_each / np.median(of_each[:first]) - 1.0, 0.0)
    much = np.flatnonzero(larger[:first] > _MUCH_LARGER)
    if len(much) < FEWEST:
        return 1.0 + larger
    slopes = (took_ns[much] / np.median(took_ns[larger[:first] == 0]) - 1.0) / larger[much]
    order = np.argsort(slopes)
    counted = np.cumsum(larger[much][order])
    slope = np.clip(slopes[order][np.searchsorted(counted, counted[-1] / 2)], 0.0, 1.0)
    told = np.minimum(larger, larger[:first].max())
    return np.asarray(1.0 + slope * told + (larger - told))


def _alike_on_average(lasts: Floats, longer: Floats, known: Usual) -> Floats:
    """Return times of evaluations that do not count, as long on average as those that do.

    Args:
        lasts: How long each one lasted.
        longer: How many times as long each one lasts as the usual ones, for its size. One that
            lasted longer than the most of that did so for xsp's reasons, but for what no provider
            takes: a model that is compiled.
        known: How long the usual ones last.
    """
    most = longer * known.most_ns
    own = lasts > most + _SET_UP_NS
    result = np.minimum(lasts, most) * known.share_of_own((lasts / longer)[~own])
    result[own] += (lasts - most)[own]
    return result


def _records(evaluation: Evaluation) -> bool:
    """Tell whether spans or samples of an evaluation were recorded."""
    return (rung := evaluation.rung) is not None and (bool(rung.kinds) or not rung.timed)


def _settled(measured: Floats, usual_ns: float | None, known: Usual) -> Floats:
    """Return times of alike evaluations in which providers set themselves up, without that.

    They last as long as others on average, but for what no provider takes: a model that is
    compiled, a library that tries out its algorithms.
    """
    result = np.full(len(measured), known.mean_ns)
    if usual_ns is not None:
        own = measured > max(OUTLIER * usual_ns, usual_ns + _SET_UP_NS)
        result[own] += measured[own] - usual_ns
    return result
