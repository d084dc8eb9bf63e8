"""Counting: the evaluations of a program in; those whose latencies count out.

Four sorts do not count. What xsp decides between two visits empties the caches, so that the next
five or six evaluations are slower, if they take no more than some milliseconds (`disturbed`).
What recording gave back to the system, the program's next evaluations take again, page by page: a
microsecond each, which they do not spend without xsp. Evaluations of one group on one rung are
alike, so that those which took more page faults than the quietest of them say what that cost
(`unsettled`). In the first rounds of a plan each rung has its turn at once, so that short programs
show something: what the rung before left in the caches is in their times (`counting`). And of
evaluations that call the model ever another number of times, those of about the average number do
(`middling`), as far as they are average ones together (`balanced`): only what is about alike on all
rungs can be compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from xsp.composition.journal import SLOW_NS, Evaluation, Journal
from xsp.evaluation import FEWEST_ROUNDS, Rung, trimmed_mean
from xsp.session import Visit

# How many evaluations after work of xsp's do not count, and how many must be left on a rung. After
# six of them the caches are as without xsp: the first five training steps of 0.6 ms were 50, 26,
# 12, 7 and 4 % slower. Where fewer are left, the first four, three or two are left out.
_UNDISTURBED = ((6, 20), (4, 10), (3, 5), (2, 5))

_FAULT_NS = 500  # at least
_CHANGE = 0.01  # of an evaluation: what takes less is no matter
_FEWEST = 5  # evaluations of a group on a rung that must be left
_QUIET = 25  # percentile of page faults that stands for evaluations without xsp

_BALANCED = 0.03  # of the average number of calls: by so much a rung's may be off
_APART = (1.1, 1.25, 1.5, 2.0, 3.0)  # times as many calls as on average, or that part of them

# First rounds, in which few evaluations follow each change of the rung, and how many evaluations
# on a rung must follow these rounds, so that theirs need not count.
_FIRST = ((FEWEST_ROUNDS, 20), (5, 20), (2, 10))

Key = tuple[int, int]


def unsettled(evaluations: Sequence[Evaluation], final: Callable[[int], int]) -> frozenset[Key]:
    """Return thread and begin (ns) of the evaluations that took memory anew.

    Of a program with several threads there are none: page faults are those of the process.

    Args:
        evaluations: Evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.
    """
    if len({each.thread for each in evaluations}) > 1:
        return frozenset()
    alike: defaultdict[tuple[int, Rung, int], list[Evaluation]] = defaultdict(list)
    for each in evaluations:
        if each.rung is not None and each.counts and each.page_faults is not None:
            alike[final(each.group), each.rung, each.size[0]].append(each)
    return frozenset(key for members in alike.values() for key in _of(members))


def disturbed(
    evaluations: Sequence[Evaluation], final: Callable[[int], int], *, compared: bool = False
) -> frozenset[Key]:
    """Return thread and begin (ns) of the evaluations that came soon after work of xsp's.

    Args:
        evaluations: Evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.
        compared: Whether rungs of a group are to be compared, so that evaluations on all of them
            are left out alike.
    """
    place: dict[int, int] = {}
    found: defaultdict[tuple[int, Rung | None], defaultdict[Rung, list[tuple[int, Evaluation]]]]
    found = defaultdict(lambda: defaultdict(list))
    for each in evaluations:
        place[each.thread] = place.get(each.thread, 0) + 1 if each.went_on else 0
        if each.rung is not None and each.counts and each.rung.timed:
            of = final(each.group), None if compared else each.rung
            found[of][each.rung].append((place[each.thread], each))
    result: set[Key] = set()
    for rungs in found.values():
        least = _undisturbed([[at for at, _ in members] for members in rungs.values()])
        members = [key for members in rungs.values() for key in members]
        if min(each.ran_ns for _, each in members) < SLOW_NS:
            result |= {(each.thread, each.begin_ns) for at, each in members if at < least}
    return frozenset(result)


def _undisturbed(rungs: Sequence[Sequence[int]]) -> int:
    """Return from which place on evaluations count, given the places of those on each rung."""
    for least, enough in _UNDISTURBED:
        if all(sum(at >= least for at in places) >= enough for places in rungs):
            return least
    return 0


def _of(members: Sequence[Evaluation]) -> Iterable[Key]:
    faults = np.array([each.page_faults for each in members], dtype=np.float64)
    ran_ns = np.array([each.ran_ns for each in members], dtype=np.float64)
    excess = faults - np.percentile(faults, _QUIET)
    late = excess * _FAULT_NS > _CHANGE * np.median(ran_ns)
    if len(members) - late.sum() < _FEWEST:
        return ()
    return ((members[at].thread, members[at].begin_ns) for at in np.flatnonzero(late).tolist())


def middling(
    evaluations: Sequence[Evaluation], final: Callable[[int], int]
) -> dict[int, tuple[int, int]]:
    """Return the least and the most calls of the model that evaluations have which are compared.

    Args:
        evaluations: Evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.

    Returns:
        By the number of a group; groups of which all evaluations have as many calls are left out.
    """
    calls: defaultdict[int, list[int]] = defaultdict(list)
    recorded: defaultdict[tuple[int, Rung], list[int]] = defaultdict(list)
    for each in evaluations:
        group = final(each.group)
        calls[group].append(each.size[0])
        if each.rung is not None and each.rung.timed and each.counts:
            recorded[group, each.rung].append(each.size[0])
    return {
        group: _around(
            float(np.mean(all_calls)), [of for (at, _), of in recorded.items() if at == group]
        )
        for group, all_calls in calls.items()
        if min(all_calls) < max(all_calls)
    }


def _around(average: float, recorded: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return numbers of calls around an average, as near as leaves enough of each rung."""
    for apart in _APART:
        low, high = math.floor(average / apart), math.ceil(average * apart)
        left = [sum(low <= each <= high for each in calls) for calls in recorded]
        if all(n >= min(_FEWEST, len(calls)) for n, calls in zip(left, recorded, strict=True)):
            inside = [each for calls in recorded for each in calls if low <= each <= high]
            return min(inside, default=1), max(inside, default=1)
    every = [each for calls in recorded for each in calls]
    return min(every, default=1), max(every, default=1)


def unlike(
    evaluations: Sequence[Evaluation],
    final: Callable[[int], int],
    middle: Mapping[int, tuple[int, int]],
) -> frozenset[Key]:
    """Return thread and begin (ns) of the evaluations that have more or fewer calls than a middle.

    Args:
        evaluations: Evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.
        middle: As `middling` returns it.
    """
    result = set()
    for each in evaluations:
        low, high = middle.get(final(each.group), (0, each.size[0]))
        if not low <= each.size[0] <= high:
            result.add((each.thread, each.begin_ns))
    return frozenset(result)


def balanced(
    visits: Sequence[Visit], final: Callable[[int], int], average: Mapping[int, float]
) -> list[Visit]:
    """Return visits without evaluations that make those of a rung longer or shorter than average.

    Args:
        visits: Visits whose evaluations count.
        final: Returns the number of the group that a group is part of in the end.
        average: How often evaluations call the model on average, by the number of the group; of
            other groups all evaluations are kept.
    """
    made: defaultdict[tuple[int, Rung], list[tuple[int, int, int]]] = defaultdict(list)
    for number, visit in enumerate(visits):
        if visit.planned.rung.timed:
            for at, (group, calls) in enumerate(zip(visit.groups, visit.model_calls, strict=True)):
                made[final(group), visit.planned.rung].append((calls, number, at))
    left_out = {
        (number, at)
        for (group, _), members in made.items()
        if group in average
        for _, number, at in _unbalanced(members, average[group])
    }
    result = []
    for number, visit in enumerate(visits):
        kept = [at for at in range(len(visit.windows)) if (number, at) not in left_out]
        if kept:
            result.append(visit if len(kept) == len(visit.windows) else _picked(visit, kept))
    return result


def _unbalanced(
    members: Sequence[tuple[int, int, int]], average: float
) -> list[tuple[int, int, int]]:
    """Return the members with most or fewest calls without which the others are about average."""
    kept = sorted(members)
    apart = _apart(kept, average)
    while len(kept) > _FEWEST and abs(apart) > _BALANCED * average:
        fewer = kept[:-1] if apart > 0 else kept[1:]
        nearer = _apart(fewer, average)
        if abs(nearer) >= abs(apart):
            break
        kept, apart = fewer, nearer
    return sorted({*members} - {*kept})


def _apart(members: Sequence[tuple[int, int, int]], average: float) -> float:
    """Return by how many calls the mean of some evaluations, by which latencies go, is off."""
    calls = np.array([[each[0]] for each in members], dtype=np.float64)
    return float(trimmed_mean(calls)[0]) - average


def without(journal: Journal, anew: Set[Key]) -> Journal:
    """Return a journal in which some evaluations, by thread and begin, do not count."""
    if not anew:
        return journal
    evaluations = [
        each._replace(counts=False) if (each.thread, each.begin_ns) in anew else each
        for each in journal.evaluations
    ]
    return replace(journal, evaluations=evaluations)


def counting(
    visits: Sequence[Visit], final: Callable[[int], int], left_out: Set[Key]
) -> list[Visit]:
    """Return visits without the evaluations that do not count.

    Where no evaluation of a group counts on a rung, those that were not to count do. The first
    rounds, in which each rung has its turn at once, so that short programs show something, count
    only where few others do: what the rung before left in the caches is still in their times.
    Samples say what ran, not for how long: all of them count.
    """
    visits = [_without(visit, left_out) for visit in visits] if left_out else visits
    made: defaultdict[tuple[int, Rung], list[tuple[int, int]]] = defaultdict(list)
    for visit in visits:
        for group, number, window in zip(visit.groups, visit.rounds, visit.windows, strict=True):
            made[final(group), visit.planned.rung].append((number, window[1] - window[0]))
    first = {at: _first_round(evaluations) for at, evaluations in made.items()}
    result = []
    for visit in visits:
        rung = visit.planned.rung
        kept = [
            at
            for at, (group, number) in enumerate(zip(visit.groups, visit.rounds, strict=True))
            if rung.sampled or number >= first[final(group), rung]
        ]
        if kept:
            result.append(_picked(visit, kept))
    return result


def _without(visit: Visit, left_out: Set[Key]) -> Visit:
    """Return a visit in which some evaluations, by thread and begin, do not count."""
    rounds = [
        -1 if (visit.thread, begin) in left_out else number
        for number, (begin, _) in zip(visit.rounds, visit.windows, strict=True)
    ]
    return replace(visit, rounds=tuple(rounds))


def _first_round(evaluations: Sequence[tuple[int, int]]) -> int:
    """Return the round from which on evaluations count, given round and length (ns) of each."""
    for first, enough in _FIRST:
        later = [lasts_ns for number, lasts_ns in evaluations if number >= first]
        if len(later) >= enough and min(later) < SLOW_NS:
            return first
    return 0 if max(number for number, _ in evaluations) >= 0 else -1


def _picked(visit: Visit, kept: Sequence[int]) -> Visit:
    def pick(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[at] for at in kept)

    return replace(
        visit,
        planned=replace(visit.planned, round=0),  # all that is left counts
        windows=pick(visit.windows),
        waited_ns=pick(visit.waited_ns),
        groups=pick(visit.groups),
        rounds=pick(visit.rounds),
        names=pick(visit.names),
        model_calls=pick(visit.model_calls) if visit.model_calls else (),
    )
