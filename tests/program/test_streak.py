"""Streaks, which must change nothing but what happens between two evaluations."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from toy import Toy, ToyCall, ToyModel, evaluate

import xsp
from xsp.composition import Pause
from xsp.program.evaluation import Closed, OpenEvaluation
from xsp.program.streak import Streaks
from xsp.program.turns import StepKind
from xsp.provider import Begun
from xsp.testing import FakeClock, only_providers

# What a program does again and again: calls of a model with inputs of some size, and steps that
# end with one of two optimizers; a step with a closure begins before its first call is known.
PATTERNS = st.lists(
    st.tuples(st.sampled_from(["call", "step", "closure", "raise"]), st.integers(1, 2)),
    min_size=1,
    max_size=4,
)


STEPS = ("step", "closure")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A toy framework that is the only provider, with its clock the only one."""
    toy = Toy(FakeClock())
    monkeypatch.setattr("xsp.session.recorder.SystemClock", lambda: toy.clock)
    with only_providers(toy):
        yield toy


def play(toy: Toy, pattern: list[tuple[str, int]], times: int, **options: Any) -> xsp.profile:
    """Profile a program that repeats a pattern, with an odd step now and then."""
    model = ToyModel(toy)
    with xsp.profile(levels=2, replay=False, **options) as prof:
        evaluations = toy.evaluations
        assert evaluations is not None
        ended: tuple[str, int] | None = None  # what the open training step is
        begun: Begun | None = None  # the open training step
        streaks: dict[Any, Any] = {}  # by what comes after what
        for number in range(times):
            for what, size in pattern:
                inputs = (((size, 3), "float32"),)
                before, followed = ended, False
                key = (None if what == "closure" else inputs, before)
                if what in STEPS and key in streaks and begun is not None and ended is not None:
                    followed = follow(toy, begun, streaks[key], ended)
                if not followed and ended is not None:
                    evaluations.end(*ended)
                    begun = ended = None
                if what in STEPS:
                    step = ToyCall(
                        model.forward,
                        name="training step",
                        subject="Net",
                        phase="training step",
                        inputs=inputs,
                        whole_model=False,
                    )
                    named = None if what == "closure" else step
                    begun = begun if followed else evaluations.begin(named)
                    if before is not None and begun is not None and begun.streak is not None:
                        streaks[key] = begun.streak
                    if what == "closure":
                        evaluations.identify(step)
                    step()
                    evaluations.extend()
                    ended = ("SGD" if number % 17 else "Adam"), size
                    continue
                broken = what == "raise" and number % 5 == 0
                work = model.forward if not broken else _raise
                with suppress(ZeroDivisionError):
                    evaluate(evaluations, ToyCall(work, subject="Net", inputs=inputs, toy=toy))
        if ended is not None:
            evaluations.end(*ended)
    return prof


def follow(toy: Toy, begun: Begun, streak: object, ended: tuple[str, int]) -> bool:
    """Have the open step followed by another one, as a watcher does; return whether it is."""
    if followed := begun.follow(streak, toy.clock.now(), ended):
        begun.begin_ns = toy.clock.now()
    return followed


def _raise() -> None:
    raise ZeroDivisionError("the model's own error")


def told(prof: xsp.profile) -> Any:
    """All that is known of the evaluations of a program."""
    journal = prof._dispatching.journal
    assert all(journal.begin_ns <= pause.begin_ns <= pause.end_ns for pause in journal.pauses)
    of_groups = [
        (group["model"], group["phase"], group["calls"], group["latency_ns"])
        for group in prof.trace.metadata["groups"]
    ]
    visits = [(v.planned.rung, v.groups, v.rounds) for v in prof._dispatching.session.visits]
    evaluations = [each._replace(page_faults=None, went_on=False) for each in journal.evaluations]
    return evaluations, journal.raised, of_groups, visits, prof.trace.root.latency_ns


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pattern=PATTERNS,
    times=st.integers(1, 90),
    schedule=st.sampled_from([xsp.schedule(), xsp.schedule(warmup=3)])
    | st.builds(xsp.schedule, warmup=st.just(3), active=st.integers(1, 60)),
)
def test_streaks_change_nothing_of_what_is_told(
    monkeypatch: pytest.MonkeyPatch,
    pattern: list[tuple[str, int]],
    times: int,
    schedule: xsp.schedule,
) -> None:
    outcomes = []
    for streaks in (True, False):
        toy = Toy(FakeClock())
        toy.clock.advance(10**9)
        with monkeypatch.context() as patch, only_providers(toy):
            patch.setattr("xsp.session.recorder.SystemClock", lambda toy=toy: toy.clock)
            patch.setattr("time.time_ns", lambda: 0)
            if not streaks:
                patch.setattr(Streaks, "of", lambda *_: None)
            try:
                outcomes.append(told(play(toy, pattern, times, runs=30, schedule=schedule)))
            except xsp.MeasurementError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_most_evaluations_of_a_loop_go_on_with_a_streak(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    usual = Streaks.of

    def following(self: Streaks, *given: Any) -> Any:
        found.append(usual(self, *given))
        return found[-1]

    monkeypatch.setattr(Streaks, "of", following)
    prof = play(toy, [("call", 1), ("call", 2)], 300, runs=200)
    assert sum(streak is not None for streak in found) > 200
    assert prof.trace.metadata["groups"][0]["calls"] == 300


@pytest.mark.parametrize("what", STEPS)
def test_most_training_steps_of_a_loop_follow_the_one_before_at_once(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    followed = []
    usual = OpenEvaluation.follow

    def following(self: OpenEvaluation, *given: Any) -> bool:
        followed.append(usual(self, *given))
        return followed[-1]

    monkeypatch.setattr(OpenEvaluation, "follow", following)
    prof = play(toy, [(what, 1)], 400, runs=200)
    assert sum(followed) > 200
    assert sorted(group["calls"] for group in prof.trace.metadata["groups"]) == [24, 376]


def step_call(toy: Toy) -> ToyCall:
    """Return the first call of a training step."""
    known = {"subject": "Net", "phase": "training step", "whole_model": False}
    return ToyCall(lambda: toy.clock.advance(1000), **known, toy=toy)  # type: ignore[arg-type]


def loop(toy: Toy, steps: int, following: Callable[[Begun, object], bool]) -> int:
    """Make training steps, of which each is to follow the one before; return how many did."""
    call, followed, streak, begun = step_call(toy), 0, None, None
    evaluations = toy.evaluations
    assert evaluations is not None
    for number in range(steps):
        follows = begun is not None and streak is not None and following(begun, streak)
        followed += follows
        if number and not follows:
            evaluations.end("SGD")
        if not follows and (begun := evaluations.begin(call)) is not None:
            streak = begun.streak or streak
        call()
        evaluations.extend()
    evaluations.end("SGD")
    return followed


def test_ctrl_c_while_devices_are_waited_for_loses_no_step(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [0]

    def interrupted() -> bool:
        waits[0] += 1
        if waits[0] % 7 == 0:
            raise KeyboardInterrupt
        return True

    def tried(begun: Begun, streak: object) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(prof._dispatching.session, "synchronize", interrupted)
            with suppress(KeyboardInterrupt):
                return follow(toy, begun, streak, ("SGD", 1))
        return False

    toy.waits = True
    with xsp.profile(levels=2, runs=200, replay=False) as prof:
        followed = loop(toy, 150, tried)
    assert 50 < followed < 140
    assert waits[0] > 60
    made = prof._dispatching.journal.evaluations
    assert len(made) == 150
    assert not prof._dispatching.journal.raised
    assert all(before.end_ns <= after.begin_ns for before, after in pairwise(made))


def test_other_threads_go_on_while_a_step_waits_for_devices(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def serve() -> None:
        evaluations = toy.evaluations
        assert evaluations is not None
        evaluate(evaluations, ToyCall(lambda: None, subject="Other", toy=toy))

    def waiting() -> bool:
        monkeypatch.undo()
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join(10)
        went_on.append(not thread.is_alive())
        return True

    def following(begun: Begun, streak: object) -> bool:
        if toy.clock.now() > 60_000 and not went_on:
            monkeypatch.setattr(prof._dispatching.session, "synchronize", waiting)
        return follow(toy, begun, streak, ("SGD", 1))

    toy.waits = True
    with xsp.profile(levels=2, runs=200, replay=False) as prof:
        assert loop(toy, 150, following) > 50
    assert went_on == [True]
    calls = {group["model"]: group["calls"] for group in prof.trace.metadata["groups"]}
    assert calls == {"Net": 150, "Other": 1}


def test_no_step_follows_another_once_its_recording_is_over(toy: Toy) -> None:
    found: list[bool] = []
    ended: list[int] = []

    def following(begun: Begun, streak: object) -> bool:
        if not ended and len(found) > 30 and found[-1] and not found[-2]:  # a visit has begun
            prof._dispatching._recorder.disarm()
            ended.append(len(found))
            assert not begun.follow(streak, toy.clock.now(), ("SGD", 1))
            return False
        found.append(follow(toy, begun, streak, ("SGD", 1)))
        return found[-1]

    with xsp.profile(levels=2, runs=200, replay=False) as prof:
        loop(toy, 150, following)
    assert ended
    assert any(found[ended[0] :])  # steps of a recording after that do
    assert len(prof._dispatching.journal.evaluations) == 150


def test_a_step_of_a_streak_that_calls_no_model_is_no_evaluation(toy: Toy) -> None:
    evaluations: Any = None
    with xsp.profile(levels=2, runs=200, replay=False) as prof:
        evaluations = toy.evaluations
        for number in range(60):
            evaluations.begin(None)
            calls = 0 if number % 9 == 8 else 1
            if calls:
                evaluations.identify(call := step_call(toy))
                call()
            evaluations.extend()
            evaluations.end("SGD", calls)
    assert [group["calls"] for group in prof.trace.metadata["groups"]] == [54]
    assert not prof._dispatching.journal.raised


def test_threads_go_on_with_one_streak(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: Counter[int] = Counter()
    usual = Streaks.of

    def following(self: Streaks, *given: Any) -> Any:
        streak = usual(self, *given)
        followed[threading.get_ident()] += streak is not None
        return streak

    monkeypatch.setattr(Streaks, "of", following)
    model, each = nn.Linear(4, 4).eval(), 200
    ready = threading.Barrier(3)

    def serve() -> None:
        ready.wait()
        with torch.inference_mode():
            for _ in range(each):
                model(torch.zeros(2, 4))

    with xsp.profile(levels=1, runs=5000, replay=False) as prof:
        threads = [threading.Thread(target=serve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    monkeypatch.undo()
    [group] = prof.trace.metadata["groups"]
    assert group["calls"] == 3 * each
    assert set(Counter(e.thread for e in prof._dispatching.journal.evaluations).values()) == {each}
    assert len(followed) == 3
    assert followed.total() > 3 * each / 2
    for visit in prof._dispatching.session.visits:
        assert list(visit.windows) == sorted(visit.windows)


def test_a_call_of_a_streak_that_raises_is_counted_as_such(toy: Toy) -> None:
    work = [0]

    def forward() -> None:
        work[0] += 1
        toy.clock.advance(1000)
        if work[0] % 7 == 0:
            raise ZeroDivisionError("the model's own error")

    with xsp.profile(levels=2, runs=200, replay=False) as prof:
        for _ in range(140):
            assert toy.evaluations is not None
            with suppress(ZeroDivisionError):
                evaluate(toy.evaluations, ToyCall(forward, subject="Net", toy=toy))
    assert prof._dispatching.journal.raised == {"Net": 20}
    assert prof.trace.metadata["groups"][0]["calls"] == 120


def test_the_last_call_of_a_streak_is_the_one_that_is_repeated(toy: Toy) -> None:
    given: list[int] = []

    def forward(number: int) -> None:
        given.append(number)
        toy.clock.advance(1000)

    with xsp.profile(levels=2, runs=200, progress=False):
        for number in range(60):
            assert toy.evaluations is not None
            evaluate(toy.evaluations, ToyCall(forward, (number,), subject="Net", toy=toy))
    assert given[:60] == list(range(60))
    assert set(given[60:]) == {59}


def test_what_calls_of_a_streak_were_given_is_let_go_of(toy: Toy) -> None:
    class Batch:
        """Something that a model is given."""

    seen: list[weakref.ref[Batch]] = []
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=200, replay=False):
        assert toy.evaluations is not None
        for _ in range(60):
            batch = Batch()
            seen.append(weakref.ref(batch))
            work = lambda _: model.forward()  # noqa: E731
            evaluate(toy.evaluations, ToyCall(work, (batch,), subject="Net", toy=toy))
            del batch
        alive = [each() is not None for each in seen]
    assert sum(alive) <= 1  # the last one, which could be repeated


@pytest.mark.parametrize("kind", [None, StepKind("SGD", 1)])
def test_only_the_wait_of_a_step_for_devices_lets_other_threads_go_on(
    kind: StepKind | None,
) -> None:
    opened = OpenEvaluation(1, None, None, None, None, unnamed=True, unprepared=True, seen_ns=10)
    opened.begin_ns, opened.end_ns, opened.left_ns = 20, 90, 90
    found = Closed(opened, kind, since_ns=100, waited_ns=900, until_ns=1010).pauses
    step = [Pause(1, 100, 1000, idle=True), Pause(1, 1000, 1010)]
    assert found == [Pause(1, 10, 20), *(step if kind else [Pause(1, 100, 1010)])]
