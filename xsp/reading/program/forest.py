"""The forest of a program: every item with the item around it, and the time that it took.

Items of the log, regions, training steps, iterations and the block itself are intervals on threads;
what lies in what is told by time, and for regions of tasks and generators by their contexts. The
time of an item is its own two readings of the clock, less what xsp added there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xsp.matching import generations
from xsp.provider import BACKWARD, CALL, LAYER, OPTIMIZER, PART, PAUSE, REGION
from xsp.reading.correlation import enclosing
from xsp.reading.program import cost as costs_of
from xsp.reading.program.cost import Costs, Segments
from xsp.reading.program.events import (
    ITERATION,
    ROOT,
    STEP,
    TWIN,
    Items,
    RegionTimes,
    entries,
    items_of,
    join,
    region_times,
)
from xsp.reading.program.regions import cut
from xsp.reading.program.steps import Steps, steps_of, with_regions
from xsp.reading.program.turns import awaiting_ns
from xsp.record.program import SKIPPED, ProgramRecord, Records

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ORDERS = {
    ROOT: 0, REGION: 1, ITERATION: 2, STEP: 3, PART: 4, CALL: 5, BACKWARD: 5, OPTIMIZER: 5,
    TWIN: 6, LAYER: 7,
}  # fmt: skip
_ORDER = np.array([_ORDERS.get(kind, 9) for kind in range(16)])
_SYNC = (CALL, LAYER, BACKWARD, OPTIMIZER, PART, STEP)
_USUAL = 0.5  # of the iterations: what comes before so many steps is a part of iterations
_FEWEST_STEPS = 2


@dataclass(slots=True)
class Forest:
    """Items of a program with what is around them.

    Attributes:
        items: The items; the block itself is the first.
        parent: Index of the item around each; -1 for the block.
        part: Which piece of a region an item is, from 1; 0: it is whole.
        steps: The training steps.
        step: Number of the training step of each item of kind STEP, else -1.
        call: For each layer the item of the call, or pass, in which it was logged, else -1.
        window: Number of the window that each item began in, -1: none.
        took_ns: How long each took, without xsp.
        added_ns: What was subtracted.
        learned_ns: What of that is by the costs of hooks, and not simply noted.
        alone: Whether it is a region whose place time does not tell: others take turns with it.
        weight: How many items each stands for: more than one where hooks were out for a while.
        costs: What recording cost.
        regions: When regions began and ended.
        pauses: When xsp worked, by itself or because it waited.
        awaiting_ns: How long each region waited for its turn, or for what it awaits; NaN: unknown.
    """

    items: Items
    parent: Ints
    part: Ints
    steps: Steps
    step: Ints
    alone: Bools
    call: Ints
    window: Ints
    took_ns: Floats
    added_ns: Floats
    learned_ns: Floats
    weight: Floats
    costs: Costs
    regions: RegionTimes
    pauses: Items
    awaiting_ns: Floats

    @property
    def levels(self) -> list[Ints]:
        """The items of depth 0, of depth 1, and so on."""
        return list(generations(self.parent))


def forest_of(record: ProgramRecord) -> Forest:
    """Return the items of a program; times are not subtracted yet (`with_times`)."""
    log = record.log
    read = [entries(each, record.begin_ns, record.end_ns) for _, each in log.threads]
    items = join([items_of(*each, number, record.end_ns) for number, each in enumerate(read)])
    regions = region_times(read, len(log.regions), record.end_ns)
    regions = replace(
        regions,
        begin=np.clip(regions.begin, record.begin_ns, record.end_ns),
        end=np.clip(regions.end, record.begin_ns, record.end_ns),
    )
    waited = awaiting_ns(read, log.regions, regions)
    del read  # of a long program each copy takes as much memory as the log, or more
    stated = np.array([facts.stated for facts in log.regions], dtype=bool)
    by_hand = any(facts.marked for facts in log.regions)
    # Regions that are blocks which ran unprofiled in a task, and those in them.
    left_out = np.zeros(len(log.regions) + 1, bool)
    for number, facts in enumerate(log.regions, 1):  # parents before children
        left_out[number] = facts.name == SKIPPED or left_out[facts.parent]
    skipped = _skipped(items, record) | left_out[items.region]
    out, stretch = _stretches(items, record)
    chosen = (items.kind != PAUSE) & ~skipped & ~out
    kept, stretch = items.take(chosen), stretch[chosen]
    told = ~_in_skipped(items.take(skipped), regions) & ~left_out[1:]
    # Where the program marks its steps itself, no others are looked for.
    sought = kept.take(np.zeros(len(kept.kind), bool)) if by_hand else kept
    steps = steps_of(sought, log.calls, stretch)
    steps = with_regions(steps, regions, stated)
    pauses = items.take(items.kind == PAUSE)
    del items
    forest = _placed(record, (kept, pauses), steps, (regions, stated, told), waited)
    del kept, sought
    outs = [w.begin_ns for w in record.windows if w.records is Records.OUT]
    forest = _with_iterations(_with_twins(forest, record), np.array(outs, dtype=np.int64))
    forest = _sorted(forest)
    forest.call = _calls(forest)
    begins = np.array([window.begin_ns for window in record.windows], dtype=np.int64)
    forest.window = np.searchsorted(begins, forest.items.begin, side="right") - 1
    forest.weight = _weights(forest, record)
    return forest


def _stretches(items: Items, record: ProgramRecord) -> tuple[Bools, Ints]:
    """Return which items began while hooks were out, and how many such stretches came before each.

    When hooks are back in place, what comes before the next outermost call is the rest of something
    that was not seen.
    """
    begins = np.array([w.begin_ns for w in record.windows], dtype=np.int64)
    outs = np.array([w.records is Records.OUT for w in record.windows] or [False])
    at = np.searchsorted(begins, items.begin, side="right") - 1
    out = (at >= 0) & outs[np.maximum(at, 0)]
    return out, np.append(0, np.cumsum(outs))[at + 1]


def _skipped(items: Items, record: ProgramRecord) -> Bools:
    """Return which items lie in blocks that ran unprofiled, the blocks among them."""
    number = 1 + next((n for n, (name, _) in enumerate(record.log.names) if name == SKIPPED), -2)
    result = (items.kind == PART) & (items.number == number)
    for at in np.flatnonzero(result).tolist():
        result |= (
            (items.thread == items.thread[at])
            & (items.begin >= items.begin[at])
            & (items.end <= items.end[at])
        )
    return result


def _in_skipped(skipped: Items, regions: RegionTimes) -> Bools:
    """Return which regions are of blocks that ran unprofiled."""
    result = np.zeros(len(regions.begin), bool)
    for log, begin, end in zip(skipped.thread, skipped.begin, skipped.end, strict=True):
        result |= (regions.thread == log) & (regions.begin >= begin) & (regions.begin <= end)
    return result


def _placed(
    record: ProgramRecord,
    logged: tuple[Items, Items],
    steps: Steps,
    regions_told: tuple[RegionTimes, Bools, Bools],
    waited: Floats,
) -> Forest:
    """Return the items, steps and regions, nested by time and by context, in no order.

    Args:
        record: What was recorded.
        logged: The items, and the pauses.
        steps: The training steps.
        regions_told: When regions began and ended, which of them state their places, and which
            are the program's.
        waited: How long each region waited, ns.
    """
    (kept, pauses), (regions, stated, told) = logged, regions_told
    logs = [thread for thread, _ in record.log.threads]
    home = logs.index(record.thread) if record.thread in logs else len(logs)
    root = _interval(ROOT, [0], [record.begin_ns], [record.end_ns], [home])
    stepped = _interval(STEP, np.arange(len(steps)), steps.begin, steps.end, steps.thread)
    solid = join([kept, stepped])
    pieces = cut(solid, _ORDER[solid.kind], regions, stated).of(told)
    part = np.concatenate([np.zeros(1 + len(solid), np.int64), pieces.part])
    region = _interval(REGION, pieces.region, pieces.begin, pieces.end, pieces.thread)
    items = join([root, solid, region])
    alone = np.zeros(len(items), bool)
    elsewhere = stated | (regions.thread != regions.end_thread)
    alone[1 + len(solid) :] = elsewhere[pieces.region - 1] if len(pieces.region) else False
    lane = np.where(alone, len(logs) + 1 + np.arange(len(items)), items.thread)
    parent = enclosing(lane, items.begin, items.end, _ORDER[items.kind])
    parent = _in_contexts(record, items, parent, alone)
    parent[1:][parent[1:] < 0] = 0
    parent[0] = -1
    none = np.full(len(items), -1, np.int64)
    step_numbers = np.where(items.kind == STEP, items.number, -1)
    return Forest(
        items, parent, part, steps, step_numbers, alone, none, none,
        np.zeros(0), np.zeros(0), np.zeros(0), np.ones(len(items)), Costs(), regions, pauses,
        waited,
    )  # fmt: skip


def _interval(kind: int, number: object, begin: object, end: object, thread: object) -> Items:
    numbers, begins, ends, threads = (
        np.asarray(each, dtype=np.int64) for each in (number, begin, end, thread)
    )
    zero = np.zeros(len(numbers), np.int64)
    return Items(zero + kind, numbers, begins, ends, threads, zero, zero, zero, zero)


def _in_contexts(record: ProgramRecord, items: Items, parent: Ints, alone: Bools) -> Ints:
    """Return parents; those of tasks and generators come from their contexts."""
    facts = record.log.regions
    if not facts:
        return parent
    item_of = np.zeros(len(facts) + 1, np.int64)
    at = np.flatnonzero(items.kind == REGION)
    item_of[items.number[at][::-1]] = at[::-1]  # the first piece of each
    around = np.array([0, *(each.parent for each in facts)])
    own = np.where(
        items.kind == REGION, around[items.number * (items.kind == REGION)], items.region
    )
    told = item_of[own]
    pieces = at[np.bincount(items.number[at])[items.number[at]] > 1]
    for number in np.unique(items.number[pieces]).tolist():  # of regions that were cut, by time
        mine = pieces[items.number[pieces] == number]
        mine = mine[np.argsort(items.begin[mine], kind="stable")]
        members = np.flatnonzero(own == number)
        place = np.searchsorted(items.begin[mine], items.begin[members], side="right") - 1
        told[members] = mine[np.maximum(place, 0)]
    by_statement = alone | ((told > 0) & (alone[told] | (items.thread[told] != items.thread)))
    solid = (parent > 0) & np.isin(items.kind[np.maximum(parent, 0)], _SYNC)
    # A region of a context that was opened within a call lies in the call.
    if alone.any():
        sync = np.flatnonzero(np.isin(items.kind, _SYNC))
        asking = np.flatnonzero(alone)
        count = len(sync)
        found = enclosing(
            np.concatenate([items.thread[sync], items.thread[asking]]),
            np.concatenate([items.begin[sync], items.begin[asking]]),
            np.concatenate([items.end[sync], items.begin[asking]]),
            np.concatenate([_ORDER[items.kind[sync]], np.full(len(asking), 99)]),
        )[count:]
        inside = (found >= 0) & (found < count)
        holder = np.where(inside, sync[np.maximum(found * inside, 0)] if count else 0, 0)
        fits = inside & (items.end[holder] >= items.end[asking])
        parent[asking] = np.where(fits, holder, np.maximum(told[asking], 0))
        by_statement[asking] = False
    chosen = by_statement & ~solid & (told > 0)
    chosen[0] = False
    result = np.where(chosen, told, parent)
    # What outlives the region around it, as a generator that nobody ends, or a thread's work for a
    # task that was canceled, lies in what is around that region.
    while True:
        above = np.maximum(result, 0)
        early = (items.kind[above] == REGION) & (items.end[above] < items.end) & (result > 0)
        early &= alone | chosen
        if not early.any():
            return result
        result[early] = np.maximum(result[result[early]], 0)


def _with_twins(forest: Forest, record: ProgramRecord) -> Forest:
    """Return the forest with the outermost layer of each call that is a group's member."""
    if not record.layers:
        return forest
    items, facts = forest.items, record.log.calls
    layered = np.array([bool(f.layer) and not f.passed_over for f in facts] or [False])
    is_call = items.kind == CALL
    wanted = is_call & layered[items.number * is_call] & ~_in_step(forest, record)
    at = np.flatnonzero(wanted)
    if not len(at):
        return forest
    twins = items.take(at)
    twins = replace(twins, kind=np.full(len(at), TWIN), noted=np.zeros(len(at), np.int64))
    place = np.full(len(items), -1)
    place[at] = len(items) + np.arange(len(at))
    above = forest.parent
    moved = np.where((above >= 0) & (place[np.maximum(above, 0)] >= 0), place[above], above)
    more = len(at)
    return replace(
        forest,
        items=join([items, twins]),
        parent=np.concatenate([moved, at]),
        part=np.append(forest.part, np.zeros(more, np.int64)),
        step=np.append(forest.step, np.full(more, -1)),
        alone=np.append(forest.alone, np.zeros(more, bool)),
        weight=np.ones(len(items) + more),
    )


def _in_step(forest: Forest, record: ProgramRecord) -> Bools:
    """Return which items lie in a training step, or in one that the user marked."""
    marked = np.array([False, *(facts.marked for facts in record.log.regions)])
    items = forest.items
    is_region = items.kind == REGION
    inside = (items.kind == STEP) | (is_region & marked[items.number * is_region])
    result = np.zeros(len(items), bool)
    for rows in forest.levels[1:]:
        above = forest.parent[rows]
        result[rows] = result[above] | inside[above]
    return result


def _with_iterations(forest: Forest, outs: Ints) -> Forest:
    """Return the forest with an iteration around each training step and what led to it.

    What does not usually lie between two steps, such as validation, is no part of one.
    """
    items, parent = forest.items, forest.parent
    stepping = np.flatnonzero(items.kind == STEP)
    made: list[Items] = []
    new_parent = parent.copy()
    above: list[Ints] = []
    count = 0
    for around in np.unique(parent[stepping]).tolist():
        siblings = np.flatnonzero(parent == around)
        for log in np.unique(items.thread[stepping[parent[stepping] == around]]).tolist():
            mine = siblings[items.thread[siblings] == log]
            mine = mine[np.argsort(items.begin[mine], kind="stable")]
            iterations, of = _iterations(items, mine, outs)
            new_parent[mine[of >= 0]] = len(items) + count + of[of >= 0]
            made.append(iterations)
            above.append(np.full(len(iterations), around))
            count += len(iterations)
    if not count:
        return forest
    return replace(
        forest,
        items=join([items, *made]),
        parent=np.concatenate([new_parent, *above]),
        part=np.append(forest.part, np.zeros(count, np.int64)),
        step=np.append(forest.step, np.full(count, -1)),
        alone=np.append(forest.alone, np.zeros(count, bool)),
        weight=np.ones(len(items) + count),
    )


def _iterations(items: Items, mine: Ints, outs: Ints) -> tuple[Items, Ints]:
    """Return the iterations among siblings on one thread, and for each sibling its iteration.

    None reaches back over a time without hooks (`outs`: when these began).
    """
    kind = items.kind[mine]
    ends = np.flatnonzero(kind == STEP)
    if len(ends) < _FEWEST_STEPS:
        return _interval(ITERATION, [], [], [], []), np.full(len(mine), -1)
    # What a sibling is: calls of one number, parts of one name.
    what = kind * (1 << 40) + items.number[mine]
    gap = np.searchsorted(ends, np.arange(len(mine)))  # which step follows
    led = np.flatnonzero((gap < len(ends)) & (kind != STEP))
    pairs = np.unique(np.stack([what[led], gap[led]]), axis=1)
    names, often = np.unique(pairs[0], return_counts=True)
    usual = np.isin(what, names[often >= _USUAL * len(ends)]) & (kind != STEP)
    out = np.searchsorted(outs, items.begin[mine])  # how many times hooks had been taken out
    usual &= out == out[ends[np.minimum(gap, len(ends) - 1)]]
    # An iteration begins after the last sibling before its step that is not usual, unless some of
    # what is usual comes before that: a probe may lie between a batch and its step.
    place = np.arange(len(mine))
    before = np.maximum.accumulate(np.where(usual, -1, place))
    before = np.append(-1, before)[ends]  # of the sibling right before each step
    previous = np.append(-1, ends[:-1])
    for number in np.flatnonzero(before > previous).tolist():
        before[number] = _begins_after(
            what, usual, int(previous[number]), int(before[number]), int(ends[number])
        )
    first = before + 1
    of = np.full(len(mine), -1)
    chosen = gap < len(ends)
    of[chosen] = np.where(place[chosen] >= first[gap[chosen]], gap[chosen], -1)
    begin = items.begin[mine[first]]
    follows = (before >= 0) & (kind[np.maximum(before, 0)] == STEP)
    last = items.end[mine[np.maximum(before, 0)]]
    follows &= np.searchsorted(outs, last) == np.searchsorted(outs, begin)
    begin = np.where(follows, last, begin)
    end = items.end[mine[ends]]
    return _interval(ITERATION, np.arange(len(ends)), begin, end, items.thread[mine[ends]]), of


def _begins_after(what: Ints, usual: Bools, previous: int, unusual: int, step: int) -> int:
    """Return the sibling after which an iteration begins, given the last unusual one in it.

    That one and what is before it are part of the iteration as long as something usual is found
    there that the iteration would lack.
    """
    names = set(what[unusual + 1 : step].tolist())
    result = unusual
    for at in range(unusual, previous, -1):
        if usual[at] and what[at] not in names:
            names.add(int(what[at]))
            result = at - 1
        elif usual[at]:
            break
    return result


def _sorted(forest: Forest) -> Forest:
    """Return the forest with parents before children, in the order of time."""
    items = forest.items
    depth = np.zeros(len(items), np.int64)
    for number, rows in enumerate(forest.levels):
        depth[rows] = number
    order = np.lexsort((depth, items.begin))
    order = np.concatenate([[0], order[order != 0]])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    parent = forest.parent[order]
    return replace(
        forest,
        items=items.take(order),
        parent=np.where(parent < 0, -1, rank[parent]),
        part=forest.part[order],
        step=forest.step[order],
        alone=forest.alone[order],
        weight=forest.weight[order],
    )


def _calls(forest: Forest) -> Ints:
    """Return for each layer the item in which it was logged: a call, or a backward pass."""
    kind = forest.items.kind
    layer = kind == LAYER
    call = np.where(layer, forest.parent, -1)
    while True:
        again = (call >= 0) & layer[np.maximum(call, 0)]
        if not again.any():
            return call
        call = np.where(again, forest.parent[np.maximum(call, 0)], call)


def _weights(forest: Forest, record: ProgramRecord) -> Floats:
    """Return the number of items that each stands for: above 1 after a stretch without hooks."""
    weight = np.ones(len(forest.items))
    out_ns, resumed_ns = 0, None
    stretches: list[tuple[int, int, float]] = []
    for window in [*record.windows, None]:
        ends_here = window is None or window.records is Records.OUT
        if ends_here and resumed_ns is not None:
            end = record.end_ns if window is None else window.switch_ns
            lasts = max(end - resumed_ns, 1)
            stretches.append((resumed_ns, end, (lasts + out_ns) / lasts))
            resumed_ns = None
        if window is not None and window.between:
            out_ns, resumed_ns = 0, None
        elif window is not None and window.records is Records.OUT and window.end_ns is not None:
            out_ns, resumed_ns = window.end_ns - window.begin_ns, window.end_ns
    fixed = np.isin(forest.items.kind, (ROOT, REGION))
    for begin, end, times in stretches:
        inside = (forest.items.begin >= begin) & (forest.items.begin < end) & ~fixed
        weight[inside] = times
    return weight


def with_times(
    forest: Forest, record: ProgramRecord, operators: Sequence[Ints], layered: Bools, deep: Bools
) -> Forest:
    """Return the forest with the time that each item took without xsp.

    Args:
        forest: The forest.
        record: What was recorded.
        operators: When operators began that were recorded, for each log, sorted.
        layered: For each item whether layers were recorded where it began.
        deep: For each item whether operators were.
    """
    items = forest.items
    segment = np.isin(items.kind, (CALL, BACKWARD, OPTIMIZER))
    segment &= ~np.isin(items.kind[np.maximum(forest.parent, 0)], (CALL, BACKWARD, OPTIMIZER, TWIN))
    chosen = np.flatnonzero(segment)
    chosen = chosen[np.lexsort((items.begin[chosen], items.thread[chosen]))]
    n_layers = np.bincount(forest.call[forest.call >= 0], minlength=len(items)).astype(float)
    nothing = np.zeros(len(items))
    whole, _ = _added(forest, Costs(0.0, 0.0, 0.0, 0.0), operators, nothing)
    # How many operators were recorded in the time of each item, on its thread.
    n_operators = np.zeros(len(items))
    for log, begins in enumerate(operators):
        mine = np.flatnonzero(items.thread == log)
        n_operators[mine] = np.searchsorted(begins, items.end[mine]) - np.searchsorted(
            begins, items.begin[mine]
        )
    ends = (
        np.searchsorted(
            np.array([w.begin_ns for w in record.windows], dtype=np.int64), items.end, side="right"
        )
        - 1
    )
    segments = Segments(
        unit=costs_of.units(items, chosen),
        window=np.where(forest.window == ends, forest.window, -1)[chosen],
        layers=layered[chosen],
        operators=deep[chosen],
        took_ns=(items.end - items.begin - whole)[chosen],
        n_layers=n_layers[chosen],
        n_operators=n_operators[chosen],
    )
    costs = costs_of.learn(segments) if len(chosen) else Costs()
    # What idle hooks cost in each call whose layers were not logged.
    # Their number is that of the layers in other calls of its kind.
    is_call = items.kind == CALL
    number = items.number * is_call
    seen = is_call & layered
    count = np.bincount(number[seen], minlength=int(number.max(initial=0)) + 1)
    sums = np.bincount(number[seen], n_layers[seen], minlength=len(count))
    mean = sums / np.maximum(count, 1)
    idle = np.where(is_call & ~layered, mean[number] * costs_of.IDLE_NS, 0.0)
    added, learned = _added(forest, costs, operators, idle)
    took = np.maximum(items.end - items.begin - added, 0.0)
    inside = np.zeros(len(items))
    for rows in reversed(forest.levels[1:]):
        took[rows] = np.maximum(took[rows], inside[rows])
        own = rows[items.thread[rows] == items.thread[forest.parent[rows]]]
        own = own[~forest.alone[own]]
        np.add.at(inside, forest.parent[own], took[own])
    took[0] = max(took[0], inside[0])
    lasted = (items.end - items.begin).astype(np.float64)
    return replace(forest, took_ns=took, added_ns=lasted - took, learned_ns=learned, costs=costs)


def _added(
    forest: Forest, costs: Costs, operators: Sequence[Ints], idle: Floats
) -> tuple[Floats, Floats]:
    """Sum xsp's own time within each item: the hooks that ran, times their cost, and noted work.

    Also returned is the part of the hooks alone.
    """
    items = forest.items
    added, learned = np.zeros(len(items)), np.zeros(len(items))
    kind = items.kind
    moment = items.begin - items.noted
    price = np.zeros(16)
    price[[LAYER, CALL, BACKWARD, OPTIMIZER, PART]] = (
        costs.layer, costs_of.CALL_NS, costs_of.PASS_NS, costs_of.OPTIMIZER_NS,
        2 * costs_of.PART_NS,
    )  # fmt: skip
    hook = price[kind]
    hook[(kind == REGION) & (forest.part <= 1)] = 2 * costs_of.REGION_NS
    for log in np.unique(items.thread).tolist():
        mine = np.flatnonzero(items.thread == log)
        paid = mine[hook[mine] + items.noted[mine] > 0]
        calls = mine[idle[mine] > 0]
        begins = operators[log] if log < len(operators) else np.zeros(0, np.int64)
        paused = forest.pauses.take(forest.pauses.thread == log)
        times = np.concatenate([moment[paid], items.begin[calls] + 1, begins, paused.begin])
        none = np.zeros(len(paused))
        hooks = np.concatenate(
            [hook[paid], idle[calls], np.full(len(begins), costs.operator), none]
        )
        noted = np.concatenate(
            [
                items.noted[paid],
                np.zeros(len(calls) + len(begins)),
                paused.end - paused.begin,
            ]
        )
        order = np.argsort(times, kind="stable")
        times = times[order]
        low = np.searchsorted(times, items.begin[mine], side="right")
        high = np.maximum(np.searchsorted(times, items.end[mine], side="left"), low)
        for amounts, result in ((hooks, learned), (hooks + noted, added)):
            sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
            result[mine] = np.maximum(sums[high] - sums[low], 0.0)
    lasted = items.end - items.begin
    return np.minimum(added, lasted), np.minimum(learned, lasted)


def in_windows(forest: Forest, record: ProgramRecord) -> tuple[Bools, Bools]:
    """Return for each item whether layers, and whether operators, were recorded where it began."""
    kinds = np.array([window.records for window in record.windows] or [Records.NOTHING])
    own = kinds[np.maximum(forest.window, 0)]
    known = forest.window >= 0
    deep = known & np.isin(own, (Records.OPERATORS, Records.DETAIL))
    layers = known & (np.isin(own, (Records.LAYERS, Records.SYSTEM)) | deep) & record.layers
    return layers, deep
