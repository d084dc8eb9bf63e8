"""The journal of a profiled program: what happens and when, in; plain tuples out.

Nothing is interpreted while the program runs; `xsp.composition.nested` and
`xsp.composition.timeline` read the journal afterwards.

A pause holds the program up for longer than is noted of it: `with_pause_overhead`. Where several
threads evaluate at once, xsp's work on one keeps Python's lock from the others, which wait for it
in the midst of their evaluations. `waits_for_others` tells when, `with_waits` has the clock of the
evaluations stand still.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from xsp.composition.group import Size
from xsp.evaluation import Rung, Times, clipped, free, united
from xsp.tracer import UserSpans

_MOST_MARKS = 1_000_000
MARKS_LOST = (
    f"after {_MOST_MARKS:,} parts of the program, such as data loading, no more were noted: what "
    "they took is own time of what lies around them"
)


class Evaluation(NamedTuple):
    """One evaluation that the program made; times in ns of the session's clock.

    Attributes:
        thread: Thread that the evaluation ran on.
        group: Number of its group, as first seen (`Groups.final` tells the last).
        begin_ns: When it began.
        end_ns: When it ended, devices synchronised.
        rung: The rung that was recorded meanwhile; None: nothing was.
        counts: Whether its latency counts as one of that rung.
        size: How often the model was called in it, and shape and data type of each tensor put in.
        pauses: Begin and end of each time in it in which the thread waited for xsp.
        page_faults: How many minor page faults the process took in it; None if unknown.
        went_on: Whether it went on with a streak, so that xsp did no more before it than to read
            clocks.
        awaited_ns: How long, at its end, the thread only waited for devices.
    """

    thread: int
    group: int
    begin_ns: int
    end_ns: int
    rung: Rung | None
    counts: bool
    size: Size
    pauses: tuple[tuple[int, int], ...] = ()
    page_faults: int | None = None
    went_on: bool = False
    awaited_ns: int = 0

    @property
    def paused_ns(self) -> int:
        """How long the thread waited for xsp in it."""
        return sum(end - begin for begin, end in self.pauses)

    @property
    def ran_ns(self) -> int:
        """How long it ran, pauses left out."""
        return self.end_ns - self.begin_ns - self.paused_ns


class Mark(NamedTuple):
    """A part of the program that is no evaluation, such as data loading."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    attributes: Mapping[str, Any]


class Pause(NamedTuple):
    """A time in which a thread of the program waited for xsp.

    Attributes:
        thread: The thread.
        begin_ns: When it began to wait.
        end_ns: When it went on.
        idle: Whether xsp only waited, for devices or for its work on another thread, so that other
            threads went on.
    """

    thread: int
    begin_ns: int
    end_ns: int
    idle: bool = False


SLOW_NS = 20_000_000  # a longer evaluation does not notice what is in the caches
_DISPLACING_NS = 100_000  # of a program's own work, after which none of xsp's is in a cache

LOOK_NS = 10_000_000  # between two looks at a thread that evaluates nothing


class Place(NamedTuple):
    """Where a program was: a function, its file, and a line."""

    function: str
    file: str
    line: int


class Lull(NamedTuple):
    """What the thread of a block ran while it had evaluated nothing for a while.

    Attributes:
        time_ns: When that was.
        lasts_ns: How long before that it has evaluated nothing, or was last looked at.
        looks: How many looks this one stands for: several, where a call let no thread look.
        stack: The calls under way, the outermost first.
    """

    time_ns: int
    lasts_ns: int
    looks: int
    stack: tuple[Place, ...]


def _children_s() -> float:
    """Return the processor time of this process' children that have ended and were waited for."""
    times = os.times()
    return times.children_user + times.children_system


@dataclass(slots=True)
class Journal:
    """What happened in a block.

    Attributes:
        thread: Thread that entered the block.
        begin_ns: When the block began, on the session's clock.
        end_ns: When the block ended.
        evaluations: The evaluations, in the order of their ends.
        marks: Parts of the program that watchers noted.
        pauses: Times that xsp took.
        spans: The user's own spans outside of evaluations.
        lulls: What the thread ran while it evaluated nothing for long.
        raised: Models of which calls raised, with their number.
        unwatched_ns: Since when nothing was watched any more; None: watched to the end.
        pause_overhead_ns: How long each pause held the program up besides what is noted of it.
        loading: Whether processes of the program's load data, which has rows.
        children_s: Processor time of the processes that the program started and waited for.
        left_by: Class of the exception that ended the block, if one did.
    """

    thread: int
    begin_ns: int
    end_ns: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    spans: UserSpans = field(default_factory=UserSpans)
    lulls: list[Lull] = field(default_factory=list)
    raised: Counter[str] = field(default_factory=Counter)
    unwatched_ns: int | None = None
    pause_overhead_ns: float = 0.0
    loading: bool = False
    children_s: float = 0.0
    left_by: str = ""
    _children_before_s: float = field(default_factory=_children_s)

    def end(self, now_ns: int) -> None:
        """Note that the block ends, or that a trace is made of what there is until now."""
        self.end_ns = now_ns
        self.children_s = _children_s() - self._children_before_s

    @property
    def quick(self) -> bool:
        """Whether what is not noted of pauses matters: evaluations in a row are short."""
        return any(each.went_on and each.ran_ns < SLOW_NS for each in self.evaluations)

    def pause(self, begin_ns: int, end_ns: int, *, idle: bool = False) -> None:
        """Note a time in which the calling thread waited for xsp (see `Pause`)."""
        self.pauses.append(Pause(threading.get_ident(), begin_ns, end_ns, idle))

    def mark(self, mark: Mark) -> bool:
        """Note a part of the program; return whether there was room for it."""
        if len(self.marks) >= _MOST_MARKS:
            return False
        self.marks.append(mark)
        return True


def with_pause_overhead(journal: Journal) -> Journal:
    """Return a journal whose pauses last as long as they held the program up.

    Pauses that lie in an evaluation are that one's alone; those of the journal lie around.

    What is not noted of a pause comes after it, where the program's code is in no cache: less of it
    where little of the program ran since the pause before, and never more than half of what comes
    until the next one. Where xsp waited for devices the program would have waited as well.
    """
    pauses: defaultdict[int, Times] = defaultdict(list)
    for pause in journal.pauses:
        if not pause.idle:
            pauses[pause.thread].append((pause.begin_ns, pause.end_ns))
    for each in journal.evaluations:
        pauses[each.thread] += each.pauses
    of: defaultdict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(journal.evaluations):
        of[each.thread].append(number)
    evaluations = list(journal.evaluations)
    around = [pause for pause in journal.pauses if pause.idle]
    for thread, mine in pauses.items():
        longer = _lengthened(mine, journal.pause_overhead_ns) if mine else []
        made = [evaluations[number] for number in of[thread]]
        parts, outside = _shared_out(longer, made)
        for number, each, own in zip(of[thread], made, parts, strict=True):
            evaluations[number] = each._replace(pauses=own)
        around += [Pause(thread, *time) for time in outside]
    return replace(journal, evaluations=evaluations, pauses=around)


def _shared_out(
    pauses: Times, evaluations: Sequence[Evaluation]
) -> tuple[list[tuple[tuple[int, int], ...]], Times]:
    """Return the parts of disjoint pauses in each evaluation, and pauses that reach out of them."""
    begin, end = np.array(pauses, dtype=np.int64).reshape(-1, 2).T
    since, until = (
        np.array([(each.begin_ns, each.end_ns) for each in evaluations], dtype=np.int64)
        .reshape(-1, 2)
        .T
    )
    first, last = np.searchsorted(end, since, "right"), np.searchsorted(begin, until, "left")
    inside, parts = np.zeros(len(pauses), bool), []
    for each, low, high in zip(evaluations, first.tolist(), last.tolist(), strict=True):
        own = pauses[low:high]
        if own:
            inside[low:high] = True
            inside[low] &= own[0][0] >= each.begin_ns
            inside[high - 1] &= own[-1][1] <= each.end_ns
            own[0] = max(own[0][0], each.begin_ns), own[0][1]
            own[-1] = own[-1][0], min(own[-1][1], each.end_ns)
        parts.append(tuple(own))
    return parts, [pauses[at] for at in np.flatnonzero(~inside).tolist()]


def _lengthened(pauses: Times, overhead_ns: float) -> Times:
    begin, end = np.array(united(pauses), dtype=np.int64).T
    between = begin[1:] - end[:-1]
    before, after = np.append(_DISPLACING_NS, between), np.append(between, 2 * _DISPLACING_NS)
    more = overhead_ns * np.minimum(before / _DISPLACING_NS, 1.0)
    until = end + np.minimum(more, after / 2).astype(np.int64)
    return list(zip(begin.tolist(), until.tolist(), strict=True))


def waits_for_others(journal: Journal) -> dict[int, Times]:
    """Return when each thread that evaluates waited for xsp's work on the others.

    Returns:
        Disjoint times in their order, by the thread; empty where xsp worked on one thread alone,
        or where Python has no lock.
    """
    threads = {each.thread for each in journal.evaluations}
    alone = len(threads | {pause.thread for pause in journal.pauses}) < 2
    if alone or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return {}
    works: defaultdict[int, Times] = defaultdict(list)
    idle: defaultdict[int, Times] = defaultdict(list)
    for pause in journal.pauses:
        (idle if pause.idle else works)[pause.thread].append((pause.begin_ns, pause.end_ns))
    for each in journal.evaluations:
        works[each.thread] += each.pauses
    result: defaultdict[int, Times] = defaultdict(list)
    for worker, mine in works.items():
        waited = united(idle[worker])
        worked = [time for work in united(mine) for time in free(waited, *work)]
        for thread in threads - {worker}:
            result[thread] += worked
    return {thread: united(times) for thread, times in result.items()}


def waits_within(journal: Journal, waits: Mapping[int, Times]) -> dict[tuple[int, int], Times]:
    """Return the parts of such times that lie in each evaluation, by its thread and begin (ns).

    Where a thread works for xsp it waits for the lock as well, while others go on. So no evaluation
    is made shorter than the quickest one of its group and rung was with all of its waits.
    """
    if not waits:
        return {}
    quickest: dict[tuple[int, Rung | None], int] = {}
    for each in journal.evaluations:
        alike = each.group, each.rung
        quickest[alike] = min(quickest.get(alike, each.ran_ns), each.ran_ns)
    result = {}
    for each in journal.evaluations:
        # While it waited for devices it did not need the lock.
        times = clipped(waits[each.thread], each.begin_ns, each.end_ns - each.awaited_ns)
        left_ns, kept = each.ran_ns - quickest[each.group, each.rung], []
        for begin_ns, end_ns in times:
            kept.append((begin_ns, min(end_ns, begin_ns + left_ns)))
            left_ns -= end_ns - begin_ns
            if left_ns <= 0:
                break
        result[each.thread, each.begin_ns] = kept
    return result


def with_waits(journal: Journal, within: Mapping[tuple[int, int], Times]) -> Journal:
    """Return a journal whose evaluations were paused while they waited, as `waits_within` says."""
    if not within:
        return journal
    evaluations = list(journal.evaluations)
    for number, each in enumerate(evaluations):
        if more := within.get((each.thread, each.begin_ns)):
            evaluations[number] = each._replace(pauses=tuple(united([*each.pauses, *more])))
    return replace(journal, evaluations=evaluations)


def took_ns(evaluations: Iterable[Evaluation], final: Callable[[int], int]) -> Counter[int]:
    """Return how long the evaluations of each group took together, by the number of the group.

    Args:
        evaluations: Evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.
    """
    result: Counter[int] = Counter()
    for each in evaluations:
        result[final(each.group)] += each.ran_ns
    return result


def paused(journal: Journal, waits: Mapping[int, Times]) -> dict[int, Times]:
    """Return when each thread waited for xsp: for work on itself, or on others.

    That of the block waits for others wherever it awaits what they do: `Timeline` adds that.
    """
    result: defaultdict[int, Times] = defaultdict(list)
    for pause in journal.pauses:
        result[pause.thread].append((pause.begin_ns, pause.end_ns))
    for thread, others in waits.items():
        if thread != journal.thread:
            result[thread] += others
    # The pause in which a training step is closed lies in that in which the next one is opened.
    return {thread: united(times) for thread, times in result.items()}


def times_of(evaluations: Sequence[Evaluation]) -> dict[int, Times]:
    """Return when the evaluations of each thread, of which none overlap, began and ended."""
    found: defaultdict[int, Times] = defaultdict(list)
    for each in evaluations:
        found[each.thread].append((each.begin_ns, each.end_ns))
    return {thread: sorted(times) for thread, times in found.items()}
