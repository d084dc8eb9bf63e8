from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.record.session.calibration import calibrate, inside_cost
from xsp_levels.framework.torch.provider import Torch


class Empty(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x


@pytest.mark.timing
@pytest.mark.parametrize("kind", [Kind.LAYER, Kind.OP])
def test_recording_costs_less_than_a_microsecond_inside(kind: Kind) -> None:
    made = calibrate(Torch(), kind, SystemClock())
    assert made is not None
    cost = inside_cost(made)
    assert cost is not None
    assert abs(cost.cost_ns) < 1_000
    assert cost.error_ns > 0


@pytest.mark.parametrize("kind", [Kind.LAYER, Kind.OP])
def test_empty_spans_leave_nothing_that_the_program_sees(
    kind: Kind, capfd: pytest.CaptureFixture[str]
) -> None:
    call, state = nn.Module.__call__.__code__, torch.random.get_rng_state()
    calibrate(Torch(), kind, SystemClock())
    assert nn.Module.__call__.__code__ is call
    assert not torch.autograd._profiler_enabled()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_hooks_of_the_program_see_no_empty_layer() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert Torch().empty_span(Kind.LAYER) is None
    finally:
        hook.remove()
    assert Torch().empty_span(Kind.LAYER) is not None


def test_a_block_shows_no_empty_module_of_the_calibration() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Empty()).eval()
    with torch.no_grad(), xsp.profile(levels=2) as profile:
        model(torch.ones(2))
    names = profile.trace.spans["name"].to_list()
    assert "EmptyModule" not in names


def excess_of_empty_modules() -> float:
    """Return by what part of the cost inside the latencies of empty modules are too high."""
    model, now = nn.Sequential(*(Empty() for _ in range(30))).eval(), time.monotonic_ns
    true: list[list[int]] = [[] for _ in model]

    def read_clock(_: float) -> None:
        for _ in range(20):
            for at, layer in enumerate(model):
                begin = now()
                layer(None)
                end = now()
                true[at].append(end - begin)

    trace = xsp.measure(model, None, levels=2, runs=30, statistic="median", progress=read_clock)
    layers = trace.spans.filter(trace.spans["parent_id"] == trace.spans["span_id"][1])
    assert layers.height == len(model)
    cost = next(r["inside_cost_ns"] for r in trace.metadata["passes"] if r["pass"] == "layer")
    return (
        statistics.median(layers["latency_ns"]) - statistics.median(map(statistics.median, true))
    ) / float(cost)


@pytest.mark.timing
def test_an_empty_module_takes_as_long_as_two_clock_reads_say() -> None:
    # Without calibration the excess is 1: the whole cost. A busy machine can do as much.
    assert any(abs(excess_of_empty_modules()) < 0.5 for _ in range(12))
