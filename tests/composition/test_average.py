from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from samples import layer, op, pipeline, trace

from xsp.composition.typical.average import Average, average_evaluation, with_mean_latency
from xsp.evaluation import Run, ladder
from xsp.level import Kind
from xsp.trace import Trace, parent_rows

OPS = ladder({Kind.PIPELINE, Kind.LAYER, Kind.OP})[-1]


def step(calls: int) -> Trace:
    """Return a training step of so many calls, whose gradients are added up from the second on."""
    forwards = [
        pipeline("forward", layer("fc", "Linear", op("aten::addmm"), op("aten::relu")))
        for _ in range(calls)
    ]
    gradients = [op("AddmmBackward0", own_ns=500) for _ in range(calls)]
    sums = [op("aten::add_", own_ns=200) for _ in range(calls - 1)]
    optimizer = pipeline("optimizer step", *(op("aten::sub_") for _ in range(12)))
    return trace(pipeline("step", *forwards, pipeline("backward", *gradients, *sums), optimizer))


def run(calls: int) -> Run:
    spans = step(calls).spans
    rows = spans.select("kind", "name").with_columns(parent=parent_rows(spans))
    return Run(OPS, 1_000 * calls, rows, model_calls=calls)


def averaged(shown: int, recorded: Sequence[int], average: float) -> tuple[Trace, Average]:
    one = step(shown)
    return one, average_evaluation(one, [run(calls) for calls in recorded], average)


def sums(average: Average, evaluations: int) -> dict[str, int]:
    """Return how often spans of each name came."""
    result: dict[str, int] = {}
    names = average.trace.spans["name"].to_list()
    for name, calls in zip(names, average.calls(evaluations).tolist(), strict=True):
        result[name] = result.get(name, 0) + calls
    return result


@pytest.mark.parametrize("recorded", [(5, 9, 13), (13, 9), (9, 9, 9, 12)])
def test_what_comes_per_call_comes_as_often_as_the_model_was_called(
    recorded: tuple[int, ...],
) -> None:
    _, average = averaged(9, recorded, 8.5)
    found = sums(average, 40)
    assert found["step"] == found["backward"] == found["optimizer step"] == 40
    assert found["forward"] == found["fc"] == found["aten::addmm"] == found["AddmmBackward0"] == 340
    assert found["aten::add_"] == 300  # one less than calls in each of forty steps
    assert found["aten::sub_"] == 12 * 40


def test_each_of_the_spans_that_are_alike_stands_for_about_as_many() -> None:
    one, average = averaged(9, (5, 9, 13), 8.5)
    calls = average.calls(41)[(one.spans["name"] == "forward").to_numpy()]
    assert calls.sum() == round(8.5 * 41)
    assert set(calls.tolist()) == {38, 39}


def times(trace: Trace, name: str) -> float:
    """Return the latencies of all spans of a name together."""
    return sum(trace.spans.filter(name=name)["latency_ns"].to_list())


def test_times_are_those_of_an_average_evaluation() -> None:
    one, average = averaged(10, (5, 10, 15), 8.0)
    for name, often in (("forward", 0.8), ("fc", 0.8), ("aten::add_", 7 / 9), ("aten::sub_", 1)):
        assert times(average.trace, name) == pytest.approx(often * times(one, name)), name
    for name in ("step", "backward", "optimizer step"):  # as they were measured
        assert times(average.trace, name) == times(one, name)
    inside = times(average.trace, "AddmmBackward0") + times(average.trace, "aten::add_")
    [own_ns] = average.trace.spans.filter(name="backward")["self_ns"]
    assert own_ns == pytest.approx(times(average.trace, "backward") - inside)
    average.trace.check()


def test_of_runs_with_as_many_calls_what_comes_as_often_comes_per_call() -> None:
    found = sums(averaged(10, (10, 10), 9.0)[1], 20)
    assert found["forward"] == 180
    assert found["backward"] == 20


def test_what_no_other_run_has_comes_once_at_least() -> None:
    one = step(10)
    runs = [run(calls) for calls in (2, 3)]
    average = average_evaluation(one, runs, 1.0)
    assert average.calls(1).min() == 1
    assert np.isfinite(average.often).all()


def test_an_interval_is_as_wide_about_the_mean_latency() -> None:
    facts = {"latency_ns": 50, "latency_low_ns": 40, "latency_high_ns": None}
    found = with_mean_latency(facts, 60.0)
    assert (found["latency_ns"], found["latency_low_ns"]) == (60.0, 48.0)
    assert found["latency_high_ns"] is None
