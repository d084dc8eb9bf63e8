"""The open training step of each thread: what a watcher has seen of it."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from xsp.provider import Begun, Inputs, Waiting, Work
from xsp_levels.framework.keras.layer_tree import is_layer
from xsp_levels.framework.torch.program.call import tensor_inputs, trains

NO_BACKWARD = "without backward"


class Local(threading.local):
    """What is known of each thread.

    Attributes:
        inside: Whether the thread is in a call of a model that is handled.
        shell: The frame that calls a module without parameters, which is seen through.
        waiting: The time after that call in which the program waits for xsp, if it is to be told.
        step: The training step of the thread.
        follows: How steps that begin with a call of a model, given by its id, follow others, given
            by their outcome.
    """

    def __init__(self) -> None:
        self.inside = False
        self.shell: FrameType | None = None
        self.waiting: Waiting | None = None
        self.step = TrainingStep()
        self.follows: dict[tuple[int, tuple[str, int]], Following] = {}


class Following:
    """How a training step follows another one.

    Args:
        model: The model whose call begins the step.
        work: That call.
        inputs: Shape and data type of each tensor put into the call.
        streak: The streak that the step goes on with (`provider.Begun`).
        code: The code that looks at calls of the model alone.
    """

    __slots__ = ("_given", "_inputs", "_torch", "code", "model", "streak")

    def __init__(
        self, model: weakref.ref[Any], work: Work, inputs: Inputs, streak: object, code: CodeType
    ) -> None:
        self.model, self.streak, self.code = model, streak, code
        self._inputs, self._torch = inputs, sys.modules["torch"]
        # Shape and data type of each argument, if all are plain tensors: quick to compare.
        self._given: list[tuple[Any, Any]] | None = None
        plain = all(type(value) is self._torch.Tensor for value in work[1])
        if plain and not work[2] and not is_layer(model()):
            self._given = [(value.shape, value.dtype) for value in work[1]]

    def begins(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call is one like that."""
        model = self.model()
        if model is None or model is not module:
            return False
        torch, given = self._torch, self._given
        if given is None or kwargs or len(args) != len(given) or torch._C._is_tracing():
            return trains(module, kwargs) and tensor_inputs(args, kwargs) == self._inputs
        if not (module.training and torch.is_grad_enabled()):
            return False
        tensor = torch.Tensor
        for value, (shape, dtype) in zip(args, given, strict=True):
            if type(value) is not tensor or value.shape != shape or value.dtype is not dtype:
                return False
        return True


class TrainingStep:
    """The training step of a thread.

    Attributes:
        open: Whether a training step is under way.
        pending: Whether the step began with its optimizer, and no model has been called yet.
        model: The model whose call began the step.
        forwards: How often that model was called again.
        had_backward: Whether a backward pass has returned in the step.
        optimizers: Names of the optimizers that stepped.
        expected: Whether an optimizer is going to end the step, which alone need be told.
        told: Whether it went as expected, and an optimizer has ended it.
        begun: The step as the receiver of evaluations knows it.
        pauses: Begin and end of each time in which an expected step waited for the watcher.
    """

    __slots__ = (
        "begun",
        "expected",
        "forwards",
        "had_backward",
        "model",
        "open",
        "optimizers",
        "pauses",
        "pending",
        "told",
    )

    def __init__(self) -> None:
        self.reset()
        self.open = False

    def reset(self) -> None:
        """Begin a new step."""
        self.open, self.pending, self.had_backward, self.forwards = True, False, False, 0
        self.model: weakref.ref[Any] | None = None
        self.optimizers: list[str] = []
        self.expected = self.told = False
        self.pauses: list[tuple[int, int]] = []
        self.begun: Begun | None = None

    @property
    def outcome(self) -> tuple[str, int]:
        """What tells the step from others, and how often its model was called."""
        names = self.optimizers
        stepped = names[0] if len(names) == 1 else " + ".join(sorted(set(names)))
        return stepped or ("" if self.had_backward else NO_BACKWARD), self.forwards + 1

    def holds(self, module: Any) -> bool:
        """Return whether a call surely belongs to the open step, if gradients are on."""
        if not self.open or self.optimizers or not module.training:
            return False
        return self.model is not None and self.model() is not module
