"""Calls of models, functions and sessions in; evaluations, calls or training steps, out."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from xsp.provider import NO_BACKWARD, Evaluations
from xsp_levels.framework.keras.backend import backend
from xsp_levels.framework.keras.entry_point import CallEntryPoint, call_entry_point
from xsp_levels.framework.keras.layer_tree import root_name
from xsp_levels.framework.tensorflow.program.call import (
    TRAINING_STEP,
    Subject,
    TensorFlowCall,
    fed,
    graph_call,
    layer_call,
    session_subject,
    subject_of,
    training_call,
    untraced_call,
)
from xsp_levels.framework.tensorflow.program.effect import Effect, Effects, traced_anew, traces
from xsp_levels.framework.tensorflow.program.entry import (
    BACKWARD,
    OPTIMIZER_STEP,
    entry_points,
    executing_eagerly,
    keras_is_on_tensorflow,
)

_PATIENCE = 256  # calls of a model under a tape without a backward pass, to wait for one


def divert(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for `Layer.__call__`, and hand a call that the thread makes outermost on."""
    local: Any = "xsp:local"
    inner: Any = "xsp:inner"
    handler: Any = "xsp:handler"
    if local.inside:
        return inner(self, *args, **kwargs)
    return handler(self, args, kwargs)


class Watch:
    """Hands the outermost calls of models, functions and sessions to `evaluations`, until `close`.

    A model is a Keras layer with weights, or one that is not built yet, that is called outermost.
    A call under a gradient tape begins a training step, which lasts until an optimizer has
    stepped; if there is no optimizer, until gradients have been computed. Its end is told at the
    next call, as a second optimizer may step. A function whose graph computes gradients and
    writes to variables is a training step by itself, and so is each step of `model.fit`.

    Where the program marks its evaluations by hand, only parts are told.

    Args:
        evaluations: Runs the evaluations, and is told when training steps begin and end.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations: Evaluations | None = evaluations
        self._local = _Local()
        self._names = _Names()
        self._effects = Effects()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._subjects: weakref.WeakKeyDictionary[Any, Subject | None] = weakref.WeakKeyDictionary()
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, tuple[str, Effect]]] = (
            weakref.WeakKeyDictionary()
        )
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._optimizes = False
        self._entry: CallEntryPoint | None = None
        by_hand = evaluations.by_hand
        entry_points().watch(self._note, None if by_hand else self._diverted, self._look)
        self._look()

    def close(self) -> None:
        """Stop watching; an open training step ends where the step was last extended."""
        self._finish(self._local.step)
        self._evaluations = None
        entry_points().watch(None, None)
        if self._entry is not None:
            self._entry.watch(None)

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on; a step that is over is ended."""
        step = self._local.step
        if step.optimizers or (step.had_backward and not self._optimizes):
            self._finish(step)
        return step.open

    def _look(self) -> None:
        """Watch the calls of Keras's layers, once Keras is there and runs on TensorFlow."""
        evaluations = self._evaluations
        if evaluations is None or evaluations.by_hand or self._entry is not None:
            return
        if backend() is None or not keras_is_on_tensorflow():
            return
        self._entry = call_entry_point()
        if self._entry is not None:
            constants = {
                "xsp:local": self._local,
                "xsp:inner": self._entry.inner,
                "xsp:handler": self._layer,
            }
            self._entry.watch(self._entry.code(divert, constants))

    def _layer(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a layer that lies in no other call."""
        found_ns, entry = monotonic_ns(), self._entry
        assert entry is not None
        known = backend()
        if (
            self._evaluations is None
            or not self._is_model(layer)
            or not executing_eagerly()
            or (known is not None and known.is_symbolic((args, kwargs)))
        ):
            return entry.inner(layer, *args, **kwargs)
        name = self._names.of(root_name(layer), layer)
        make = partial(layer_call, entry.bound(layer), args, kwargs, name=name, found_ns=found_ns)
        return self._evaluate(layer, make)

    def _is_model(self, layer: Any) -> bool:
        """Return whether a layer has weights, or may get some by being built."""
        if layer in self._models:
            return True
        if not layer.built:
            return True
        if layer.variables:
            self._models.add(layer)
        return layer in self._models

    def _diverted(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call of a function, or of a session."""
        found_ns, local = monotonic_ns(), self._local
        owner = args[0]
        if local.inside or self._evaluations is None:
            return call(*args, **kwargs)
        if hasattr(owner, "partial_run"):  # a session
            return self._session(call, args, kwargs, found_ns)
        if not executing_eagerly():
            return call(*args, **kwargs)
        if owner not in self._subjects:
            self._subjects[owner] = subject_of(owner)
        subject = self._subjects[owner]
        if subject is None:
            return call(*args, **kwargs)
        known, phase, before = partial(self._effects.of, owner), subject.phase, traces(owner)
        untraced = phase is None and not before
        if phase is None:
            phase = TRAINING_STEP if known().trains else ""
        make = partial(
            graph_call,
            partial(call, owner),
            args[1:],
            kwargs,
            name=self._names.of(subject.name, subject.owner),
            phase=phase,
            effect=known,
            found_ns=found_ns,
        )
        result = self._evaluate(subject.owner, make, whole=bool(phase), untraced=untraced)
        if 0 < before < traces(owner) and self._evaluations is not None:
            self._evaluations.problem(traced_anew(f"{subject.name} {subject.phase or ''}".strip()))
        return result

    def _session(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Any:
        fetches = args[1] if len(args) > 1 else kwargs.get("fetches")
        of_graph = self._sessions.setdefault(args[0].graph, {})
        asked = repr(fetches)
        if asked not in of_graph:
            of_graph[asked] = session_subject(fetches)
        name, known = of_graph[asked]
        make = partial(
            graph_call,
            partial(call, args[0]),
            args[1:],
            kwargs,
            name=name,
            phase=TRAINING_STEP if known.trains else "",
            effect=lambda: known,
            inputs=fed(args[1:], kwargs),
            found_ns=found_ns,
        )
        return self._evaluate(args[0], make, whole=True)

    def _evaluate(
        self,
        model: Any,
        make: Callable[[], TensorFlowCall],
        *,
        whole: bool = False,
        untraced: bool = False,
    ) -> Any:
        """Make a call: an evaluation, or a part of the training step of this thread.

        Args:
            model: What is called.
            make: Makes the call's description.
            whole: Whether the call is an evaluation, even under a tape.
            untraced: Whether the phase is that of a graph that the call makes.
        """
        local = self._local
        step, local.inside = local.step, True
        try:
            if step.open and not whole and self._belongs(step, model):
                step.forwards += step.model is not None and step.model() is model
                return make()()
            self._finish(step)
            evaluations = self._evaluations
            if evaluations is None:  # watching ended with the step
                return make()()
            if whole or not _taped():
                call = make()
                return evaluations.run(untraced_call(call) if untraced else call)
            return self._begin(step, model, make)
        finally:
            end_ns = monotonic_ns()
            local.inside = False
            self._extend(step, end_ns)  # last, as what follows may be a part of the step

    def _begin(self, step: _Step, model: Any, make: Callable[[], TensorFlowCall]) -> Any:
        """Make the call that begins a training step."""
        evaluations, call = self._evaluations, training_call(make())
        assert evaluations is not None
        step.reset(model)
        returned = False
        try:
            evaluations.begin(call)  # last, as what follows is a part of the step
            result = call()
            returned = True
            return result
        finally:
            if not returned:  # by an exception, which goes on to the program
                self._finish(step)

    def _belongs(self, step: _Step, model: Any) -> bool:
        """Return whether a call is part of the open training step."""
        if step.optimizers or (step.had_backward and not self._optimizes):
            return False
        return step.had_backward or step.forwards <= _PATIENCE

    def _note(self, name: str, start_ns: int, end_ns: int, subject: Any, error: str | None) -> None:
        """Take a part of the program for one of the open training step, or tell of it."""
        step, evaluations = self._local.step, self._evaluations
        if evaluations is None:
            return
        if name == OPTIMIZER_STEP:
            self._optimizes = True
        if step.open and name in (BACKWARD, OPTIMIZER_STEP):
            step.had_backward |= name == BACKWARD
            if name == OPTIMIZER_STEP and error is None:
                step.optimizers.append(self._optimizer(subject))
            evaluations.extend(end_ns)
            return
        evaluations.mark(name, start_ns, end_ns, {} if error is None else {"error": error})

    def _optimizer(self, optimizer: Any) -> str:
        if optimizer not in self._optimizers:
            number = len(self._optimizers) + 1
            self._optimizers[optimizer] = f"{type(optimizer).__name__} {number}"
        return self._optimizers[optimizer]

    def _extend(self, step: _Step, until_ns: int) -> None:
        if step.open and self._evaluations is not None:
            self._evaluations.extend(until_ns)

    def _finish(self, step: _Step) -> None:
        if step.open and self._evaluations is not None:
            step.open = False
            stepped = " + ".join(sorted(set(step.optimizers)))
            without = "" if step.had_backward else NO_BACKWARD
            self._evaluations.end(stepped or without, step.forwards + 1)


class _Local(threading.local):
    """What is known of each thread.

    Attributes:
        inside: Whether the thread is in a call that is handled.
        step: The training step of the thread.
    """

    def __init__(self) -> None:
        self.inside = False
        self.step = _Step()


class _Step:
    """The training step of a thread.

    Attributes:
        open: Whether a training step is under way.
        model: The model whose call began the step.
        forwards: How often that model was called again.
        had_backward: Whether gradients have been computed in the step.
        optimizers: Names of the optimizers that stepped.
    """

    __slots__ = ("forwards", "had_backward", "model", "open", "optimizers")

    def __init__(self) -> None:
        self.open, self.had_backward, self.forwards = False, False, 0
        self.model: weakref.ref[Any] | None = None
        self.optimizers: list[str] = []

    def reset(self, model: Any) -> None:
        """Begin a new step."""
        self.open, self.had_backward, self.forwards = True, False, 0
        self.model, self.optimizers = weakref.ref(model), []


class _Names:
    """Names of models and functions, with a number for each further one of the same name."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def of(self, name: str, owner: Any) -> str:
        """Return the name of `owner`, which is `name` or, where that is taken, has a number."""
        if owner not in self._known:
            taken, number = set(self._known.values()), 1
            found = name
            while found in taken:
                number += 1
                found = f"{name} ({number})"
            self._known[owner] = found
        return self._known[owner]


def _taped() -> bool:
    """Return whether a gradient tape records on this thread."""
    tapes: Any = sys.modules["tensorflow.python.eager.record"]
    return bool(tapes.could_possibly_record())
