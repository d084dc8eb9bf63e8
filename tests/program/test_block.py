from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import NoReturn

import pytest
from toy import Cell, Toy, ToyCall, ToyModel

import xsp
from xsp.evaluation import FEWEST_ROUNDS
from xsp.provider.watching import ModelCall
from xsp.testing import FakeClock, only_providers


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A toy framework that is the only provider, with its clock the only one."""
    toy = Toy(FakeClock())
    monkeypatch.setattr("xsp.session.recorder.SystemClock", lambda: toy.clock)
    with only_providers(toy):
        yield toy
    assert toy.evaluations is None
    assert toy._request is None


def codes(trace: xsp.Trace) -> set[str]:
    return {problem.code for problem in trace.problems}


def counts(trace: xsp.Trace) -> dict[str, int]:
    return {rung["rung"]: rung["runs"] for rung in trace.metadata["rungs"]}


def test_one_call_is_repeated_until_the_plan_is_complete(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=5) as prof:
        assert model(41) == 42
    prof.trace.check()
    assert counts(prof.trace)["op"] >= 5
    assert model.calls > 15
    assert set(prof.trace.spans["kind"]) == {"pipeline", "layer", "op"}


def test_a_loop_gets_its_level_sets_in_turn_and_runs_exactly_as_written(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=4, replay=False) as prof:
        assert [model(n) for n in range(200)] == list(range(1, 201))
    assert model.calls == 200
    assert counts(prof.trace)["layer"] == 4
    assert "not-replayed" not in codes(prof.trace)


def test_what_is_not_safe_is_not_repeated_and_the_trace_says_so(toy: Toy) -> None:
    toy.unsafe = "gradients are on"
    model = ToyModel(toy)
    with xsp.profile(levels=2) as prof:
        for n in range(7):
            model(n)
    assert model.calls == 7
    [problem] = [p for p in prof.trace.problems if p.code == "not-replayed"]
    assert "gradients are on" in problem.message
    assert "replay=True" in problem.message
    assert ": 7 of 42 or more; " in problem.message


class Writes(ToyModel):
    """A toy model that adds 1 to the cell that it is given."""

    def write(self, cell: Cell) -> int:
        cell.number += 1
        return self.forward(cell.number)


def evaluate(toy: Toy, cell: Cell) -> Writes:
    """Make a call of a model that writes to a cell, in a `with` block."""
    model = Writes(toy)
    assert toy.evaluations is not None
    toy.evaluations.run(ToyCall(model.write, (cell,), subject="Writes", toy=toy))
    return model


def test_what_a_repeated_call_writes_to_is_left_as_the_program_left_it(toy: Toy) -> None:
    cell = Cell(41)
    with xsp.profile(levels=2, runs=5) as prof:
        model = evaluate(toy, cell)
    assert model.calls > 15
    assert cell.number == 42
    (message,) = [p.message for p in prof.trace.problems if p.code == "replayed-as-left"]
    assert "Writes changes its input or itself (argument 1)" in message
    assert "not-replayed" not in codes(prof.trace)


def test_a_call_that_may_write_to_what_cannot_be_put_back_is_not_repeated(toy: Toy) -> None:
    cell = Cell(fixed=True)
    with xsp.profile(levels=2, runs=5) as prof:
        model = evaluate(toy, cell)
    assert model.calls == cell.number == 1
    (message,) = [p.message for p in prof.trace.problems if p.code == "not-replayed"]
    assert "could not be put back: argument 1, which is fixed" in message
    assert "replay=True" in message


def test_a_call_is_repeated_all_the_same_where_the_program_says_so(toy: Toy) -> None:
    cell = Cell(fixed=True)
    with xsp.profile(levels=2, runs=5, replay=True) as prof:
        model = evaluate(toy, cell)
    assert model.calls > 15
    (message,) = [p.message for p in prof.trace.problems if p.code == "input-written"]
    assert "later evaluations saw other values" in message


def test_a_group_that_comes_seldom_gets_its_rounds_beside_another(toy: Toy) -> None:
    model = ToyModel(toy)
    seldom = ModelCall(model.forward, (), subject="Seldom")
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(150):
            for _ in range(32):
                model()
            assert toy.evaluations is not None
            toy.evaluations.run(seldom)
    messages = [p.message for p in prof.trace.problems if p.code == "not-replayed"]
    [message] = [message for message in messages if "Seldom" in message]
    assert "they took" in message  # and so there were rounds
    (group,) = [each for each in prof.trace.metadata["groups"] if each["model"] == "Seldom"]
    assert group["latency_ns"] > 0


@pytest.mark.parametrize("often", [1, 2, 8, 10])
def test_nothing_right_after_a_change_of_the_rung_counts_whichever_group_changed_it(
    toy: Toy, often: int
) -> None:
    quick, other = ToyModel(toy), ModelCall(ToyModel(toy, 5).forward, (), subject="Other")
    with xsp.profile(levels=2, runs=150, replay=False) as prof:
        for _ in range(3_000 // often):
            for _ in range(often):
                quick()
            assert toy.evaluations is not None
            toy.evaluations.run(other)
    positions = []
    for visit in prof._dispatching.session.visits:
        of_groups = zip(visit.groups, visit.rounds, strict=True)
        mine = [number for group, number in of_groups if group == 0]
        positions += [at for at, number in enumerate(mine) if number >= FEWEST_ROUNDS]
    assert len(positions) > 100
    assert min(positions) >= 3


class Slowed(ToyModel):
    """A model that takes so much longer, as a part, while something in the program slows it."""

    def __init__(self, toy: Toy, longer: float = 1.0) -> None:
        super().__init__(toy)
        self.longer = longer

    def forward(self, x: int = 0) -> int:
        self.toy.clock.advance(round(self.longer * self.latency_ns))
        return super().forward(x)


@pytest.mark.parametrize("slow_after", [False, True])
def test_a_group_that_is_slower_in_the_program_than_repeated_alone_is_named(
    toy: Toy, slow_after: bool
) -> None:
    with xsp.profile(levels=2, runs=400) as prof:
        model = Slowed(toy)
        for _ in range(300):
            model()
        model.longer *= slow_after
    messages = [p.message for p in prof.trace.problems if p.code == "repeated-apart"]
    if slow_after:
        assert messages == []
    else:
        (message,) = messages
        assert "ToyModel: an evaluation took 162 µs in the program, and 81.0 µs" in message
    (group,) = prof.trace.metadata["groups"]
    assert group["latency_low_ns"] <= group["latency_ns"] <= group["latency_high_ns"]
    assert group["latency_ns"] == pytest.approx(162_000, rel=0.01)


def test_a_few_calls_that_are_some_per_cent_slower_than_repeated_alone_are_named(toy: Toy) -> None:
    with xsp.profile(levels=2) as prof:
        model = Slowed(toy, longer=0.17)
        for _ in range(45):
            model()
        model.longer = 0.0
    (message,) = [p.message for p in prof.trace.problems if p.code == "repeated-apart"]
    assert "an evaluation took 94.8 µs in the program, and 81.0 µs" in message
    (trace,) = prof.groups.values()
    assert trace.root.latency_ns == pytest.approx(81_000, rel=0.01)
    # In the tree and in the metadata it is the program's own.
    (group,) = prof.trace.metadata["groups"]
    assert group["latency_ns"] == pytest.approx(94_770, rel=0.01)
    assert group["total_ns"] / 45 == pytest.approx(94_770, rel=0.01)


def test_slow_calls_that_only_the_average_has_are_named(toy: Toy) -> None:
    model = Slowed(toy)
    with xsp.profile(levels=1, replay=False) as prof:
        for number in range(300):
            model.longer = 4.0 * (number % 10 == 9)
            model()
    (message,) = [p.message for p in prof.trace.problems if p.code == "average-apart"]
    assert "81.0 µs without the slowest and the quickest" in message


def test_a_call_that_was_given_an_iterator_is_not_repeated(toy: Toy) -> None:
    model = ToyModel(toy)
    call = ModelCall(lambda _: model.forward(), (iter([1]),), subject="Given")
    with xsp.profile(levels=2, runs=5) as prof:
        assert toy.evaluations is not None
        toy.evaluations.run(call)
    assert model.calls == 1
    (message,) = [p.message for p in prof.trace.problems if p.code == "not-replayed"]
    assert "Given was given an iterator" in message


def raising(*_: object) -> NoReturn:
    raise NotImplementedError("no data")


@pytest.mark.parametrize("asked", ["keep", "hazard"])
def test_arguments_that_cannot_be_looked_at_are_no_concern_of_the_users_call(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(toy, asked, raising)
    with xsp.profile(levels=2, runs=3) as prof:
        model = evaluate(toy, Cell())
    assert model.calls == 1
    (message,) = [p.message for p in prof.trace.problems if p.code == "not-replayed"]
    assert "NotImplementedError: no data. Say replay=True if it may" in message
    with xsp.profile(levels=2, runs=3, replay=True) as prof:
        model = evaluate(toy, Cell())
    assert model.calls > 7


def test_a_watcher_that_fails_is_named_and_the_block_goes_on(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "watch", raising)
    with xsp.profile(levels=2, runs=1) as prof, prof.evaluation("request"):
        ToyModel(toy)()
    assert list(prof.groups) == ["request"]
    (message,) = [p.message for p in prof.trace.problems if p.code == "provider-failed"]
    assert "toy failed to watch for models" in message
    with xsp.profile(levels=2) as prof:
        ToyModel(toy)()
    with pytest.raises(xsp.MeasurementError, match=r"nothing was evaluated.*no data"):
        _ = prof.trace


class Once:
    """A lock that somebody else has as soon as it is released."""

    def __init__(self) -> None:
        self.taken = self.held = False

    def acquire(self, *, blocking: bool) -> bool:
        free = not self.taken
        self.taken = self.held = True
        return free

    def release(self) -> None:
        self.held = False

    def locked(self) -> bool:
        return self.held


@pytest.mark.parametrize("decorated", [True, False])
def test_nobody_else_measures_between_the_last_evaluation_and_its_repetition(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, decorated: bool
) -> None:
    monkeypatch.setattr("xsp.session.exclusive._claim.lock", Once())
    model = ToyModel(toy)
    prof = xsp.profile(levels=1, runs=3, replay=True)
    if decorated:
        assert prof(model.forward)(1) == 2
    else:
        with prof:
            assert model(1) == 2
    assert model.calls > 3
    assert "not-replayed" not in codes(prof.trace)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("decorated", [True, False])
def test_a_profile_does_not_keep_the_model_and_its_input(
    toy: Toy, replay: bool, decorated: bool
) -> None:
    model, given = ToyModel(toy), FakeClock()
    gone = weakref.ref(model), weakref.ref(given)
    prof = xsp.profile(levels=2, runs=3, replay=replay)
    if decorated:
        prof(lambda *_: None)(model, given)
    else:
        with prof:
            assert toy.evaluations is not None
            toy.evaluations.run(ModelCall(model.forward, (), {"x": 1}))
            toy.evaluations.run(ModelCall(lambda _: None, (given,)))
    del model, given
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_replay_true_repeats_all_the_same(toy: Toy) -> None:
    toy.unsafe = "gradients are on"
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=3, replay=True) as prof:
        model(1)
    assert model.calls > 7
    assert "not-replayed" not in codes(prof.trace)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_few_unsafe_calls_leave_a_whole_tree_that_says_what_it_lacks(toy: Toy, calls: int) -> None:
    toy.unsafe = "gradients are on"
    with xsp.profile(levels=2) as prof:
        for _ in range(calls):
            ToyModel(toy)(1)
    prof.trace.check()
    assert codes(prof.trace) >= {"not-replayed", "carries-overhead"}
    assert set(prof.trace.spans["kind"]) == {"pipeline", "layer", "op"}


def test_a_single_evaluation_is_cold_few_and_carries_overhead(toy: Toy) -> None:
    with xsp.profile(levels=2, replay=False) as prof:
        ToyModel(toy)(1)
    for root in (prof.trace.root, prof.groups["ToyModel"].root):
        assert root.attributes["inexact"] == ["carried", "cold", "few"]
        assert root.attributes["exact"] is False
    lines = str(prof.trace).splitlines()
    assert any(line.startswith("+ still with overhead · * from first") for line in lines)


def test_a_complete_block_is_exact(toy: Toy) -> None:
    with xsp.profile(levels=2, runs=5) as prof:
        ToyModel(toy)(1)
    assert prof.trace.spans.unnest("attributes")["exact"].all()
    assert "fewer" not in str(prof.trace)


def test_a_block_without_a_model_has_no_trace_and_says_what_to_do(toy: Toy) -> None:
    with xsp.profile() as prof:
        pass
    with pytest.raises(xsp.MeasurementError, match=r"prof\.evaluation\(\)"):
        _ = prof.trace


def test_a_block_whose_only_evaluation_raised_says_so(toy: Toy) -> None:
    model = ToyModel(toy)
    model.raises_at = 1
    prof = xsp.profile(levels=2)
    with pytest.raises(ZeroDivisionError), prof:
        model()
    with pytest.raises(xsp.MeasurementError, match="each call of ToyModel raised"):
        _ = prof.trace


def test_a_call_that_raised_makes_the_block_no_longer(toy: Toy) -> None:
    toy.clock.advance(10**13)
    model = ToyModel(toy)
    model.raises_at = 7
    began_ns = toy.clock.now()
    with xsp.profile(levels=2, replay=False) as prof:
        for n in range(40):
            with contextlib.suppress(ZeroDivisionError):
                model(n)
    assert "raised" in codes(prof.trace)
    assert 0 < prof.trace.spans["latency_ns"][0] <= toy.clock.now() - began_ns


def test_parts_of_which_a_watcher_tells_late_last_as_long_as_they_did(toy: Toy) -> None:
    # As those of a compiler do, which are known once it has ended.
    model = ToyModel(toy)
    with xsp.profile(levels=2, replay=False) as prof:
        for _ in range(8):
            model()
        assert toy.evaluations is not None
        begin_ns = toy.clock.now()
        toy.clock.advance(3 * 10**9)
        end_ns = toy.clock.now()
        toy.evaluations.mark("lower", begin_ns, begin_ns + 10**9, {})
        toy.evaluations.mark("compile", begin_ns, end_ns, {})
        model()
    spans = prof.trace.spans
    lasts = dict(zip(spans["name"], spans["latency_ns"], strict=True))
    assert lasts["compile"] == pytest.approx(3e9, rel=1e-3)
    assert lasts["lower"] == pytest.approx(1e9, rel=1e-3)


def test_a_generator_function_cannot_be_decorated() -> None:
    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator function stream"):
        xsp.profile(levels=1)(stream)


def test_a_profile_that_never_began_says_so() -> None:
    with pytest.raises(xsp.MeasurementError, match="has not begun"):
        _ = xsp.profile().trace


@pytest.mark.parametrize("at", [1, 7])
def test_the_models_exception_arrives_unchanged(toy: Toy, at: int) -> None:
    model = ToyModel(toy)
    model.raises_at = at
    prof = xsp.profile(levels=2)
    with pytest.raises(ZeroDivisionError, match="the model's own error"), prof:
        _ = [model(n) for n in range(20)]
    assert model.calls == at
    if at == 7:
        assert "cut-short" in codes(prof.trace)
        assert prof.groups["ToyModel"].root.name == "predict"


def test_ctrl_c_ends_the_block_and_keeps_what_is_there(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=2)

    def interrupted() -> None:
        with prof:
            for n in range(7):
                model(n)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert model.calls == 7
    [problem] = [p for p in prof.trace.problems if p.code == "cut-short"]
    assert "KeyboardInterrupt" in problem.message


def test_nested_blocks_are_refused_and_the_outer_one_goes_on(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, runs=2) as prof:
        model(1)
        with pytest.raises(xsp.MeasurementError, match="a profile is under way"), xsp.profile():
            pass
    assert list(prof.groups) == ["ToyModel"]


def test_evaluations_marked_by_hand_hold_everything_in_them(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=2) as prof:
        model(0)
        for n in range(20):
            with prof.evaluation("request"):
                model(model(n))
    prof.trace.check()
    trace = prof.groups["request"]
    trace.check()
    assert trace.root.name == "request"
    assert trace.root.latency_ns == 2 * model.latency_ns
    assert trace.spans.filter(name="ToyModel").height == 2


def test_an_exception_in_a_marked_evaluation_drops_that_one(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, runs=2) as prof:
        for n in range(12):
            with contextlib.suppress(KeyError), prof.evaluation():
                model(n)
                if n % 3 == 1:
                    raise KeyError(n)
    assert prof.groups["evaluation"].root.latency_ns == model.latency_ns


def test_every_call_of_a_decorated_function_is_an_evaluation(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=2, runs=3)

    @prof
    def predict(n: int) -> int:
        """Predict."""
        return model(n) + 1

    assert [predict(n) for n in range(90)] == list(range(2, 92))
    assert model.calls == 90
    assert predict.__doc__ == "Predict."
    assert prof.trace.root.name == "predict"
    assert counts(prof.trace)["op"] >= 3


def test_a_decorated_function_may_call_itself(toy: Toy) -> None:
    @xsp.profile(levels=1)
    def down(n: int) -> int:
        return n if n == 0 else down(n - 1)

    assert down(5) == 0


def test_a_decorated_coroutine_is_an_evaluation(toy: Toy) -> None:
    prof = xsp.profile(levels=1, runs=1)

    @prof
    async def predict(n: int) -> int:
        await asyncio.sleep(0)
        return n

    assert [asyncio.run(predict(n)) for n in range(5)] == list(range(5))
    assert prof.trace.root.name == "predict"


def test_calls_from_a_pool_of_threads_are_each_made_once(toy: Toy) -> None:
    model = ToyModel(toy)
    results: list[int] = []
    with xsp.profile(levels=1, runs=2, replay=False) as prof:
        model(0)
        model(0)
        model(0)
        threads = [threading.Thread(target=lambda: results.append(model(1))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [2] * 8
    assert prof.groups["ToyModel"].root.name == "predict"


@pytest.mark.forks
def test_the_child_of_a_fork_measures_nothing_and_the_parent_goes_on(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, runs=2) as prof:
        model(0)
        child = os.fork()
        if child == 0:
            with xsp.profile(levels=1):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        model(1)
    assert prof.groups["ToyModel"].root.name == "predict"


def test_the_profile_can_be_used_again(toy: Toy) -> None:
    prof = xsp.profile(levels=1, runs=2)
    for blocks in (1, 2):
        model = ToyModel(toy, blocks)
        with prof:
            model(0)
        assert prof.groups["ToyModel"].root.latency_ns == model.latency_ns


def test_an_evaluation_inside_another_is_part_of_it_and_said(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, runs=2) as prof:
        for n in range(9):
            with prof.evaluation("outer"):
                model(n)
                with contextlib.suppress(KeyError), prof.evaluation("inner"):
                    model(n)
                    raise KeyError
    assert prof.groups["outer"].root.latency_ns == 2 * model.latency_ns
    assert "evaluation-in-evaluation" in codes(prof.trace)


def test_watchers_know_once_evaluations_are_marked(toy: Toy) -> None:
    with xsp.profile(levels=1, runs=2) as prof:
        assert toy.evaluations is not None
        with prof.evaluation():
            assert toy.evaluations.by_hand


def test_a_trace_read_inside_the_block_is_made_anew_after_it(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=6) as prof:
        model(1)
        early = prof.trace
    assert len(early.metadata["rungs"]) == 1
    assert counts(prof.trace)["op"] >= 6
    assert prof.trace is prof.trace


def test_a_repetition_that_fails_does_not_reach_the_program(toy: Toy) -> None:
    model = ToyModel(toy)
    model.raises_at = 9
    with xsp.profile(levels=2, runs=6) as prof:
        assert model(1) == 2
    [problem] = [p for p in prof.trace.problems if p.code == "replay-failed"]
    assert "the model's own error" in problem.message


def test_a_decorated_function_called_from_several_threads_just_runs(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=1, runs=3)

    @prof
    def predict(n: int) -> int:
        return model(n)

    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.extend(predict(n) for n in range(50)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(list(range(1, 51)) * 8)
    assert prof.trace.root.name == "predict"


def test_a_profile_says_what_it_is_and_how_far(toy: Toy) -> None:
    prof = xsp.profile(levels=2)
    assert repr(prof) == "<xsp.profile of model, framework: not begun>"
    with prof:
        assert repr(prof).endswith("watching>")
        ToyModel(toy)(1)
    assert repr(prof).endswith("ended>")
