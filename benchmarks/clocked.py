"""Programs that read the clock themselves: what `programs.py` compares xsp with."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import nn

TRAINING = "training step"
INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class Label:
    """Name of a step, as the program itself would say it.

    Attributes:
        model: Class of the model.
        phase: What the model does, as in `trace.metadata["groups"]`.
        shape: Shape of the first input, as `8×3`; empty where it varies or does not matter.
    """

    model: str
    phase: str = INFERENCE
    shape: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.model, self.phase, self.shape)))

    def names(self, group: Mapping[str, Any]) -> bool:
        """Return whether a group of `trace.metadata["groups"]` is of such steps."""
        if (group["model"], group["phase"]) != (self.model, self.phase):
            return False
        shapes = group["shapes"]
        return not self.shape or (bool(shapes) and shapes[0].rpartition(" ")[0] == self.shape)


class Clock:
    """Reads the clock around steps, in a program with xsp and without it alike.

    Attributes:
        times: Label, begin and end in ns of each step, in the order of their ends.
        before: Called before each step.
    """

    def __init__(self) -> None:
        self.times: list[tuple[Label, int, int]] = []
        self.before: Callable[[], None] = lambda: None
        self._steps = threading.local()

    @contextmanager
    def around(self, label: Label) -> Iterator[None]:
        """Read the clock around one step."""
        self.before()
        begin = perf_counter_ns()
        yield
        self.times.append((label, begin, perf_counter_ns()))

    def calls(self, model: nn.Module, label: Callable[..., Label]) -> None:
        """Read the clock around each call of a model that is not in a training step.

        Args:
            model: The model, which becomes one of a subclass of its class.
            label: Given the arguments of the call, returns what the call is.
        """

        def timed(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if model.training:
                return inner(*args, **kwargs)
            self.before()
            begin = perf_counter_ns()
            result = inner(*args, **kwargs)
            self.times.append((label(*args, **kwargs), begin, perf_counter_ns()))
            return result

        _replace_call(model, timed)

    def steps(self, models: Sequence[nn.Module], *optimizers: torch.optim.Optimizer) -> None:
        """Read the clock from the first call of a model in training until an optimizer stepped."""

        def opened(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            model = inner.__self__  # type: ignore[attr-defined]
            if model.training and torch.is_grad_enabled():
                self._open(type(model).__name__)
            return inner(*args, **kwargs)

        for model in models:
            _replace_call(model, opened)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self._open(type(models[0]).__name__))
            optimizer.register_step_post_hook(self._close)

    def _open(self, name: str) -> None:
        if getattr(self._steps, "open", None) is None:
            self.before()
            self._steps.open = name, perf_counter_ns()

    def _close(self, *_: object) -> None:
        end = perf_counter_ns()
        name, begin = self._steps.open
        self._steps.open = None
        self.times.append((Label(name, TRAINING), begin, end))


def _replace_call(model: nn.Module, around: Callable[..., Any]) -> None:
    """Make each call of a model `around(call, *args, **kwargs)`."""
    usual = type(model)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(super(subclass, self).__call__, *args, **kwargs)

    named = {"__call__": call, "__module__": usual.__module__}
    subclass = type(usual.__name__, (usual,), named)
    model.__class__ = subclass


@dataclass(slots=True)
class Program:
    """A program in a fresh state, to be run once.

    Attributes:
        run: What a user would put in a `with` block; returns what the program computes.
        clock: What the program's own clock says.
        state: What else the program leaves behind: models, optimizers, caches.
    """

    run: Callable[[], Any]
    clock: Clock
    state: dict[str, Any] = field(default_factory=dict)


def seed() -> None:
    """Bring all generators of random numbers into the same state."""
    random.seed(0)
    np.random.seed(0)  # the generator that users' programs use
    torch.manual_seed(0)


def digest(*values: Any) -> str:
    """Return a hash of every bit of what a program left behind, and of the random generators."""
    found = hashlib.blake2b(digest_size=8)
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    _feed(found, (values, generators))
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        array = value.detach().contiguous()
        found.update(f"{array.dtype} {tuple(array.shape)}".encode())
        found.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        found.update(value.tobytes())
    elif isinstance(value, nn.Module | torch.optim.Optimizer):
        _feed(found, value.state_dict())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            found.update(repr(key).encode())
            _feed(found, each)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            _feed(found, each)
    else:
        found.update(repr(value).encode())
