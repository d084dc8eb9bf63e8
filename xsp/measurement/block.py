"""Profiling a program: a `with` block or a decorated function in, the trace of its evaluations out.

Unlike `measure`, the program itself makes the calls; the dispatcher makes each of them a step
of the plan, and the last call is repeated afterwards if the plan is not complete by then.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, TypeVar

from xsp.errors import MeasurementError
from xsp.level import LevelSet
from xsp.measurement.build import build_trace
from xsp.measurement.callable import interpret_session
from xsp.measurement.dispatcher import Dispatcher
from xsp.measurement.progress import Progress, progress_bar
from xsp.measurement.repeat import (
    carry_out,
    check_no_generator,
    irreversible,
    iterator_type,
    name_of,
    read_arguments,
)
from xsp.problem import Problem
from xsp.provider import ModelCall
from xsp.quantity import counted, duration
from xsp.session import Plan, Session, exclusively, if_alone, select, settings_of
from xsp.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])


class profile:  # noqa: N801  # reads as what it is in a with statement
    """Profile what happens in a `with` block, or every call of a decorated function.

    In a block each outermost call of a model is an evaluation (in training: everything
    from that call to the end of the optimiser's step), and each evaluation is the next
    step of the plan. If the block ends before the plan is complete, the last evaluation
    is repeated until the plan is complete, where repeating is safe.

    Args:
        levels: Levels to profile: a number or name (that and all above), or several.
        runs: Evaluations on each rung; by default as many as it takes, over 3 s at
            least, until the model's latency is known to ±1 %.
        budget: Seconds of evaluating after which the plan counts as complete; 20 by default.
        statistic: How runs are summarised: "trimmed" (20 % trimmed mean), "median",
            "mean" or "min".
        replay: Whether the last evaluation may be repeated after the block; None
            for "if the model is in eval mode, gradients are off, its input is not used up,
            and all that it may change can be put back". Input and model are put back to what
            the program's last call left, before each repetition and after the last.
        progress: Whether to show a progress bar while repeating, by default on a
            terminal; or a function that is called with the fraction done.

    Raises:
        ValueError: A level is unknown, or a number out of range.
    """

    def __init__(
        self,
        levels: LevelSet = 3,
        *,
        runs: int | None = None,
        budget: float | None = None,
        statistic: str = "trimmed",
        replay: bool | None = None,
        progress: bool | Progress | None = None,
    ) -> None:
        self._settings = settings_of(levels, runs=runs, budget=budget, statistic=statistic)
        self._replay = replay
        self._progress = progress
        self._stack = ExitStack()
        self._watching = ExitStack()
        self._process = 0
        self._watches = False
        self._dispatcher: Dispatcher | None = None
        self._trace: Trace | None = None

    def __repr__(self) -> str:
        levels = ", ".join(level.label for level in sorted(self._settings.levels))
        state = (
            "watching" if self._watches else "not begun" if self._dispatcher is None else "ended"
        )
        return f"<xsp.profile of {levels}: {state}>"

    @property
    def trace(self) -> Trace:
        """The trace of what has been evaluated so far.

        Raises:
            MeasurementError: Nothing has been evaluated.
        """
        if self._trace is not None:
            return self._trace
        trace = self._build()
        if not self._watches:  # otherwise later evaluations would be missing
            self._trace = trace
        return trace

    def __enter__(self) -> profile:
        """Begin to watch for evaluations.

        Raises:
            MeasurementError: Another measurement is running in this process.
        """
        with ExitStack() as stack:
            stack.enter_context(exclusively("a profile"))
            self._begin()
            self._watching = stack.enter_context(ExitStack())
            self._dispatching.session.watch(self._dispatching, self._watching)
            self._stack = stack.pop_all()
        self._watches = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Taken first: whatever is raised below, the hooks of the providers are removed.
        stack, self._stack = self._stack, ExitStack()
        self._watches = False
        if os.getpid() != self._process:
            stack.pop_all()  # the child of a fork: the measurement is its parent's
            return
        with stack:
            stack.callback(self._dispatching.forget)
            if error is None:
                self._dispatching.end()
                self._watching.close()
                self._complete()  # while no other measurement may begin
            else:
                self._dispatching.abandon()
                self._cut_short(error)

    @contextmanager
    def evaluation(self, name: str = "evaluation") -> Iterator[None]:
        """Mark one evaluation by hand: everything that happens in this `with` block.

        Once the program marks evaluations, calls of models are no longer evaluations.

        Args:
            name: Name of the root span.
        """
        dispatcher = self._dispatching
        self._watching.close()  # from now on the program marks the evaluations
        if not dispatcher.begin_named(name):
            yield
            return
        with ExitStack() as cut_short:
            # An evaluation that raises is dropped: its latency would be that of a part.
            cut_short.callback(dispatcher.abandon)
            yield
            cut_short.pop_all()
        dispatcher.end_named()

    def __call__(self, function: F) -> F:
        """Return `function` so that each call of it is an evaluation.

        The returned function has this object as its attribute `profile`; the trace of
        the calls so far is `function.profile.trace`.

        Raises:
            TypeError: `function` is a generator function, whose call does no work yet.
        """
        check_no_generator(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with if_alone("a profile") as alone:
                    if not alone:
                        return await function(*args, **kwargs)
                    self._decide()
                    with self.evaluation(name_of(function)):
                        return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with if_alone("a profile") as alone:
                    if not alone:
                        return function(*args, **kwargs)
                    return self._evaluate(function, args, kwargs)

        wrapped.profile = self  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    @property
    def _dispatching(self) -> Dispatcher:
        if self._dispatcher is None:
            raise MeasurementError(
                "this profile has not begun: use it as `with xsp.profile() as prof:`, or to "
                "decorate a function and call that"
            )
        return self._dispatcher

    def _begin(self) -> None:
        self._process = os.getpid()
        self._selection = select(self._settings.levels)
        plan = Plan(self._selection.rungs, self._settings, repeatable=False)
        session = Session(self._selection.providers, kinds=self._selection.kinds)
        self._dispatcher = Dispatcher(plan, session)
        self._trace = None

    def _decide(self) -> None:
        if self._dispatcher is None:
            self._begin()
        self._trace = None

    def _evaluate(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = name_of(function)
        self._decide()
        call = ModelCall(function, args, kwargs, name=name, subject=name, whole_model=False)
        try:
            result = self._dispatching.run(call)
            # Unasked, a decorated function is not repeated: the program will call it again.
            if self._replay:
                self._complete()
            return result
        finally:
            self._dispatching.forget()

    def _complete(self) -> None:
        """Repeat the last evaluation until the plan is complete, or note why not."""
        dispatcher = self._dispatching
        if dispatcher.plan.done or not dispatcher.subjects:
            return
        reason = self._hazard()
        if reason is not None or dispatcher.last is None:
            dispatcher.session.problem(
                "not-replayed",
                f"the plan was not completed: {_shortage(dispatcher)}; and the last evaluation was "
                f"not repeated: {reason}",
            )
            return
        dispatcher.plan.repeatable = True
        title = f"repeating {dispatcher.last.subject}"
        with ExitStack() as stack:
            report = stack.enter_context(progress_bar(self._progress, title))
            stack.enter_context(dispatcher.last.conditions())
            try:
                _carry_out_again(dispatcher, dispatcher.last, report, insist=bool(self._replay))
            except Exception as error:  # noqa: BLE001  # the user's own call had succeeded
                dispatcher.session.problem(
                    "replay-failed",
                    f"repeating {dispatcher.last.subject} raised {type(error).__name__}: {error}; "
                    "the trace holds what there was until then. replay=False leaves it out",
                )

    def _hazard(self) -> str | None:
        """Return why the last evaluation must not be repeated, None if repeating is allowed."""
        last = self._dispatching.last
        if last is None:
            return "it is more than one call, which only the program itself can make again"
        # The user's answer goes before everything that can be found out.
        if self._replay is not None:
            return None if self._replay else "replay=False"
        danger, unread = read_arguments(lambda: self._danger(last))
        if unread:
            return f"whether it may be cannot be told, as {unread}. Say replay=True if it may"
        return danger

    def _danger(self, last: ModelCall) -> str | None:
        """Return what repeating the last evaluation would change, None if nothing."""
        if iterator_type(last) is not None:
            return f"{last.subject} was given an iterator, which is used up"
        if (reason := last.hazard()) is not None:
            return f"{reason}. Say replay=True if it may be"
        if kept := irreversible(self._dispatching.session, last):
            return f"what it may change could not be put back: {kept}. Say replay=True if it may be"
        return None

    def _cut_short(self, error: BaseException) -> None:
        self._dispatching.session.problem(
            "cut-short",
            f"the block was left by {type(error).__name__} before the plan was complete: "
            "latencies rest on fewer evaluations",
        )

    def _build(self) -> Trace:
        dispatcher = self._dispatching
        passed = tuple(
            Problem(
                "passed-over",
                f"not evaluated: {counted(calls, 'call')} of {subject}; mark what belongs "
                "together with prof.evaluation()",
            )
            for subject, calls in dispatcher.passed.items()
        )
        if dispatcher.subjects and not dispatcher.session.visits:
            raise MeasurementError(
                f"no evaluation came to its end: each call of {', '.join(dispatcher.subjects)} "
                "raised, or was cut short. Mend that, or profile more of what the program does"
            )
        if not dispatcher.session.visits:
            failed = "".join(f" ({problem.message})" for problem in dispatcher.session.problems)
            raise MeasurementError(
                "nothing was evaluated: no model was called in the block. Call one in it, mark "
                "what counts with `with prof.evaluation():`, or use xsp.measure(function, ...)"
                + failed
            )
        # Several models may have been evaluated: the most frequent names the trace.
        subject = dispatcher.subjects.most_common(1)[0][0]
        runs = interpret_session(dispatcher.session, self._selection, subject)
        return build_trace([runs], self._settings, problems=passed)


def _carry_out_again(
    dispatcher: Dispatcher, last: ModelCall, report: Progress, *, insist: bool
) -> None:
    """Repeat the last evaluation until the plan is complete; note what was put back each time."""
    changed = carry_out(dispatcher.plan, dispatcher.session, last, report, insist=insist)
    if changed:
        dispatcher.session.problem(
            "replayed-as-left",
            f"{last.subject} changes its input or itself ({changed}): each repetition began with "
            "that as the program's last call had left it, and it was put back afterwards",
        )


def _shortage(dispatcher: Dispatcher) -> str:
    """Return why the evaluations of the program did not complete the plan."""
    seen, fewest = dispatcher.subjects.total(), dispatcher.plan.fewest_evaluations
    if seen < fewest:
        return f"it takes about {fewest} evaluations or more, and there were {seen}"
    if dispatcher.plan.brief:
        lasted = duration(1e9 * dispatcher.plan.lasted_s)
        return f"the evaluations lasted {lasted}, which says little of the time after"
    return f"after {counted(seen, 'evaluation')} the model is not known as well as asked for yet"
