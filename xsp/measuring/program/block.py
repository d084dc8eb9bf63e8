"""Profiling a program: `with xsp.profile() as prof:` around it, or a decorated function."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, TypeVar

import polars as pl

from xsp import tracer
from xsp.errors import MeasurementError, XspError
from xsp.level import Kind, LevelSet
from xsp.measuring.call import check_no_generator, name_of
from xsp.measuring.program.mark import Mark, mark, with_steps
from xsp.measuring.program.repeat import Repeated, repeat_calls
from xsp.measuring.rank import Company
from xsp.progress import Progress, status_line
from xsp.reading.program import ProgramTraces, read_program
from xsp.reading.rank import Account
from xsp.record.program import SKIPPED, ProgramRecord, Recorder
from xsp.record.rank import identity, in_process_group
from xsp.record.session import Selection, exclusively, if_alone, schedule, select, settings_of
from xsp.text import encodable
from xsp.trace import Trace, attribute_column
from xsp.warning import TraceWarning

F = TypeVar("F", bound=Callable[..., Any])

_KEYS = ("module_path", "module_class", "phase")  # what a layer is known by in all groups
_RANK_ALONE = (
    "only this rank of several is in the trace; waits for the others count as self time. Use "
    "`torchrun … -m xsp profile SCRIPT` to join the traces of all ranks."
)
_IN_CHILD = (
    "this process was forked while the profile was on: what happened is measured in the parent "
    "process; profile in the child to see what it does"
)


class profile:  # noqa: N801  # reads as what it is in a with statement
    """Profile a `with` block, or every call of a decorated function.

    xsp times each outermost call of a model in the block, and subtracts its own overhead. In
    training, a step reaches from its first call to the end of the optimizer's step. Alike steps
    form a group. Your program runs exactly as often as you wrote it. Only if a block makes three
    calls or fewer, xsp may repeat them afterwards, when nothing can notice.

    `prof.trace` is the trace of the whole block: steps, your own spans (`xsp.span`), and the time
    between them, such as data loading. The trace of a decorated function is that of its mean call.

    Example:
        Profile a training loop::

            with xsp.profile() as prof:
                for batch in loader:
                    train_step(batch)
            prof.print()
            prof.save("train.xsp")

    Args:
        levels: What to record, by default 2. A number from 1 to 5, a level (`"framework"`) or a
            kind of span (`"layers"`, `"ops"`, `"calls"`, `"kernels"`) means that and all above;
            a collection means exactly its members.
        runs: Number of steps on each pass, if xsp repeats a call after the block.
        budget: Seconds, by default 20, after which xsp records samples only, which slow the
            program by at most 1 %. None: it records all the time.
        statistic: Summary of repetitions: "trimmed" (default: the mean of the middle 60 %),
            "median" or "mean".
        repeat: Whether xsp repeats calls after the block, for at most 3 seconds. None (default):
            if the block made three or fewer, in inference, on one thread, without hooks, and two
            rehearsals change and print nothing.
        replay: The former name of `repeat`.
        progress: Whether xsp says on standard error what it does after the block; None (default):
            yes, with a bar on a terminal. Or a function that takes the fraction repeated.
        schedule: The steps to record (`xsp.schedule`); None (default): all.
        on_busy: If another measurement runs in this process: "raise" (default) an error, or
            "skip" to run the block without this profile. A skipped block inside of a profiled one
            is a part of that.
        name: Name of the program in the trace; by default file and line of the block.
        monitor: Whether a process beside the block reads energy and utilization. None (default):
            if there is a GPU, or an energy counter of the CPU. Decorated functions have none.

    Raises:
        ValueError: A level is unknown, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913  # the options of the front door
        self,
        levels: LevelSet = 2,
        *,
        runs: int | None = None,
        budget: float | None = 20.0,
        statistic: str = "trimmed",
        repeat: bool | None = None,
        replay: bool | None = None,
        progress: bool | Progress | None = None,
        schedule: schedule | None = None,
        on_busy: Literal["raise", "skip"] = "raise",
        name: str | None = None,
        monitor: bool | None = None,
    ) -> None:
        if on_busy not in ("raise", "skip"):
            raise ValueError(f"Unknown on_busy={on_busy!r}. Choose 'raise' or 'skip'.")
        self._settings = settings_of(
            levels, runs=runs, budget=budget, statistic=statistic, monitor=monitor
        )
        self._budget_s = None if budget is None else float(budget)
        self._repeat = replay if repeat is None else repeat
        self._progress = progress
        self._schedule = schedule
        self._skips = on_busy == "skip"
        self._name = name
        self._stack = ExitStack()
        self._token = object()  # stands for the profile where nothing may keep it alive
        self._skipped = self._watches = self._decorates = False
        self._process = 0
        self._recorder: Recorder | None = None
        self._selection: Selection | None = None
        self._record: ProgramRecord | None = None
        self._traces: ProgramTraces | None = None
        self._repeated = Repeated({}, {})
        self._seed: int | None = None
        self._marks: list[Mark] = []  # the ends of steps, if `step()` is called bare
        self._open = 0  # decorated calls under way
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        levels = ", ".join(level.label for level in sorted(self._settings.levels))
        state = "watching" if self._watches else "not begun" if self._recorder is None else "ended"
        return f"<xsp.profile of {levels}: {state}>"

    @property
    def trace(self) -> Trace:
        """The trace of the program so far.

        Of a block that made one call alone, which was repeated, it is the exact trace of that.

        Raises:
            MeasurementError: Nothing has been recorded.
        """
        made = self._made()
        groups = self.groups
        if self._decorates and len(groups) == 1:
            [only] = groups.values()
            return only
        if len(self._repeated.traces) == 1 and self._is_one_call(made):
            [exact] = self._repeated.traces.values()
            return exact
        return made.program

    @property
    def groups(self) -> Mapping[str, Trace]:
        """The trace of one member of each group, by the group's name; the costliest first.

        It is the mean of the program's own calls; of a call that was repeated, the exact trace.

        Raises:
            MeasurementError: Nothing has been recorded.
        """
        made = self._made()
        exact = self._repeated.traces
        found = dict(made.groups)
        for name, numbers in made.numbers.items():
            known = [exact[number] for number in numbers if number in exact]
            if name in found and known and len(numbers) == 1:
                found[name] = known[0]
        return found

    def print(self, *, rows: int | None = 60) -> None:
        """Print the tree of `prof.trace` on standard output.

        Args:
            rows: About how many rows at most, by default 60; None: every span.

        Raises:
            MeasurementError: Nothing has been recorded.
        """
        text = self.trace.tree(rows=rows)
        print(encodable(text))  # noqa: T201  # what it is for

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save `prof.trace` as one Parquet file, and return its path; see `Trace.save`."""
        return self.trace.save(path)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write `prof.trace` as one HTML page, and return its path; see `Trace.report`."""
        return self.trace.report(path)

    def side_by_side(self) -> pl.DataFrame:
        """Return a table with a row for each layer, and a column with its latency in each group.

        Columns `module_path`, `module_class` and `phase`; then a column for each group, with the
        group's name: nanoseconds in one call or step, null where the group has no such layer.

        Raises:
            MeasurementError: Nothing has been recorded.
        """
        table = pl.DataFrame(schema=dict.fromkeys(_KEYS, pl.String))
        for name, trace in self.groups.items():
            spans = trace.spans
            keys = {key: attribute_column(spans, key) for key in _KEYS}
            layers = (
                spans.select("kind", "latency_ns", **keys)
                .filter(pl.col("kind") == Kind.LAYER.value, pl.col("module_path").is_not_null())
                .group_by(_KEYS, maintain_order=True)
                .agg(
                    pl.when(pl.col("latency_ns").is_not_null().any())
                    .then(pl.sum("latency_ns"))
                    .alias(name)
                )
            )
            table = table.join(
                layers, on=_KEYS, how="full", coalesce=True, nulls_equal=True,
                maintain_order="left_right",
            )  # fmt: skip
        return table

    def _account(self, company: Company, failed: str) -> Account:
        """Give what this rank of a distributed program measured, for rank 0.

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
            failed=failed,
            windows=made.windows,
            collectives=made.collectives,
        )

    def _among_ranks(self, seed: int) -> None:
        """Have windows drawn from a seed, and counted in backward passes, alike on all ranks."""
        self._seed = seed

    def __enter__(self) -> profile:
        """Begin to watch.

        Raises:
            MeasurementError: Another measurement is running in this process.
        """
        with ExitStack() as stack:
            alone = stack.enter_context(self._alone())
            frame = sys._getframe(1)
            left_out = None if alone else _LeftOut(frame)
            _entered.set((*_entered.get(), (self._token, left_out)))
            if left_out is not None:
                self._skipped = True
                return self
            # File and line of a block, for people.
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            recorder = self._begin(place, monitor=self._settings.monitor)
            stack.callback(recorder.end)
            recorder.begin(frame)
            _around.set((recorder.log.block, threading.get_ident()))
            self._watches = True
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = _entered.get()
        mine = [at for at, (token, _) in enumerate(entered) if token is self._token]
        if mine:
            _entered.set((*entered[: mine[-1]], *entered[mine[-1] + 1 :]))
            left_out = entered[mine[-1]][1]
            if left_out is not None:
                left_out.end()
                return
        if not self._watches:  # another thread's block may go on
            return
        # Taken first: whatever is raised below, the hooks of the providers are removed.
        stack, self._stack, self._watches = self._stack, ExitStack(), False
        recorder = self._recorder
        assert recorder is not None
        assert self._selection is not None
        if os.getpid() != self._process:
            stack.pop_all()  # the child of a fork: the measurement is its parent's
            return
        with stack:
            recorder.end("" if error is None else type(error).__name__)
            if self._seed is None and in_process_group():
                recorder.session.warning("rank-alone", _RANK_ALONE)
            self._record = recorder.record()
            if error is None:
                self._repeated = repeat_calls(
                    recorder, self._selection, self._settings, wanted=self._repeat,
                    progress=self._progress,
                )  # fmt: skip
            recorder.kept_calls()

    def step(self, name: str = "step") -> AbstractContextManager[tracer.OpenRegion | None]:
        """Mark one step by hand: a `with` block, or the iteration that ends with the call.

        If a program marks steps, these are the steps of its trace, and calls are parts of them.

        Example:
            Both of these mark each batch as a step::

                for batch in loader:
                    with prof.step():
                        train(batch)

                for batch in loader:
                    train(batch)
                    prof.step()

        Args:
            name: Name of the step in the trace, by default "step".
        """
        mine = [left_out for token, left_out in _entered.get() if token is self._token]
        if (mine and mine[-1] is not None) or self._recorder is None:  # skipped, or not begun
            self._check()
            return nullcontext()
        if not self._watches:
            return nullcontext()
        self._marks.append(mark(self._recorder.log, name))
        return _Step(name, self._marks)

    evaluation = step  # its name in earlier versions

    def __call__(self, function: F) -> F:
        """Return `function` so that each call of it is a step.

        The returned function has this object as its attribute `profile`; the trace of
        the calls so far is `function.profile.trace`.

        Raises:
            TypeError: `function` is a generator function, whose call does no work yet.
        """
        check_no_generator(function)
        name = name_of(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self._decorated(name) as on:
                    if not on:
                        return await function(*args, **kwargs)
                    with self.step(name):
                        return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self._decorated(name) as on:
                    if not on:
                        return function(*args, **kwargs)
                    with self.step(name):
                        return function(*args, **kwargs)

        wrapped.profile = self  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    @contextmanager
    def _decorated(self, name: str) -> Iterator[bool]:
        """Have hooks in place while decorated calls are under way; yield whether they are."""
        with self._lock:
            self._decorates = True
            if self._open == 0:
                alone = self._stack.enter_context(if_alone("a profile"))
                if alone:
                    recorder = self._recorder
                    if recorder is None:
                        recorder = self._begin(name)
                        recorder.begin(sys._getframe(0))
                        recorder.log.keeping = False
                    else:
                        recorder.resume()
                self._watches = alone
            on = self._watches
            self._open += 1
        around = _around.get()
        if on:
            _around.set((tracer.block(), threading.get_ident()))
        try:
            yield on
        finally:
            _around.set(around)
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self._traces = None
                    if self._watches and self._recorder is not None:
                        self._recorder.suspend(between=True)
                    self._watches = False
                    self._stack.close()

    def _alone(self) -> Any:
        """Keep other measurements out: yields whether that is possible, or else raises."""
        return if_alone("a profile") if self._skips else _exclusively()

    def _begin(self, name: str, *, monitor: bool | None = False) -> Recorder:
        self._process = os.getpid()
        self._selection = selection = select(
            self._settings.levels, operators=self._settings.operators, monitor=monitor
        )
        seed = self._seed
        if seed is None and in_process_group() and (rank := identity()) is not None:
            seed = rank.seed  # where every rank has such a block, all record the same windows
        recorder = self._recorder = Recorder(
            selection,
            budget_s=self._budget_s,
            seed=seed,
            among_ranks=seed is not None,
            when=self._schedule,
        )
        recorder.log.skipping = _is_skipped
        recorder.log.keeps_all = bool(self._repeat)
        self._name = self._name or name
        self._record = self._traces = None
        self._marks.clear()
        self._repeated = Repeated({}, {})
        return recorder

    def _check(self) -> None:
        """Raise if there is nothing to tell of.

        Raises:
            MeasurementError: The profile has not begun, was skipped, or is its parent's.
        """
        if self._recorder is None and self._skipped:
            return
        if self._recorder is None:
            raise MeasurementError(
                "This profile has not begun. Use `with xsp.profile() as prof:`, or decorate a "
                "function and call it."
            )

    def _made(self) -> ProgramTraces:
        self._check()
        recorder = self._recorder
        if recorder is None:
            raise MeasurementError(
                "This profile was skipped, because another measurement ran in the process."
            )
        if os.getpid() != self._process:
            raise MeasurementError(_IN_CHILD)
        if self._traces is not None:
            return self._traces
        with status_line(self._progress, "making the trace"):
            assert self._selection is not None
            record = with_steps(self._record or recorder.record(), self._marks)
            hindered = tuple(
                TraceWarning(
                    "not-repeated",
                    f"xsp did not repeat a call after the block, so error bars are wider: {why}",
                )
                for why in dict.fromkeys(self._repeated.hinder.values())
            )
            record = replace(record, warnings=(*record.warnings, *hindered))
            traces = read_program(
                record,
                name=str(self._name),
                settings=self._settings,
                levels=self._selection.levels,
            )
        if not self._watches:  # otherwise what comes later would be missing
            self._traces = traces
            if not self._decorates:
                self._record = replace(record, windows=(), log=replace(record.log, threads=()))
                self._marks.clear()
                recorder.forget()
        return traces

    def _is_one_call(self, made: ProgramTraces) -> bool:
        groups = made.program.metadata["groups"]
        return len(groups) == 1 and groups[0]["calls"] == 1 and not self._regions(made)

    @staticmethod
    def _regions(made: ProgramTraces) -> bool:
        top = made.program.spans.filter(pl.col("parent_id") == made.program.root.span_id)
        return top.height > 1


@contextmanager
def _exclusively() -> Iterator[bool]:
    with exclusively("a profile"):
        yield True


class _Step:
    """A step in a `with` block; `profile.step` has noted its begin as if it were an end."""

    __slots__ = ("marks", "name", "noted", "region")

    def __init__(self, name: str, marks: list[Mark]) -> None:
        self.name, self.marks, self.noted = name, marks, marks[-1]

    def __enter__(self) -> tracer.OpenRegion:
        with suppress(ValueError):  # the profile was read or began anew meanwhile
            self.marks.remove(self.noted)
        frame = sys._getframe(0)
        self.region = tracer.OpenRegion(self.name, Kind.REGION, {}, frame, marked=True)
        return self.region

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.region.close(None if kind is None else kind.__name__)


class _LeftOut:
    """A block that runs unprofiled, from its begin to `end`: it is in nobody's trace.

    It belongs to its task where tasks take turns, else to its thread. A block inside of the
    profiled one, on its thread, is a part of that, and not left out.
    """

    def __init__(self, frame: FrameType) -> None:
        self._region: tracer.OpenRegion | None = None
        self._inside = _around.get() == (tracer.block(), threading.get_ident())
        if self._inside:
            return
        if tracer.tasks_interleave():
            self._region = tracer.OpenRegion(SKIPPED, Kind.REGION, {}, frame)
            return
        thread = threading.get_ident()
        _skipped[thread] = _skipped.get(thread, 0) + 1
        tracer.skip(begins=True)

    def end(self) -> None:
        if self._inside:
            return
        if self._region is not None:
            self._region.close(None)
            return
        thread = threading.get_ident()
        _skipped[thread] = _skipped.get(thread, 1) - 1
        if not _skipped[thread]:
            del _skipped[thread]
            tracer.skip(begins=False)


# The blocks that a context is in: the token of the profile, and what leaves it out, if any.
_entered: ContextVar[tuple[tuple[object, _LeftOut | None], ...]] = ContextVar(
    "xsp_entered", default=()
)
# The profiled block that a context is in, and the thread which entered it.
_around: ContextVar[tuple[object, int] | None] = ContextVar("xsp_profiled", default=None)
# How many blocks that run unprofiled each thread is in: what happens there is in nobody's trace.
_skipped: dict[int, int] = {}


def _is_skipped(thread: int) -> bool:
    return bool(_skipped.get(thread))
