"""What a watcher has seen of a program's training steps in; what the next call is to them out."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from xsp.provider import NO_BACKWARD, Begun, Inputs, Likeness, ModelCall, Waiting, Work
from xsp_levels.framework.keras.layer_tree import is_layer
from xsp_levels.framework.torch.program.call import (
    dtype_name,
    generation_phase,
    may_hold_tensors,
    tensor_inputs,
    told_of,
    trains,
)
from xsp_levels.framework.torch.program.step import optimizer_classes, optimizer_exists

_PATIENCE = 4  # times the usual number of calls before a backward pass, to wait for one
_FEWEST = 4  # calls that are taken for usual, at least
# Parts of a program that mostly lie between two training steps, and how many steps must have shown
# that they never lie between a step's first call and its backward pass.
_BETWEEN = {"data loading": 1, "zero_grad": 4}
_FIRST_PATIENCE = 128  # calls before the first one: sentences and games are long

# Id of what begins a training step, and the outcome of the step before.
After = tuple[int, tuple[str, int]]


class Local(threading.local):
    """What is known of each thread.

    Attributes:
        inside: Whether the thread is in a call of a model that is handled.
        shell: The frame that calls a module without parameters, which is seen through.
        known: The last evaluation of each model that was a single call, by the model's id.
        waiting: The time after that call in which the program waits for xsp, if it is to be told.
        step: The training step of the thread.
        again: From where the model of an expected step was last found to be called again,
            outermost, and how many times it had been called again before.
        follows: How steps that begin with a call of a model or a step of an optimizer, given by the
            id of either, follow others, given by their outcome.
    """

    def __init__(self) -> None:
        self.inside = False
        self.shell: FrameType | None = None
        self.known: dict[int, Known] = {}
        self.waiting: Waiting | None = None
        self.step = TrainingStep()
        self.again: tuple[CodeType, int, int] | None = None
        self.follows: dict[After, Following] = {}


class Given:
    """What a call is given, if that is quick to compare with what another call is given.

    Args:
        args: Plain tensors, numbers, texts, truth values and None; anything else is like nothing.
        kwargs: The same, by keyword.
        others: Whether what is neither these nor holds tensors is like others of its type.
    """

    __slots__ = ("_count", "_keys", "_kinds", "_shapes", "_tensor", "_tracing")

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, others: bool = False
    ) -> None:
        torch = sys.modules["torch"]
        self._tensor, self._tracing = torch.Tensor, torch._C._is_tracing
        self._count, self._keys = len(args), tuple(kwargs)
        # Of each tensor its data type and how that is called; of what else there is None, and the
        # type or value.
        self._kinds: list[tuple[str | None, Any]] | None = []
        self._shapes: list[Any] = []  # beside these; None of what has no shape
        for value in (*args, *kwargs.values()):
            is_tensor = type(value) is torch.Tensor
            self._shapes.append(value.shape if is_tensor and not value.is_nested else None)
            if is_tensor:
                self._kinds.append((dtype_name(value.dtype), value.dtype))
            elif value is None or type(value) is bool:
                self._kinds.append((None, value))
            elif type(value) in (int, float, str) or (others and not may_hold_tensors(value)):
                self._kinds.append((None, type(value)))
            else:
                self._kinds = None
                break

    def is_same(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call is known to be given the like, and tensors of the same shapes."""
        kinds = self._kinds
        if kinds is None or len(args) != self._count or self._tracing():
            return False
        if kwargs or self._keys:
            if tuple(kwargs) != self._keys:
                return False
            args = (*args, *kwargs.values())
        tensor = self._tensor
        try:
            for value, (dtype, what), shape in zip(args, kinds, self._shapes, strict=True):
                if dtype is None:
                    if value is not what and type(value) is not what:
                        return False
                elif type(value) is not tensor or value.dtype is not what or value.shape != shape:
                    return False
        except RuntimeError:  # nested tensors have no shape
            return False
        return True

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs | None:
        """Return shape and data type of the tensors that a call is given.

        None if it is given things of other kinds, or that is not known. Tensors may have other
        shapes.
        """
        kinds = self._kinds
        if kinds is None or len(args) != self._count or tuple(kwargs) != self._keys:
            return None
        if self._tracing():  # which would note the sizes that are read
            return None
        tensor, found = self._tensor, list[tuple[tuple[int, ...], str]]()
        for value, (dtype, what) in zip((*args, *kwargs.values()), kinds, strict=True):
            if dtype is None:
                if value is not what and type(value) is not what:
                    return None
            elif type(value) is tensor and value.dtype is what and not value.is_nested:
                found.append((tuple(value.shape), dtype))
            else:  # nested tensors have no shape
                return None
        return tuple(found)


class Known:
    """A call of a model that is an evaluation by itself, by which the next ones are known.

    Args:
        module: The model.
        work: The call.
        like: What the call has in common with others.
    """

    __slots__ = ("_given", "_grad", "_like", "_model", "_name", "_phase")

    def __init__(self, module: Any, work: Work, like: Likeness) -> None:
        _, args, kwargs = work
        self._model, self._like = weakref.ref(module), like
        self._name, self._phase, _ = like
        # In a phase the leading tensor alone tells calls apart: what else is given, as a cache, is
        # not looked into.
        self._given = Given(args, kwargs, others=bool(self._phase))
        self._grad = sys.modules["torch"].is_grad_enabled

    def likeness(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Likeness | None:
        """Return what a call has in common with others, if it is known to be one like that.

        Its tensors may have other shapes.
        """
        model = self._model()
        if model is None or model is not module or (model.training and self._grad()):
            return None
        phase = self._phase
        if not phase and self._given.is_same(args, kwargs):
            return self._like
        inputs = self._given.inputs(args, kwargs)
        if inputs is None or (phase and phase != generation_phase(kwargs, inputs)):
            return None
        return self._name, phase, told_of(phase, inputs)


class Following:
    """How a training step follows another one.

    Args:
        module: The model whose call is the first of the step.
        call: That call.
        streak: The streak that the step goes on with (`provider.Begun`).
        code: The code that looks at calls of the model alone.

    Attributes:
        model: The model.
    """

    __slots__ = ("_given", "_grad", "_inputs", "code", "model", "streak")

    def __init__(self, module: Any, call: ModelCall, streak: object, code: CodeType) -> None:
        self.model, self.streak, self.code = weakref.ref(module), streak, code
        self._inputs = call.inputs
        self._given = None if is_layer(module) else Given(call.args, call.kwargs)
        self._grad: Callable[[], bool] = sys.modules["torch"].is_grad_enabled

    def begins(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call is one like that."""
        model = self.model()
        if model is None or model is not module:
            return False
        if self._given is not None and self._given.is_same(args, kwargs):
            return bool(module.training) and self._grad()
        return trains(module, kwargs) and tensor_inputs(args, kwargs) == self._inputs


class TrainingStep:
    """The training step of a thread.

    Attributes:
        open: Whether a training step is under way.
        pending: Whether the step began with its optimizer, and no model has been called yet.
        model: The model whose call began the step.
        forwards: How often that model was called again.
        had_backward: Whether a backward pass has returned in the step.
        parts: Names of the program's parts that came in it before any backward pass.
        optimizers: Names of the optimizers that stepped.
        lone: Whether the step began while the program was idle (`StepEnds.idle`).
        expected: Whether an optimizer is going to end the step, which alone need be told.
        told: Whether it went as expected, and an optimizer has ended it.
        following: How it follows the step before, until its first call is made; None: as any step.
        after: Id of the optimizer that began the step, and the outcome of the step before.
        begun: The step as the receiver of evaluations knows it.
        pauses: Begin and end of each time in which an expected step waited for the watcher.
    """

    __slots__ = (
        "after",
        "begun",
        "expected",
        "following",
        "forwards",
        "had_backward",
        "lone",
        "model",
        "open",
        "optimizers",
        "parts",
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
        self.parts: frozenset[str] = frozenset()
        self.expected = self.told = self.lone = False
        self.pauses: list[tuple[int, int]] = []
        self.begun: Begun | None = None
        self.following: Following | None = None
        self.after: After | None = None

    @property
    def outcome(self) -> tuple[str, int]:
        """What tells the step from others, and how often its model was called."""
        names, calls = self.optimizers, 0 if self.pending else self.forwards + 1
        stepped = names[0] if len(names) == 1 else " + ".join(sorted(set(names)))
        return stepped or ("" if self.had_backward else NO_BACKWARD), calls

    def holds(self, module: Any) -> bool:
        """Return whether a call surely belongs to the open step, if gradients are on."""
        if not self.open or self.optimizers or not module.training:
            return False
        return self.model is not None and self.model() is not module


class StepEnds:
    """What ends the training steps of a program, as far as the program has shown.

    Attributes:
        optimizes: Whether there is an optimizer; None: not known.
        trains: Whether backward passes are to be expected.
        idle: Whether a model was called again without a backward pass or an optimizer, and the
            program has shown neither so far: models were left in training mode for inference.
    """

    def __init__(self) -> None:
        self.optimizes: bool | None = None
        self.trains = self.idle = False
        self._classes = 0  # of optimizers, when these were last looked for
        self.look()
        # Most further calls of a model before a backward pass; None: there was none yet.
        self._usual_forwards: int | None = None
        self._steps, self._parts = 0, frozenset[str]()

    def look(self) -> None:
        """Look for an optimizer before a step begins, which takes long, if there may be a new one.

        Most scripts make theirs long after watching began, and before the first call of a model.
        Where one of the same class is gone by then, a new one is found by its first step only.
        """
        if self.optimizes is None and (classes := optimizer_classes()) > self._classes:
            self._classes, self.optimizes = classes, optimizer_exists() or None
            self.trains |= bool(self.optimizes)

    def note_backward(self, step: TrainingStep) -> None:
        """Note that a backward pass has returned, perhaps in a step."""
        self.trains, self.idle = True, False
        if step.open and not step.had_backward:
            step.had_backward = True
            self._usual_forwards = max(self._usual_forwards or _FEWEST, step.forwards)

    def note_optimizer(self, step: TrainingStep) -> None:
        """Note that an optimizer has ended a step."""
        self._steps, self._parts = self._steps + 1, self._parts | step.parts

    def is_over_before(self, step: TrainingStep, part: str) -> bool:
        """Return whether a part of the program shows that a step gets no backward pass any more.

        A model in training mode may have drawn a sample between two steps, say.
        """
        if part not in _BETWEEN or step.had_backward or step.pending:
            return False
        if part in self._parts or self._steps < _BETWEEN[part]:
            step.parts |= {part}
            return False
        return True

    def is_inference(self, step: TrainingStep) -> bool:
        """Return whether training mode was left on for inference, long after the usual calls."""
        usual = self._usual_forwards
        most = _FIRST_PATIENCE if usual is None else _PATIENCE * usual
        return not step.had_backward and step.forwards > most

    def note_again(self, step: TrainingStep) -> None:
        """Note that the model of a step is called again, in training mode, before anything else."""
        seen = self.trains or self.optimizes or self._usual_forwards is not None
        self.idle |= not (seen or step.had_backward)

    def has_own_calls(self, step: TrainingStep) -> bool:
        """Return whether calls of other models in training mode are no part of a step."""
        return (self.idle and not self.trains) or (step.lone and step.had_backward)

    def is_over(self, step: TrainingStep) -> bool:
        """Return whether a training step ends without an optimizer's step, before a call."""
        if not step.had_backward:
            self.trains &= not self.is_inference(step)
            return not self.trains
        if self.optimizes is None:
            self.optimizes = optimizer_exists()
        return not self.optimizes
