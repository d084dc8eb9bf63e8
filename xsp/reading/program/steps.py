"""Training steps: which calls, backward passes and optimizers' steps belong together.

The future is known when a log is read, so that one rule is enough:

    call, call, backward, backward, optimizer, optimizer   call, …
    └──────────────── one step ─────────────────────────┘

A step ends with an optimizer's step; that of another optimizer right after belongs to it, and what
lies inside an optimizer's step (a closure). Calls before it belong to it that had gradients and
come before its last backward pass, unless their model was not in training while another was.
Without an optimizer a step ends with its backward passes. A step is widened to a region of the
user's that began in it and ends later. Where the program marks its steps itself (`prof.step()`),
none of this is asked. No step goes on over a stretch that was not watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xsp.provider import BACKWARD, CALL, OPTIMIZER, CallFacts
from xsp.reading.program.events import Items, RegionTimes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Steps:
    """Training steps.

    Attributes:
        begin: When each step began, ns; `[steps]`.
        end: When it ended.
        thread: Number of the log that it is in.
        first: The facts that name it: those of its first call of a model with gradients, or -1.
        calls: How many calls of that model it has.
        passes: How many backward passes.
        optimizers: A number that steps with the same optimizers have in common.
    """

    begin: Ints
    end: Ints
    thread: Ints
    first: Ints
    calls: Ints
    passes: Ints
    optimizers: Ints

    def __len__(self) -> int:
        return len(self.begin)


def steps_of(items: Items, facts: Sequence[CallFacts], stretch: Ints | None = None) -> Steps:
    """Return the training steps among items, thread by thread.

    Args:
        items: All items.
        facts: The facts of calls.
        stretch: Number of the stretch between times without hooks that each item is in: no step
            goes from one into another.
    """
    at, holder = _tokens(items, facts)
    if not len(at):
        return _steps(at, at, items, facts)
    lane = items.thread[at] * (1 << 32) + (0 if stretch is None else stretch[at])
    outer = np.flatnonzero(holder < 0)
    gradients = np.array([f.gradients for f in facts] or [False])
    training = np.array([f.training for f in facts] or [False])
    step = np.full(len(at), -1)
    step[outer] = _by_optimizers(at[outer], lane[outer], items, (gradients, training))
    count = int(step.max(initial=-1)) + 1
    stepped = np.unique(lane[items.kind[at] == OPTIMIZER])
    for one in np.setdiff1d(np.unique(lane), stepped).tolist():
        mine = outer[lane[outer] == one]
        step[mine] = found = _by_passes(at[mine], items, gradients, count)
        count = max(count, int(found.max(initial=-1)) + 1)
    inside = (holder >= 0) & (items.kind[at[np.maximum(holder, 0)]] == OPTIMIZER)
    step = np.where(inside, step[np.maximum(holder, 0)], step)
    return _steps(at[step >= 0], step[step >= 0], items, facts)


def _tokens(items: Items, facts: Sequence[CallFacts]) -> tuple[Ints, Ints]:
    """Return calls, backward passes and optimizers' steps, sorted by thread and time.

    Also returned is for each of them the place of the one that it lies in, or -1.
    """
    whole = np.array([bool(f.phase) for f in facts] or [False])  # no part of a training step
    chosen = np.isin(items.kind, (BACKWARD, OPTIMIZER))
    is_call = items.kind == CALL
    chosen[is_call] = ~whole[items.number[is_call]]
    at = np.flatnonzero(chosen)
    at = at[np.lexsort((-items.end[at], items.begin[at], items.thread[at]))]
    if not len(at):
        return at, at
    # Within one log times grow: a running maximum of ends tells what lies inside.
    log = items.thread[at]
    end, outer = items.end[at], np.ones(len(at), bool)
    for one in np.unique(log):
        here = np.flatnonzero(log == one)
        reach = np.maximum.accumulate(end[here])
        outer[here[1:]] = items.begin[at][here[1:]] >= reach[:-1]
    holder = np.flatnonzero(outer)[np.cumsum(outer) - 1]
    return at, np.where(outer, -1, holder)


def _by_optimizers(at: Ints, lane: Ints, items: Items, known: tuple[Bools, Bools]) -> Ints:
    """Return the number of the step that each of some tokens is a member of, or -1.

    Args:
        at: The tokens, sorted by lane and time.
        lane: What no step goes beyond: a thread's stretch.
        items: All items.
        known: Whether calls had gradients, and were in training mode, by the number of facts.
    """
    kind, number, begin = items.kind[at], items.number[at], items.begin[at]
    place = np.arange(len(at))
    is_step, is_pass, is_call = kind == OPTIMIZER, kind == BACKWARD, kind == CALL
    again = np.append(False, is_step[1:] & is_step[:-1] & (lane[1:] == lane[:-1]))
    first = np.maximum.accumulate(np.where(is_step & ~again, place, 0))
    # The optimizer that a run began with steps once more: that is the next step.
    starts = np.flatnonzero(is_step & (~again | (number == number[first])))
    if not len(starts):
        return np.full(len(at), -1)
    step = np.where(
        is_step,
        np.searchsorted(starts, place, side="right") - 1,
        np.searchsorted(starts, place, side="right"),
    )
    beyond = step >= len(starts)
    step = np.where(beyond, 0, step)
    belongs = ~beyond & (lane[starts[step]] == lane)
    count = len(starts)
    gradients, training = (each[number * is_call] & is_call for each in known)
    last = np.full(count, -1)
    np.maximum.at(last, step[is_pass & belongs], place[is_pass & belongs])
    last[last < 0] = len(at)  # compiled code makes its pass unseen
    trained = np.bincount(step[belongs & gradients & training], minlength=count) > 0
    wanted = belongs & gradients & (training | ~trained[step]) & (place < last[step])
    member = wanted | ((is_pass | is_step) & belongs)
    start = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(start, step[member], begin[member])
    member |= belongs & is_call & (begin > start[step])
    return np.where(member, step, -1)


def _by_passes(at: Ints, items: Items, gradients: Bools, count: int) -> Ints:
    """Return the steps of tokens on a thread where no optimizer steps, numbered from `count`.

    Each step ends with its backward passes.
    """
    result = np.full(len(at), -1)
    calls: list[int] = []
    closed = True
    step = count - 1
    kinds, numbers = items.kind[at].tolist(), items.number[at].tolist()
    for place, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
        if kind == CALL:
            closed = True
            calls = [*calls, place] if gradients[number] else []
        # Number 0: the pass accumulates gradients, where `autograd.grad` hands them back.
        elif number == 0 and (calls or not closed):
            step += closed
            closed = False
            result[[*calls, place]] = step
            calls = []
    return result


def _steps(members: Ints, step: Ints, items: Items, facts: Sequence[CallFacts]) -> Steps:
    count = int(step.max(initial=-1)) + 1
    columns = np.zeros((7, count), np.int64)
    begin, end, thread, first, calls, passes, optimizers = columns
    if not count:
        return Steps(*columns)
    begin[:] = np.iinfo(np.int64).max
    np.minimum.at(begin, step, items.begin[members])
    np.maximum.at(end, step, items.end[members])
    thread[step] = items.thread[members]
    kind, number = items.kind[members], items.number[members]
    passes[:] = np.bincount(step[kind == BACKWARD], minlength=count)
    stepped = kind == OPTIMIZER
    np.add.at(optimizers, step[stepped], (number[stepped] + 1) * 1_000_003 % 998_244_353)
    naming = np.array([f.gradients and not f.passed_over for f in facts] or [False])
    model = np.array([f.owner for f in facts] or [0])
    is_call = np.flatnonzero(kind == CALL)
    names = is_call[naming[number[is_call]]]
    names = names[np.argsort(items.begin[members[names]], kind="stable")]
    first[:] = -1
    # Later ones first, so that the first call of each step is written last.
    first[step[names][::-1]] = number[names][::-1]
    own = np.where(first >= 0, model[np.maximum(first, 0)], -1)
    same = is_call[model[number[is_call]] == own[step[is_call]]]
    calls[:] = np.bincount(step[same], minlength=count)
    return Steps(*columns)


def with_regions(steps: Steps, regions: RegionTimes, stated: Bools) -> Steps:
    """Return the steps with the regions that open or close just outside of them.

    A step begins where a region began that opened after the last step and ends inside, and ends
    where a region ends that opened inside and closes before the next one: so "forward and loss" in
    a span with `backward()` outside is one whole row inside of the step.

    Args:
        steps: The steps.
        regions: When regions began and ended.
        stated: Which regions' places time does not tell.
    """
    begin, end = steps.begin.copy(), steps.end.copy()
    usable = np.flatnonzero(~stated & (regions.thread == regions.end_thread))
    for log in np.unique(steps.thread).tolist():
        mine = np.flatnonzero(steps.thread == log)
        mine = mine[np.argsort(begin[mine], kind="stable")]
        here = usable[regions.thread[usable] == log]
        if not len(here):
            continue
        opened, closed = regions.begin[here], regions.end[here]
        before = np.searchsorted(end[mine], opened, side="right")  # steps that had ended
        # A region that ends inside of the step which follows its beginning.
        step = np.minimum(before, len(mine) - 1)
        chosen = (opened < begin[mine][step]) & (before < len(mine))
        chosen &= (closed > begin[mine][step]) & (closed < end[mine][step])
        np.minimum.at(begin, mine[step[chosen]], opened[chosen])
        # One that opens inside and closes after it, before the next one begins.
        within = np.searchsorted(begin[mine], opened, side="right") - 1
        step = np.maximum(within, 0)
        follows = np.append(begin[mine][1:], np.iinfo(np.int64).max)
        chosen = (within >= 0) & (opened < end[mine][step]) & (closed > end[mine][step])
        chosen &= closed <= follows[step]
        np.maximum.at(end, mine[step[chosen]], closed[chosen])
    return replace(steps, begin=begin, end=end)
