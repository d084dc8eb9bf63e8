from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import xsp
from xsp import tracer
from xsp.clock import Clock, SystemClock
from xsp.composition import Evaluation, Journal
from xsp.program import pause_overhead
from xsp.program.dispatcher import Dispatcher
from xsp.session import Collections
from xsp.testing import FakeClock

MS = 1_000_000
STRETCHES = 2 * pause_overhead._ROUNDS + 1  # of a set, with pauses every second one
PIECES = pause_overhead._TRIALS + STRETCHES * pause_overhead._IN_A_ROW  # of work, in a set
MOST = pause_overhead._MOST_ROUNDS // pause_overhead._ROUNDS  # sets


def simulated(
    monkeypatch: pytest.MonkeyPatch, cost_ns: int, speed: Callable[[int], float]
) -> tuple[float | None, int]:
    """Return what is measured of a pause's cost, and how many sets of stretches that took.

    The quicker quarter of the work takes 200 µs at speed 1, which is that of each stretch.
    """
    clock, done = FakeClock(), [0]

    def advance() -> None:
        sets, pieces = divmod(done[0], PIECES)
        within = max(pieces - pause_overhead._TRIALS, 0) // pause_overhead._IN_A_ROW
        jitter_ns = 20_000 * (done[0] % 4)
        clock.advance(round((200_000 + jitter_ns) * speed(sets * STRETCHES + within)))
        done[0] += 1

    evaluate = pause_overhead._evaluate

    def slower(dispatcher: Dispatcher, work: Callable[[], object], now: Callable[[], int]) -> None:
        evaluate(dispatcher, work, now)
        clock.advance(2 * cost_ns)

    monkeypatch.setattr(pause_overhead, "_work", lambda: advance)
    monkeypatch.setattr(pause_overhead, "_evaluate", slower)
    found = pause_overhead.measured(clock)
    sets, rest = divmod(done[0], PIECES)
    assert rest == (0 if sets else pause_overhead._TRIALS)
    return found, sets


@pytest.mark.parametrize(
    "speed",
    [
        lambda _: 1.0,
        lambda stretch: 1.0 + 0.01 * stretch,
        lambda stretch: 1.1 if stretch > 10 else 1.0,
        lambda stretch: 3.0 if stretch == 11 else 1.0,
    ],
    ids=["steady", "slower and slower", "slower at once", "a stretch disturbed"],
)
def test_the_cost_is_found_whatever_the_machines_speed_does(
    monkeypatch: pytest.MonkeyPatch, speed: Callable[[int], float]
) -> None:
    found, sets = simulated(monkeypatch, 4_000, speed)
    assert found == pytest.approx(4_000, abs=20)
    assert sets == 1


def test_the_cost_is_found_by_more_stretches_where_the_first_are_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def speed(stretch: int) -> float:
        return 1.0 + 0.05 * (stretch % 3) if stretch < STRETCHES else 1.0

    found, sets = simulated(monkeypatch, 4_000, speed)
    assert 1 < sets < MOST
    assert found == pytest.approx(4_000, abs=20)


def test_what_differs_from_stretch_to_stretch_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = np.random.default_rng(0).uniform(1.0, 1.5, MOST * STRETCHES)
    found, sets = simulated(monkeypatch, 4_000, lambda stretch: float(speeds[stretch]))
    assert (found, sets) == (None, MOST)


def test_work_that_takes_too_long_is_tried_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulated(monkeypatch, 4_000, lambda _: 50.0) == (None, 0)


def test_work_that_is_disturbed_after_the_trials_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, done = FakeClock(), [0]
    before = pause_overhead._TRIALS + 3 * pause_overhead._IN_A_ROW  # work that goes on as it should

    def advance() -> None:
        done[0] += 1
        clock.advance(200_000 if done[0] <= before else 15_000_000)

    monkeypatch.setattr(pause_overhead, "_work", lambda: advance)
    assert pause_overhead.measured(clock) is None
    assert done[0] == before + 2 * pause_overhead._IN_A_ROW  # with pauses, and without


def test_other_threads_that_keep_pythons_lock_are_not_waited_for() -> None:
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=keep)
    thread.start()
    began = time.monotonic()
    try:
        known = pause_overhead.measured(SystemClock())
    finally:
        over.set()
        thread.join()
    assert time.monotonic() - began < 10  # 50 s, where all of the work is done
    assert known is None or known < 50_000


def test_nothing_of_the_programs_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_overhead, "_known", {})
    torch.manual_seed(0)
    callbacks, random, here = list(gc.callbacks), torch.get_rng_state(), threading.get_ident()
    numbers = np.random.get_state(legacy=False)["state"]
    assert isinstance(numbers, dict)
    tracer.enter_evaluation(here)
    try:
        pause_overhead.pause_overhead_ns(SystemClock())
        assert tracer._evaluating[here]
    finally:
        tracer.leave_evaluation(here)
    assert gc.callbacks == callbacks
    assert torch.equal(torch.get_rng_state(), random)
    later = np.random.get_state(legacy=False)["state"]
    assert isinstance(later, dict)
    assert np.array_equal(later["key"], numbers["key"])


@pytest.mark.parametrize(
    ("lasts_ns", "went_on", "quick"),
    [(19 * MS, True, True), (21 * MS, True, False), (MS, False, False)],
)
def test_it_matters_where_evaluations_in_a_row_are_short(
    lasts_ns: int, *, went_on: bool, quick: bool
) -> None:
    made = Evaluation(7, 0, 0, lasts_ns, None, counts=False, size=(1, ()), went_on=went_on)
    assert Journal(7, 0, evaluations=[made]).quick is quick
    assert not Journal(7, 0).quick


def test_a_clock_that_stands_still_has_none() -> None:
    assert pause_overhead.measured(FakeClock()) == 0.0


def test_the_trace_says_how_much_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(clock: Clock) -> float:
        assert isinstance(clock, SystemClock)
        return 4000.0

    monkeypatch.setattr(pause_overhead, "pause_overhead_ns", measured)
    model = nn.Linear(8, 8).eval()
    with torch.inference_mode(), xsp.profile(levels=1, replay=False, progress=False) as prof:
        for _ in range(30):
            model(torch.ones(1, 8))
    assert prof.trace.metadata["pause_overhead_ns"] == 4000.0


def test_what_could_not_be_measured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_overhead, "_known", {})
    monkeypatch.setattr(pause_overhead, "measured", lambda clock: None)
    model = nn.Linear(8, 8).eval()
    with torch.inference_mode(), xsp.profile(levels=1, replay=False, progress=False) as prof:
        for _ in range(30):
            model(torch.ones(1, 8))
    assert "pause_overhead_ns" not in prof.trace.metadata
    assert "pause-overhead" in {problem.code for problem in prof.trace.problems}


def test_a_collection_that_xsp_brings_about_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[int, int]] = []

    class Noting(Collections):
        """Keeps what is noted."""

        def __init__(self, now: Callable[[], int], note: Callable[[int, int], None]) -> None:
            def both(begin_ns: int, end_ns: int) -> None:
                noted.append((begin_ns, end_ns))
                note(begin_ns, end_ns)

            super().__init__(now, both)

    monkeypatch.setattr("xsp.program.dispatcher.Collections", Noting)
    model, before = nn.Linear(8, 8).eval(), gc.get_threshold()
    gc.set_threshold(50, 1000, 1000)
    try:
        with torch.inference_mode(), xsp.profile(levels=2, replay=False, progress=False) as prof:
            for _ in range(60):
                model(torch.ones(1, 8))
    finally:
        gc.set_threshold(*before)
    assert noted
    pauses = {(each.begin_ns, each.end_ns) for each in prof._dispatching.journal.pauses}
    assert pauses.issuperset(noted)
