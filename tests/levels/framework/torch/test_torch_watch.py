from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic_ns
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import xsp
from xsp.provider import ModelCall
from xsp_levels.framework.torch.program.call import TRAINING_STEP, Modes, TorchCall, module_call
from xsp_levels.framework.torch.program.step import optimizer_exists
from xsp_levels.framework.torch.program.training_step import StepEnds
from xsp_levels.framework.torch.program.watcher import Watch
from xsp_levels.framework.torch.provider import Torch


class Log:
    """Evaluations that write down what they are told."""

    by_hand = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.calls: list[ModelCall] = []
        self.inside: list[Any] = []
        self.model_calls = 0
        self.expected = ""
        self.extended: list[Any] = []
        self.follows = False
        self.followed: list[int] = []
        self.begun = Begun(self)

    def again(self, like: Any, work: Any, found_ns: int) -> tuple[Any, Any] | None:
        """Leave the call to `run`."""
        return None

    def run(self, call: ModelCall) -> Any:
        self.said.append(f"run {call.subject}")
        self.calls.append(call)
        self.inside.append(nn.Module.__call__.__code__)
        return call()

    def begin(self, call: ModelCall | None) -> Begun:
        self.said.append("begin")
        if call is not None:
            self.calls.append(call)
        self.begun = Begun(self)
        return self.begun

    def follow(self, found_ns: int, ended: tuple[str, int]) -> bool:
        """End the open step and begin the next one, if the open one ended as expected."""
        if ended[0] != self.expected:
            return False
        self.followed.append(found_ns)
        self.end(*ended)
        self.said.append("begin")
        return True

    def identify(self, call: ModelCall) -> None:
        self.said.append(f"identify {call.subject}")
        self.calls.append(call)

    def extend(self, until_ns: int | None = None, pauses: Any = ()) -> None:
        self.said.append("extend")
        self.extended.append((until_ns, pauses))

    def end(self, variant: str = "", calls: int = 1) -> None:
        self.said.append(f"end {variant}".rstrip())
        self.model_calls = calls

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Take note of nothing: `test_torch_loop` looks at marks."""

    def problem(self, message: str) -> None:
        raise AssertionError(message)


class Begun:
    """An evaluation that has begun, and has its times written down."""

    begin_ns = left_ns = 0
    end_ns: int | None = None

    def __init__(self, log: Log) -> None:
        self.log = log
        self.expected, self.streak = log.expected, log if log.follows else None

    def follow(self, streak: Any, found_ns: int, ended: tuple[str, int]) -> bool:
        assert streak is self.log
        return self.log.follow(found_ns, ended)

    @property
    def pauses(self) -> list[tuple[int, int]]:
        return []

    @pauses.setter
    def pauses(self, pauses: list[tuple[int, int]]) -> None:
        self.log.extend(self.end_ns, pauses)


class Waiting:
    """A time in which the program waits for xsp."""

    until_ns = 0


class Quick(Log):
    """Evaluations that want the times of calls alone."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, int, int, Waiting]] = []

    def again(self, like: Any, work: Any, found_ns: int) -> tuple[Any, Any] | None:
        function, args, kwargs = work
        result = function(*args, **kwargs)
        self.made.append((like, found_ns, monotonic_ns(), Waiting()))
        return result, self.made[-1][-1]


@contextmanager
def watching() -> Iterator[Log]:
    log, provider = Log(), Torch()
    provider.watch(log)
    try:
        yield log
    finally:
        provider.unwatch()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(2, 4)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).eval()


@pytest.fixture
def no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No optimizer is found, whatever other tests of the process have left behind."""
    monkeypatch.setattr("torch.optim.Optimizer.__subclasses__", list)


def train_step(model: nn.Module, x: torch.Tensor, optimizer: Any = None) -> None:
    loss = nn.MSELoss()(model(x), torch.zeros(2, 1))
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def test_each_outermost_call_is_one_evaluation(model: nn.Module, x: torch.Tensor) -> None:
    original = nn.Module.__call__.__code__
    with torch.no_grad(), watching() as log:
        results = [model(x), model(x)]
    assert log.said == ["run Sequential"] * 2
    assert log.inside == [original] * 2
    assert torch.equal(*results)
    assert log.calls[0].whole_model
    assert log.calls[0].function is model


class Counts(nn.Linear):  # type: ignore[misc]  # torch's classes are of any type
    """A module whose class has a `__call__` of its own, as those of traced graphs have."""

    calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return super().__call__(*args)


@pytest.mark.parametrize("training", [False, True])
def test_a_call_operator_of_the_users_runs_once(x: torch.Tensor, training: bool) -> None:
    model = Counts(4, 1).train(training)
    with watching() as log:
        model(x)
        model(x).sum().backward()
    assert model.calls == 2
    call = log.calls[0]
    assert isinstance(call, TorchCall)
    assert ("training mode" in str(call.hazard())) == training
    call()
    assert model.calls == 2


def test_losses_are_no_evaluations_and_other_models_are(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), watching() as log:
        nn.ReLU()(x)
        model(x)
        nn.Linear(4, 1)(x)
        nn.MSELoss()(x, x)
    assert log.said == ["run Sequential", "run Linear"]


def test_a_users_exception_passes_and_watching_goes_on(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), watching() as log:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(3))
        model(x)
    assert log.said == ["run Sequential"] * 2


def test_a_call_on_another_thread_meanwhile_just_runs(model: nn.Module, x: torch.Tensor) -> None:
    results: list[Any] = []

    def other() -> None:
        with torch.no_grad():
            results.append(model(x))

    def meanwhile(*_: Any) -> None:
        thread = threading.Thread(target=other)
        handle.remove()
        thread.start()
        thread.join()

    handle = model[1].register_forward_hook(meanwhile)
    with torch.no_grad(), watching() as log:
        model(x)
    assert log.said == ["run Sequential"]
    assert len(results) == 1


def test_many_threads_are_never_taken_for_nested_calls(model: nn.Module, x: torch.Tensor) -> None:
    def work() -> None:
        with torch.no_grad():
            for _ in range(200):
                model(x)

    with watching() as log:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(log.said) == {"run Sequential"}
    assert {call.function for call in log.calls if type(call.function) is nn.Linear} == set()


def test_a_training_step_lasts_until_the_optimizer_has_stepped(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        train_step(model, x, optimizer)
        train_step(model, x, optimizer)
    step = ["begin", *["extend"] * 4, "end SGD 1"]  # before and after the optimizer's step
    assert log.said == step * 2
    assert log.calls[0].name == TRAINING_STEP
    assert not log.calls[0].whole_model


def test_accumulated_gradients_are_one_step(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        train_step(model, x, optimizer)
        log.said.clear()
        train_step(model, x)
        train_step(model, x)
        train_step(model, x, optimizer)
    assert log.said.count("begin") == 1


def test_a_step_lasts_until_the_last_of_two_optimizers_has_stepped(
    model: nn.Module, x: torch.Tensor
) -> None:
    model.train()
    first, second = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    with watching() as log:
        for _ in range(2):
            train_step(model, x, first)
            second.step()
    one = ["begin", *["extend"] * 6, "end SGD 1 + SGD 2"]
    assert log.said == one * 2


def test_a_loss_or_transform_after_a_step_is_no_part_of_it(
    model: nn.Module, x: torch.Tensor
) -> None:
    model.train()
    first, second = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    with watching() as log:
        train_step(model, x, first)
        told = list(log.said)
        nn.MSELoss()(x, x), nn.Flatten()(x)
        assert log.said == told
        second.step()  # but for what lies between two optimizers' steps
        assert log.said[len(told) :] == ["extend"] * 2
    assert log.said[-1] == "end SGD 1 + SGD 2"


def test_a_step_of_a_model_that_another_one_begins_says_which_model_is_trained(
    x: torch.Tensor,
) -> None:
    class Generator(nn.Linear):  # type: ignore[misc]
        pass

    generator, critic = Generator(4, 4), nn.Linear(4, 2)
    x = x.new_ones(8, 4)
    trains_critic, trains_generator = (
        torch.optim.SGD(model.parameters(), lr=0.1) for model in (critic, generator)
    )
    with watching() as log:
        for _ in range(2):
            fake = generator(x)
            critic(fake.detach()).sum().backward()
            trains_critic.step()
            critic(fake).sum().backward()
            trains_generator.step()
    assert ends_of(log)[1::2] == ["end SGD 1 of Linear", "end SGD 2 of Generator"] * 2


def test_a_part_of_a_model_that_was_called_before_is_named_by_that(x: torch.Tensor) -> None:
    class Decoder(nn.Sequential):  # type: ignore[misc]
        pass

    model = nn.Sequential(nn.Linear(4, 4), Decoder(nn.Linear(4, 4))).eval()
    x = x.new_ones(8, 4)
    with watching() as log, torch.inference_mode():
        model[0](x), model(x), model[1](x), model[1][0](x)
    named = ["Linear", "Sequential", "Decoder", "Sequential.1.0"]
    assert log.said == [f"run {name}" for name in named]


def batches(x: torch.Tensor, often: int) -> Iterator[torch.Tensor]:
    loader = torch.utils.data.DataLoader(x.repeat(often, 1), batch_size=len(x))
    yield from loader


def test_a_sample_drawn_in_training_mode_is_no_part_of_the_step_on_the_next_batch(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching() as log:
        for batch in batches(x, 4):
            train_step(model.train(), batch, optimizer)
            model(x)
    assert ends_of(log) == ["begin", "end SGD 1", "begin", "end without backward"] * 4


def test_a_sample_is_no_part_of_a_step_whose_gradients_are_emptied_after_it(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching() as log:
        for number in range(8):
            optimizer.zero_grad()
            train_step(model.train(), x, optimizer)
            if number > 4:
                model(x)
    assert ends_of(log).count("end SGD 1") == 8
    assert ends_of(log).count("end without backward") == 3


def test_a_step_goes_on_past_a_second_batch_and_zero_grad_if_its_backward_pass_comes_later(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching() as log:
        others = batches(x, 8)
        for batch in batches(x, 8):
            loss = model.train()(batch).sum() - model(next(others)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert ends_of(log) == ["begin", "end SGD 1"] * 8
    assert log.model_calls == 2


@pytest.mark.usefixtures("no_optimizer")
def test_a_loss_after_the_backward_pass_is_no_part_of_a_step_without_an_optimizer(
    model: nn.Module, x: torch.Tensor
) -> None:
    with watching() as log:
        train_step(model.train(), x)
        told = list(log.said)
        nn.MSELoss()(x, x)
        assert log.said == told


@pytest.mark.parametrize("calls", [40, 120])
def test_steps_that_call_their_model_often_are_known(
    calls: int, model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        for _ in range(3):
            sum(model(x).sum() for _ in range(calls)).backward()
            optimizer.step()
    assert ends_of(log) == ["begin", "end SGD 1"] * 3
    assert log.model_calls == calls


def test_inference_in_training_mode_between_epochs_does_not_grow_the_steps(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        for _ in range(3):
            for _ in range(5):
                train_step(model, x, optimizer)
            for _ in range(60):
                model(x)
    # The first calls may be the beginning of a step.
    assert ends_of(log).count("end SGD 1") == 3 * 5
    assert ends_of(log).count("end without backward") == 3 * (60 - 17)


def test_a_step_made_within_a_call_of_a_model_lasts_until_the_call_has_returned(
    x: torch.Tensor,
) -> None:
    class Trainer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def forward(self, x: torch.Tensor) -> None:
            self.model(x).sum().backward()
            self.optimizer.step()
            time.sleep(0.005)

    trainer = Trainer()
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(30):
            trainer(x)
    [group] = prof.trace.metadata["groups"]
    assert group["calls"] == 30
    assert group["latency_ns"] > 5_000_000


def test_a_part_that_raises_when_it_is_asked_for_attributes_does_no_harm(x: torch.Tensor) -> None:
    class Odd(nn.Linear):  # type: ignore[misc]
        @property
        def batch_first(self) -> bool:
            raise KeyError("batch_first")

    model = nn.Sequential(Odd(4, 2)).eval()
    with watching() as log, torch.no_grad():
        model(x)
    assert ends_of(log) == ["run Sequential"]


@pytest.mark.usefixtures("no_optimizer")
def test_without_an_optimizer_the_next_call_ends_the_step(
    model: nn.Module, x: torch.Tensor
) -> None:
    model.train()
    with watching() as log:
        train_step(model, x)
        train_step(model, x)
    assert log.said == ["begin", "extend", "extend", "end"] * 2


@pytest.mark.usefixtures("no_optimizer")
def test_training_mode_without_any_backward_is_call_by_call(
    model: nn.Module, x: torch.Tensor
) -> None:
    model.train()
    with watching() as log:
        model(x)
        model(x)
    assert log.said == ["begin", "extend", "end without backward"] * 2


@pytest.mark.usefixtures("no_optimizer")
def test_models_that_were_all_left_in_training_mode_have_calls_of_their_own(
    model: nn.Module, x: torch.Tensor
) -> None:
    encoder, loss = nn.Sequential(nn.Linear(4, 4)), nn.MSELoss()
    model.train()
    with watching() as log:
        for _ in range(2):
            encoded = encoder(x)
            model(encoded)
            loss(model(encoded), x[:, :1])
    # Until a model is called again, a backward pass of all may come. A loss is no part of a call.
    assert log.said == ["begin", "extend", "end without backward"] * 4


def descend(*models: nn.Module) -> None:
    """Change parameters by their gradients, without an optimizer."""
    with torch.no_grad():
        for parameter in (each for model in models for each in model.parameters()):
            parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None


@pytest.mark.usefixtures("no_optimizer")
@pytest.mark.parametrize("calls", [1, 2])
def test_two_models_that_are_trained_without_an_optimizer_are_a_step_together(
    model: nn.Module, x: torch.Tensor, calls: int
) -> None:
    encoder = nn.Sequential(nn.Linear(4, 4))
    model.train()
    with watching() as log:
        for _ in range(4):
            encoded = sum(encoder(x) for _ in range(calls))
            model(encoded).sum().backward()
            descend(encoder, model)
    if calls == 1:
        assert ends_of(log) == ["begin", "end"] * 4
    else:  # the first encoder is called again before anything has been trained
        first = ["begin", "end without backward"] * 2
        assert ends_of(log) == [*first, *["begin", "end"] * 4]
    assert log.model_calls == calls


def test_an_optimizer_of_a_class_that_is_gone_trains_two_models_from_the_first_step_on(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = nn.Sequential(nn.Linear(4, 4))
    both = [*model.train().parameters(), *encoder.parameters()]
    torch.optim.SGD(both, lr=0.1)
    monkeypatch.setattr("gc.get_objects", list)
    with watching() as log:
        optimizer = torch.optim.SGD(both, lr=0.1)
        for _ in range(3):
            model(encoder(x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ends_of(log) == ["begin", "end SGD 1"] * 3


def test_samples_drawn_in_training_mode_do_not_part_the_next_step(
    model: nn.Module, x: torch.Tensor
) -> None:
    encoder = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD([*model.train().parameters(), *encoder.parameters()], lr=0.1)
    with watching() as log:
        for _ in range(2):
            for _ in range(3):
                model(encoder(x)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            for _ in range(30):
                encoder(x)
    assert ends_of(log).count("end SGD 1") == 6


def test_an_optimizer_made_after_watching_began_has_steps_of_several_calls(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Descent(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            super().step(closure)

    # As in a process of its own: others' optimizers may be alive still.
    alive: list[Any] = []
    monkeypatch.setattr(f"{optimizer_exists.__module__}._subclasses", lambda _: [Descent])
    monkeypatch.setattr("gc.get_objects", lambda: alive)
    model.train()
    with watching() as log:
        model(x)  # as some do to learn the shapes of what comes out
        alive.append(optimizer := Descent(model.parameters(), lr=0.1))
        for _ in range(2):
            sum(model(x).sum() for _ in range(3)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ends_of(log) == [
        *("begin", "end without backward"),
        *("begin", "end Descent 1", "begin", "end Descent 1"),
    ]
    assert log.model_calls == 3


def test_an_optimizer_that_is_gone_keeps_calls_of_training_mode_apart(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.optim.SGD(model.train().parameters(), lr=0.1)
    asked: list[int] = []
    monkeypatch.setattr("gc.get_objects", lambda: asked)
    with watching() as log:
        monkeypatch.setattr("gc.get_objects", pytest.fail)  # it takes long, and nothing is new
        model(x)
        model(x)
    assert ends_of(log) == ["begin", "end without backward"] * 2


def test_between_forward_and_backward_every_call_belongs_to_the_step(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    other = nn.Linear(1, 1)
    with watching() as log:
        for _ in range(2):
            other(model(x)).sum().backward()
            optimizer.step()
    assert log.said.count("begin") == log.said.count("end SGD 1") == 2
    assert {call.function for call in log.calls} == {model}


def test_micro_batches_before_the_first_step_of_an_optimizer_are_of_that_step(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        train_step(model, x)
        train_step(model, x)
        train_step(model, x, optimizer)
    assert log.said.count("begin") == 1
    assert log.said[-1] == "end SGD 1"
    assert log.model_calls == 3


def test_the_call_that_begins_the_next_step_is_no_call_of_the_last_one(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        for _ in range(2):
            train_step(model, x)
            train_step(model, x, optimizer)
        assert log.said.count("end SGD 1") == 1
        assert log.model_calls == 2


def test_optimizers_are_looked_for_before_any_step_and_only_where_there_were_some(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching():
        monkeypatch.setattr("gc.get_objects", pytest.fail)
        train_step(model, x)
        train_step(model, x, optimizer)
    monkeypatch.setattr("torch.optim.Optimizer.__subclasses__", list)
    with watching():
        pass


def test_an_optimizer_that_calls_the_model_itself_begins_the_step(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).sum()
        loss.backward()
        return loss

    with watching() as log:
        optimizer.step(closure)
        optimizer.step(closure=closure)
    one = ["begin", "identify Sequential", "extend", "extend", "extend", "end SGD 1"]
    assert log.said == one * 2


def test_validation_between_steps_is_an_evaluation_of_its_own(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        train_step(model, x, optimizer)
        with torch.no_grad():
            model.eval()(x)
        train_step(model.train(), x, optimizer)
    assert log.said.count("begin") == log.said.count("end SGD 1") == 2
    assert log.said.count("run Sequential") == 1
    assert [call.phase for call in log.calls] == [TRAINING_STEP, "", TRAINING_STEP]


def test_a_model_left_in_training_mode_that_infers_is_no_part_of_an_open_step(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test's may be alive still.
    monkeypatch.setattr(f"{StepEnds.__module__}.optimizer_exists", lambda: False)
    other = nn.Sequential(nn.Linear(4, 4)).train()
    with watching() as log:
        model.train()(x)  # as constructors do, to learn the shapes of what comes out
        for _ in range(3):
            with torch.inference_mode():
                other(x)
    assert log.said.count("run Sequential (2)") == 3
    assert [call.phase for call in log.calls] == [TRAINING_STEP, "", "", ""]


class Shell(nn.Module):  # type: ignore[misc]
    """Holds a model where PyTorch does not look for parts, and has no parameters of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.act, self.held = nn.ReLU(), [model]

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.held[0](self.act(x)))


def test_a_model_in_a_shell_that_has_no_parameters_is_found(
    model: nn.Module, x: torch.Tensor
) -> None:
    shell = Shell(Shell(model.eval()))
    with torch.no_grad(), watching() as log:
        expected = shell(x)
        assert torch.equal(shell(x), expected)
        nn.ReLU()(x)
        model(x)
    assert log.said == ["run Sequential"] * 3


class Lazy(nn.Module):  # type: ignore[misc]
    """Makes its layer when it is first called."""

    def forward(self, x: torch.Tensor) -> Any:
        if not hasattr(self, "linear"):
            self.linear = nn.Linear(4, 4)
        return self.linear(x)


def test_layers_that_a_model_makes_when_it_is_called_are_no_models(x: torch.Tensor) -> None:
    lazy = Lazy()
    with torch.no_grad(), watching() as log:
        lazy(x)
        lazy(x)
    assert log.said == ["run Lazy"]


def test_a_compiled_module_without_parameters_runs_whatever_hooks_its_parts_have() -> None:
    plain = nn.Sequential(nn.ReLU(), nn.Tanh())
    plain[0].register_forward_hook(lambda _module, _args, _result: None)
    compiled = torch.compile(plain, backend="eager")
    with torch.no_grad(), watching() as log:
        assert compiled(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert log.said == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize:UserWarning")
def test_a_quantized_model_whose_weights_are_packed_is_one(model: nn.Module) -> None:
    quantized = torch.ao.quantization.quantize_dynamic(model.float().eval(), {nn.Linear})
    with torch.no_grad(), watching() as log:
        quantized(torch.ones(2, 4))
    assert log.said == ["run Sequential"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_sizes_of_a_call_that_is_traced_are_not_read(x: torch.Tensor) -> None:
    linear = nn.Linear(4, 4).eval()
    with torch.no_grad(), watching() as log:
        traced = torch.jit.trace(linear, x.float(), check_trace=False)
    assert [call.inputs for call in log.calls] == [()]
    assert "size" not in str(traced.graph)


def test_an_argument_that_cannot_be_looked_at_hides_no_other(x: torch.Tensor) -> None:
    class Odd:
        keys = ("a", "b")

    model = nn.Linear(4, 4)
    model.forward = lambda x, odd: x
    with torch.no_grad(), watching() as log:
        model(x, Odd())
    assert log.calls[0].inputs == (((2, 4), "float32"),)


def test_a_shell_belongs_to_a_training_step(model: nn.Module, x: torch.Tensor) -> None:
    shell, optimizer = Shell(model.train()), torch.optim.SGD(model.parameters(), lr=0.1)
    with watching() as log:
        for _ in range(3):
            shell(x).sum().backward()
            optimizer.step()
    assert log.said.count("begin") == 3


def test_a_call_says_shapes_and_types_of_its_inputs_and_when_it_was_found(
    model: nn.Module, x: torch.Tensor
) -> None:
    with torch.no_grad(), watching() as log:
        model(x)
        nn.Linear(4, 4)(input=x.float())
    assert [call.inputs for call in log.calls] == [(((2, 4), "float32"),)] * 2
    assert all(call.found_ns > 0 for call in log.calls)


class Features(nn.Module):  # type: ignore[misc]
    """Takes a batch as tokenizers return it: a mapping that is no dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: UserDict[str, torch.Tensor]) -> Any:
        return self.linear(batch["values"])


def test_tensors_in_mappings_are_inputs(x: torch.Tensor) -> None:
    with torch.no_grad(), watching() as log:
        Features()(UserDict(values=x, mask=torch.ones(2, dtype=torch.long)))
    assert log.calls[0].inputs == (((2, 4), "float32"), ((2,), "int64"))


def test_two_models_of_one_class_have_names_of_their_own(x: torch.Tensor) -> None:
    one, two = nn.Linear(4, 1), nn.Linear(4, 1)
    with torch.no_grad(), watching() as log:
        one(x)
        two(x)
        one(x)
        del two
        log.calls.clear()
        nn.Linear(4, 1)(x)  # a model made anew for each request keeps the name
    assert log.said == ["run Linear", "run Linear (2)", "run Linear", "run Linear (2)"]


class Cache:
    """Says how long it is, as caches of transformers do."""

    def __init__(self, length: Any = 0) -> None:
        self.length = length

    def get_seq_length(self) -> Any:
        if self.length is None:
            raise ValueError("there is no attention")
        return self.length


@pytest.mark.parametrize(
    ("kwargs", "length", "phase"),
    [
        ({}, 16, ""),
        ({"use_cache": True}, 16, "prefill"),
        ({"past_key_values": object()}, 16, "prefill"),
        ({"past_key_values": object()}, 1, "decode"),
        ({"cache": Cache()}, 16, "prefill"),
        ({"cache": Cache()}, 1, "decode"),
        ({"cache": Cache(20)}, 16, "extend"),
        ({"past_key_values": Cache(torch.tensor(20))}, 16, "extend"),
        ({"past_key_values": Cache(torch.tensor(20, device="meta"))}, 16, "prefill"),
        ({"cache": Cache(None)}, 16, "prefill"),
        ({"cache": Cache(20)}, 1, "decode"),
        ({"cache": {}}, 1, ""),
    ],
)
def test_steps_of_generation_have_a_phase_and_their_leading_input_alone(
    kwargs: dict[str, Any], length: int, phase: str
) -> None:
    provider = Torch()
    ids, mask = torch.ones(1, length, dtype=torch.int64), torch.ones(1, 40)
    call = provider.model_call(nn.Identity(), (ids,), {"attention_mask": mask, **kwargs})
    assert call is not None
    assert call.phase == phase
    assert len(call.inputs) == (1 if phase else 2)


def test_a_step_that_raises_is_ended_without_having_lasted(
    model: nn.Module, x: torch.Tensor
) -> None:
    model.train()
    with watching() as log, pytest.raises(RuntimeError):
        model(torch.ones(3))
    assert log.said == ["begin", "end without backward"]


def test_conditions_set_the_modes_of_a_call(model: nn.Module, x: torch.Tensor) -> None:
    provider = Torch()
    with torch.inference_mode():
        call = provider.model_call(model, (x,), {})
    assert call is not None
    with call.conditions():
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    with ModelCall(len).conditions():
        assert not torch.is_inference_mode_enabled()


def test_only_modules_are_model_calls(model: nn.Module) -> None:
    provider = Torch()
    call = provider.model_call(model, (1,), {"a": 2})
    assert isinstance(call, TorchCall)
    assert (call.function, call.args, call.kwargs) == (model, (1,), {"a": 2})
    assert call.subject == "Sequential"
    assert provider.model_call(len, (), {}) is None


def test_a_model_that_trains_again_is_repeated_in_the_mode_of_its_call(x: torch.Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Dropout()).eval()
    with torch.no_grad(), watching() as log:
        model(x)
    model.train()
    [call] = log.calls
    assert call.hazard() is None
    with call.conditions():
        assert not any(part.training for part in model.modules())
    assert all(part.training for part in model.modules())


def test_repeating_is_safe_in_eval_mode_without_gradients(
    model: nn.Module, x: torch.Tensor
) -> None:
    provider = Torch()

    def hazard() -> str | None:
        call = provider.model_call(model, (x,), {})
        assert call is not None
        return call.hazard()

    assert "gradients on" in str(hazard())
    with torch.no_grad():
        assert hazard() is None
        model[1].train()
        assert "training mode" in str(hazard())
    assert "not known" in str(ModelCall(len).hazard())


def test_the_hazard_is_judged_by_the_modes_of_the_call(model: nn.Module, x: torch.Tensor) -> None:
    with watching() as log, torch.no_grad():
        model(x)
    assert torch.is_grad_enabled()
    assert log.calls[0].hazard() is None


def test_a_traceback_shows_pytorchs_own_line_for_a_watched_call(x: torch.Tensor) -> None:
    class Broken(nn.Linear):  # type: ignore[misc]
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    broken = Broken(4, 4)
    with watching(), pytest.raises(KeyError) as caught:
        broken(x)
    called = [e for e in caught.traceback if e.name == "_wrapped_call_impl"]
    assert called
    assert all("_call_impl(*args, **kwargs)" in str(entry.statement) for entry in called)


@pytest.mark.parametrize(("in_use", "waited_for"), [(False, []), (True, [1])])
def test_only_devices_in_use_are_waited_for(
    in_use: bool, waited_for: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(
        torch._C, "_cuda_hasPrimaryContext", lambda device: device == 1, raising=False
    )
    Torch().synchronize()
    assert waited == waited_for


def test_unwatch_leaves_pytorch_as_it_was(model: nn.Module, x: torch.Tensor) -> None:
    backward, code = torch.autograd.backward, nn.Module.__call__.__code__
    with watching():
        assert torch.autograd.backward is not backward
        assert nn.Module.__call__.__code__ is not code
        model.train()(x)
    assert torch.autograd.backward is backward
    assert nn.Module.__call__.__code__ is code


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads of PyTorch's own
def test_a_forked_child_is_not_watched(model: nn.Module, x: torch.Tensor) -> None:
    backward, code = torch.autograd.backward, nn.Module.__call__.__code__
    with torch.no_grad(), watching() as log:
        child = os.fork()
        if child == 0:
            free = nn.Module.__call__.__code__ is code and torch.autograd.backward is backward
            model(x)
            os._exit(0 if free and not log.said else 1)
        assert os.waitpid(child, 0)[1] == 0
        model(x)
    assert log.said == ["run Sequential"]


def test_modes_are_told_apart() -> None:
    plain = Modes.current()
    with torch.no_grad():
        assert Modes.current() != plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Modes.current() != plain
    assert Modes.current() == plain


def ends_of(log: Log) -> list[str]:
    """What a watcher said, but how long a step has lasted in between."""
    return [said for said in log.said if said != "extend"]


def test_of_a_step_that_is_expected_the_end_alone_is_told(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    original = nn.Module.__call__.__code__
    with watching() as log:
        log.expected = "SGD 1"
        for _ in range(2):
            loss = nn.MSELoss()(model(x) + model(2 * x), torch.zeros(2, 1))
            loss.backward()
            optimizer.step()
    assert log.said == ["begin", "extend", "end SGD 1"] * 2
    assert log.model_calls == 2
    assert nn.Module.__call__.__code__ is original


def test_a_step_after_one_that_went_as_expected_is_told_of_with_its_end(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        log.expected, log.follows = "SGD 1", True
        for _ in range(6):
            train_step(model, x, optimizer)
            before_ns = time.monotonic_ns()
    assert log.said == ["begin", "extend", "end SGD 1"] * 6
    assert len(log.followed) >= 3  # all but those of which nothing was known at first
    assert log.followed[-1] < log.begun.begin_ns < before_ns


def test_a_step_that_two_optimizers_end_is_not_followed_as_if_it_were_one_of_one(
    model: nn.Module, x: torch.Tensor
) -> None:
    first, second = (torch.optim.SGD(model.train().parameters(), lr=0.1) for _ in range(2))
    with watching() as log:
        log.expected, log.follows = "SGD 1", True
        train_step(model, x, first)
        second.step()
        train_step(model, x, first)
    assert ends_of(log) == ["begin", "end SGD 1 + SGD 2", "begin", "end SGD 1"]


def closure_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Make a step whose optimizer makes the forward pass, as Lightning's do."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)


def test_a_step_that_an_optimizer_begins_follows_one_that_went_as_expected(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        for expected in ("", *["SGD 1"] * 7):
            log.expected, log.follows = expected, True
            closure_step(model, x, optimizer)
    told = [each for each in ends_of(log) if not each.startswith("identify")]
    assert told == ["begin", "end SGD 1"] * 8
    assert len(log.followed) >= 4  # all but those of which nothing was known at first
    (until_ns, pauses) = log.extended[-1]
    times = [at for pause in pauses for at in pause]
    assert times == sorted(times)
    assert len(pauses) >= 3  # before and after the call, and after the backward pass
    assert log.begun.begin_ns < times[0]
    assert times[-1] < until_ns


def test_a_step_that_follows_and_calls_another_model_names_it(
    model: nn.Module, x: torch.Tensor
) -> None:
    other = nn.Sequential(nn.Linear(4, 1)).train()
    optimizer = torch.optim.SGD([*model.train().parameters(), *other.parameters()], lr=0.1)
    with watching() as log:
        log.expected, log.follows = "SGD 1", True
        for _ in range(6):
            closure_step(model, x, optimizer)
        followed = len(log.followed)
        log.said.clear()
        closure_step(other, x, optimizer)
        closure_step(model, torch.ones(7, 4), optimizer)
        optimizer.step(lambda: 0.0)  # calls no model
        closure_step(model, x, optimizer)
    assert len(log.followed) > followed > 0
    identified = [each for each in log.said if each.startswith("identify")]
    assert identified[:2] == ["identify Sequential (2)", "identify Sequential"]
    assert sum(each.startswith("end") for each in log.said) == 5
    assert log.calls[-1].subject == "Sequential"


def test_watching_may_end_while_a_step_follows_another(model: nn.Module, x: torch.Tensor) -> None:
    class Ending(Log):
        def follow(self, found_ns: int, ended: tuple[str, int]) -> bool:
            watch.abandon()  # as another thread does whose evaluation was the last one wanted
            return super().follow(found_ns, ended)

    original, log = nn.Module.__call__.__code__, Ending()
    log.expected, log.follows = "SGD 1", True
    watch = Watch(log)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    try:
        for _ in range(5):
            train_step(model, x, optimizer)
    finally:
        watch.close()
    assert len(log.followed) == 1
    assert log.said[-1] == "begin"
    assert nn.Module.__call__.__code__ is original


def test_ctrl_c_while_a_step_follows_another_ends_both(model: nn.Module, x: torch.Tensor) -> None:
    class Interrupted(Log):
        def follow(self, found_ns: int, ended: tuple[str, int]) -> bool:
            self.said.append("interrupted")
            raise KeyboardInterrupt

    log, provider = Interrupted(), Torch()
    log.expected = "SGD 1"
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    provider.watch(log)
    try:
        train_step(model, x, optimizer)
        train_step(model, x, optimizer)
        log.follows = True
        train_step(model, x, optimizer)
        with pytest.raises(KeyboardInterrupt):
            model(x)
        log.said.clear()
        optimizer.step()  # of no step that anyone knows
        train_step(model, x, optimizer)
    finally:
        provider.unwatch()
    assert log.said == ["begin", "extend", "end SGD 1"]


def test_a_call_without_gradients_does_not_follow_a_step(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        log.expected, log.follows = "SGD 1", True
        train_step(model, x, optimizer)
        with torch.no_grad():
            model(x)
    assert ends_of(log) == ["begin", "end SGD 1", "run Sequential"]
    assert not log.followed


def test_pauses_of_an_expected_step_lie_in_it_one_after_the_other(
    model: nn.Module, x: torch.Tensor
) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        log.expected = "SGD 1"
        train_step(model, x)
        train_step(model, x, optimizer)
    [(until_ns, pauses)] = log.extended
    times = [at for pause in pauses for at in pause]
    assert times == sorted(times)
    assert len(pauses) >= 3
    assert times[-1] < until_ns


def test_an_expected_step_that_no_optimizer_ends_is_over_when_it_was(
    model: nn.Module, x: torch.Tensor
) -> None:
    _optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    with watching() as log:
        log.expected = "SGD 1"
        train_step(model, x)
        time.sleep(0.05)
        late_ns = time.monotonic_ns()
    assert log.said == ["begin", "extend", "end"]
    [(until_ns, pauses)] = log.extended
    assert pauses[-1][0] == until_ns < late_ns - 50_000_000


def test_an_expected_step_whose_call_raises_leaves_nothing_behind(
    model: nn.Module, x: torch.Tensor
) -> None:
    original = nn.Module.__call__.__code__
    with watching() as log:
        log.expected = "SGD 1"
        with pytest.raises(RuntimeError, match="shapes"):
            model.train()(torch.ones(3))
        log.expected = ""
        with torch.no_grad():
            model.eval()(x)
    assert ends_of(log) == ["begin", "end without backward", "run Sequential"]
    assert nn.Module.__call__.__code__ is original


def test_a_model_whose_step_was_expected_can_be_freed(x: torch.Tensor) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching() as log:
        log.expected = "SGD 1"
        train_step(model, x, optimizer)
        seen = weakref.ref(model)
        log.calls.clear()
        del model, optimizer
        gc.collect()
        assert seen() is None


def test_calls_of_other_threads_are_seen_while_a_step_is_expected(
    model: nn.Module, x: torch.Tensor
) -> None:
    other, turns = nn.Linear(4, 1).eval(), [threading.Event() for _ in range(2)]

    def infer() -> None:
        turns[0].wait()
        with torch.no_grad():
            other(x)
        turns[1].set()

    thread = threading.Thread(target=infer)
    thread.start()
    with watching() as log:
        log.expected = "SGD 1"
        model.train()(x)  # a step without end
        turns[0].set()
        turns[1].wait()
    thread.join()
    assert ends_of(log) == ["begin", "run Linear", "end without backward"]


EVENTS = (
    *("train", "infer", "other", "loss", "backward", "first", "second", "raise", "eval"),
    *("wrap", "often"),
)


class Wrapper(nn.Module):  # type: ignore[misc]
    """Calls a model in a call of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.model(x)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_an_expectation_changes_nothing_of_which_steps_and_calls_there_are(
    events: list[str],
) -> None:
    def said(*, expects: bool) -> list[str]:
        model, other = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1))
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
        losses: list[torch.Tensor] = []
        with watching() as log:
            told, log.follows = 0, expects
            for event in ["train", "backward", "first", *events]:
                play(event, model, other, losses, {"first": first, "second": second})
                ends = [each for each in log.said[told:] if each.startswith("end")]
                told = len(log.said)
                if ends and expects:  # as the dispatcher does: the next one is like the last one
                    log.expected = ends[-1].removeprefix("end").strip()
        return [*ends_of(log), str(log.model_calls)]

    assert said(expects=True) == said(expects=False)


def play(
    event: str, model: nn.Module, other: nn.Module, losses: list[torch.Tensor], steps: Any
) -> None:
    """Do one thing that training loops do, in any order."""
    x = torch.ones(2, 4)
    if event in ("train", "raise"):
        with suppress(RuntimeError):
            losses.append(model(x if event == "train" else torch.ones(3)).sum())
    elif event == "other":
        losses.append(other(x).sum())
    elif event == "wrap":
        losses.append(Wrapper(model)(x).sum())
    elif event == "often":  # training mode was left on for inference
        for _ in range(20):
            model(x)
    elif event == "loss":
        nn.MSELoss()(x, x)
    elif event == "infer":
        with torch.no_grad():
            model(x)
    elif event == "eval":
        model.eval()(x)
        model.train()
    elif event == "backward":
        if losses:
            losses.pop().backward()
    else:
        steps[event].step()


def test_a_call_whose_times_alone_are_wanted_is_made_at_once_and_its_end_told_last() -> None:
    log, provider = Quick(), Torch()
    model, loss = nn.Linear(3, 2).eval(), nn.MSELoss()
    inputs, wanted = torch.ones(4, 3), torch.zeros(4, 2)
    plain = model(inputs)
    provider.watch(log)
    try:
        with torch.no_grad():
            before_ns = monotonic_ns()
            for _ in range(3):
                assert torch.equal(model(inputs), plain)
                loss(plain, wanted)  # is no model, and ends nothing
            after_ns = monotonic_ns()
        with pytest.raises(RuntimeError, match="shapes"), torch.no_grad():
            model(wanted)
    finally:
        provider.unwatch()
    assert not log.said
    times = [before_ns]
    for like, found_ns, returned_ns, waiting in log.made:
        assert like == ("Linear", "", (((4, 3), "float32"),))
        times += [found_ns, returned_ns, waiting.until_ns]
    assert len(log.made) == 3
    assert [*times, after_ns] == sorted([*times, after_ns])


def test_a_call_that_becomes_one_of_other_work_has_the_modes_of_that_time() -> None:
    model = nn.Linear(3, 2)
    call = module_call(model, (torch.ones(1, 3),), {})
    assert call.hazard() is not None  # in training mode
    model.eval()
    inputs = torch.ones(4, 3)
    with torch.inference_mode():
        call.take((model, (inputs,), {}), (((4, 3), "float32"),))
    assert call.hazard() is None
    with call.conditions():
        assert torch.is_inference_mode_enabled()
        assert call().shape == (4, 2)
