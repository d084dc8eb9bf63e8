from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, span_rows, unpack
from xsp_levels.framework.torch.module.source_line import LineRecorder, LineRecords, with_callers
from xsp_levels.framework.torch.provider import Torch

DETAIL = Request(frozenset({Kind.LAYER, Kind.OP}), detail=True)


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Take a measurement of coverage away, which would keep lines from being logged."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


class Passing(nn.Module):  # type: ignore[misc]
    """Passes its call on to its base class, as modules of other libraries do."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.passing = Passing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(x)
        y = x + x
        y = functional.gelu(y)
        y = self.parts(y)
        y = self.passing(y)
        return y.sum()


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def recorded(work: Callable[[], Any], request: Request = DETAIL) -> pl.DataFrame:
    provider = Torch()
    provider.start(SystemClock(), request)
    try:
        work()
    finally:
        records = provider.stop()
    rows = provider.spans(records)
    assert provider.spans(unpack(provider, pack(provider, records))).equals(rows)
    return rows


def callers(rows: pl.DataFrame) -> dict[str, tuple[str | None, int | None]]:
    named = rows.select("name", "attr.caller_function", "attr.caller_line")
    return {name: (function, line) for name, function, line in named.rows()}


def test_layers_carry_the_line_that_called_them() -> None:
    net = Net()

    def predict() -> None:
        net(torch.ones(1, 4))

    rows = recorded(predict).filter(kind="layer")
    found = callers(rows)
    assert found["Net"] == (predict.__qualname__, line_of(predict, "net(torch"))
    assert found["fc1"] == ("Net.forward", line_of(Net.forward, "self.fc1(x)"))
    assert found["passing"] == ("Net.forward", line_of(Net.forward, "self.passing(y)"))
    parts = line_of(Net.forward, "self.parts(y)")
    assert found["parts"] == found["0"] == found["1"] == ("Net.forward", parts)
    assert set(rows["attr.caller_file"]) == {__file__}


def test_operators_carry_the_line_of_the_user_that_called_them() -> None:
    net = Net()
    rows = recorded(lambda: net(torch.ones(1, 4)))
    ops = rows.filter(pl.col("kind") == "op", pl.col("name") != "aten::ones")
    at = dict(ops.select("name", "attr.caller_line").rows())
    assert at["aten::add"] == line_of(Net.forward, "x + x")
    assert at["aten::gelu"] == line_of(Net.forward, "gelu")
    assert at["aten::sum"] == line_of(Net.forward, "y.sum()")
    assert at["aten::abs"] == line_of(Passing.forward, "x.abs()")
    lines = ops.filter(name="aten::addmm")["attr.caller_line"].to_list()
    assert lines == [line_of(Net.forward, text) for text in ("self.fc1", "self.parts")]
    assert ops["attr.caller_line"].null_count() == 0


def test_operators_of_a_function_that_was_under_way_have_lines_too() -> None:
    provider = Torch()
    provider.start(SystemClock(), DETAIL)
    x = torch.ones(3, requires_grad=True)
    y = (x * x).sum()
    y.backward()  # the backward pass
    rows = provider.spans(provider.stop())
    here = inspect.currentframe()
    assert here is not None
    assert here.f_trace is None
    at = dict(rows.select("name", "attr.caller_line").rows())
    first = here.f_code.co_firstlineno
    assert (at["aten::ones"], at["aten::sum"]) == (first + 3, first + 4)
    assert at["MulBackward0"] == first + 5


def test_timed_runs_log_no_lines() -> None:
    net = Net()
    rows = recorded(lambda: net(torch.ones(1, 4)), Request(DETAIL.kinds))
    assert "attr.caller_line" not in rows.columns


def test_a_debugger_is_left_alone() -> None:
    def trace(frame: Any, event: str, argument: Any) -> None:
        return None

    net = Net()
    sys.settrace(trace)
    rows = recorded(lambda: net(torch.ones(1, 4)))
    assert sys.gettrace() is trace
    assert rows.filter(kind="op")["attr.caller_line"].null_count() == len(rows.filter(kind="op"))
    assert rows.filter(name="fc1")["attr.caller_line"].item() == line_of(Net.forward, "self.fc1(x)")


def test_an_operator_has_the_line_that_was_running_when_it_began_on_its_thread() -> None:
    lines = LineRecords(
        7, np.array([10, 20, 30]), np.array([0, 1, -1]), (("f", "a.py", 1), ("g", "a.py", 2))
    )
    rows = span_rows(
        {
            "kind": ["op"] * 6 + ["layer"],
            "name": list("abcdefg"),
            "start_ns": [5, 10, 19, 25, 25, 35, 15],
            "end_ns": [40] * 7,
            "thread": [7, 7, 7, 7, 8, 7, 7],
        }
    )
    found = with_callers(rows, lines).select("name", "attr.caller_line").rows()
    assert found == [
        ("a", None),
        ("b", 1),
        ("c", 1),
        ("d", 2),
        ("e", None),
        ("f", None),
        ("g", None),
    ]
    nothing = LineRecords(7, np.array([], np.int64), np.array([], np.int64), ())
    assert with_callers(rows, nothing)["attr.caller_line"].null_count() == rows.height


def test_logging_ends_on_its_thread_when_another_one_stops_it() -> None:
    recorder = LineRecorder()
    recorder.start(SystemClock())
    thread = threading.Thread(target=recorder.stop)
    thread.start()
    thread.join()
    os.path.join("a", "b")
    assert sys.gettrace() is None


def test_an_exception_of_the_model_passes_and_nothing_is_traced_any_more() -> None:
    class Failing(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    provider = Torch()
    provider.start(SystemClock(), DETAIL)
    with pytest.raises(ZeroDivisionError):
        Failing()(torch.ones(1))
    rows = provider.spans(provider.stop())
    assert sys.gettrace() is None
    assert rows.filter(kind="layer")["attr.caller_line"].null_count() == 0


def test_a_log_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xsp_levels.framework.torch.module.source_line._MOST", 20)
    net = Net()

    def often() -> None:
        for _ in range(30):
            net(torch.ones(1, 4))

    rows = recorded(often).filter(kind="op")
    known = rows["attr.caller_line"].is_not_null().to_numpy()
    assert known[:5].all()
    assert not known[-50:].any()


def test_a_log_ends_within_a_function_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xsp_levels.framework.torch.module.source_line._MOST", 200)
    recorder = LineRecorder()
    recorder.start(SystemClock())
    for _ in range(1000):
        pass
    assert sys.gettrace() is None
    assert len(recorder.stop().time_ns) <= 201


def test_a_compiled_model_is_not_compiled_anew() -> None:
    torch._dynamo.reset()
    net = Net()
    net.passing = nn.Identity()
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(1, 4))
    before = torch._dynamo.utils.counters["frames"]["total"]
    recorded(lambda: compiled(torch.ones(1, 4)))
    assert torch._dynamo.utils.counters["frames"]["total"] == before
    torch._dynamo.reset()
