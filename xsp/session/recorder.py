"""The session: arms providers, times evaluations, and keeps what was recorded as visits.

Nothing is interpreted while the model runs; `xsp.measurement` does so afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from xsp.clock import Clock, SystemClock
from xsp.evaluation import Rung
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import Evaluations, ModelCall, Provider, Records, Request, Watcher
from xsp.session.plan import Step
from xsp.session.visit import Visit, Window
from xsp.trace_context import origin


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
            for _ in range(step.untimed + step.evaluations):
                begin = now()
                function(*args, **kwargs)
                returned = now()
                for wait in synchronize:
                    wait()
                windows.append((begin, now()))
                waited.append(windows[-1][1] - returned)
            del windows[: step.untimed], waited[: step.untimed]
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
            window.await_devices()
            if window.end_ns is not None:  # else it was never extended: it was cut short
                windows.append((window.begin_ns, window.end_ns))
                waited.append(window.waited_ns)

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
