"""Backward passes, optimizers' steps and ends of calls in; where training steps end out.

`watcher` finds the calls of models, with which most training steps begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import CodeType
from typing import Any

from xsp.provider import NO_BACKWARD, Evaluations
from xsp_levels.framework.torch.module.entry_point import (
    CallEntryPoint,
    backward_entry_point,
)
from xsp_levels.framework.torch.module.optimizer_step import optimizer_entry_point
from xsp_levels.framework.torch.program.calling_threads import CallingThreads
from xsp_levels.framework.torch.program.marker import Marker
from xsp_levels.framework.torch.program.model_name import ModelNames, OptimizerNames
from xsp_levels.framework.torch.program.training_step import (
    After,
    Following,
    Local,
    StepEnds,
    TrainingStep,
)


class StepWatch:
    """Tells `evaluations` how long training steps last, and where they end, until `abandon`.

    Args:
        evaluations: Is told.
        entry: Where models are called.
        local: What is known of each thread.
        threads: The threads that call models.
        models: Names of the models.

    Attributes:
        evaluations: Is told; None: nobody any more.
        ends: What ends the training steps of the program.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        entry: CallEntryPoint,
        local: Local,
        threads: CallingThreads,
        models: ModelNames,
    ) -> None:
        self.evaluations: Evaluations | None = evaluations
        self.ends = StepEnds()
        self._entry, self._local, self._threads = entry, local, threads
        self._optimizers = OptimizerNames(models)
        self._tell_part = evaluations.mark
        self.watch()

    def watch(self) -> None:
        """Put the hooks in place."""
        self._marker = Marker(self._mark)
        backward_entry_point().watch(self._after_backward)
        optimizer_entry_point().watch(self._before_step, self._after_step)

    def unwatch(self) -> None:
        """Take the hooks out."""
        self._marker.close()
        backward_entry_point().watch(None)
        optimizer_entry_point().watch(None, None)

    def abandon(self) -> None:
        """Take the hooks out, and tell of nothing any more."""
        self.evaluations = None
        self.unwatch()

    def follow(self, step: TrainingStep, following: Following, found_ns: int) -> bool:
        """Have a step that went as expected followed by one, if the program goes on like that."""
        begun, ended = step.begun, step.outcome
        if not step.open or begun is None or self._local.shell is not None:
            return False
        step.open = False  # as it stays if Ctrl-C ends the wait for devices
        if not begun.follow(following.streak, found_ns, ended):
            step.open = True
            return False
        step.reset()
        step.model, step.begun, step.following = following.model, begun, following
        step.expected = True
        return True

    def belongs(self, step: TrainingStep, module: Any, training: bool) -> bool:
        """Return whether a call is part of the open training step; if not, end the step."""
        if step.pending:  # within an optimizer's step, before the first call
            return False
        again = step.model is not None and step.model() is module
        if again and training:
            self.ends.note_again(step)
        may_end = again or not training or self.ends.has_own_calls(step)
        if step.optimizers or (may_end and self.ends.is_over(step)):
            self.finish(step)
        step.forwards += again and step.open
        return step.open

    def expect(self, step: TrainingStep, look: Callable[[], CodeType]) -> CodeType | None:
        """Look at calls of its model alone until an optimizer has ended a step, if one will.

        Args:
            step: The step, which has begun.
            look: Returns code that looks at those calls.

        Returns:
            The code, if it is in place now.
        """
        begun = step.begun
        if begun is None or begun.expected in ("", NO_BACKWARD) or self.evaluations is None:
            return None
        # Of a module that is seen through, calls are looked at as well.
        if not (self._threads.alone and self.ends.trains) or self._local.shell is not None:
            return None
        step.expected, code = True, look()
        self._entry.spare(code)
        return code

    def extend(self, step: TrainingStep, until_ns: int) -> None:
        """Note that a step, if one is open, has lasted at least until a time."""
        if step.expected:
            step.pauses.append((until_ns, monotonic_ns()))
        elif step.open and self.evaluations is not None:
            self.evaluations.extend(until_ns)

    def extend_unless_over(self, step: TrainingStep, until_ns: int, *, first: bool = False) -> None:
        """Note that a step has lasted at least until a time, unless its end has been seen.

        A transform of the next batch, or a loss that is logged, is no part of the step.

        Args:
            step: The step, if it is open.
            until_ns: The time.
            first: Whether the call that began the step has returned, all of which is a part of it.
        """
        over = step.optimizers or (step.had_backward and self.ends.is_over(step))
        if step.expected or first or not over:
            self.extend(step, until_ns)

    def tell(self, step: TrainingStep, until_ns: int | None = None) -> None:
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
        if self.evaluations is not None and (until_ns or step.pauses):
            self.evaluations.extend(until_ns or step.pauses[-1][0], step.pauses)

    def finish(self, step: TrainingStep) -> None:
        """End a step, if one is open, where it was last extended."""
        self.tell(step)
        if step.open and self.evaluations is not None:
            ended, step.open, step.pending, step.following = step.outcome, False, False, None
            self.evaluations.end(*ended)

    def _mark(self, name: str, start_ns: int, end_ns: int, facts: Mapping[str, Any]) -> None:
        """Tell of a part of the program, which may show that a step is over."""
        step = self._local.step
        if step.open and self.ends.is_over_before(step, name):
            self.finish(step)
        self._tell_part(name, start_ns, end_ns, facts)

    def stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step within a call of a model, of which no hook may have told."""
        step, end_ns = self._local.step, monotonic_ns()
        if not step.open:
            return
        self.ends.note_optimizer(step)
        name = self._optimizers.of(optimizer, step.model and step.model())
        if name not in step.optimizers:
            step.optimizers.append(name)
        if step.expected:
            self.tell(step, end_ns)
        else:
            self.extend(step, end_ns)

    def _after_backward(self, start_ns: int, end_ns: int) -> None:
        step = self._local.step
        self.ends.note_backward(step)
        if not step.open:
            self._marker.backward(start_ns, end_ns)
        else:
            self.extend(step, end_ns)

    def _before_step(self, optimizer: Any, closure: bool, found_ns: int) -> None:
        """Begin a training step with an optimizer that makes the forward pass itself."""
        step = self._local.step
        if step.expected:  # as the last one was, which an optimizer ended
            step.pauses.append((found_ns, monotonic_ns()))
            return
        self.ends.optimizes = True
        evaluations = self.evaluations
        if closure and not self._local.inside and evaluations and not evaluations.by_hand:
            after = (id(optimizer), step.outcome) if step.open and step.told else None
            if self._follows(step, after, found_ns):
                return
            if step.open and step.optimizers:
                self.finish(step)
            if not step.open:
                step.reset()
                step.pending, step.after, step.begun = True, after, evaluations.begin(None)
                return
        if not step.open:
            self._marker.begin_step(optimizer)
        elif not step.pending:
            self.extend(step, found_ns)

    def _follows(self, step: TrainingStep, after: After | None, found_ns: int) -> bool:
        """Have a step that went as expected followed by one that an optimizer begins, as before."""
        following = self._local.follows.get(after) if after and self._threads.alone else None
        if following is None or not self.follow(step, following, found_ns):
            return False
        step.pending = True
        if step.begun is not None:
            step.begun.begin_ns = monotonic_ns()
        return True

    def _after_step(self, optimizer: Any, end_ns: int) -> None:
        step = self._local.step
        self.ends.optimizes = True
        if not step.open:
            self._marker.end_step(optimizer)
            return
        self.ends.note_optimizer(step)
        step.optimizers.append(self._optimizers.of(optimizer, step.model and step.model()))
        if step.pending:  # its closure has called no model
            self.finish(step)
            return
        begun = step.begun
        if not step.expected or begun is None:
            self.extend(step, end_ns)
            return
        # What comes now may be a part of the step or not.
        step.expected, step.told = False, True
        self._entry.spare(None)
        begun.end_ns, begun.pauses = end_ns, step.pauses
        begun.left_ns = monotonic_ns()
