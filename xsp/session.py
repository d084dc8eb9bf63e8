"""The session: arms providers, times evaluations, keeps what was recorded.

Nothing is interpreted while the model runs; `runs` does that afterwards.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.captured import any_captured, captures, unseen, with_captured
from xsp.caveat import caveat
from xsp.clock import Clock, SystemClock
from xsp.correlate import Correlated, correlate
from xsp.level import Kind, Level
from xsp.ordered import place_by_order
from xsp.origin import origin
from xsp.plan import Step
from xsp.provider import Evaluations, ModelCall, Provider, Records, Request, Watcher
from xsp.quantity import counted
from xsp.row import SpanRows, concat_rows, span_rows
from xsp.run import Run, Rung
from xsp.trace import Problem

_BATCH = 256  # evaluations that are correlated at once: enough to make it quick


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visit of a rung left behind, raw.

    Attributes:
        step: What was asked for.
        name: Name of the root span.
        thread: Thread the evaluations ran on.
        windows: Start and end of every timed evaluation, in ns.
        records: What each provider kept.
        waited: What of each evaluation was nothing but waiting for devices, at its end.
    """

    step: Step
    name: str
    thread: int
    windows: tuple[tuple[int, int], ...]
    records: tuple[tuple[Provider, Records], ...] = ()
    waited: tuple[int, ...] = ()


class Session:
    """Runs evaluations under level sets, in this process.

    Args:
        providers: Those that may be armed; each is, where a rung wants its kinds.
        clock: What the evaluations are timed by.
        kinds: Kinds of span that the measurement records, on whatever rung.

    Attributes:
        origin: When the session was made, and inside whose span.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        clock: Clock | None = None,
        *,
        kinds: frozenset[Kind] = frozenset(Kind),
    ) -> None:
        self.providers = tuple(providers)
        self.watchers = tuple(p for p in self.providers if isinstance(p, Watcher))
        self.clock = clock or SystemClock()
        self.origin = origin(self.clock)
        self.visits: list[Visit] = []
        self._kinds = kinds
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._problems: dict[tuple[str, str], Problem] = {}
        self._broken: set[tuple[str, Rung | None]] = set()
        self._synchronize = tuple(watcher.synchronize for watcher in self.watchers)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What went wrong so far, each thing once."""
        return tuple(self._problems.values())

    def problem(self, code: str, message: str) -> None:
        """Note a problem, unless it has been noted already."""
        self._problems.setdefault((code, message), Problem(code, message))

    def watch(self, evaluations: Evaluations, stack: ExitStack) -> None:
        """Have the watchers watch from now on, until the stack closes."""
        for watcher in self.watchers:
            if self._guard(watcher, None, "watch for models", watcher.watch, evaluations):
                stack.callback(watcher.unwatch)

    def visit(self, step: Step, call: ModelCall) -> list[int]:
        """Evaluate as often as the step says, and return the timed latencies in ns."""
        now, synchronize = self.clock.now, self._synchronize
        function, args, kwargs = call.function, call.args, dict(call.kwargs)
        windows: list[tuple[int, int]] = []
        waited: list[int] = []
        with self._armed(step, call.name, windows, waited, whole_model=call.whole_model):
            for _ in range(step.settle + step.evaluations):
                begin = now()
                function(*args, **kwargs)
                returned = now()
                for wait in synchronize:
                    wait()
                windows.append((begin, now()))
                waited.append(windows[-1][1] - returned)
            del windows[: step.settle], waited[: step.settle]
        return [end - begin for begin, end in windows]

    def evaluate(self, step: Step, call: ModelCall) -> Any:
        """Make one call of the user's as the step says, and return its result."""
        now, synchronize = self.clock.now, self._synchronize
        function, args, kwargs = call.function, call.args, call.kwargs
        windows: list[tuple[int, int]] = []
        waited: list[int] = []
        with self._armed(step, call.name, windows, waited, whole_model=call.whole_model):
            begin = now()
            result = function(*args, **kwargs)
            returned = now()
            for wait in synchronize:
                wait()
            windows.append((begin, now()))
            waited.append(windows[-1][1] - returned)
        return result

    @contextmanager
    def open(self, step: Step, name: str) -> Iterator[Window]:
        """Evaluate what happens in the block; it ends when the yielded window was last extended."""
        windows: list[tuple[int, int]] = []
        waited: list[int] = []
        with self._armed(step, name, windows, waited, whole_model=False):
            window = Window(self.clock.now, self._synchronize)
            yield window
            window.settle()
            if window.end_ns is not None:  # else it was never extended: it was cut short
                windows.append((window.begin_ns, window.end_ns))
                waited.append(window.waited_ns)

    def counting(self) -> list[Visit]:
        """Return the visits that count; one that was to warm up, where its rung has no other."""
        sure = {visit.step.rung for visit in self.visits if visit.step.counts}
        return [v for v in self.visits if v.step.counts or v.step.rung not in sure]

    def kept(self) -> list[Visit]:
        """Return the visits that count, and those of warming up that may say more.

        Graphs are captured while a model warms up; what they replay is seen later.
        """
        sure = {id(visit) for visit in self.counting()}
        return [v for v in self.visits if id(v) in sure or Kind.KERNEL in v.step.rung.kinds]

    def runs(self, *, serial: bool = False) -> list[Run]:
        """Return every evaluation that counts as a run, interpreted.

        Args:
            serial: Whether the host waited for each kernel; see `xsp.correlate`.
        """
        visits = self.counting()
        for key in self._counts:  # of the runs that there were when they were last asked for
            self._problems.pop(key, None)
        self._counts.clear()
        self._note_cold_start(visits)
        warm = self._captures(serial)
        runs = [run for batch in _batches(visits) for run in self._runs_of(batch, serial)]
        for (code, who), counts in self._counts.items():
            self._problems[code, who] = caveat(code, counts, who)
        known = captures([*warm, *(run.rows for run in runs if run.rows is not None)])
        self._note_unseen(unseen(runs, known))
        return with_captured(runs, known)

    def _captures(self, serial: bool) -> list[pl.DataFrame]:
        """Return the trees of those evaluations that do not count in which graphs were captured."""
        sure = {id(visit) for visit in self.counting()}
        frames: list[pl.DataFrame] = []
        for visit in self.kept():
            if id(visit) not in sure:
                self._note_lost(visit, level=Level.KERNEL)
                rows = self._observed(visit)
                if any_captured(rows):
                    frames += correlate(_roots(visit), rows, serial=serial).frames
        return frames

    def _note_unseen(self, many: int) -> None:
        self._problems.pop(("graph-unseen", ""), None)
        if many:
            self._problems["graph-unseen", ""] = Problem(
                "graph-unseen",
                f"{counted(many, 'node')} of CUDA graphs were captured where xsp did not see it, "
                "before the measurement began mostly, so the operators and layers that they stand "
                "for are not known; measure a function whose first call captures the graph",
            )

    def _note_cold_start(self, visits: Sequence[Visit]) -> None:
        """Say which rungs were seen in the first evaluation alone, where others came later."""
        self._problems.pop(("cold-start", ""), None)
        cold = dict.fromkeys(visit.step.rung.name for visit in visits if not visit.step.counts)
        if cold and any(visit.step.counts for visit in visits):
            self._problems["cold-start", ""] = Problem(
                "cold-start",
                f"the {', '.join(cold)} rung was seen in the first evaluation alone, in which "
                "libraries set themselves up: what it shows are the latencies of a cold start, "
                "beside a model's that is warm; more evaluations would change that",
            )

    @contextmanager
    def _armed(
        self,
        step: Step,
        name: str,
        windows: list[tuple[int, int]],
        waited: list[int],
        *,
        whole_model: bool,
    ) -> Iterator[None]:
        rung = step.rung
        request = Request(
            rung.kinds,
            detail=rung.detail,
            whole_model=whole_model,
            deepest=rung.kinds == self._kinds,
        )
        records: list[tuple[Provider, Records]] = []
        thread = threading.get_ident()
        with ExitStack() as stack:
            for provider in self._wanted(rung):
                if self._guard(provider, rung, "start", provider.start, self.clock, request):
                    stack.callback(self._stop, provider, rung, records)
            yield
        if windows:
            times, kept = tuple(windows), tuple(records)
            self.visits.append(Visit(step, name, thread, times, kept, tuple(waited)))

    def _stop(
        self, provider: Provider, rung: Rung, records: list[tuple[Provider, Records]]
    ) -> None:
        kept = self._guard(provider, rung, "stop", provider.stop)
        if kept:
            records.append((provider, kept[0]))

    def _wanted(self, rung: Rung) -> list[Provider]:
        return [
            provider
            for provider in self.providers
            if provider.kinds & rung.kinds and (provider.name, rung) not in self._broken
        ]

    def _guard(
        self,
        provider: Provider,
        rung: Rung | None,
        verb: str,
        function: Callable[..., Any],
        *args: Any,
    ) -> tuple[Any] | None:
        """Return what `function` returns, in a tuple; None if it failed, which is noted."""
        try:
            return (function(*args),)
        except Exception as error:  # noqa: BLE001  # a provider must never reach the user's call
            self._broken.add((provider.name, rung))
            where = f" on the {rung.name} rung" if rung else ""
            self.problem(
                "provider-failed",
                f"{provider.name} failed to {verb}{where} and was left out of it, so what it sees "
                f"is missing there: {type(error).__name__}: {error}",
            )
            return None

    def _runs_of(self, visits: Sequence[Visit], serial: bool) -> Iterator[Run]:
        """Yield the runs of visits of one rung, correlated all at once."""
        windows = [
            (visit, *window, waited)
            for visit in visits
            for window, waited in zip(visit.windows, visit.waited, strict=True)
        ]
        rung = visits[0].step.rung
        frames: Sequence[SpanRows | None] = [None] * len(windows)
        if rung.kinds:
            found = self._trees(visits, serial)
            self._note(visits, found)
            frames = found.frames
        for (visit, begin, end, waited), frame in zip(windows, frames, strict=True):
            took = end - begin
            yield Run(rung, took, frame, round=visit.step.round, host_ns=took - waited)

    def _trees(self, visits: Sequence[Visit], serial: bool) -> Correlated:
        rows = concat_rows([self._observed(visit) for visit in visits])
        return correlate(concat_rows([_roots(visit) for visit in visits]), rows, serial=serial)

    def _observed(self, visit: Visit) -> SpanRows:
        """Return the rows of all providers."""
        return place_by_order(concat_rows([self._rows(visit, *kept) for kept in visit.records]))

    def _note(self, visits: Sequence[Visit], found: Correlated) -> None:
        """Note what is missing from visits of one rung, or doubtful."""
        rung = visits[0].step.rung
        for visit in visits:
            self._note_lost(visit)
        self._count("orphans", rung, found.orphans - found.unlaunched)
        self._count("no-launch", rung, found.unlaunched)
        self._count("ambiguous", rung, found.contested)
        self._count("ambiguous-thread", rung, found.ambiguous)

    def _note_lost(self, visit: Visit, level: Level | None = None) -> None:
        """Note what the providers of a level, or of all, could not record."""
        for provider, records in visit.records:
            if level in (None, provider.level):
                for sentence in records.problems:
                    self.problem("provider", sentence)
                self._count("dropped", visit.step.rung, records.dropped, provider.name)

    def _count(self, code: str, rung: Rung, many: int, who: str = "") -> None:
        if many:
            self._counts[code, who][rung.name] += many

    def _rows(self, visit: Visit, provider: Provider, records: Records) -> SpanRows:
        rung, verb = visit.step.rung, "interpret its records"
        rows = self._guard(provider, rung, verb, provider.spans, records)
        return self._with_own_ids(rows[0], provider) if rows else concat_rows([])

    def _with_own_ids(self, rows: SpanRows, provider: Provider) -> SpanRows:
        """Return rows whose ids differ from those of all other providers; 0 stays the root's."""
        if rows["id"].null_count() == rows.height:
            return rows
        place, many = self.providers.index(provider), len(self.providers)
        own = [
            pl.when(pl.col(name) > 0).then(pl.col(name) * many + place).otherwise(name).alias(name)
            for name in ("id", "parent_id")
        ]
        return rows.with_columns(own)


class Window:
    """An evaluation that is open: from its begin until it was last extended."""

    __slots__ = ("_now", "_synchronize", "begin_ns", "end_ns", "waited_ns")

    def __init__(self, now: Callable[[], int], synchronize: tuple[Callable[[], None], ...]) -> None:
        self._now = now
        self._synchronize = synchronize
        self.end_ns: int | None = None
        self.waited_ns = 0
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
            self.waited_ns = self._now() - before
            self.end_ns += self.waited_ns


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


def _batches(visits: Iterable[Visit]) -> Iterator[list[Visit]]:
    """Yield visits of one rung together, as many as make about `_BATCH` evaluations."""
    waiting: dict[Rung, list[Visit]] = {}
    for visit in visits:
        batch = waiting.setdefault(visit.step.rung, [])
        batch.append(visit)
        if sum(len(one.windows) for one in batch) >= _BATCH:
            yield waiting.pop(visit.step.rung)
    yield from waiting.values()
