"""Training steps that follow each other at once: none is lost, whatever comes between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import xsp
from xsp.provider import ModelCall
from xsp_levels.framework.torch.module.entry_point import call_entry_point


class Net(nn.Module):  # type: ignore[misc]  # without torch
    """A model that takes nested tensors, and raises if it is told to."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.layer, self.broken = nn.Linear(4, outputs), False

    def forward(self, x: torch.Tensor) -> Any:
        if self.broken:
            raise ZeroDivisionError("the model's own error")
        return self.layer(x.to_padded_tensor(0.0) if x.is_nested else x)


class Loop:
    """What training loops do, one of them by each method's name."""

    def __init__(self) -> None:
        self.net, self.other = Net().train(), Net(3).train()
        both = [*self.net.parameters(), *self.other.parameters()]
        self.first, self.second = (torch.optim.SGD(both, lr=0.01) for _ in range(2))
        self.x = torch.ones(2, 4)

    def train(self) -> int:
        return self._step(self.net, self.x, self.first)

    def train_by_the_second(self) -> int:
        return self._step(self.net, self.x, self.second)

    def train_the_other(self) -> int:
        return self._step(self.other, self.x, self.first)

    def train_nested(self) -> int:
        x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
        return self._step(self.net, x, self.first)

    def close(self) -> int:
        return self._closure(self.net)

    def close_the_other(self) -> int:
        return self._closure(self.other)

    def close_nothing(self) -> int:
        self.first.step(lambda: 0.0)
        return 0

    def fail(self) -> int:
        self.net.broken = True
        with suppress(ZeroDivisionError):
            self.net(self.x)
        self.net.broken = False
        return 0

    def _step(self, net: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> int:
        net(x).sum().backward()
        optimizer.step()
        return 1

    def _closure(self, net: nn.Module) -> int:
        def closure() -> float:
            self.first.zero_grad()
            loss = net(self.x).sum()
            loss.backward()
            return float(loss.detach())

        self.first.step(closure)
        return 1


ACTS = [name for name in vars(Loop) if not name.startswith("_")]


def cycles(acts: list[str], often: int, loop: Loop) -> Iterator[Callable[[], int]]:
    """Yield the first act many times, then the others once, again and again."""
    first, *others = acts
    while True:
        for name in (*[first] * often, *others):
            yield getattr(loop, name)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@settings(max_examples=10, deadline=None)
@given(
    first=st.sampled_from(["train", "close"]),
    others=st.lists(st.sampled_from(ACTS), max_size=4),
    often=st.integers(1, 30),
)
def test_each_step_of_a_loop_is_one_evaluation(first: str, others: list[str], often: int) -> None:
    loop, original = Loop(), nn.Module.__call__.__code__
    acts = cycles([first, *others], often, loop)
    with xsp.profile(levels=2, runs=3000, replay=False, progress=False) as prof:
        made = sum(act() for act in islice(acts, 150))
        while made < 150:
            made += loop.train()
    seen = [each for each in prof._dispatching.journal.evaluations if each.end_ns > each.begin_ns]
    # A step that no call has ended yet goes on with what comes after it.
    assert len(seen) == made
    assert all(0 <= each.paused_ns < each.end_ns - each.begin_ns for each in seen)
    assert call_entry_point()._sparing is None
    assert nn.Module.__call__.__code__ is original


def test_calls_of_another_framework_between_steps_are_evaluations() -> None:
    class Other:
        name = "other"

        def watch(self, evaluations: Any) -> None: ...
        def unwatch(self) -> None: ...

    loop, other = Loop(), Other()
    with xsp.profile(levels=2, runs=3000, replay=False, progress=False) as prof:
        receiver = prof._receivers.of(other)  # type: ignore[arg-type]
        for number in range(120):
            loop.train()
            if number % 3 == 2:
                receiver.run(ModelCall(lambda: sum(range(2000)), subject="Other"))
    calls = {group["model"]: group["calls"] for group in prof.trace.metadata["groups"]}
    assert calls == {"Net": 120, "Other": 40}


def test_another_model_in_a_closure_is_named_though_another_thread_has_called_one() -> None:
    loop, served = Loop(), nn.Linear(4, 4).eval()

    def serve() -> None:
        with torch.no_grad():
            served(loop.x)

    def closure() -> float:
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        loop.other(loop.x).sum().backward()
        return 0.0

    with xsp.profile(levels=2, runs=3000, replay=False, progress=False) as prof:
        for _ in range(60):
            loop.close()
        loop.first.step(closure)
        for _ in range(9):
            loop.close()
    calls = {group["model"]: group["calls"] for group in prof.trace.metadata["groups"]}
    assert calls == {"Net": 69, "Net (2)": 1, "Linear": 1}


def test_each_further_call_of_the_model_in_a_step_is_counted_wherever_it_is_made() -> None:
    loop, original = Loop(), nn.Module.__call__.__code__
    pattern = [4] * 30 + [3] * 5 + [4] * 20 + [6] * 10 + [1] * 5 + [4] * 20

    def call(learns: bool) -> None:  # from one place in the program, whatever the call is
        with torch.set_grad_enabled(learns):
            result = loop.net(loop.x)
        if learns:
            result.sum().backward()

    with xsp.profile(levels=2, runs=3000, replay=False, progress=False) as prof:
        for number, calls in enumerate(pattern):
            for at in range(calls):
                call(learns=at == 0 or number % 7 > 0)
            loop.first.step()
            loop.first.zero_grad()
    seen = prof._dispatching.journal.evaluations
    assert [each.size[0] for each in seen] == pattern
    assert call_entry_point()._sparing is None
    assert nn.Module.__call__.__code__ is original
