"""Profiling a program: a `with` block or a decorated function in, the trace of the program out.

Unlike `measure`, the program itself makes the calls; the dispatcher makes each of them a step
of the plan of its group. After the block a call of a group is repeated if the plan of the
group is not complete by then, and repeating is safe.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Literal, TypeVar

import polars as pl

from xsp import tracer
from xsp.composition import Outcome, Purpose, program_traces, side_by_side
from xsp.errors import MeasurementError, XspError
from xsp.level import LevelSet
from xsp.measurement import Progress, check_no_generator, name_of, status_line
from xsp.program.dispatcher import Dispatcher
from xsp.program.lull import Lulls
from xsp.program.pause_overhead import note_pause_overhead
from xsp.program.receiver import Receivers
from xsp.program.replay import complete_plans
from xsp.provider import ModelCall
from xsp.rank import Account, Agreement, Company
from xsp.session import Session, exclusively, if_alone, schedule, select, settings_of
from xsp.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])


class profile:  # noqa: N801  # reads as what it is in a with statement
    """Profile what happens in a `with` block, or every call of a decorated function.

    In a block each outermost call of a model is an evaluation (in training: everything
    from that call to the end of the optimizer's step). Evaluations that are alike (of one
    model, in one phase, with inputs of the same shapes) are a group, and have a plan. If
    the block ends before a plan is complete, a call of the group is repeated until
    the plan is complete, where repeating is safe.

    The trace is that of the whole block: the groups, the user's own spans around them, and
    what lies between, such as data loading. The trace of a decorated function is that of one
    call.

    Args:
        levels: Levels to profile: a number or name (that and all above), or several.
        runs: Evaluations on each rung; by default as many as it takes, over 3 s at
            least, until the model's latency is known to ±1 %.
        budget: Seconds of evaluating after which the plan counts as complete, 20 by default; and
            of repeating after the block, by default as many as evaluations took, from 5 to 20.
        statistic: How runs are summarised: "trimmed" (20 % trimmed mean), "median",
            "mean" or "min".
        replay: Whether calls may be repeated after the block; None
            for "if the model is in eval mode, gradients are off, its input is not used up,
            and all that it may change can be put back". Input and model are put back to what
            the program's last call left, before each repetition and after the last.
        progress: Whether to say on a terminal what xsp does after the block, with a bar while
            repeating: by default it does. Or a function that is called with the fraction repeated.
        schedule: Which evaluations are measured (`xsp.schedule`); by default all.
        on_busy: What to do if something else is being measured in this process: "raise", or
            "skip" to run the block unprofiled, as a server wants that serves on meanwhile.
        name: Name of the program in the trace; by default file and line of the block.

    Raises:
        ValueError: A level is unknown, or a number out of range.
    """

    def __init__(  # noqa: PLR0913  # the options of the front door
        self,
        levels: LevelSet = 3,
        *,
        runs: int | None = None,
        budget: float | None = None,
        statistic: str = "trimmed",
        replay: bool | None = None,
        progress: bool | Progress | None = None,
        schedule: schedule | None = None,
        on_busy: Literal["raise", "skip"] = "raise",
        name: str | None = None,
    ) -> None:
        if on_busy not in ("raise", "skip"):
            raise ValueError(f"on_busy={on_busy!r}: there are 'raise' and 'skip'")
        self._settings = settings_of(levels, runs=runs, budget=budget, statistic=statistic)
        self._budget_s, self._replay = budget, replay
        self._progress = progress
        self._schedule = schedule or _EVERY
        self._skips = on_busy == "skip"
        self._name = name
        self._stack = ExitStack()
        self._watching = ExitStack()  # the user's spans
        self._finding = ExitStack()  # calls of models, and what lies between
        self._entered = _Entered()
        self._skipped = False
        self._process = 0
        self._watches = False
        self._dispatcher: Dispatcher | None = None
        self._outcome: Outcome | None = None
        self._decorates = False
        self._repeated: dict[int, int] = {}
        self._agreement: Agreement | None = None

    def __repr__(self) -> str:
        levels = ", ".join(level.label for level in sorted(self._settings.levels))
        state = (
            "watching" if self._watches else "not begun" if self._dispatcher is None else "ended"
        )
        return f"<xsp.profile of {levels}: {state}>"

    @property
    def trace(self) -> Trace:
        """The trace of the program so far.

        Raises:
            MeasurementError: Nothing has been evaluated.
        """
        made = self._made()
        if self._decorates and len(made.groups) == 1:
            [only] = made.groups.values()
            return only
        return made.program

    @property
    def groups(self) -> Mapping[str, Trace]:
        """The trace of one evaluation of each group, by the group's name; the costliest first.

        Raises:
            MeasurementError: Nothing has been evaluated.
        """
        return self._made().groups

    def account(self, company: Company, failed: str) -> Account:
        """Return what this rank of a distributed program measured, for rank 0.

        Args:
            company: What the rank shares with the others.
            failed: What ended the script, where it did not end well.
        """
        rank = company.identity.rank
        try:
            made = self._made()
        except XspError as missing:
            return Account(rank, why=str(missing), failed=failed)
        return Account(
            rank,
            made.program,
            began_ns=made.began_ns,
            trouble=company.agreement.trouble,
            failed=failed,
            rungs=made.rungs,
            collectives=made.collectives,
        )

    def agree(self, agreement: Agreement) -> None:
        """Let each evaluation be recorded on the rung that all ranks agree on."""
        self._agreement = agreement

    def side_by_side(self) -> pl.DataFrame:
        """Return a table with a row for each layer, and a column with its latency in each group.

        Columns `module_path`, `module_class` and `phase`; then a column for each group, with the
        group's name: nanoseconds in one evaluation, null where the group has no such layer.

        Raises:
            MeasurementError: Nothing has been evaluated.
        """
        return side_by_side(self.groups)

    def __enter__(self) -> profile:
        """Begin to watch for evaluations.

        Raises:
            MeasurementError: Another measurement is running in this process.
        """
        with ExitStack() as stack:
            alone = stack.enter_context(self._alone())
            self._entered.blocks.append(alone)
            if not alone:
                self._skipped = True
                return self
            self._begin(_place(sys._getframe(1)))
            dispatcher = self._dispatching
            self._receivers = Receivers(dispatcher)
            self._watching = stack.enter_context(ExitStack())
            lulls = Lulls(dispatcher.journal, dispatcher.progress, dispatcher.rest)
            lulls.begin()
            self._watching.callback(lulls.end)
            tracer.watch(dispatcher.session.clock)
            self._watching.callback(self._end_watching)
            self._finding = self._watching.enter_context(ExitStack())
            dispatcher.session.watch(self._receivers.of, self._finding)
            dispatcher.collections.begin()
            self._finding.callback(dispatcher.collections.end)
            dispatcher.stop_watching = self._finding.close
            dispatcher.journal.begin_ns = dispatcher.session.clock.now()  # hooks are in place
            self._watches = True
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = self._entered.blocks
        skipped = bool(entered) and not entered.pop()
        if skipped or not self._watches:  # another thread's block may go on
            return
        # Taken first: whatever is raised below, the hooks of the providers are removed.
        stack, self._stack, self._watches = self._stack, ExitStack(), False
        if os.getpid() != self._process:
            stack.pop_all()  # the child of a fork: the measurement is its parent's
            return
        with stack:
            stack.callback(lambda: self._dispatching.calls.clear())  # noqa: PLW0108  # replaced below
            self._dispatching.journal.end(self._dispatching.session.clock.now())
            self._dispatching.journal.left_by = "" if error is None else type(error).__name__
            self._watching.close()
            with status_line(self._progress, "reading what was recorded"):
                self._dispatching.finish()
            if self._agreement is not None:
                self._agreement.end()
            if error is None:
                self._complete()  # while no other measurement may begin

    @contextmanager
    def evaluation(self, name: str = "evaluation") -> Iterator[None]:
        """Mark one evaluation by hand: everything that happens in this `with` block.

        Once the program marks evaluations, calls of models are no longer evaluations.

        Args:
            name: Name of the root span.
        """
        entered = self._entered.blocks
        if entered and not entered[-1]:  # skipped
            yield
            return
        dispatcher = self._dispatching
        if self._watches and not dispatcher.by_hand:
            self._finding.close()
            dispatcher.mark_by_hand()
            # What lies between the evaluations is told as before.
            dispatcher.session.watch(self._receivers.of, self._finding)
        if not dispatcher.begin_named(name):
            yield
            return
        with ExitStack() as cut_short:
            # An evaluation that raises is dropped: its latency would be that of a part.
            cut_short.callback(dispatcher.drop)
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
                    self._decide(function)
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
        if self._dispatcher is None and self._skipped:
            raise MeasurementError(
                "this profile was skipped, for something else was being measured in the process"
            )
        if self._dispatcher is None:
            raise MeasurementError(
                "this profile has not begun: use it as `with xsp.profile() as prof:`, or to "
                "decorate a function and call that"
            )
        return self._dispatcher

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep other measurements out; yield whether that is possible, or else raise."""
        if not self._skips:
            with exclusively("a profile"):
                yield True
        else:
            with if_alone("a profile") as alone:
                yield alone

    def _begin(self, name: str) -> None:
        self._process = os.getpid()
        self._selection = select(self._settings.levels)
        session = Session(self._selection.providers, kinds=self._selection.kinds)
        self._dispatcher = Dispatcher(
            self._selection.rungs, self._settings, session, self._schedule
        )
        self._dispatcher.plans.agreement = self._agreement
        self._name = self._name or name
        self._repeated, self._outcome = {}, None

    def _end_watching(self) -> None:
        self._dispatching.journal.spans = tracer.unwatch()

    def _decide(self, function: Callable[..., Any]) -> None:
        self._decorates = True
        if self._dispatcher is None:
            self._begin(name_of(function))
        self._outcome = None

    def _evaluate(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = name_of(function)
        self._decide(function)
        call = ModelCall(function, args, kwargs, name=name, subject=name, whole_model=False)
        try:
            result = self._dispatching.run(call)
            # Unasked, a decorated function is not repeated: the program will call it again.
            if self._replay:
                self._dispatching.finish()
                self._complete()
            return result
        finally:
            self._dispatching.calls.clear()

    def _complete(self) -> None:
        """Repeat calls until the plans of their groups are complete, or note why not."""
        self._repeated = complete_plans(
            self._dispatching,
            self._budget_s,
            replay=self._replay,
            progress=self._progress,
            once=self._schedule.active is not None,
        )

    def _made(self) -> Outcome:
        if self._outcome is not None:
            return self._outcome
        dispatcher = self._dispatching
        pausing = dispatcher.paused() if self._watches or self._decorates else nullcontext()
        with pausing, status_line(self._progress, "making the trace"):
            journal, session = dispatcher.journal, dispatcher.session
            note_pause_overhead(journal, session)
            purpose = Purpose(str(self._name), self._selection, self._settings, self._repeated)
            made = program_traces(journal, dispatcher.plans.groups, session, purpose)
        if not self._watches:  # otherwise later evaluations would be missing
            self._outcome = made
        return made


_EVERY = schedule()


class _Entered(threading.local):
    """The blocks of a profile that a thread is in: for each whether it is profiled."""

    def __init__(self) -> None:
        self.blocks: list[bool] = []


def _place(frame: FrameType) -> str:
    """Return file and line of a block, for people."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
