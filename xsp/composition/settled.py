"""Settling: the evaluations of a program in; those that took memory anew, as others do not, out.

What recording gave back to the system, the program's next evaluations take again, page by page: a
microsecond each, which they do not spend without xsp. Evaluations of one group on one rung are
alike, so that those which took more page faults than the quietest of them say what that cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from xsp.composition.journal import Evaluation
from xsp.evaluation import Rung

_FAULT_NS = 500  # at least
_CHANGE = 0.01  # of an evaluation: what takes less is no matter
_FEWEST = 5  # evaluations of a group on a rung that must be left
_QUIET = 25  # percentile of page faults that stands for evaluations without xsp

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
    alike: defaultdict[tuple[int, Rung], list[Evaluation]] = defaultdict(list)
    for each in evaluations:
        if each.rung is not None and each.counts and each.page_faults is not None:
            alike[final(each.group), each.rung].append(each)
    return frozenset(key for members in alike.values() for key in _of(members))


def _of(members: Sequence[Evaluation]) -> Iterable[Key]:
    faults = np.array([each.page_faults for each in members], dtype=np.float64)
    ran_ns = np.array([each.ran_ns for each in members], dtype=np.float64)
    excess = faults - np.percentile(faults, _QUIET)
    late = excess * _FAULT_NS > _CHANGE * np.median(ran_ns)
    if len(members) - late.sum() < _FEWEST:
        return ()
    return ((members[at].thread, members[at].begin_ns) for at in np.flatnonzero(late).tolist())
