"""Blocks around programs, with a toy framework: what passes, what is counted, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from toy import Cell, Toy, ToyModel

import xsp
from xsp.testing import FakeClock, only_providers


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A toy framework that is the only provider."""
    toy = Toy(FakeClock())
    with only_providers(toy):
        yield toy
    assert toy.log is None
    assert toy._request is None


def codes(trace: xsp.Trace) -> set[str]:
    return {warning.code for warning in trace.warnings}


def called(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def test_a_loop_runs_exactly_as_written_and_every_call_is_counted(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2) as prof:
        assert [model(7) for _ in range(200)] == [8] * 200
    assert model.calls == 200
    assert called(prof) == {"ToyModel": 200}
    prof.trace.check()


def test_a_block_of_one_call_is_repeated_as_measure_repeats(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xsp.record.session.recorder.SystemClock", lambda: toy.clock)
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=5, progress=False) as prof:
        assert model(41) == 42
    prof.trace.check()
    assert model.calls > 15
    assert set(prof.trace.spans["kind"]) == {"region", "layer", "op"}


@pytest.mark.parametrize("calls", [1, 4])
def test_nothing_is_repeated_that_is_unsafe_or_of_a_block_of_more_calls(
    toy: Toy, calls: int
) -> None:
    toy.unsafe = "gradients are on" if calls == 1 else None
    model = ToyModel(toy)
    with xsp.profile(levels=2) as prof:
        for _ in range(calls):
            model(1)
    assert model.calls == calls
    said = [p.message for p in prof.trace.warnings if p.code == "not-repeated"]
    why = "xsp did not repeat a call after the block, so error bars are wider: gradients are on"
    assert said == [why] * (calls == 1)


def test_calls_are_repeated_all_the_same_where_the_program_says_so(toy: Toy) -> None:
    toy.unsafe = "gradients are on"
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=3, repeat=True, progress=False):
        model(1)
    assert model.calls > 3


def test_a_call_that_changes_what_it_is_given_is_not_repeated_and_setup_is_named(toy: Toy) -> None:
    class Writes(ToyModel):
        def forward(self, x: Any = 0) -> Any:
            x.number += 1
            return super().forward(0)

        def __call__(self, x: Any = 0) -> Any:
            return super().__call__(x)

    cell = Cell(5)
    with xsp.profile(levels=2) as prof:
        Writes(toy)(cell)
    assert cell.number == 6
    [message] = [p.message for p in prof.trace.warnings if p.code == "not-repeated"]
    assert "setup=" in message


def test_a_repetition_that_fails_does_not_reach_the_program(toy: Toy) -> None:
    model = ToyModel(toy)
    model.raises_at = 9
    with xsp.profile(levels=2, runs=6, progress=False) as prof:
        assert model(1) == 2
    [message] = [p.message for p in prof.trace.warnings if p.code == "not-repeated"]
    assert "the model's own error" in message


@pytest.mark.parametrize("at", [1, 7])
def test_the_models_exception_arrives_unchanged_and_is_told(toy: Toy, at: int) -> None:
    model = ToyModel(toy)
    model.raises_at = at
    prof = xsp.profile(levels=2)
    with pytest.raises(ZeroDivisionError, match="the model's own error"), prof:
        _ = [model(7) for _ in range(20)]
    assert model.calls == at
    assert {"cut-short", "raised"} <= codes(prof.trace)
    assert called(prof) == {"ToyModel": at}


def test_ctrl_c_ends_the_block_and_keeps_what_is_there(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=2)

    def interrupted() -> NoReturn:
        with prof:
            for _ in range(7):
                model(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert called(prof) == {"ToyModel": 7}
    [warning] = [p for p in prof.trace.warnings if p.code == "cut-short"]
    assert "KeyboardInterrupt" in warning.message


def test_a_watcher_that_fails_is_named_and_the_block_goes_on(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Toy) -> NoReturn:
        raise OSError("no hooks here")

    monkeypatch.setattr(Toy, "watcher", fails)
    with xsp.profile(levels=2) as prof, xsp.span("work"):
        assert ToyModel(toy)(1) == 2
    [message] = [p.message for p in prof.trace.warnings if p.code == "provider-failed"]
    assert "no hooks here" in message
    assert "work" in prof.trace.spans["name"].to_list()


def test_a_block_without_a_model_is_a_tree_of_regions(toy: Toy) -> None:
    with xsp.profile(levels=2) as prof:
        for _ in range(3):
            with xsp.span("outer", batch=2), xsp.span("inner"):
                pass
    spans = prof.trace.spans.unnest("attributes")
    assert spans["path"].to_list() == ["block", "block/outer", "block/outer/inner"]
    assert spans["calls"].to_list() == [1, 3, 3]
    assert spans["user.batch"].to_list() == [None, 2, None]


def test_a_generator_function_cannot_be_decorated() -> None:
    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"generator function .* \(stream\)"):
        xsp.profile(levels=1)(stream)


def test_nested_blocks_are_refused_and_the_outer_one_goes_on(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, repeat=False) as prof:
        model(1)
        with (
            pytest.raises(xsp.MeasurementError, match=r"Another measurement .* \(a profile\)"),
            xsp.profile(),
        ):
            pass
        model(1)
    assert called(prof) == {"ToyModel": 2}


def test_a_skipped_block_is_a_part_of_the_profiled_block_around_it(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2) as prof:
        with xsp.profile(levels=2, on_busy="skip"), xsp.span("inner"):
            for _ in range(20):
                model(1)
        model(1)
    assert called(prof) == {"ToyModel in inner": 20, "ToyModel": 1}


@pytest.mark.parametrize("how", ["task", "thread"])
def test_another_requests_skipped_block_is_no_part_of_the_profiled_one(toy: Toy, how: str) -> None:
    model = ToyModel(toy)

    def request() -> None:
        with xsp.profile(levels=2, on_busy="skip"):
            for _ in range(20):
                model(1)

    async def serve() -> None:
        async def first() -> xsp.profile:
            with xsp.profile(levels=2, on_busy="skip") as prof:
                for _ in range(5):
                    model(1)
                began.set()
                await ended.wait()
            return prof

        began, ended = asyncio.Event(), asyncio.Event()
        profiled = asyncio.create_task(first())
        await began.wait()
        if how == "task":
            request()
        else:
            thread = threading.Thread(target=request)
            thread.start()
            thread.join()
        ended.set()
        assert called(await profiled) == {"ToyModel": 5}

    asyncio.run(serve())


def test_marked_steps_hold_everything_in_them(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2) as prof:
        for _ in range(20):
            with prof.step("request"):
                model(model(7))
    assert called(prof) == {"request": 20}
    trace = prof.groups["request"]
    trace.check()
    assert trace.root.name == "request"


def test_a_bare_call_at_the_end_of_an_iteration_marks_a_step(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile() as prof:
        for _ in range(20):
            model(model(7))
            prof.step()
    assert called(prof) == {"step": 20}
    prof.trace.validate()


def test_bare_steps_in_a_region_lie_in_it(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile() as prof:
        for _ in range(2):
            with xsp.span("epoch"):
                for _ in range(5):
                    model(7)
                    with xsp.span("part"):
                        model(8)
                    prof.step("batch")
                model(9)
    assert called(prof)["batch"] == 10
    prof.trace.validate()
    [epoch] = prof.trace.children(prof.trace.root)
    assert "batch" in {span.name for span in prof.trace.children(epoch)}


def test_an_exception_in_a_marked_step_is_told_with_it(toy: Toy) -> None:
    with xsp.profile(levels=1) as prof:
        for number in range(12):
            with contextlib.suppress(KeyError), prof.step():
                if number % 3 == 1:
                    raise KeyError(number)
    assert called(prof) == {"step": 12}


def test_a_decorated_function_may_call_itself(toy: Toy) -> None:
    @xsp.profile(levels=1)
    def down(n: int) -> int:
        return n if n == 0 else down(n - 1)

    assert down(5) == 0


def test_decorated_coroutines_that_take_turns_are_told_apart(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=2)

    @prof
    async def predict() -> int:
        await asyncio.sleep(0.001)
        made = model(7)
        await asyncio.sleep(0.001)
        return made

    async def serve() -> list[int]:
        return await asyncio.gather(*(predict() for _ in range(4)))

    assert [asyncio.run(serve()) for _ in range(5)] == [[8] * 4] * 5
    assert prof.trace.root.name == "predict"
    [row] = prof.trace.spans.unnest("attributes").filter(name="call of ToyModel").to_dicts()
    assert row["calls"] == 1


def test_decorated_functions_on_several_threads_are_all_counted(toy: Toy) -> None:
    model = ToyModel(toy)
    prof = xsp.profile(levels=1)

    @prof
    def predict(n: int) -> int:
        return model.forward(n)

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


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_may_profile_and_the_parent_goes_on(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=1, repeat=False) as prof:
        model(0)
        child = os.fork()
        if child == 0:
            with xsp.profile(levels=1):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        model(0)
    assert called(prof) == {"ToyModel": 2}


def test_a_trace_read_inside_the_block_is_made_anew_after_it(toy: Toy) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, repeat=False) as prof:
        model(1)
        early = prof.trace
        model(1)
    assert early.metadata["groups"][0]["calls"] == 1
    assert called(prof) == {"ToyModel": 2}
    assert prof.trace is prof.trace


def test_a_profile_keeps_neither_model_nor_input(toy: Toy) -> None:
    class Input:
        pass

    given = Input()
    kept = weakref.ref(given)
    with xsp.profile(levels=2, repeat=False) as prof:
        toy.log.make(toy.log.call_number(0, _facts), lambda _: None, (given,), {})  # type: ignore[union-attr]
    del given
    gc.collect()
    assert kept() is None
    assert prof.trace.root.kind == "region"


def _facts() -> Any:
    from xsp.provider import CallFacts  # noqa: PLC0415

    return CallFacts("Toy")


def test_a_profile_says_what_it_is_and_how_far(toy: Toy) -> None:
    prof = xsp.profile(levels=2, repeat=False)
    assert repr(prof) == "<xsp.profile of model, framework: not begun>"
    with prof:
        assert repr(prof).endswith("watching>")
        ToyModel(toy)(1)
    assert repr(prof).endswith("ended>")


def test_regions_of_greenlets_that_take_turns_are_told_apart(toy: Toy) -> None:
    greenlet = pytest.importorskip("greenlet")
    main, model = greenlet.getcurrent(), ToyModel(toy)

    def serve(name: str) -> None:
        for _ in range(3):
            with xsp.span(name):
                model(1)
                main.switch()
                model(1)

    with xsp.profile(levels=2) as prof:
        waiting = [greenlet.greenlet(serve) for _ in range(2)]
        while alive := [each for each in waiting if not each.dead]:
            for each in alive:
                each.switch(f"request {waiting.index(each)}")
    counts = {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}
    assert list(counts.values()) == [6, 6]
    assert {name.rpartition(" in ")[2] for name in counts} == {"request 0", "request 1"}


def test_a_schedule_chooses_steps_as_torch_profiler_does(toy: Toy) -> None:
    model = ToyModel(toy)
    schedule = xsp.schedule(wait=2, warmup=1, active=3, repeat=2)
    with xsp.profile(schedule=schedule, repeat=False) as prof:
        for _ in range(20):
            model(7)
    assert called(prof) == {"ToyModel": 12}
    assert [schedule._records(n) for n in range(6)] == [False] * 3 + [True] * 3
    assert schedule._ended(12)
    assert not xsp.schedule(wait=1, active=1, repeat=0)._ended(10**6)
    assert xsp.schedule(skip=5) == xsp.schedule(wait=5)


def test_a_profile_prints_saves_and_reports_its_trace(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ToyModel(toy)
    with xsp.profile(name="loop", repeat=False) as prof:
        for _ in range(20):
            model(7)
    prof.print(rows=5)
    assert "loop" in capsys.readouterr().out
    assert xsp.load(prof.save(tmp_path / "loop.xsp")).name == "loop"
    assert prof.report(tmp_path / "loop.html").stat().st_size > 0
