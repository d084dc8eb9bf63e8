from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from toy import GLUE_NS, LAYER_NS, OP_NS, Cell, Toy, ToyModel

import xsp
from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.measurement.build import build_trace
from xsp.measurement.callable import interpret_session, rung_names, visit_all
from xsp.measurement.repeat import carry_out, name_of
from xsp.provider import Kept, ModelCall
from xsp.session.exclusive import exclusively
from xsp.session.plan import Plan
from xsp.session.recorder import Session
from xsp.session.selection import select
from xsp.session.settings import Settings, settings_of
from xsp.session.visit import PlannedVisit, Visit
from xsp.testing import FakeClock, FakeProvider, only_providers
from xsp.trace.document import Trace
from xsp_levels.model import Model

BLOCK_NS = 2 * (LAYER_NS + OP_NS) + GLUE_NS


def measured(cost_ns: int, levels: int = 2) -> Trace:
    clock = FakeClock(10**9)
    toy = Toy(clock, cost_ns=cost_ns)
    settings = settings_of(levels, runs=5)
    with only_providers(toy):
        selection = select(settings.levels)
        session = Session(selection.providers, clock)
        call = ModelCall(ToyModel(toy), (1,), subject="ToyModel")
        carry_out(
            Plan(selection.rungs, settings, repeatable=True), session, call, lambda fraction: None
        )
        trace = build_trace([interpret_session(session, selection, "ToyModel")], settings)
    trace.check()
    return trace


def latencies(trace: Trace, kind: str) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for row in trace.spans.filter(kind=kind).iter_rows(named=True):
        found.setdefault(row["name"], set()).add(round(row["latency_ns"], 3))
    return found


@pytest.mark.parametrize("cost_ns", [0, 300, 100_000])
def test_every_latency_is_the_one_without_the_profiler(cost_ns: int) -> None:
    trace = measured(cost_ns)
    assert latencies(trace, "pipeline") == {"predict": {3.0 * BLOCK_NS}}
    assert latencies(trace, "layer") == {
        "ToyModel": {3.0 * BLOCK_NS},
        **{f"block{n}": {float(BLOCK_NS)} for n in range(3)},
        **{name: {float(LAYER_NS + OP_NS)} for name in ("a", "b")},
    }
    assert latencies(trace, "op") == {"toy::op": {float(OP_NS)}}


def test_the_drawn_timeline_holds_no_overhead() -> None:
    spans = measured(100_000).spans
    drawn = spans["end_ns"] - spans["start_ns"]
    assert drawn.to_list() == spans["latency_ns"].round().cast(drawn.dtype).to_list()
    assert spans["overhead_ns"].max() == pytest.approx(100_000 * 16)


def test_the_model_level_alone_gives_the_model_alone() -> None:
    assert measured(300, levels=1).spans["name"].to_list() == ["predict"]


def test_a_level_that_is_not_here_is_left_out_and_said() -> None:
    trace = measured(0, levels=3)
    assert trace.metadata["levels"]["library"] == "no provider of this level is installed"
    assert [p.message for p in trace.problems if p.code == "level-left-out"] == [
        "the library level is left out: no provider of this level is installed"
    ]


def test_a_level_that_is_unavailable_says_why() -> None:
    calls = FakeProvider(FakeClock(), [Kind.CALL], name="calls")
    calls.reason = "the library is not installed: pip install it"
    with only_providers(calls):
        assert select(settings_of(3).levels).levels["library"] == calls.reason


def test_a_function_that_is_no_model_is_the_root_by_its_own_name() -> None:
    def handle(x: int) -> int:
        return x

    with only_providers(FakeProvider(FakeClock())):
        trace = xsp.measure(handle, 3, levels=1, runs=3)
    assert trace.spans["name"].to_list() == ["handle"]
    assert trace.name == "handle"


def test_keyword_arguments_reach_the_function() -> None:
    seen: list[object] = []
    with only_providers(FakeProvider(FakeClock())):
        xsp.measure(lambda *, batch: seen.append(batch), batch=4, levels=1, runs=2)
    assert set(seen) == {4}


def test_only_the_rungs_named_are_run() -> None:
    toy = Toy(FakeClock())
    settings = settings_of(2, runs=2)
    with only_providers(toy):
        assert rung_names(settings) == ["pipeline", "layer", "op", "detail"]
        session, _, _ = visit_all(ToyModel(toy), (1,), settings=settings, rungs=["layer"])
        with pytest.raises(ValueError, match="there are bare, pipeline, layer, op, detail"):
            visit_all(ToyModel(toy), settings=settings, rungs=["kernel"])
    assert {visit.planned.rung.name for visit in session.visits} == {"bare", "layer"}


@pytest.mark.parametrize("changes", [False, True])
def test_a_visit_made_before_counts_only_if_the_call_changes_nothing(changes: bool) -> None:
    def work(seen: list[int]) -> None:
        seen += [1] * changes

    bare = PlannedVisit(Rung(frozenset()), round=0)
    trial = Visit(bare, "work", 1, windows=((0, 10**9),), waited_ns=(0,))
    settings = replace(settings_of(2, runs=2), warmup=0)
    with only_providers(Toy(FakeClock())):
        session, _, _ = visit_all(work, ([],), settings=settings, trial=trial, progress=False)
    windows = [window for visit in session.visits for window in visit.windows]
    assert ((0, 10**9) in windows) is not changes


def test_the_models_exception_passes_through_and_nothing_stays_running() -> None:
    toy = Toy(FakeClock())
    for at in (1, 7):
        model = ToyModel(toy)
        model.raises_at = at
        with only_providers(toy), pytest.raises(ZeroDivisionError):
            xsp.measure(model, levels=2, runs=20)
        assert toy._request is None


def test_a_call_finds_its_input_as_the_first_one_did() -> None:
    toy, cell, found = Toy(FakeClock()), Cell(41), []

    def writes(cell: Cell) -> None:
        found.append(cell.number)
        cell.number += 1

    with only_providers(toy):
        trace = xsp.measure(writes, cell, levels=1, runs=2)
    assert len(found) > 5
    assert set(found) == {41}
    assert cell.number == 41
    assert "input-written" not in {problem.code for problem in trace.problems}


def test_a_call_that_changes_what_cannot_be_put_back_is_made_once() -> None:
    toy, cell = Toy(FakeClock()), Cell(fixed=True)

    def writes(*, cell: Cell) -> None:
        with toy.span("work"):
            cell.number += 1
            toy.clock.advance(LAYER_NS)

    with only_providers(toy):
        trace = xsp.measure(writes, cell=cell, levels=1, runs=2)
    trace.check()
    assert cell.number == 1
    assert trace.root.name == "writes"
    (message,) = [p.message for p in trace.problems if p.code == "input-written"]
    assert "writes changes cell, which is fixed, and cannot be put back" in message


def test_nothing_is_put_back_where_nothing_changes() -> None:
    toy = Toy(FakeClock())
    with only_providers(toy):
        xsp.measure(lambda cells: cells[0].number, [Cell(), Cell()], levels=2, runs=5)
    assert [kept.times_put_back for kept in toy.kept] == [0, 0]


def test_ctrl_c_ends_a_measurement_and_the_next_one_is_free_to_begin() -> None:
    toy = Toy(FakeClock())

    class Interrupted(ToyModel):
        def forward(self, x: int = 0) -> int:
            if self.calls == 7:
                signal.raise_signal(signal.SIGINT)
            return super().forward(x)

    with only_providers(toy):
        with pytest.raises(KeyboardInterrupt):
            xsp.measure(Interrupted(toy), levels=2, runs=20)
        assert toy._request is None
        xsp.measure(ToyModel(toy), levels=2, runs=2).check()


def test_an_iterator_among_the_arguments_is_named() -> None:
    with only_providers(Toy(FakeClock())):
        trace = xsp.measure(sum, (n for n in range(9)), levels=1, runs=2)
    (message,) = [p.message for p in trace.problems if p.code == "input-used-up"]
    assert "sum is given an iterator (generator)" in message


def test_a_coroutine_function_is_refused_before_anything_runs() -> None:
    async def predict() -> None: ...

    with pytest.raises(TypeError, match=r"asyncio\.run"):
        xsp.measure(predict)


def test_two_measurements_at_a_time_are_refused() -> None:
    with exclusively("one"), pytest.raises(xsp.MeasurementError, match="one is under way"):
        xsp.measure(print)


def test_progress_is_told_up_to_the_end() -> None:
    told: list[float] = []
    with only_providers(FakeProvider(FakeClock())):
        xsp.measure(lambda: None, levels=1, runs=3, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_callables_have_names_to_be_called_by() -> None:
    class Handler:
        def __call__(self) -> None: ...

        def method(self) -> None: ...

    assert [name_of(f) for f in (print, Handler(), Handler().method)] == [
        "print",
        "Handler",
        "method",
    ]


def test_settings_reach_the_trace() -> None:
    assert measured(0).metadata["plan"]["runs"] == 5
    assert Settings.from_json(measured(0).metadata["plan"]).runs == 5


def test_arguments_that_cannot_be_looked_at_keep_nothing_from_being_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(value: object, room_bytes: int) -> Kept:
        raise NotImplementedError("no data")

    toy, endless = Toy(FakeClock()), list[object]()
    endless += [endless, Cell()]
    monkeypatch.setattr(toy, "keep", unreadable)
    with only_providers(toy):
        trace = xsp.measure(len, endless, levels=1, runs=2)
    (message,) = [p.message for p in trace.problems if p.code == "input-unread"]
    assert "whether len changes its input" in message
    assert "looking at argument 1.1 raised NotImplementedError: no data" in message


@pytest.mark.parametrize("levels", [1, 2])
def test_a_span_that_no_rung_records_is_named_once(levels: int) -> None:
    def work() -> None:
        with xsp.span("sgemm", level="library"):
            pass

    with only_providers(Model(), Toy(FakeClock())):
        trace = xsp.measure(work, levels=levels, runs=2)
    (message,) = [p.message for p in trace.problems if p.code == "provider"]
    assert "at the library level" in message


def test_a_span_that_one_rung_records_is_no_problem_on_the_others() -> None:
    def work() -> None:
        with xsp.span("step", level="framework"):
            pass

    with only_providers(Model(), Toy(FakeClock())):
        measured = visit_all(work, settings=settings_of(2, runs=2), rungs=["pipeline"])
        trace = xsp.measure(work, levels=2, runs=2)
    assert not [
        p for p in (*interpret_session(*measured).problems, *trace.problems) if p.code == "provider"
    ]
