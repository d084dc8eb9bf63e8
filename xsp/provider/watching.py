"""The contract of watchers: calls of models, as a program makes them, in; its evaluations out.

A `Watcher` finds the evaluations of its framework's models, and tells `Evaluations` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

# Shape and data type of each tensor put into a call.
Inputs = tuple[tuple[tuple[int, ...], str], ...]
# What is called, with which positional and keyword arguments.
Work = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
# Subject, phase and inputs of a call: calls that have them in common are of one group.
Likeness = tuple[str, str, Inputs]

# The variant of calls in training mode whose gradients nobody asked for.
NO_BACKWARD = "without backward"


@dataclass(slots=True)  # making a frozen one would take microseconds of each call of a model
class ModelCall:
    """One call that is an evaluation, found by a watcher or given by the user.

    A watcher returns a subclass, which knows what models of the watcher's framework do.

    Attributes:
        function: The function, or model, that is called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        name: Name of the root span.
        subject: Name of the model for people: `ResNet`.
        whole_model: Whether `function` is the model itself and nothing else.
        phase: What the model does in the call: `training step`, `prefill`, `extend`, `decode`;
            empty for plain inference.
        inputs: Shape and data type of each tensor put in, the leading tensor first.
        found_ns: When the watcher found the call, on the system's monotonic clock; 0: when the
            call is handed on.
        batch_first: Whether samples may be counted by the leading size of the leading input, as
            that of a sequence may not, where the model's layers want sequences first.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = "predict"
    subject: str = ""
    whole_model: bool = True
    phase: str = ""
    inputs: Inputs = ()
    found_ns: int = 0
    batch_first: bool = True

    @property
    def work(self) -> Work:
        """What is called, and with which arguments."""
        return self.function, self.args, self.kwargs

    def take(self, work: Work, inputs: Inputs) -> None:
        """Become a call of other work and its inputs, under the conditions that there are now."""
        self.function, self.args, self.kwargs = work
        self.inputs = inputs

    def __call__(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.kwargs)

    def hazard(self) -> str | None:
        """Return why the call must not be repeated unasked, or None if repeating is safe."""
        return "what it does besides returning a result is not known"

    def conditions(self) -> AbstractContextManager[None]:
        """Return a context that sets the modes under which the call was made, for repeating it."""
        return nullcontext()


class Waiting(Protocol):
    """A time in which the program waits for xsp.

    Attributes:
        until_ns: When it ends, on the system's monotonic clock.
    """

    until_ns: int


class Begun(Protocol):
    """An evaluation that has begun. The watcher sets the times, which are of CLOCK_MONOTONIC.

    Attributes:
        begin_ns: When it began.
        end_ns: Until when it has lasted at least; None until that is known.
        left_ns: Until when the thread waited for xsp after that.
        pauses: Begin and end of each time in it in which the thread waited for xsp.
        streak: What is recorded of it and of those that follow it; None: nothing is known of those.
    """

    begin_ns: int
    end_ns: int | None
    left_ns: int
    pauses: list[tuple[int, int]]
    streak: Any

    @property
    def expected(self) -> str:
        """The variant with which it is going to end, if it goes as those before.

        Then the watcher may set the end once, in the place of all calls of `Evaluations.extend`,
        so that a quick training step is not made slower by being watched. Empty where that is not
        known.
        """
        ...

    def follow(self, streak: Any, found_ns: int, ended: tuple[str, int]) -> bool:
        """Become the next evaluation, one of a streak, if that is how the program goes on.

        It takes a fraction of what `Evaluations.end` and `begin` take, and makes quick steps no
        slower. The watcher calls it where an evaluation begins as one of the streak did before,
        after one that ended as the one before that had.

        Args:
            streak: The streak of that evaluation.
            found_ns: When the watcher found the first call of the next evaluation.
            ended: Variant and calls, as `end` is told of them.

        Returns:
            False if nothing was done: then `end` and `begin` are to be called.
        """
        ...


class Evaluations(Protocol):
    """The receiver of the evaluations that a watcher finds.

    Every method is called on the thread on which the evaluation, or the part of the program, runs.

    Attributes:
        by_hand: Whether the program marks its evaluations itself, so that the watcher tells of
            parts alone (`mark`). Does not change while the watcher watches.
    """

    by_hand: bool

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return the result of the call."""
        ...

    def again(self, like: Likeness, work: Work, found_ns: int) -> tuple[Any, Waiting] | None:
        """Make a call as others before that were handed to `run`, if its times alone are wanted.

        It takes a fraction of what `run` takes, and makes quick models no slower.

        Args:
            like: Subject, phase and inputs of the call, as a `ModelCall` has them.
            work: What is to be called with which arguments.
            found_ns: When the watcher found the call, on the system's monotonic clock.

        Returns:
            The result of the call, and the time after it in which the program waits for xsp, whose
            end the watcher may set as the last thing that it does; None: the call was not made, and
            `run` is to make it.
        """
        ...

    def begin(self, call: ModelCall | None) -> Begun | None:
        """Open an evaluation that is longer than a call: a training step.

        Args:
            call: The first call of a model in the evaluation, about to be made; None where the
                evaluation begins before that call (`identify` names the call then).

        Returns:
            What is known of the evaluation; None if none was opened. The evaluation begins now,
            unless the watcher has work to do first, and says when that was done.
        """
        ...

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open evaluation, which began without."""
        ...

    def extend(self, until_ns: int | None = None, pauses: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the open evaluation has lasted at least until a time.

        Args:
            until_ns: CLOCK_MONOTONIC when the watcher's own work began, which is then no part of
                the evaluation; None: now.
            pauses: Begin and end of each time since the last call in which the watcher worked. If
                the last one begins at `until_ns`, what came after it was the program's work.
        """
        ...

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open evaluation at the time last noted.

        Args:
            variant: What tells the evaluation from others that began with a call alike, such as
                the optimizers that stepped; `NO_BACKWARD` of what seemed to be a training step.
            calls: How often the model was called in the evaluation; 0: none was, and it is none.
        """
        ...

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note a part of the program that is no evaluation: data loading, a scheduler's step.

        Called when the part has ended, on the thread where it ran; also for parts within an
        evaluation, and within other parts, which end first.

        Args:
            name: Name of the part.
            start_ns: When the part began, on the system's monotonic clock.
            end_ns: When the part ended.
            attributes: Anything worth knowing about the part.
        """
        ...

    def problem(self, message: str) -> None:
        """Note, once, a sentence that a reader of the trace should know of an evaluation."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A provider that can also tell where a model's evaluations begin and end.

    While the provider watches, every outermost call of a model is handed to `evaluations`;
    nothing inside such a call is watched or slowed.
    """

    def watch(self, evaluations: Evaluations) -> None:
        """Begin to watch, and report evaluations to `evaluations`."""
        ...

    def unwatch(self) -> None:
        """Stop watching, and take every hook away."""
        ...

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a model of this framework, else None."""
        ...

    def synchronize(self) -> bool:
        """Wait until the devices have finished all work that they were given.

        Returns:
            False if there is nothing to wait for, as on a CPU whose operators have ended when
            their calls return: then asking is no part of the evaluation.
        """
        ...


@runtime_checkable
class StepWatcher(Protocol):
    """A watcher whose training steps end at the next call of a model, which may be another's."""

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on, and end a step that does not.

        Called when a model of another framework is about to be called on this thread, between two
        calls of the watcher's own. A call within a step that goes on is a part of the step.
        """
        ...


@runtime_checkable
class Awaiting(Protocol):
    """A watcher of a framework whose calls return before their outputs are computed."""

    def await_outputs(self, result: Any) -> None:
        """Wait until what a call returned is computed, as far as it is the framework's."""
        ...
