"""Calls the model in each planned pass, and keeps times and raw records.

Nothing is interpreted while the model runs; `xsp.reading.runs` interprets the visits afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from xsp.clock import Clock, SystemClock
from xsp.errors import guarded
from xsp.level import Kind
from xsp.matching import Pass
from xsp.provider import (
    Awaiting,
    Fingerprinting,
    ModelCall,
    Monitor,
    Provider,
    Records,
    Request,
    Watcher,
)
from xsp.record.session.calibration import Calibration, InsideCost, calibrate, inside_cost
from xsp.record.session.disturbance import observers
from xsp.record.session.visit import Monitored, PlannedVisit, Readings, Visit
from xsp.trace_context import origin
from xsp.warning import TraceWarning

_UNCALIBRATED = (
    "{} failed to make empty {} spans, so what recording costs inside such spans is not taken off "
    "their latencies"
)

_OBSERVED = (
    "{} was active (a debugger, coverage or a profiler) and slows each call in every pass, so "
    "times are too long. Measure without it."
)

_MOST_UNOBSERVED = 1_000_000
_MOST_BEGINS = 1000  # of monitored steps: of shorter ones energy tells no parts


class Session:
    """Calls the model in one pass after the other, in this process.

    Args:
        providers: Providers; each is armed on the passes that record one of its kinds.
        clock: The clock that times the steps; by default the machine's.
        kinds: Kinds of span that the deepest pass of the measurement records.

    Attributes:
        origin: When the session was made, and inside which OpenTelemetry span.
        visits: The visits so far.
        monitored: What monitors recorded so far.
        awaits: Functions that wait until what a call returned is computed.
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
        self.fingerprinting = tuple(p for p in self.providers if isinstance(p, Fingerprinting))
        self.clock = clock or SystemClock()
        self.origin = origin(self.clock)
        self.visits: list[Visit] = []
        self.monitored: list[Monitored] = []
        self._calibrations: dict[tuple[str, Kind], Calibration | None] = {}
        self._kinds = kinds - {Kind.SYSCALL}  # which have passes of their own
        self._warnings: dict[tuple[str, str], TraceWarning] = {}
        self._broken: set[tuple[str, Pass | None]] = set()
        self._observers: tuple[str, ...] | None = None
        self._synchronize = tuple(watcher.synchronize for watcher in self.watchers)
        # Of frameworks whose calls return before their outputs are computed.
        self.awaits = tuple(w.await_outputs for w in self.watchers if isinstance(w, Awaiting))

    @property
    def warnings(self) -> tuple[TraceWarning, ...]:
        """The warnings noted so far, each one once."""
        return tuple(self._warnings.values())

    def inside_costs(self) -> tuple[InsideCost, ...]:
        """List the cost of recording inside spans, for each kind for which it is known.

        Interprets the records of the empty spans made while warming up.
        """
        found = (
            self.attempt(partial(inside_cost, made), _UNCALIBRATED.format(*at))
            for at, made in self._calibrations.items()
            if made is not None
        )
        return tuple(cost[0] for cost in found if cost and cost[0])

    def warning(self, code: str, message: str) -> None:
        """Note a warning, unless it has been noted already."""
        self._warnings.setdefault((code, message), TraceWarning(code, message))

    def visit(
        self,
        planned: PlannedVisit,
        call: ModelCall,
        prepare: Callable[[], object] | None = None,
    ) -> list[int]:
        """Call the model as often as planned, and return the latencies of the timed steps in ns.

        Args:
            planned: The visit, as the plan asked for it.
            call: The call of the model.
            prepare: Called before each step, outside of what is timed.
        """
        if planned.pause_until_ns:
            self._pause(planned.pause_until_ns, call, prepare)
            return []
        if planned.pass_.monitored:
            self._monitor(planned, call, prepare)
            return []
        now, synchronize, awaits = self.clock.now, self.synchronize, self.awaits
        function, args, kwargs = call.function, call.args, dict(call.kwargs)
        readings, most_ns = Readings(), planned.most_ns
        if not planned.counts or planned.pass_.system:  # which has no visit while warming up
            self.calibrate(planned.pass_)
        with self.recording(planned.pass_, whole_model=call.whole_model) as records:
            for number in range(planned.untimed + planned.calls):
                if number == planned.untimed:
                    readings.start()
                if prepare is not None:
                    self._prepare(prepare)
                    args, kwargs = call.args, dict(call.kwargs)  # made anew, perhaps
                begin = now()
                result = function(*args, **kwargs)
                for await_outputs in awaits:
                    await_outputs(result)
                returned = now()
                readings.append(begin, returned, now() if synchronize() else returned)
                del result
                if most_ns and returned - readings.windows[0][0] > most_ns:
                    break
            readings.stop()
        thread = threading.get_ident()
        self.visits.append(readings.visit(planned, call.name, thread, tuple(records)))
        return [end - begin for begin, end in readings.windows]

    def _monitor(
        self, planned: PlannedVisit, call: ModelCall, prepare: Callable[[], object] | None
    ) -> None:
        """Make steps one right after the other, with nothing but monitors beside them."""
        steps, begins_ns = 0, list[int]()
        with self.recording(planned.pass_, whole_model=call.whole_model) as records:
            time.sleep(planned.idle_ns / 1e9)
            begin_ns = end_ns = self.clock.now()
            while steps < _MOST_UNOBSERVED and end_ns - begin_ns < planned.most_ns:
                begins_ns += [end_ns] if steps < _MOST_BEGINS else []
                self._step(call, prepare)
                steps, end_ns = steps + 1, self.clock.now()
        begins = tuple(begins_ns) if steps <= _MOST_BEGINS else ()
        self.monitored.append(Monitored(begin_ns, end_ns, steps, tuple(records), begins))

    def _step(self, call: ModelCall, prepare: Callable[[], object] | None) -> None:
        """Make a step that nobody times, and wait until it is computed."""
        if prepare is not None:
            self._prepare(prepare)
        result = call()
        for await_outputs in self.awaits:
            await_outputs(result)
        self.synchronize()

    def _prepare(self, prepare: Callable[[], object]) -> None:
        prepare()
        self.synchronize()  # what preparing asked of a device must not be timed

    def _pause(self, until_ns: int, call: ModelCall, prepare: Callable[[], object] | None) -> None:
        """Let the model run, unobserved, until a moment that may be over already."""
        for _ in range(_MOST_UNOBSERVED):  # a clock that stands still must not hang the session
            if self.clock.now() >= until_ns:
                return
            self._step(call, prepare)

    @contextmanager
    def recording(
        self,
        pass_: Pass,
        *,
        whole_model: bool,
        logged: Collection[str] = (),
        waiting: bool = True,
    ) -> Iterator[list[tuple[Provider, Records]]]:
        """Arm the providers of a pass for the `with` block.

        Args:
            pass_: The pass.
            whole_model: Whether every step in the block is a call of the model itself.
            logged: Names of providers that record no layers, as a program's log has these.
            waiting: Whether monitors have their first readings before the block begins.

        Yields:
            A list that holds each provider with its records when the block has ended.
        """
        # Note, when the measurement begins, what else watches the process.
        if self._observers is None:
            self._observers = observers()
            if self._observers:
                self.warning("observed", _OBSERVED.format(", ".join(self._observers)))
        request = Request(
            pass_.kinds,
            detail=pass_.detail,
            sampled=pass_.sampled,
            whole_model=whole_model,
            measured=self._kinds,
            monitored=pass_.monitored and waiting,
        )
        records: list[tuple[Provider, Records]] = []
        with ExitStack() as stack:
            for provider in self._wanted(pass_):
                asked = request
                if provider.name in logged:
                    asked = replace(request, kinds=request.kinds - {Kind.LAYER})
                if self._guard(provider, pass_, "start", provider.start, self.clock, asked):
                    stack.callback(self._stop, provider, pass_, records)
            yield records

    def synchronize(self) -> bool:
        """Wait until devices have finished their work; return whether there are any."""
        waited = False
        for wait in self._synchronize:
            waited |= wait() is not False  # or does not say
        return waited

    def calibrate(self, pass_: Pass) -> None:
        """Make empty spans of the pass's kinds, once for each provider and kind.

        No provider is armed meanwhile.
        """
        for provider in self._wanted(pass_):
            for kind in sorted(pass_.kinds, key=lambda kind: kind.order):
                at = (provider.name, kind)
                if at not in self._calibrations:
                    make = partial(calibrate, provider, kind, self.clock, self._kinds)
                    made = self.attempt(make, _UNCALIBRATED.format(*at))
                    if made is None or made[0] is not None:  # else asked again: it may be later
                        self._calibrations[at] = made[0] if made else None

    def _stop(
        self, provider: Provider, pass_: Pass, records: list[tuple[Provider, Records]]
    ) -> None:
        kept = self._guard(provider, pass_, "stop", provider.stop)
        if kept:
            records.append((provider, kept[0]))

    def _wanted(self, pass_: Pass) -> list[Provider]:
        return [
            provider
            for provider in self.providers
            if (provider.kinds & pass_.kinds or (pass_.monitored and isinstance(provider, Monitor)))
            and (provider.name, pass_) not in self._broken
        ]

    def _guard(
        self,
        provider: Provider,
        pass_: Pass | None,
        verb: str,
        function: Callable[..., Any],
        *args: Any,
    ) -> tuple[Any] | None:
        """Return the result of `function` in a tuple; if it fails, note a warning, return None."""
        where = f" on the {pass_.name} pass" if pass_ else ""
        result = self.attempt(
            partial(function, *args),
            f"{provider.name} failed to {verb}{where} and was left out of it, so what it sees "
            "is missing there",
        )
        if result is None:
            self._broken.add((provider.name, pass_))
        return result

    def attempt(self, function: Callable[[], Any], failure: str) -> tuple[Any] | None:
        """Return the result of `function` in a tuple; if it fails, note why and return None."""
        return guarded(
            lambda: (function(),),
            lambda error: self.warning(
                "provider-failed", f"{failure}: {type(error).__name__}: {error}"
            ),
        )
