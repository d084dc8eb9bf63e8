"""The session: arms providers, times evaluations, keeps what was recorded.

Nothing is interpreted while the model runs; `runs` does that afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xsp.clock import Clock, SystemClock
from xsp.correlate import correlate
from xsp.level import Kind
from xsp.plan import Step
from xsp.provider import ModelCall, Provider, Records, Request, Watcher
from xsp.row import SpanRows, concat_rows, span_rows
from xsp.run import Run, Rung
from xsp.trace import Problem


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit of a rung left behind, raw.

    Attributes:
        step: What was asked for.
        name: Name of the root span.
        thread: Thread the evaluations ran on.
        windows: Start and end of every timed evaluation, in ns.
        records: What each provider kept.
    """

    step: Step
    name: str
    thread: int
    windows: tuple[tuple[int, int], ...]
    records: tuple[tuple[Provider, Records], ...] = ()


class Session:
    """Runs evaluations under level sets, in this process.

    Args:
        providers: Those that may be armed; each is, where a rung wants its kinds.
        clock: What the evaluations are timed by.
    """

    def __init__(self, providers: Iterable[Provider], clock: Clock | None = None) -> None:
        self.providers = tuple(providers)
        self.watchers = tuple(p for p in self.providers if isinstance(p, Watcher))
        self.clock = clock or SystemClock()
        self.visits: list[Visit] = []
        self.dropped = 0
        self._problems: dict[tuple[str, str], Problem] = {}
        self._broken: set[tuple[str, Rung]] = set()
        self._synchronize = tuple(watcher.synchronize for watcher in self.watchers)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What went wrong so far, each thing once."""
        return tuple(self._problems.values())

    def problem(self, code: str, message: str) -> None:
        """Note a problem, unless it has been noted already."""
        self._problems.setdefault((code, message), Problem(code, message))

    def visit(self, step: Step, call: ModelCall) -> list[int]:
        """Evaluate as often as the step says, and return the timed latencies in ns."""
        now, synchronize = self.clock.now, self._synchronize
        function, args, kwargs = call.function, call.args, dict(call.kwargs)
        windows: list[tuple[int, int]] = []
        with self._armed(step, call.name, windows, whole_model=call.whole_model):
            for _ in range(step.settle + step.evaluations):
                begin = now()
                function(*args, **kwargs)
                for wait in synchronize:
                    wait()
                windows.append((begin, now()))
            del windows[: step.settle]
        return [end - begin for begin, end in windows]

    def evaluate(self, step: Step, call: ModelCall) -> Any:
        """Make one call of the user's as the step says, and return its result."""
        now, synchronize = self.clock.now, self._synchronize
        function, args, kwargs = call.function, call.args, call.kwargs
        windows: list[tuple[int, int]] = []
        with self._armed(step, call.name, windows, whole_model=call.whole_model):
            begin = now()
            result = function(*args, **kwargs)
            for wait in synchronize:
                wait()
            windows.append((begin, now()))
        return result

    @contextmanager
    def open(self, step: Step, name: str) -> Iterator[Window]:
        """Evaluate what happens in the block; it ends when the yielded window was last extended."""
        windows: list[tuple[int, int]] = []
        with self._armed(step, name, windows, whole_model=False):
            window = Window(self.clock.now, self._synchronize)
            yield window
            window.settle()
            if window.end_ns is not None:  # else it was never extended: it was cut short
                windows.append((window.begin_ns, window.end_ns))

    def runs(self, *, process: int = 0) -> list[Run]:
        """Return every evaluation that counts as a run, interpreted.

        One that was to warm up counts where its rung has no other.
        """
        counted = {visit.step.rung for visit in self.visits if visit.step.counts}
        return [
            run
            for visit in self.visits
            if visit.step.counts or visit.step.rung not in counted
            for run in self._runs_of(visit, process)
        ]

    @contextmanager
    def _armed(
        self, step: Step, name: str, windows: list[tuple[int, int]], *, whole_model: bool
    ) -> Iterator[None]:
        request = Request(step.rung.kinds, detail=step.rung.detail, whole_model=whole_model)
        armed: list[Provider] = []
        records: list[tuple[Provider, Records]] = []
        try:
            armed.extend(
                provider
                for provider in self._wanted(step.rung)
                if self._guard(provider, step.rung, "start", provider.start, self.clock, request)
            )
            yield
        finally:
            for provider in reversed(armed):
                kept = self._guard(provider, step.rung, "stop", provider.stop)
                if kept:
                    records.append((provider, kept[0]))
        if windows:
            thread = threading.get_ident()
            self.visits.append(Visit(step, name, thread, tuple(windows), tuple(records)))

    def _wanted(self, rung: Rung) -> list[Provider]:
        # A watcher hears of the bare rung as well: it has to step aside there.
        return [
            provider
            for provider in self.providers
            if (provider.kinds & rung.kinds or provider in self.watchers)
            and (provider.name, rung) not in self._broken
        ]

    def _guard(
        self, provider: Provider, rung: Rung, verb: str, function: Callable[..., Any], *args: Any
    ) -> tuple[Any] | None:
        """Return what `function` returns, in a tuple; None if it failed, which is noted."""
        try:
            return (function(*args),)
        except Exception as error:  # noqa: BLE001  # a provider must never reach the user's call
            self._broken.add((provider.name, rung))
            self.problem(
                "provider-failed",
                f"{provider.name} failed to {verb} on the {rung.name} rung and was left out of "
                f"it: {type(error).__name__}: {error}",
            )
            return None

    def _runs_of(self, visit: Visit, process: int) -> list[Run]:
        step = visit.step
        frames: tuple[SpanRows | None, ...] = (None,) * len(visit.windows)
        if step.rung.kinds:
            frames = self._frames(visit)
        return [
            Run(step.rung, end - begin, frame, process=process, round=step.round)
            for (begin, end), frame in zip(visit.windows, frames, strict=True)
        ]

    def _frames(self, visit: Visit) -> tuple[SpanRows, ...]:
        rows = concat_rows([self._rows(visit, *kept) for kept in visit.records])
        found = correlate(_roots(visit), rows)
        if found.orphans:
            self.problem(
                "orphans",
                f"{found.orphans} spans of one visit of the {visit.step.rung.name} rung have no "
                "parent on their thread; they hang under the root",
            )
        return found.frames

    def _rows(self, visit: Visit, provider: Provider, records: Records) -> SpanRows:
        rung = visit.step.rung
        for sentence in records.problems:
            self.problem("provider", sentence)
        if records.dropped:
            self.dropped += records.dropped
            self.problem("dropped", f"{provider.name} lost records on the {rung.name} rung")
        rows = self._guard(provider, rung, "interpret its records", provider.spans, records)
        return rows[0] if rows else concat_rows([])


class Window:
    """An evaluation that is open: from its begin until it was last extended."""

    __slots__ = ("_now", "_synchronize", "begin_ns", "end_ns")

    def __init__(self, now: Callable[[], int], synchronize: tuple[Callable[[], None], ...]) -> None:
        self._now = now
        self._synchronize = synchronize
        self.end_ns: int | None = None
        self.begin_ns = now()

    def extend(self) -> None:
        """Note that the evaluation has lasted at least until now."""
        self.end_ns = self._now()

    def settle(self) -> None:
        """Add the time that the devices still need for what they were asked to do."""
        if self.end_ns is not None and self._synchronize:
            before = self._now()
            for wait in self._synchronize:
                wait()
            self.end_ns += self._now() - before


def _roots(visit: Visit) -> SpanRows:
    begins, ends = zip(*visit.windows, strict=True)
    return span_rows(
        {
            "kind": Kind.PIPELINE.value,
            "name": visit.name,
            "start_ns": list(begins),
            "end_ns": list(ends),
            "thread": visit.thread,
        }
    )
