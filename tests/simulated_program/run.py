"""Runs a script on a machine: the clock is moved on by hand, hooks write their log and cost time.

What hooks write, and in which order, is what `xsp.record.program` and its watchers do; windows are
drawn by the real `Lottery`. Threads run at the same time, each on a core of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulated_program.machine import QUIET, Machine, Speed
from simulated_program.script import Do, Script, What
from simulated_program.truth import Event, Truth
from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.matching import Pass
from xsp.provider import (
    AT,
    BACKWARD,
    CALL,
    END,
    ENTER,
    KIND_BITS,
    LEAVE,
    OPTIMIZER,
    PART,
    RAISED,
    REGION,
    NamedLayer,
    Records,
    Request,
    SpanRows,
    span_rows,
)
from xsp.reading.program import cost
from xsp.record.program import LineSamples, LogData, Lottery, ProgramRecord, Window
from xsp.record.program import Records as Recorded
from xsp.record.program.window import LONGEST_DEEP_NS
from xsp.trace_context import Origin

BEGIN_NS = 2_500_000_000_000
FIRST_THREAD = 7000  # identifier of the block's own
_CODES = {What.BACKWARD: BACKWARD, What.OPTIMIZER: OPTIMIZER, What.PART: PART}
_NEVER = 1 << 62
_ARM_NS, _DISARM_NS, _DISARM_EACH_NS = 20_000, 50_000, 1200  # benchmarks/notes/2026-11-windows.md
_OUT_NS = (5_000_000, 60_000_000)  # hooks are out for as long
_EVENT_NS = 600


class Operators:
    """The provider of the simulated operators: its records are rows already."""

    name, level, kinds = "simulated", Level.FRAMEWORK, frozenset({Kind.OP})

    def unavailable(self) -> str | None:
        """Return that it is available."""
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Do nothing: the simulation records."""

    def stop(self) -> Records:
        """Return nothing: the simulation has the records."""
        return Records(())

    def spans(self, records: Records) -> SpanRows:
        """Return a row for each record: name, start, end, thread."""
        name, start, end, thread = zip(*records.data, strict=True) if records.data else [()] * 4
        return span_rows(
            {
                "kind": [Kind.OP.value] * len(name),
                "name": list(name),
                "start_ns": np.array(start, dtype=np.int64),
                "end_ns": np.array(end, dtype=np.int64),
                "thread": np.array(thread, dtype=np.int64),
            }
        )


OPERATORS = Operators()


@dataclass(frozen=True, slots=True)
class Simulated:
    """A program as it was recorded, and the truth about it."""

    record: ProgramRecord
    truth: Truth
    script: Script


@dataclass(slots=True)
class _Open:
    """Something that has begun, and has not ended."""

    what: What
    name: str
    shape: str
    logged: bool
    begin_ns: int
    true_ns: int
    costs_ns: float
    hooks: int
    idle: int
    regions: tuple[int, ...]
    inside: bool
    within: What | None
    was: str = ""  # what the thread did with layers before


@dataclass(slots=True)
class _Thread:
    """A thread: what it still has to do, and its clocks.

    Attributes:
        layers: What happens to layers: `none` as no call is open, `logged`, `idle`, `out`.
        clock_ns: The time, which hooks move on as well; `true_ns` is moved on by work alone.
        costs_ns: What hooks have cost so far that they did not note.
    """

    number: int
    script: Sequence[Do]
    at: int = 0
    clock_ns: int = 0
    true_ns: int = 0
    costs_ns: float = 0.0
    hooks: int = 0
    idle: int = 0
    events: list[int] = field(default_factory=list)
    stack: list[_Open] = field(default_factory=list)
    step: _Open | None = None
    context: int = 0
    told: int = 0  # the region that the log was told of last
    depth: int = 0
    layers: str = "none"
    started: bool = False
    cold: bool = False

    @property
    def ident(self) -> int:
        """The identifier of the thread."""
        return FIRST_THREAD + self.number


def simulate(
    script: Script,
    machine: Machine = QUIET,
    *,
    layers: bool = True,
    operators: bool = False,
    out: bool = False,
    lottery: Lottery | None = None,
) -> Simulated:
    """Run a script, and return what was recorded and the truth.

    Args:
        script: What the program does.
        machine: What it runs on.
        layers: Whether layers are recorded.
        operators: Whether operators are.
        out: Whether hooks are taken out at times.
        lottery: Draws the windows; by default as in a program.
    """
    lottery = lottery or Lottery(machine.seed, layers=layers, operators=operators)
    return _Simulation(script, machine, lottery, layers, operators, out).run()


class _Simulation:
    def __init__(
        self, script: Script, machine: Machine, lottery: Lottery, layers: bool, operators: bool,
        out: bool,
    ) -> None:  # fmt: skip
        self.script, self.machine, self.lottery = script, machine, lottery
        self.records_layers, self.records_operators, self.goes_out = layers, operators, out
        self.chance = random.Random(machine.seed)
        self.speed = Speed(machine.moods, random.Random(machine.seed + 1))
        self.threads = [_Thread(n, each) for n, each in enumerate(script.threads)]
        self.threads[0].started = True
        self.threads[0].clock_ns = BEGIN_NS
        self.truth = Truth()
        self.windows: list[Window] = []
        self.until_ns, self.resume_ns = 0, _NEVER
        self.out = False
        self.rows: list[tuple[str, int, int, int]] = []
        self.regions: dict[int, _Open] = {}  # those that are open
        self.opened_by: dict[int, int] = {}
        self.layers: dict[int, dict[int, list[NamedLayer]]] = {}
        self.deaths: list[tuple[int, int]] = []
        self.sized = 0, BEGIN_NS

    def run(self) -> Simulated:
        main = self.threads[0]
        while main.at < len(main.script):
            running = [t for t in self.threads if t.started and t.at < len(t.script)]
            thread = min(running, key=lambda t: (self._waits(t), t.clock_ns))
            if thread.clock_ns >= self.resume_ns:
                self._resume()
            do = thread.script[thread.at]
            thread.at += 1
            self._do(thread, do)
        end_ns = main.clock_ns
        self.truth.took_ns, self.truth.hooks = main.true_ns, main.hooks
        self.truth.idle = main.idle
        self._close_window(main)
        self.truth.events = [
            replace(event, name=self._layer_name(int(event.name), event.begin_ns))
            if event.what is What.LAYER
            else event
            for event in self.truth.events
        ]
        log = LogData(
            threads=tuple(
                (t.ident, np.array(t.events, dtype=np.int64)) for t in self.threads if t.events
            ),
            calls=tuple(self.script.facts),
            names=tuple(self.script.names),
            regions=tuple(self.script.regions),
            layers={
                owner: {ident: tuple(each) for ident, each in known.items()}
                for owner, known in self.layers.items()
            },
            deaths=tuple(self.deaths),
        )
        nothing = np.zeros(0, np.int64)
        record = ProgramRecord(
            log=log,
            windows=tuple(self.windows),
            begin_ns=BEGIN_NS,
            end_ns=end_ns,
            thread=main.ident,
            lines=LineSamples(nothing, nothing, nothing, ()),
            warnings=(),
            left_by="",
            origin=Origin(unix_ns=0),
            providers=(OPERATORS,) if self.records_operators else (),
            layers=self.records_layers,
            operators=self.records_operators,
        )
        return Simulated(record, self.truth, self.script)

    def _waits(self, thread: _Thread) -> bool:
        return thread.script[thread.at].what is What.JOIN and any(
            t.at < len(t.script) for t in self.threads if t.started and t is not thread
        )

    def _do(self, thread: _Thread, do: Do) -> None:
        match do.what:
            case What.RUN:
                self._work(thread, do.ns)
            case What.OPERATOR:
                self._operator(thread, do)
            case What.CALL:
                self._call(thread, do)
            case What.LAYER:
                self._layer(thread, do.number)
            case What.BACKWARD | What.OPTIMIZER | What.PART:
                self._part(thread, do)
            case What.END | What.RAISE:
                self._end(thread, do)
            case What.OPEN:
                self._open_region(thread, do.number)
            case What.CLOSE:
                self._close_region(thread, do.number)
            case What.CONTEXT:
                thread.context = do.number
            case What.STEP:
                thread.step = self._begun(thread, What.STEP, do.name)
            case What.STEPPED:
                assert thread.step is not None
                step, thread.step = thread.step, None
                self._happened(thread, step)
            case What.DIE:
                self.deaths.append((do.number, thread.clock_ns))
            case What.START:
                other = self.threads[do.number]
                other.started, other.clock_ns = True, thread.clock_ns
                other.true_ns = thread.true_ns
            case What.JOIN:
                thread.clock_ns = max(t.clock_ns for t in self.threads if t.started)
                thread.true_ns = max(t.true_ns for t in self.threads if t.started)

    def _work(self, thread: _Thread, ns: int) -> None:
        took = round(ns * self.speed.at(thread.clock_ns - BEGIN_NS))
        thread.clock_ns += took
        thread.true_ns += took

    def _pay(self, thread: _Thread, ns: float) -> None:
        """Move the clock on by what a hook costs."""
        ns *= 1.0 + self.machine.jitter * self.chance.uniform(-1, 1)
        paid = round(ns)
        thread.clock_ns += paid
        thread.costs_ns += paid

    def _log(self, thread: _Thread, code: int, number: int = 0) -> None:
        thread.events += [number << KIND_BITS | code, thread.clock_ns]

    def _tell_region(self, thread: _Thread) -> None:
        if thread.context != thread.told:
            thread.told = thread.context
            self._log(thread, AT, thread.context)

    def _operator(self, thread: _Thread, do: Do) -> None:
        window = self.windows[-1] if self.windows else None
        deep = (
            window is not None
            and window.pass_ is not None
            and window.end_ns is None
            and window.thread == thread.ident
        )
        begin = thread.clock_ns
        if deep:
            kind = 0.7 * 2.0 ** ((do.number % 5) / 4)  # on average 1
            self._pay(thread, 0.4 * kind * self.machine.operator_ns)
            begin = thread.clock_ns
        self._work(thread, do.ns)
        if deep:
            self.rows.append((do.name, begin, thread.clock_ns, thread.ident))
            self._pay(thread, 0.6 * kind * self.machine.operator_ns)

    def _call(self, thread: _Thread, do: Do) -> None:
        facts = self.script.facts[do.number]
        shape = "×".join(map(str, facts.inputs[0][0])) if facts.inputs else ""
        if self.out:
            self._begin(thread, What.CALL, facts.model, shape, logged=False)
            thread.layers = "out"
            return
        thread.hooks += 1
        self._pay(thread, 0.4 * self.machine.call_ns)
        entered = thread.clock_ns
        if entered >= self.until_ns and not facts.passed_over:
            self._switch(thread)
        self._name_modules(facts.owner, entered)
        if thread.context != thread.told:
            thread.told = thread.context
            thread.events += [thread.context << KIND_BITS | AT, entered]
        thread.events += [thread.depth << KIND_BITS | ENTER, entered]
        thread.clock_ns += round(self.machine.noted_ns)
        self._log(thread, CALL, do.number)
        self._begin(thread, What.CALL, facts.model, shape, logged=True)
        thread.layers = "out" if self.out else self._with_layers(thread)

    def _with_layers(self, thread: _Thread) -> str:
        """Choose the fate of the layers of a call that begins now."""
        for window in reversed(self.windows):
            if window.begin_ns <= thread.clock_ns:
                known = window.records >= Recorded.LAYERS and self.records_layers
                return "logged" if known else "idle"
        return "idle"

    def _name_modules(self, owner: int, now_ns: int) -> None:
        if owner in self.layers or owner not in self.script.modules:
            return
        self.layers[owner] = {
            ident: [NamedLayer(layer.path, layer.name, now_ns)]
            for ident, layer in self.script.modules[owner].items()
        }

    def _layer(self, thread: _Thread, ident: int) -> None:
        if thread.layers == "logged":
            times = self.machine.cold if thread.cold else 1.0
            self._pay(thread, 0.3 * times * self.machine.layer_ns)
            thread.events += [ident, thread.clock_ns]
        elif thread.layers == "idle":
            self._pay(thread, self.machine.idle_ns)
            thread.idle += 1
        logged = thread.layers == "logged"
        self._begin(thread, What.LAYER, str(ident), logged=logged)

    def _layer_name(self, ident: int, begin_ns: int) -> str:
        """Return the name of a module, if xsp can know it."""
        for owner, known in self.layers.items():
            if ident in known:
                since = known[ident][0].since_ns
                dead = any(each == ident and since <= time < begin_ns for each, time in self.deaths)
                path = self.script.modules[owner][ident].path
                return "?" if dead else path.rpartition(".")[2]
        return "?"

    def _part(self, thread: _Thread, do: Do) -> None:
        name = "backward" if do.what is What.BACKWARD else self.script.names[do.number - 1][0]
        if self.out:
            self._begin(thread, do.what, name, logged=False)
            if do.what is What.BACKWARD:
                thread.layers = "out"
            return
        thread.hooks += 1
        self._pay(thread, 0.5 * self._part_cost(do.what))
        self._tell_region(thread)
        thread.depth += 1
        self._log(thread, _CODES[do.what], do.number)
        self._begin(thread, do.what, name, logged=True)
        if do.what is What.BACKWARD and thread.layers == "none":
            thread.layers = self._with_layers(thread)

    def _part_cost(self, what: What) -> float:
        machine = self.machine
        if what is What.PART:
            return 2 * cost.PART_NS
        return machine.pass_ns if what is What.BACKWARD else machine.step_ns

    def _end(self, thread: _Thread, do: Do) -> None:
        began = thread.stack.pop()
        raised = do.what is What.RAISE
        if began.logged:
            self._log(thread, RAISED if raised else END, do.number)
        self._happened(thread, began, raised=raised)
        if began.what in (What.CALL, What.BACKWARD):
            thread.layers = began.was
        if began.what is What.LAYER:
            if began.logged:
                times = self.machine.cold if thread.cold else 1.0
                self._pay(thread, 0.7 * times * self.machine.layer_ns)
        elif began.logged and began.what is What.CALL:
            self._pay(thread, 0.6 * self.machine.call_ns)
            thread.cold = False
        elif began.logged:
            thread.depth -= 1
            self._pay(thread, 0.5 * self._part_cost(began.what))

    def _open_region(self, thread: _Thread, number: int) -> None:
        facts = self.script.regions[number - 1]
        thread.hooks += 1
        self._pay(thread, cost.REGION_NS)
        self._log(thread, REGION, number)
        self.regions[number] = self._begun(thread, What.OPEN, facts.name)
        self.opened_by[number] = thread.number
        thread.context = thread.told = number

    def _close_region(self, thread: _Thread, number: int) -> None:
        self._log(thread, LEAVE, number)
        self._happened(thread, self.regions.pop(number))
        thread.hooks += 1
        self._pay(thread, cost.REGION_NS)
        if thread.context == number:
            thread.context = next(iter(self._around(number)), 0)

    def _around(self, number: int) -> tuple[int, ...]:
        """Return the regions that are open in a context, the innermost first."""
        result = []
        while number:
            if number in self.regions:
                result.append(number)
            number = self.script.regions[number - 1].parent
        return tuple(result)

    def _begin(
        self, thread: _Thread, what: What, name: str, shape: str = "", *, logged: bool
    ) -> None:
        began = self._begun(thread, what, name, shape)
        began.logged, began.was = logged, thread.layers
        thread.stack.append(began)

    def _begun(self, thread: _Thread, what: What, name: str, shape: str = "") -> _Open:
        solid = [each.what for each in thread.stack if each.what is not What.PART]
        within = next((each for each in reversed(solid) if each is not What.LAYER), None)
        inside = bool(solid) or thread.step is not None
        return _Open(
            what, name, shape, not self.out, thread.clock_ns, thread.true_ns, thread.costs_ns,
            thread.hooks, thread.idle, self._around(thread.context), inside, within,
        )  # fmt: skip

    def _happened(self, thread: _Thread, began: _Open, *, raised: bool = False) -> None:
        regions = self.script.regions
        around = frozenset(
            regions[n - 1].name
            for n in began.regions
            if n in self.regions or self.opened_by[n] != thread.number
        )
        self.truth.events.append(
            Event(
                began.what,
                began.name,
                began.shape,
                thread.true_ns - began.true_ns,
                round(thread.costs_ns - began.costs_ns),
                thread.hooks - began.hooks,
                thread.idle - began.idle,
                began.begin_ns,
                thread.clock_ns,
                thread.number,
                around,
                began.inside,
                began.within,
                began.logged,
                raised,
            )
        )

    def _switch(self, thread: _Thread) -> None:
        """End the present window and begin the next one, as `Recorder` does."""
        now = thread.clock_ns
        last = self.windows[-1] if self.windows else None
        deep = last is not None and last.pass_ is not None and last.end_ns is None
        others = last if deep and last is not None and last.thread != thread.ident else None
        if others is not None and now - others.begin_ns < 2 * LONGEST_DEEP_NS:
            self.until_ns = now + 1_000_000
            return
        self._close_window(thread)
        if self.goes_out and len(self.windows) > 3 and self.chance.random() < 0.3:
            self.out, self.until_ns = True, _NEVER
            self.windows.append(Window(Recorded.OUT, now, thread.clock_ns, thread.ident))
            self.resume_ns = thread.clock_ns + self.chance.randint(*_OUT_NS)
            return
        records = self.lottery.draw(now - BEGIN_NS, self._cost(now))
        window = Window(records, now, now, thread.ident)
        if records >= Recorded.OPERATORS:
            thread.clock_ns += _ARM_NS
            window.pass_ = Pass(frozenset({Kind.OP}), detail=records is Recorded.DETAIL)
            self.rows = []
        window.begin_ns = thread.clock_ns
        self.windows.append(window)
        self.until_ns = window.begin_ns + self.lottery.length_ns(records, now - BEGIN_NS)
        thread.cold = True

    def _cost(self, now_ns: int) -> float:
        size = sum(len(thread.events) for thread in self.threads) // 2
        (before, since_ns), self.sized = self.sized, (size, now_ns)
        return min((size - before) * _EVENT_NS / max(now_ns - since_ns, 1), 1.0)

    def _close_window(self, thread: _Thread) -> None:
        window = self.windows[-1] if self.windows else None
        if window is None or window.end_ns is not None:
            return
        window.end_ns = max(thread.clock_ns, window.begin_ns)
        if window.pass_ is not None:
            window.kept = ((OPERATORS, Records(tuple(self.rows))),)
            took = _DISARM_NS + _DISARM_EACH_NS * len(self.rows)
            thread.clock_ns += took
            self.lottery.took(_ARM_NS + took, window.end_ns - window.begin_ns)

    def _resume(self) -> None:
        """Put the hooks back in place."""
        self.windows[-1].end_ns = self.resume_ns
        self.out, self.until_ns, self.resume_ns = False, 0, _NEVER


def shifted(record: ProgramRecord, at_ns: int, by_ns: int) -> ProgramRecord:
    """Return a record in which everything from a moment on happened later."""

    def moved(values: Iterable[int]) -> list[int]:
        return [value + by_ns if value >= at_ns else value for value in values]

    threads = []
    for ident, log in record.log.threads:
        later = log.copy()
        later[1::2] = moved(log[1::2].tolist())
        threads.append((ident, later))
    windows = []
    for window in record.windows:
        switch, begin, end = moved([window.switch_ns, window.begin_ns, window.end_ns or at_ns])
        kept = tuple(
            (provider, Records(tuple((n, *moved([b, e]), thread) for n, b, e, thread in rows.data)))
            for provider, rows in window.kept
        )
        windows.append(replace(window, switch_ns=switch, begin_ns=begin, end_ns=end, kept=kept))
    deaths = tuple((ident, moved([time])[0]) for ident, time in record.log.deaths)
    layers = {
        owner: {
            ident: tuple(replace(each, since_ns=moved([each.since_ns])[0]) for each in modules)
            for ident, modules in known.items()
        }
        for owner, known in record.log.layers.items()
    }
    return replace(
        record,
        log=replace(record.log, threads=tuple(threads), deaths=deaths, layers=layers),
        windows=tuple(windows),
        end_ns=record.end_ns + by_ns,
    )
