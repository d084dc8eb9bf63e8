"""Models that are compiled while they are profiled, and have hooks of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp_levels.framework.torch.compiler import Compilations

X = torch.ones(8, 16)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    made.register_forward_hook(lambda _module, _args, _result: None)
    made[1].register_forward_hook(lambda _module, _args, result: result + 1)
    return made


def as_module(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    return torch.compile(model, backend="eager")


def in_place(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    model.compile(backend="eager")
    return model


def as_function(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        return model(x)

    return torch.compile(function, backend="eager")


@torch.no_grad()  # type: ignore[untyped-decorator]
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("compiled", [as_module, in_place, as_function])
def test_a_model_with_hooks_may_be_compiled_while_it_is_watched_and_recorded(
    model: nn.Module, compiled: Callable[[nn.Module], Callable[[torch.Tensor], Any]], levels: int
) -> None:
    expected, call = model(X), compiled(model)
    with xsp.profile(levels=levels, repeat=False) as prof:
        for _ in range(20):
            assert torch.equal(call(X), expected)
        model(X)
    assert prof.trace.metadata["groups"][0]["calls"] >= 1
    torch._dynamo.reset()
    trace = xsp.measure(compiled(model), X, levels=levels, budget=0.3)
    assert trace.root.latency_ns


def test_compilations_are_told_of_once_each_and_no_more_after_the_end() -> None:
    told: list[bool] = []
    compilations = Compilations(lambda begun, _: told.append(begun))
    for wanted in (True, True, False):
        compilations.tell(wanted)
        torch._dynamo.reset()  # which takes all callbacks back
        compilations.tell(False)
        compilations.tell(wanted)
        torch.compile(lambda x: x + 1, backend="eager")(X)
    assert told == [True, False] * 2
    handler = torch._dynamo.callback.callback_handler
    assert compilations._begin not in handler.start_callbacks
