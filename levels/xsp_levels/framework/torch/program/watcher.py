"""Calls of any modules in; the evaluations of models, calls or training steps, out."""

from __future__ import annotations

import sys
import threading
import weakref
from time import monotonic_ns
from typing import Any

from xsp.provider import Begun, Evaluations, Work
from xsp_levels.framework.keras.backend import describing
from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.module.entry_point import (
    CallEntryPoint,
    abandon_in_child,
    backward_entry_point,
    call_entry_point,
    keep_in_child,
    optimizer_entry_point,
)
from xsp_levels.framework.torch.module.layer import divert, divert_model, divert_outermost
from xsp_levels.framework.torch.program.call import (
    Modes,
    found_call,
    likeness,
    tensor_inputs,
    training_call,
    trains,
)
from xsp_levels.framework.torch.program.calling_threads import CallingThreads
from xsp_levels.framework.torch.program.compiled_function import CompiledFunctions
from xsp_levels.framework.torch.program.marker import Marker
from xsp_levels.framework.torch.program.model_name import ModelNames, OptimizerNames
from xsp_levels.framework.torch.program.step import optimizer_exists
from xsp_levels.framework.torch.program.training_step import (
    NO_BACKWARD,
    Following,
    Local,
    TrainingStep,
)

_PATIENCE = 4  # times the usual number of calls before a backward pass, to wait for one


class Watch:
    """Hands the outermost calls of models to `evaluations`, until `close`.

    A model is a module with parameters that is called outermost, or by a module that has none and
    holds the model elsewhere than among its parts; or a function that torch.compile made. If the
    model is in training mode and gradients are on, an evaluation is a training step. A training
    step lasts until an optimizer has stepped; if there is no optimizer, until a backward pass has
    returned; without a backward pass, until the call has returned. The end of a training step is
    told at the next call, as a second optimizer may step.

    While one thread alone calls models, nothing inside of a model's call is watched or slowed.
    Once two threads have called models, calls inside take a microsecond or two longer each.

    Where the program marks its evaluations by hand, only parts are told: calls of models are not
    watched, so that all backward passes and optimizers' steps are parts.

    Args:
        evaluations: Runs the evaluations, and is told when training steps begin and end.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations: Evaluations | None = evaluations
        self._entry = call_entry_point()
        hide_from_compiler(__name__, CallEntryPoint.__module__, Modes.__module__)
        hide_from_compiler(CompiledFunctions.__module__)
        self._local = Local()
        self._threads = CallingThreads(self._watch_threads)
        self._names = ModelNames()
        self._usual_forwards = 4  # most calls of a model that came before a backward pass
        # Whether there is an optimizer; None: not known. What takes long is asked before any step.
        self._optimizes: bool | None = optimizer_exists() or None
        self._trains = bool(self._optimizes)  # whether backward passes are to be expected
        self._optimizers = OptimizerNames()
        self._code = self._entry.code(divert, {"xsp:handler": self._outermost})
        self._constants = {"xsp:handler": self._outermost, "xsp:inner": self._entry.inner}
        local = {"xsp:local": self._local, **self._constants}
        self._thread_code = self._entry.code(divert_outermost, local)
        self._model_codes: dict[tuple[int, int], Any] = {}  # by thread, and id of the model
        self._marker = Marker(evaluations.mark)
        backward_entry_point().watch(self._after_backward)
        optimizer_entry_point().watch(self._before_step, self._after_step)
        abandon_in_child(self.abandon)
        self._functions = CompiledFunctions(self._local, self._stepped)
        if not evaluations.by_hand:
            self._entry.watch(self._code)
            self._functions.watch()

    def close(self) -> None:
        """Stop watching; an open training step ends where the step was last extended."""
        self._finish(self._local.step)
        self.abandon()
        keep_in_child(self.abandon)

    def abandon(self) -> None:
        """Take the watcher's code and hooks out, without telling `evaluations`."""
        self._evaluations = None
        self._entry.watch(None)
        self._functions.unwatch()
        self._marker.close()
        backward_entry_point().watch(None)
        optimizer_entry_point().watch(None, None)

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on; a step that is over is ended."""
        step = self._local.step
        if step.open and not step.pending and (step.optimizers or self._is_over(step)):
            self._finish(step)
        return step.open

    def _outermost(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a module call: hand a call that lies in no other module call to `_evaluate`."""
        found_ns, entry, local = monotonic_ns(), self._entry, self._local
        step = local.step
        if step.told and self._threads.alone and not local.inside:
            begun = self._followed(step, module, args, kwargs, found_ns)
            if begun is not None:
                return self._go_on(step, module, args, kwargs, found_ns, begun)
        if local.inside:
            return entry.inner(module, *args, **kwargs)
        name = self._names.of(module)
        is_shell = not name and self._names.holds_model(module)
        part = not is_shell and step.holds(module) and trains(module, kwargs)
        if part or entry.is_nested(sys._getframe(2), watched=True, shell=local.shell):
            return entry.inner(module, *args, **kwargs)
        if is_shell:
            if trains(module, kwargs):
                self._extend(step, found_ns)
            return self._see_through(module, args, kwargs)
        if step.expected and trains(module, kwargs):
            if step.had_backward or step.forwards <= _PATIENCE * self._usual_forwards:
                return self._go_on(step, module, args, kwargs, found_ns)
            self._tell(step)  # training mode was left on for inference
        alone = self._threads.note()
        try:
            local.inside = True
            if alone:
                entry.inside(self._code, True)
            return self._evaluate(name, module, args, kwargs, found_ns)
        finally:
            end_ns = monotonic_ns()
            local.inside = False
            if alone and self._evaluations is not None:
                entry.inside(self._code, False)
            self._extend(step, end_ns)  # last, as what follows may be a part of the step
            if (waiting := local.waiting) is not None:
                waiting.until_ns, local.waiting = monotonic_ns(), None

    def _watch_threads(self) -> None:
        """Watch calls inside of calls as well, by which models of other threads are found."""
        self._entry.watch(self._thread_code, threads=True)

    def _see_through(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a module that is no model, and calls one that is no part of it."""
        local = self._local
        around, local.shell = local.shell, sys._getframe()
        try:
            return self._entry.call(module, *args, **kwargs)
        finally:
            local.shell = around

    def _go_on(
        self,
        step: TrainingStep,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
        begun: Begun | None = None,
    ) -> Any:
        """Make a call of the model in an expected training step, which begins here if `begun`."""
        entry, local = self._entry, self._local
        if begun is None:
            step.forwards += step.model is not None and step.model() is module
        returned = False
        try:
            local.inside = True
            entry.inside(self._code, True)
            if begun is None:
                step.pauses.append((found_ns, monotonic_ns()))
            else:
                begun.begin_ns = monotonic_ns()
            result = entry.inner(module, *args, **kwargs)
            returned = True
            return result
        finally:
            end_ns = monotonic_ns()
            local.inside = False
            if self._evaluations is not None:
                entry.inside(self._code, False)
            if begun is not None and not returned:
                self._finish(step)
            self._extend(step, end_ns)

    def _followed(
        self,
        step: TrainingStep,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Begun | None:
        """Have a step that went as expected followed by one as before, if this call begins one.

        A call after such a step is outermost, as the first one of that step was.
        """
        ended = step.outcome
        known = self._local.follows.get((id(module), ended))
        if known is None or known.model() is not module:
            return None
        if not (step.open and trains(module, kwargs)):
            return None
        if tensor_inputs(args, kwargs) != known.inputs:
            return None
        step.open = False  # as it stays if Ctrl-C ends the wait for devices
        if (begun := known.follow(found_ns, ended)) is None:
            step.open = True
            return None
        step.reset()
        step.model = known.model
        self._watch_alone(step, module, begun)
        return begun

    def _evaluate(
        self,
        name: str,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Any:
        evaluations, function = self._evaluations, self._entry.bound(module)
        step = self._local.step
        if evaluations is None or not name or describing():
            self._extend(step, found_ns)
            return function(*args, **kwargs)
        training, work = trains(module, kwargs), (function, args, kwargs)
        ended = step.outcome if step.open and step.told else None
        if step.open and self._belongs(step, module, training):
            self._extend(step, found_ns)  # what was done since then is no part of the step
            return function(*args, **kwargs)
        if self._evaluations is None:  # watching ended with the step
            return function(*args, **kwargs)
        if not training:
            return self._run(evaluations, work, name, found_ns)
        inputs, begun = tensor_inputs(args, kwargs), None
        call = training_call(*work, inputs=inputs, name=name, found_ns=found_ns)
        if step.pending:
            evaluations.identify(call)
        else:
            begun = evaluations.begin(call)
        if begun is not None and begun.follow is not None and ended is not None:
            follow = Following(weakref.ref(module), inputs, begun.follow)
            self._local.follows[id(module), ended] = follow
        return self._train(step, module, work, begun)

    def _run(self, evaluations: Evaluations, work: Work, name: str, found_ns: int) -> Any:
        """Make a call that is an evaluation by itself."""
        _, args, kwargs = work
        like = likeness(args, kwargs, name)
        if (made := evaluations.again(like, work, found_ns)) is not None:
            result, self._local.waiting = made
            return result
        return evaluations.run(found_call(*work, like=like, found_ns=found_ns))

    def _belongs(self, step: TrainingStep, module: Any, training: bool) -> bool:
        """Return whether a call is part of the open training step; if not, end the step."""
        if step.pending:  # within an optimizer's step, before the first call
            return False
        again = step.model is not None and step.model() is module
        if step.optimizers or ((again or not training) and self._is_over(step)):
            self._finish(step)
        step.forwards += again and step.open
        return step.open

    def _is_over(self, step: TrainingStep) -> bool:
        """Return whether a training step ends without an optimizer's step."""
        if not step.had_backward:
            # Long after the usual number of calls: training mode was left on for inference.
            self._trains &= step.forwards <= _PATIENCE * self._usual_forwards
            return not self._trains
        if self._optimizes is None:
            self._optimizes = optimizer_exists()
        return not self._optimizes

    def _train(self, step: TrainingStep, module: Any, work: Work, begun: Begun | None) -> Any:
        """Make the first call of a training step, which has begun, now if `begun` is given."""
        function, args, kwargs = work
        returned = False
        try:
            step.reset()
            step.model = weakref.ref(module)
            if begun is not None:
                self._watch_alone(step, module, begun)
                begun.begin_ns = monotonic_ns()  # last, as what follows is a part of the step
            result = function(*args, **kwargs)
            returned = True
            return result
        finally:
            if not returned:  # by an exception, which goes on to the program
                self._finish(step)

    def _after_backward(self, start_ns: int) -> None:
        end_ns, step = monotonic_ns(), self._local.step
        self._trains = True
        if not step.open:
            self._marker.backward(start_ns, end_ns)
            return
        if not step.had_backward:
            step.had_backward = True
            self._usual_forwards = max(self._usual_forwards, step.forwards)
        self._extend(step, end_ns)

    def _before_step(self, optimizer: Any, closure: bool) -> None:
        """Begin a training step with an optimizer that makes the forward pass itself."""
        found_ns, step = monotonic_ns(), self._local.step
        if step.expected:  # as the last one was, which an optimizer ended
            return
        self._optimizes = True
        evaluations = self._evaluations
        if closure and not self._local.inside and evaluations and not evaluations.by_hand:
            if step.open and step.optimizers:
                self._finish(step)
            if not step.open:
                step.reset()
                step.pending = True
                evaluations.begin(None)
        if not step.open:
            self._marker.begin_step(optimizer)
        elif not step.pending:
            self._extend(step, found_ns)

    def _after_step(self, optimizer: Any) -> None:
        end_ns, step = monotonic_ns(), self._local.step
        self._optimizes = True
        if not step.open:
            self._marker.end_step(optimizer)
            return
        step.optimizers.append(self._optimizers.of(optimizer))
        if step.expected:
            self._tell(step, end_ns)  # what comes now may be a part of the step or not
        else:
            self._extend(step, end_ns)

    def _stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step within a call of a model, of which no hook may have told."""
        step, name = self._local.step, self._optimizers.of(optimizer)
        if step.open and name not in step.optimizers:
            step.optimizers.append(name)
            if step.expected:
                self._tell(step, step.pauses[-1][0])

    def _extend(self, step: TrainingStep, until_ns: int) -> None:
        if step.expected:
            step.pauses.append((until_ns, monotonic_ns()))
        elif step.open and self._evaluations is not None:
            self._evaluations.extend(until_ns)

    def _watch_alone(self, step: TrainingStep, module: Any, begun: Begun) -> None:
        """Look at calls of one model alone until an optimizer has ended the step, if one will."""
        wanted = begun.expected not in ("", NO_BACKWARD) and self._threads.alone and self._trains
        if self._evaluations is None:  # watching has ended meanwhile
            return
        if not wanted or self._local.shell is not None:  # whose calls are looked at as well
            return
        thread, step.expected = threading.get_ident(), True
        code = self._model_codes.get((thread, id(module)))
        if code is None:
            own = {"xsp:thread": thread, "xsp:own thread": threading.get_ident}
            own |= {"xsp:model": id(module), **self._constants}
            code = self._model_codes[thread, id(module)] = self._entry.code(divert_model, own)
        self._entry.spare(code)

    def _tell(self, step: TrainingStep, until_ns: int | None = None) -> None:
        """Tell of an expected step, and of all that belongs to it from now on.

        Args:
            step: The step.
            until_ns: How long the step has lasted; None: as its last pause says, if the first call
                has returned.
        """
        if not step.expected:
            return
        step.expected, step.told = False, until_ns is not None and bool(step.optimizers)
        self._entry.spare(None)
        if self._evaluations is not None and (until_ns or step.pauses):
            self._evaluations.extend(until_ns or step.pauses[-1][0], step.pauses)

    def _finish(self, step: TrainingStep) -> None:
        self._tell(step)
        if step.open and self._evaluations is not None:
            step.open = step.pending = False
            self._evaluations.end(*step.outcome)
