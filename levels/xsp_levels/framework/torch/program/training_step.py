"""The open training step of each thread: what a watcher has seen of it."""

from __future__ import annotations

import threading
import weakref
from types import FrameType
from typing import Any, NamedTuple

from xsp.provider import Follow, Inputs, Waiting

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


class Following(NamedTuple):
    """How a training step follows another one.

    Attributes:
        model: The model whose call begins the step.
        inputs: Shape and data type of each tensor put into that call.
        follow: What closes the one and opens the other (`provider.Begun`).
    """

    model: weakref.ref[Any]
    inputs: Inputs
    follow: Follow


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
        pauses: Begin and end of each time in which an expected step waited for the watcher.
    """

    __slots__ = (
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

    @property
    def outcome(self) -> tuple[str, int]:
        """What tells the step from others, and how often its model was called."""
        stepped = " + ".join(sorted(set(self.optimizers)))
        return stepped or ("" if self.had_backward else NO_BACKWARD), self.forwards + 1

    def holds(self, module: Any) -> bool:
        """Return whether a call surely belongs to the open step, if gradients are on."""
        if not self.open or self.optimizers or not module.training:
            return False
        return self.model is not None and self.model() is not module
