"""Functions that torch.compile made, called in a block."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import xsp
from xsp_levels import stack

X, Y = torch.ones(8, 16), torch.zeros(8, dtype=torch.int64)
STEPS = 30
compiled: Callable[[Any], Any] = torch.compile(backend="eager")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def profiled(run: Callable[[], Any], levels: int = 2) -> xsp.profile:
    with xsp.profile(levels=levels) as prof:
        run()
    return prof


def groups(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def names(trace: xsp.Trace, kind: str = "region") -> set[str]:
    return set(trace.spans.filter(pl.col("kind") == kind)["name"])


def test_calls_of_a_function_are_inference_or_training_as_the_modules_in_it_are() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters())

    @compiled
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(x), y)

    def run() -> None:
        for _ in range(STEPS):
            loss_of(X, Y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for _ in range(STEPS):
                loss_of(X[:4], Y[:4])

    prof = profiled(run)
    assert groups(prof) == {"loss_of training step 8×16": STEPS, "loss_of 4×16": STEPS}
    training = prof.groups["loss_of training step 8×16"]
    assert {"backward", "optimizer step"} <= names(training)
    assert "loss_of" in names(training, "layer")


@pytest.mark.slow
def test_a_step_of_an_optimizer_that_is_compiled_ends_a_training_step() -> None:
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01))

    def clip_and_step() -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    for step in (compiled(optimizer.step), compiled(clip_and_step)):

        def run(step: Callable[[], Any] = step) -> None:
            for _ in range(STEPS):
                nn.functional.cross_entropy(net(X), Y).backward()
                step()

        prof = profiled(run)
        assert groups(prof) == {"Sequential training step 8×16": STEPS}
        (trace,) = prof.groups.values()
        rows = trace.spans.filter(pl.col("kind") == "region")["name"].to_list()
        assert rows.count("optimizer step") == 1
        assert "Sequential" in names(trace, "layer")


@pytest.mark.slow
def test_a_training_step_that_is_compiled_as_a_whole() -> None:
    net = network()
    optimizer = torch.optim.Adam(net.parameters())

    @compiled
    def train(model: nn.Module, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), Y).backward()
        optimizer.step()

    prof = profiled(lambda: [train(model=net, x=X) for _ in range(STEPS)])
    assert groups(prof) == {"train training step 8×16": STEPS}
    (trace,) = prof.groups.values()
    assert "backward" in names(trace)


def encoder() -> type[nn.Module]:
    """Return a class whose methods were compiled just now: what is frozen is not found."""

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        @compiled
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x))

        @compiled
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encode(x).sum()

    return Encoder


def test_functions_within_calls_are_no_evaluations_of_their_own() -> None:
    cls = encoder()
    model = cls().eval()

    @compiled
    def outer(x: torch.Tensor) -> torch.Tensor:
        return model.encode(x) + 1

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run() -> None:
        for _ in range(STEPS):
            model(X)
            model.encode(X)
            outer(X)
            cls.encode(self=model, x=X)  # which no module can be called with

    assert groups(profiled(run)) == {
        "Encoder 8×16": STEPS,
        "Encoder.encode 8×16": STEPS,
        "outer 8×16": STEPS,
    }


def test_the_compiler_leaves_what_samples_python_alone() -> None:
    profiled(lambda: network()(X))
    for function, traced in ((stack._used, False), (network, True)):
        torch._dynamo.utils.counters.clear()
        compiled(function)()
        assert bool(torch._dynamo.utils.counters["frames"]["total"]) is traced


def test_nothing_is_left_in_a_function_and_nothing_is_compiled_again() -> None:
    before = compiled(lambda x: x * 2)
    code, keys = before.__code__, set(vars(before))
    before(X)

    during: Any = None

    def run() -> None:
        nonlocal during
        during = compiled(lambda x: x * 3)
        during(X), before(X)

    prof = profiled(run)
    assert len(groups(prof)) == 2
    traced = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for function in (before, during):
        function(X)
        assert function.__code__ is code
        assert set(vars(function)) == keys
        assert not function.__kwdefaults__
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == traced


def test_a_program_may_drop_a_function_and_its_model() -> None:
    net = network()

    def call(x: torch.Tensor, net: nn.Module = net) -> Any:
        return net(x)

    function = compiled(call)
    dropped = weakref.ref(net)
    with torch.no_grad(), xsp.profile(levels=1):
        del net, call, function
        gc.collect()
        assert dropped() is None
        network()(X)


@pytest.mark.slow
def test_a_model_that_takes_the_place_of_another_is_trained_from_then_on() -> None:
    net = network()
    after = nn.Sequential(network(), nn.Linear(4, 2))

    @compiled
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return net(x).sum()

    def run() -> None:
        nonlocal net
        for model in (net, after):
            net = model
            optimizer = torch.optim.SGD(net.parameters())
            for _ in range(STEPS):
                loss_of(X).backward()
                optimizer.step()

    dropped = weakref.ref(net)
    prof = profiled(run)
    assert groups(prof) == {
        "loss_of training step 8×16": STEPS,
        "loss_of training step 8×16 (2)": STEPS,
    }
    del prof
    gc.collect()
    assert dropped() is None


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_function_that_ends_a_training_step_is_a_part_of_it_as_a_whole() -> None:
    net, loss_of = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters())
    wait = torch.compiler.disable(lambda: time.sleep(0.01))

    @compiled
    def update(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        wait()

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            update(loss_of(net(X), Y))

    prof = profiled(run)
    assert groups(prof) == {"Sequential training step 8×16": STEPS}
    assert (prof.groups["Sequential training step 8×16"].root.latency_ns or 0) > 10_000_000
