"""The laws of a program's trace, on random programs whose truth is known.

Times are compared with the truth within the interval that the trace states, and two microseconds
for each hook of a call, a pass or a step: the bound that the trace states of quick calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from simulated_program import (
    QUIET,
    Event,
    Machine,
    Plan,
    Simulated,
    What,
    machines,
    plans,
    shifted,
    simulate,
    write,
)
from simulated_program.told import Row, Sum, read, rows_of, sums, true_key

from xsp.record.program import Lottery, Records
from xsp.record.session import describe_environment

HOOK_NS = 2_000
# The most that an idle hook costs here: where no call of a kind was seen with its layers, it is
# not known how many there were.
IDLE_NS = 450
OUT_NS = 20_000  # of the hook of a call that takes the hooks out
ROUNDING_NS = 5.0
LATER_NS = 100_000_000
FLOOR_NS = 1_000  # a call that would be shorter than its layers is as long as these


@pytest.fixture(autouse=True, scope="module")
def quick_reading() -> Iterator[None]:
    """Describe the machine once, and make the program's trace alone."""
    known = describe_environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xsp.reading.program.read.describe_environment", lambda: known)
        patch.setattr("xsp.reading.program.read.MOST_TRACES", 0)
        yield


class Always(Lottery):
    """Draws one kind of window ever again."""

    def __init__(self, records: Records) -> None:
        super().__init__(0, layers=True, operators=records >= Records.OPERATORS)
        self.records = records

    def draw(self, elapsed_ns: int, cost: float | None) -> Records:
        """Return the kinds of span that the next window records."""
        return self.records


def expected(simulated: Simulated, key: Callable[[Event], Any] | None = None) -> dict[Any, Sum]:
    """Sum the truth under each key, with the bound of hooks."""
    marked = any(facts.marked for facts in simulated.script.regions)
    result = {}
    by = simulated.truth.by(key or (lambda event: true_key(event, marked=marked)))
    for found, events in by.items():
        doubt = sum(HOOK_NS * (1 + event.hooks) + IDLE_NS * event.idle for event in events)
        logged = sum(event.logged or event.what is What.OPEN for event in events)
        took = sum(event.took_ns for event in events)
        result[found] = Sum(took, doubt, len(events), logged=logged)
    return result


def whole(simulated: Simulated) -> Sum:
    """Return the truth about the block."""
    truth = simulated.truth
    return Sum(truth.took_ns, HOOK_NS * truth.hooks + IDLE_NS * truth.idle, 1)


def check_sums(rows: list[Row]) -> None:
    """Self times sum to the block's."""
    own = sum(row.self_ns for row in rows)
    assert own == pytest.approx(rows[0].took_ns, rel=1e-6, abs=ROUNDING_NS)


def check_nesting(rows: list[Row]) -> None:
    """No row is longer than the row around it on its thread, nor are all rows in it together."""
    inside: Counter[int] = Counter()
    for row in rows[1:]:
        around = rows[row.parent]
        if row.thread == around.thread and not row.shared and not around.shared:
            assert row.took_ns <= around.took_ns + ROUNDING_NS, (row, around)
            inside[row.parent] += round(row.took_ns)
    for parent, took in inside.items():
        assert took <= rows[parent].took_ns + ROUNDING_NS * (1 + len(rows)), rows[parent]


def check_counts(told: dict[Any, Sum], truth: dict[Any, Sum]) -> None:
    """What was logged is counted, a region that was cut piece by piece.

    Layers of calls of one kind, of which some were recorded, are told of all, with a `~`.
    """
    for key, what in truth.items():
        if not what.logged:
            continue
        assert key in told, (key, "is not told")
        same = told[key].calls == what.calls and not told[key].inferred
        inferred = told[key].inferred or what.logged < what.calls
        if _kind(key) == "layer" and inferred:
            assert told[key].calls >= what.logged, (key, what, told[key])
        else:
            assert same or told[key].cut, (key, what, told[key])
    new = {key for key in set(told) - set(truth) if not _made(key)}
    assert not new, (new, "never happened")


def _kind(key: Any) -> str:
    return str(key[0] if isinstance(key[0], str) else key[0][0])


def _made(key: Any) -> bool:
    """Return whether a row is none of what happened, but made of it."""
    return _kind(key) in ("block", "twin", "op", "training iteration")


def check_times(told: dict[Any, Sum], truth: dict[Any, Sum]) -> None:
    """Each time is that without xsp, within its interval and the bound of hooks."""
    for key, what in truth.items():
        if key[0] == "layer":  # told of all calls by those that were recorded
            continue
        error, bound = told[key].took - what.took, told[key].reach + what.reach
        assert abs(error) <= bound + ROUNDING_NS, (key, error, bound, told[key], what)


def check_regions(rows: list[Row], simulated: Simulated) -> None:
    """Calls and steps lie in the regions in which they were made."""
    marked = any(facts.marked for facts in simulated.script.regions)
    truth = expected(simulated, lambda event: (true_key(event, marked=marked), event.regions))

    def members(found: dict[Any, Sum]) -> dict[Any, Sum]:
        return {k: what for k, what in found.items() if _kind(k) in ("call", "step", "marked")}

    check_counts(members(sums(rows, by_region=True)), members(truth))


def check(simulated: Simulated, *, concurrent: bool = False) -> None:
    """Hold all laws on one program."""
    rows = rows_of(read(simulated.record))
    check_nesting(rows)
    told, truth = sums(rows), expected(simulated)
    if not concurrent:
        check_sums(rows)
        truth["block",] = whole(simulated)
    check_counts(told, truth)
    check_times(told, truth)
    check_regions(rows, simulated)


def check_without_hooks(simulated: Simulated) -> None:
    """Hold what holds where hooks are out at times: regions are logged all the same.

    The hook of the call that takes them out is told of nowhere.
    """
    rows = rows_of(read(simulated.record))
    check_nesting(rows)
    check_sums(rows)
    told, truth = sums(rows), expected(simulated)
    regions = {k: what for k, what in truth.items() if _kind(k) in ("region", "marked")}
    regions["block",] = whole(simulated)
    times = sum(window.records is Records.OUT for window in simulated.record.windows)
    for key, what in regions.items():
        assert told[key].calls == what.calls or told[key].cut, (key, what, told[key])
        what.reach += OUT_NS * times
    check_times(told, regions)


@settings(max_examples=60)
@given(plan=plans(concurrent=False), machine=machines(), operators=st.booleans())
def test_laws_hold_on_one_thread(plan: Plan, machine: Machine, operators: bool) -> None:
    check(simulate(write(plan), machine, operators=operators))


@settings(max_examples=40)
@given(plan=plans(), machine=machines(), operators=st.booleans())
def test_laws_hold_on_threads_and_in_tasks(plan: Plan, machine: Machine, operators: bool) -> None:
    check(simulate(write(plan), machine, operators=operators), concurrent=plan.concurrent)


@settings(max_examples=25)
@given(plan=plans(concurrent=False), machine=machines())
def test_laws_hold_where_hooks_are_out_at_times(plan: Plan, machine: Machine) -> None:
    check_without_hooks(simulate(write(plan), machine, out=True))


@pytest.mark.slow
@settings(max_examples=300)
@given(plan=plans(), machine=machines(), operators=st.booleans(), out=st.booleans())
def test_laws_hold_on_many_programs(
    plan: Plan, machine: Machine, operators: bool, out: bool
) -> None:
    if out and not plan.concurrent:
        check_without_hooks(simulate(write(plan), machine, out=True))
    else:
        check(simulate(write(plan), machine, operators=operators), concurrent=plan.concurrent)


@settings(max_examples=20)
@given(plan=plans(concurrent=False))
def test_layers_are_exact_where_all_are_recorded(plan: Plan) -> None:
    machine = replace(QUIET, seed=plan.seed)
    simulated = simulate(write(plan), machine, lottery=Always(Records.LAYERS))
    told, truth = sums(rows_of(read(simulated.record))), expected(simulated)
    for key, what in truth.items():
        if key[0] == "layer":
            assert told[key].calls == what.calls
            assert not told[key].inferred
            assert told[key].took == pytest.approx(what.took, abs=ROUNDING_NS * (1 + what.calls))


@settings(max_examples=20)
@given(plan=plans(concurrent=False), machine=machines(), which=st.integers(0, 100))
def test_one_longer_call_is_longer_and_so_is_what_is_around_it(
    plan: Plan, machine: Machine, which: int
) -> None:
    """Nothing is substituted: the other rows are as they were."""
    simulated = simulate(write(plan), machine, lottery=Always(Records.LAYERS))
    calls = [event for event in simulated.truth.events if event.what is What.CALL]
    if not calls:
        return
    call = calls[which % len(calls)]
    marked = any(facts.marked for facts in simulated.script.regions)
    # The call is at work for longer before it calls its first layer.
    later = shifted(simulated.record, call.begin_ns + 1, LATER_NS)
    rows = rows_of(read(later))
    before, after = sums(rows_of(read(simulated.record))), sums(rows)
    around = {
        true_key(event, marked=marked)
        for event in simulated.truth.events
        if event.begin_ns <= call.begin_ns < event.end_ns and event.what is not What.LAYER
    }
    own = true_key(call, marked=marked)
    for key in before:
        if key[0] == "training iteration":  # tells a first one apart
            continue
        grown = after[key].took - before[key].took
        if key in (own, ("block",)):
            assert grown == pytest.approx(LATER_NS, abs=FLOOR_NS), key
        elif key[0] == "twin":
            assert grown == pytest.approx(LATER_NS * (grown > 1), abs=FLOOR_NS), key
        elif key in around:
            assert 0 <= round(grown) <= LATER_NS + ROUNDING_NS, key
        else:
            assert grown == pytest.approx(0, abs=ROUNDING_NS), key
    check_sums(rows)
