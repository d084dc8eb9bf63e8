from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.provider import Request, pack, unpack
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


def test_a_debugger_is_left_alone() -> None:
    def trace(frame: Any, event: str, argument: Any) -> None:
        return None

    net = Net()
    sys.settrace(trace)
    rows = recorded(lambda: net(torch.ones(1, 4)))
    assert sys.gettrace() is trace
    assert rows.filter(kind="op")["attr.caller_line"].null_count() == len(rows.filter(kind="op"))
    assert rows.filter(name="fc1")["attr.caller_line"].item() == line_of(Net.forward, "self.fc1(x)")


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
