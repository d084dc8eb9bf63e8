from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from toy import GLUE_NS, LAYER_NS, OP_NS, Cell, Toy, ToyModel

import xsp
from xsp.measuring.call.callable import interpret_session
from xsp.measuring.call.repeat import carry_out, name_of
from xsp.provider import ModelCall
from xsp.reading.runs.build import build_trace
from xsp.record.session.plan import Plan
from xsp.record.session.recorder import Session
from xsp.record.session.selection import select
from xsp.record.session.settings import settings_of
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
        carry_out(Plan(selection.passes, settings), session, call, lambda fraction: None)
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
    assert latencies(trace, "region") == {"predict": {3.0 * BLOCK_NS}}
    assert latencies(trace, "layer") == {
        "ToyModel": {3.0 * BLOCK_NS},
        **{f"block{n}": {float(BLOCK_NS)} for n in range(3)},
        **{name: {float(LAYER_NS + OP_NS)} for name in ("a", "b")},
    }
    assert latencies(trace, "op") == {"toy::op": {float(OP_NS)}}


def test_a_level_that_is_not_here_is_left_out_and_said() -> None:
    trace = measured(0, levels=3)
    assert trace.metadata["levels"]["library"] == "no provider of this level is installed"
    assert [p.message for p in trace.warnings if p.code == "level-left-out"] == [
        "the library level is missing: no provider of this level is installed"
    ]


def test_a_function_that_is_no_model_is_the_root_by_its_own_name() -> None:
    def handle(x: int) -> int:
        return x

    with only_providers(FakeProvider(FakeClock())):
        trace = xsp.measure(handle, 3, levels=1, runs=3)
    assert trace.spans["name"].to_list() == ["handle"]
    assert trace.name == "handle"


def written(trace: Trace) -> list[str]:
    return [p.message for p in trace.warnings if p.code == "input-written"]


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ([0], lambda value: value.append(1)),
        ({"steps": 0}, lambda value: value.update(steps=value["steps"] + 1)),
        ([Cell()], lambda value: setattr(value[0], "number", value[0].number + 1)),
        (np.zeros(3), lambda value: value.__iadd__(1)),
        ({1}, lambda value: value.add(len(value) + 1)),
        (np.random.default_rng(0), lambda value: value.random()),
    ],
    ids=["list", "dictionary", "attribute", "array", "set", "generator"],
)
def test_a_call_that_changes_what_it_is_given_is_told_once_and_setup_is_named(
    given: Any, change: Callable[[Any], object]
) -> None:
    with only_providers(Toy(FakeClock())):
        [message] = written(xsp.measure(change, given, levels=2, runs=3))
        assert not written(xsp.measure(repr, given, levels=2, runs=3))
    assert "argument 1" in message
    assert "setup=" in message


def test_arguments_that_cannot_be_looked_at_keep_nothing_from_being_measured() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("proxy of nothing")

    endless: list[object] = []
    endless += [endless, Proxy()]
    with only_providers(Toy(FakeClock())):
        assert not written(xsp.measure(len, endless, levels=1, runs=2))


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
    (message,) = [p.message for p in trace.warnings if p.code == "input-used-up"]
    assert "sum consumes an iterator (generator)" in message


def test_callables_have_names_to_be_called_by() -> None:
    class Handler:
        def __call__(self) -> None: ...

        def method(self) -> None: ...

    assert [name_of(f) for f in (print, Handler(), Handler().method)] == [
        "print",
        "Handler",
        "method",
    ]


@pytest.mark.parametrize("levels", [1, 2])
def test_a_span_that_no_pass_records_is_named_once(levels: int) -> None:
    def work() -> None:
        with xsp.span("sgemm", level="library"):
            pass

    with only_providers(Model(), Toy(FakeClock())):
        trace = xsp.measure(work, levels=levels, runs=2)
    (message,) = [p.message for p in trace.warnings if p.code == "provider"]
    assert "at the library level" in message


def test_a_span_that_one_pass_records_is_no_warning_on_the_others() -> None:
    def work() -> None:
        with xsp.span("step", level="framework"):
            pass

    with only_providers(Model(), Toy(FakeClock())):
        trace = xsp.measure(work, levels=2, runs=2)
    assert not [p for p in trace.warnings if p.code == "provider"]


def test_setup_makes_the_arguments_of_each_evaluation_anew() -> None:
    found = list[tuple[int, str]]()

    def step(cache: list[int], name: str) -> None:
        found.append((len(cache), name))
        cache.append(1)

    trace = xsp.measure(step, name="given", setup=lambda: ([],), levels=1, runs=3)
    assert len(found) > 3
    assert set(found) == {(0, "given")}
    assert "input-written" not in {warning.code for warning in trace.warnings}
    found.clear()
    xsp.measure(step, [], setup=lambda: {"name": "made"}, levels=1, runs=3)
    assert found[0] == (0, "made")
    assert found[-1] == (len(found) - 1, "made")


def test_setup_that_returns_something_else_says_what_it_may_return() -> None:
    with pytest.raises(TypeError, match="Return a tuple, a dict of keyword arguments or None"):
        xsp.measure(print, setup=lambda: 3, levels=1)
