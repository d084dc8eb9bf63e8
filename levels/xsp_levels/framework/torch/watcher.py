"""Calls of any modules in; the evaluations of one model, calls or training steps, out."""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import replace
from typing import Any

from xsp.provider import Evaluations
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.torch.call import Modes, TorchCall, module_call, subject
from xsp_levels.framework.torch.entry_point import (
    CallEntryPoint,
    abandon_in_child,
    backward_entry_point,
    call_entry_point,
    hide_from_compiler,
    keep_in_child,
    optimizer_entry_point,
)
from xsp_levels.framework.torch.layer import divert
from xsp_levels.framework.torch.marker import Marker

TRAINING_STEP = "training step"


class Watch:
    """Hands the outermost calls of one model to `evaluations`, until `close`.

    The model is the first module with parameters that is called outermost. If the model
    is called in training mode with gradients on, an evaluation is a training step. A
    training step lasts until an optimizer has stepped; if no optimizer ever steps, until a
    backward pass has returned; without a backward pass, until the call has returned. The
    end of a training step is told at the next call, as a second optimizer may step.

    Args:
        evaluations: Runs the evaluations, and is told when training steps begin and end.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations: Evaluations | None = evaluations
        self._entry = call_entry_point()
        hide_from_compiler(__name__, CallEntryPoint.__module__, Modes.__module__)
        self._claim = threading.Lock()
        self._model: weakref.ref[Any] | None = None
        self._trains = False  # whether the model's evaluations are training steps
        self._open = False  # whether a training step is under way
        self._had_backward = False
        self._had_step = False
        self._backwards = 0  # number of backward passes since watching began
        self._steps = 0
        self._code = self._entry.code(divert, {"xsp:handler": self._outermost})
        # First, so that a step's mark has ended when the evaluation is extended.
        self._marker = Marker(evaluations.mark)
        backward_entry_point().watch(self._after_backward)
        optimizer_entry_point().watch(self._after_step)
        abandon_in_child(self.abandon)
        self._entry.watch(self._code)

    def close(self) -> None:
        """Stop watching; an open training step ends where the step was last extended."""
        self._finish()
        self.abandon()
        keep_in_child(self.abandon)

    def abandon(self) -> None:
        """Take the watcher's code and hooks out, without telling `evaluations`."""
        self._evaluations = None
        self._open = False
        self._entry.watch(None)
        self._marker.close()
        backward_entry_point().watch(None)
        optimizer_entry_point().watch(None)

    def _outermost(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a module call: hand a call that lies in no other module call to `_evaluate`."""
        entry = self._entry
        if entry.is_nested(sys._getframe(2), watched=True) or not self._claim.acquire(False):
            return entry.call(module, *args, **kwargs)
        try:
            entry.inside(self._code, True)
            return self._evaluate(module, args, kwargs)
        finally:
            if self._evaluations is not None and not self._steps_aside():
                entry.inside(self._code, False)
            self._claim.release()

    def _steps_aside(self) -> bool:
        """Return whether calls need no watching until a backward pass has returned."""
        return self._open and self._backwards > 0 and not self._had_backward

    def _evaluate(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        evaluations = self._evaluations
        if evaluations is None:
            return module(*args, **kwargs)
        if self._open and self._belongs(module):
            return module(*args, **kwargs)
        if not self._is_model(module):
            if _has_parameters(module):
                evaluations.passed_over(subject(module))
            return module(*args, **kwargs)
        trains = _trains(module)
        if trains != self._trains:
            mode = "training" if trains else "evaluation"
            evaluations.passed_over(f"{subject(module)} in {mode} mode")
            return module(*args, **kwargs)
        call = self._call(module, args, kwargs)
        return self._begin(call) if trains else evaluations.run(call)

    def _belongs(self, module: Any) -> bool:
        """Return whether a call is part of the open training step; if not, end the step."""
        again = self._model is not None and self._model() is module
        ended = self._had_backward if self._backwards else True
        if self._had_step or (again and ended and not self._steps):
            self._finish()
        return self._open

    def _is_model(self, module: Any) -> bool:
        """Return whether `module` is the model; without a model yet, `module` becomes the model."""
        if (self._model is None or self._model() is None) and _has_parameters(module):
            self._model = weakref.ref(module)
            self._trains = _trains(module)
        return self._model is not None and self._model() is module

    def _call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchCall:
        call = module_call(module, args, kwargs)
        if self._trains:
            return replace(call, name=TRAINING_STEP, whole_model=False)
        return call

    def _begin(self, call: TorchCall) -> Any:
        """Make the call that begins a training step."""
        self._open, self._had_backward, self._had_step = True, False, False
        if self._evaluations is not None:
            self._evaluations.begin(call)
        with undone_on_failure(self._finish):
            result = call()
        self._extend()
        return result

    def _after_backward(self) -> None:
        self._backwards += 1
        self._had_backward = self._open
        self._extend()
        if self._evaluations is not None and not self._claim.locked():
            self._entry.inside(self._code, False)

    def _after_step(self) -> None:
        self._steps += 1
        self._had_step = self._open
        self._extend()

    def _extend(self) -> None:
        if self._open and self._evaluations is not None:
            self._evaluations.extend()

    def _finish(self) -> None:
        if self._open and self._evaluations is not None:
            self._open = False
            self._evaluations.end()


def _trains(module: Any) -> bool:
    import torch  # noqa: PLC0415

    return bool(module.training) and bool(torch.is_grad_enabled())


def _has_parameters(module: Any) -> bool:
    return next(iter(module.parameters()), None) is not None
