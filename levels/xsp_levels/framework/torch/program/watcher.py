"""Calls of any modules in; the evaluations of models, calls or training steps, out."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from time import monotonic_ns
from types import CodeType
from typing import Any

from xsp.provider import Evaluations, Likeness, ModelCall, Work
from xsp_levels.framework.keras.backend import describing
from xsp_levels.framework.keras.layer_tree import is_layer
from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.module.entry_point import (
    CallEntryPoint,
    abandon_in_child,
    call_entry_point,
    keep_in_child,
)
from xsp_levels.framework.torch.module.layer import (
    divert_model,
    divert_outermost,
    divert_timed,
)
from xsp_levels.framework.torch.program.call import (
    Modes,
    found_call,
    learns_nothing,
    likeness,
    tensor_inputs,
    training_call,
    trains,
)
from xsp_levels.framework.torch.program.calling_threads import CallingThreads
from xsp_levels.framework.torch.program.compiled_function import CompiledFunctions
from xsp_levels.framework.torch.program.model_name import ModelNames
from xsp_levels.framework.torch.program.step_watcher import StepWatch
from xsp_levels.framework.torch.program.training_step import (
    Following,
    Known,
    Local,
    TrainingStep,
)

_MOST_KNOWN = 64  # models whose last evaluations are known


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
        self._entry = call_entry_point()
        hide_from_compiler(__name__, CallEntryPoint.__module__, Modes.__module__)
        hide_from_compiler(CompiledFunctions.__module__, StepWatch.__module__)
        self._local = Local()
        self._threads = CallingThreads(self._watch_threads)
        self._names = ModelNames()
        self._grad = sys.modules["torch"].is_grad_enabled
        self._constants = {"xsp:handler": self._outermost, "xsp:inner": self._entry.inner}
        self._constants["xsp:now"] = monotonic_ns
        self._code = self._entry.code(divert_timed, self._constants)
        local = {"xsp:local": self._local, **self._constants}
        self._thread_code = self._entry.code(divert_outermost, local)
        self._model_codes: dict[tuple[int, int], CodeType] = {}  # by thread, and id of the model
        self._steps = StepWatch(evaluations, self._entry, self._local, self._threads, self._names)
        abandon_in_child(self.abandon)
        self._functions = CompiledFunctions(self._local, self._steps.stepped)
        if not evaluations.by_hand:
            self._entry.watch(self._code)
            self._functions.watch()

    def close(self) -> None:
        """Stop watching; an open training step ends where the step was last extended."""
        self._steps.finish(self._local.step)
        self.abandon()
        keep_in_child(self.abandon)

    def abandon(self) -> None:
        """Take the watcher's code and hooks out, without telling `evaluations`."""
        self._steps.abandon()
        self._entry.watch(None)
        self._functions.unwatch()

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on; a step that is over is ended."""
        step = self._local.step
        if step.open and not step.pending and (step.optimizers or self._steps.ends.is_over(step)):
            self._steps.finish(step)
        return step.open

    def _outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found_ns: int
    ) -> Any:
        """Handle a module call: hand a call that lies in no other module call to `_evaluate`."""
        local = self._local
        if local.inside:
            return self._entry.inner(module, *args, **kwargs)
        step = local.step
        if step.expected and step.following is None and self._is_again(step, module):
            return self._go_on(step, module, args, kwargs, found_ns)
        quick = step.following or (step.told and self._threads.alone)
        if quick and self._followed(step, module, args, kwargs, found_ns):
            return self._go_on(step, module, args, kwargs, found_ns)
        if not step.open and local.shell is None:
            known = local.known.get(id(module))
            like = known.likeness(module, args, kwargs) if known is not None else None
            if like is not None and not describing():
                return self._make(like, module, args, kwargs, found_ns)
        return self._look_up(module, args, kwargs, found_ns)

    def _make(
        self,
        like: Likeness,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Any:
        """Make a call that is an evaluation by itself, and outermost, as the last one was."""
        local, evaluations, alone = self._local, self._steps.evaluations, self._threads.note()
        function = self._entry.bound(module)
        if evaluations is None:
            return function(*args, **kwargs)
        try:
            local.inside = True
            if alone:
                self._entry.inside(self._code, True)
            work = function, args, kwargs
            return self._run(evaluations, module, work, like, found_ns)
        finally:
            local.inside = False
            if alone and self._steps.evaluations is not None:
                self._entry.inside(self._code, False)
            if (waiting := local.waiting) is not None:
                waiting.until_ns, local.waiting = monotonic_ns(), None

    def _look_up(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found_ns: int
    ) -> Any:
        """Find out what a call is that lies in none that is handled, and make it."""
        entry, local = self._entry, self._local
        step, name = local.step, self._names.of(module)
        is_shell = not name and self._names.holds_model(module)
        held = not is_shell and step.holds(module)
        if held and name:  # else a loss, say, which is no model
            held = not self._steps.ends.has_own_calls(step)
        part = held and trains(module, kwargs)
        if part or entry.is_nested(sys._getframe(3), watched=True, shell=local.shell):
            return entry.inner(module, *args, **kwargs)
        if is_shell:
            if trains(module, kwargs):
                self._steps.extend_unless_over(step, found_ns)
            return self._see_through(module, args, kwargs)
        if step.expected and trains(module, kwargs):
            if not self._steps.ends.is_inference(step):
                if not is_layer(module):
                    frame = sys._getframe(3)
                    local.again = frame.f_code, frame.f_lasti, step.forwards
                return self._go_on(step, module, args, kwargs, found_ns)
            self._steps.tell(step)
        alone, before = self._threads.note(), step.begun
        try:
            local.inside = True
            if alone:
                entry.inside(self._code, True)
            return self._evaluate(name, module, args, kwargs, found_ns)
        finally:
            end_ns = monotonic_ns()
            local.inside = False
            if alone and self._steps.evaluations is not None:
                entry.inside(self._code, False)
            # Last, as what follows may be a part of the step.
            self._steps.extend_unless_over(step, end_ns, first=step.begun is not before)
            if (waiting := local.waiting) is not None:
                waiting.until_ns, local.waiting = monotonic_ns(), None

    def _is_again(self, step: TrainingStep, module: Any) -> bool:
        """Return whether an expected step's model is called again, from where it was before.

        That it was called outermost there, and in training as often, took long to find out.
        """
        again, frame = self._local.again, sys._getframe(3)
        if again is None or frame.f_code is not again[0] or frame.f_lasti != again[1]:
            return False
        model: Any = step.model
        if model is None or model() is not module or step.forwards > again[2]:
            return False
        return bool(module.training) and self._grad()

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
    ) -> Any:
        """Make a call of the model in an expected training step, perhaps the one that begins it."""
        entry, local, begun, following = self._entry, self._local, step.begun, step.following
        begins = following is not None and not step.pending
        if following is None:
            step.forwards += step.model is not None and step.model() is module
        step.following, step.pending, returned, begin_ns = None, False, False, found_ns
        try:
            local.inside = True
            entry.inside(self._code, True, following.code if following is not None else None)
            begin_ns = monotonic_ns()
            if begins and begun is not None:
                begun.begin_ns = begin_ns
            result = entry.inner(module, *args, **kwargs)
            returned = True
            return result
        finally:
            end_ns = monotonic_ns()
            local.inside = False
            if self._steps.evaluations is not None:
                entry.inside(self._code, False)
            if following is not None and not returned:
                self._steps.finish(step)
            elif step.expected and not begins:
                step.pauses.append((found_ns, begin_ns))
            self._steps.extend(step, end_ns)

    def _followed(
        self,
        step: TrainingStep,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> bool:
        """Have a step that went as expected followed by one as before, if this call begins one.

        A call after such a step is outermost, as the first one of that step was.
        """
        if (following := step.following) is not None:  # an optimizer has begun it
            if following.begins(module, args, kwargs):
                return True
            self._steps.tell(step)
            step.following = step.model = None
            return False
        following = self._local.follows.get((id(module), step.outcome))
        if following is None or not following.begins(module, args, kwargs):
            return False
        return self._steps.follow(step, following, found_ns)

    def _evaluate(
        self,
        name: str,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found_ns: int,
    ) -> Any:
        evaluations, function = self._steps.evaluations, self._entry.bound(module)
        step = self._local.step
        if evaluations is None or not name or describing():
            self._steps.extend_unless_over(step, found_ns)
            return function(*args, **kwargs)
        training, work = trains(module, kwargs), (function, args, kwargs)
        ended = step.outcome if step.open and step.told else None
        if step.open and self._steps.belongs(step, module, training):
            self._steps.extend(step, found_ns)  # what was done since then is no part of the step
            return function(*args, **kwargs)
        if self._steps.evaluations is None:  # watching ended with the step
            return function(*args, **kwargs)
        if not training:
            return self._run(
                evaluations, module, work, self._likeness(module, work, name), found_ns
            )
        self._steps.ends.look()
        inputs = tensor_inputs(args, kwargs)
        call = training_call(*work, inputs=inputs, name=name, found_ns=found_ns)
        call.batch_first = self._names.is_batch_first(module)
        begun, after, begins = step.begun, step.after, not step.pending
        if begins:
            begun = evaluations.begin(call)
            after = (id(module), ended) if ended is not None else None
        else:
            evaluations.identify(call)
        step.reset()
        step.model, step.begun, step.after = weakref.ref(module), begun, after
        step.lone = self._steps.ends.idle
        return self._train(step, module, call, begins)

    def _likeness(self, module: Any, work: Work, name: str) -> Likeness:
        """Return what a call has in common with others, by which the next one may be known."""
        _, args, kwargs = work
        like, known = likeness(args, kwargs, name), self._local.known
        if len(known) >= _MOST_KNOWN:
            known.clear()
        if not is_layer(module):  # Keras's say in the call whether they train
            known[id(module)] = Known(module, work, like)
        return like

    def _run(
        self, evaluations: Evaluations, module: Any, work: Work, like: Likeness, found_ns: int
    ) -> Any:
        """Make a call that is an evaluation by itself."""
        if (made := evaluations.again(like, work, found_ns)) is not None:
            result, self._local.waiting = made
            return result
        call = found_call(*work, like=like, found_ns=found_ns)
        call.batch_first = self._names.is_batch_first(module)
        return evaluations.run(call)

    def _train(self, step: TrainingStep, module: Any, call: ModelCall, begins: bool) -> Any:
        """Make the first call of a training step, which begins with the call or began before."""
        function, args, kwargs = call.work
        begun, returned, begin_ns = step.begun, False, call.found_ns
        try:
            if begun is not None:
                code = self._steps.expect(step, functools.partial(self._look_at, module))
                if code is not None and begun.streak is not None and step.after is not None:
                    following = Following(module, call, begun.streak, code)
                    self._local.follows[step.after] = following
                begin_ns = monotonic_ns()  # last, as what follows is a part of the step
                if begins:
                    begun.begin_ns = begin_ns
            result = function(*args, **kwargs)
            returned, end_ns = True, monotonic_ns()
            if begins and not step.expected and learns_nothing(module, call, result):
                self._steps.extend(step, end_ns)
                self._steps.finish(step)
            return result
        finally:
            if not returned:  # by an exception, which goes on to the program
                self._steps.finish(step)
            elif begun is not None and not begins:
                waits = step.pauses if step.expected else begun.pauses
                waits.append((call.found_ns, begin_ns))

    def _look_at(self, module: Any) -> CodeType:
        """Return code that looks at calls of one model, on this thread, alone."""
        thread = threading.get_ident()
        code = self._model_codes.get((thread, id(module)))
        if code is None:
            own = {"xsp:thread": thread, "xsp:own thread": threading.get_ident}
            own |= {"xsp:model": id(module), **self._constants}
            code = self._model_codes[thread, id(module)] = self._entry.code(divert_model, own)
        return code
