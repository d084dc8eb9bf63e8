"""Puts hooks in place, and records a program in windows.

Watchers (`xsp.provider.ProgramWatcher`) log calls, passes, steps, parts and layers; in windows of
operators the providers of deeper kinds are armed besides. A window ends where an outermost call
begins after its time is over. A thread of xsp's samples the lines that the program runs, ends
windows of operators that no call ends, and puts hooks back in place after a window without them.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from xsp import tracer
from xsp.level import Kind
from xsp.matching import Pass
from xsp.provider import (
    END,
    ENTER,
    KIND_MASK,
    LEAVE,
    RAISED,
    ModelCall,
    Monitor,
    ProgramWatcher,
    Provider,
    Records,
)
from xsp.record.program.line_sampler import LineSampler, LineSamples
from xsp.record.program.log import Log, LogData
from xsp.record.program.thread_times import ThreadTime, since, thread_times
from xsp.record.program.turns import Turns
from xsp.record.program.window import LONGEST_DEEP_NS, LONGEST_NS, Lottery
from xsp.record.program.window import Records as Recorded
from xsp.record.program.worker_sampler import WorkerSampler, WorkerSamples
from xsp.record.session import InsideCost, Monitored, Selection, Session, schedule
from xsp.trace_context import Origin
from xsp.warning import TraceWarning

# Of the log: 61 MiB, of which a trace is made with 1 GiB more (benchmarks/bounds.py). Then the
# rest of the program is left alone; samples after `budget` become rarer from half of it on.
MOST_ENTRIES = 8_000_000
ON_SHARE = 0.01  # of the time that recording may take after `budget`
EVENT_NS = 600  # 0.4 µs in a transformer, 1.1 in a small MLP (benchmarks/notes/2026-11-windows.md)
HOOK_NS = 6_000  # of an outermost call, beside its events: 4.5 to 9 (benchmarks/within.py)
_LAST = 200  # entries of a thread's log by which the part of outermost calls is known
_CALLS_OF_A_STEP = 8  # at most, of models before the first backward pass of a program
_SINGLE = 3  # windows at first that last one call each
_DETAIL_NS = 2_000_000_000  # of 300,000 operators a second, with shapes: 0.3 GB
_AGAIN_NS = 1_000_000  # after which another thread looks again whether a window may end
_NEVER = (1 << 63) - 1
_MONITOR = Pass(frozenset(), monitored=True)
_OVER = (END, RAISED, LEAVE)  # what the log of a thread ends with that is in nothing


@dataclass(slots=True)
class Window:
    """A stretch of the program, and what was recorded in it.

    Attributes:
        records: What was recorded.
        switch_ns: When the last window had ended, and xsp began to make this one.
        begin_ns: When it began.
        end_ns: When xsp began to end it; None while it is open.
        thread: The thread whose call began it.
        kept: Providers that were armed, with their records.
        pass_: The kinds of span that providers recorded; None where none was armed.
        between: Whether what happened in it is no part of the program.
    """

    records: Recorded
    switch_ns: int
    begin_ns: int
    thread: int
    end_ns: int | None = None
    kept: tuple[tuple[Provider, Records], ...] = ()
    pass_: Pass | None = None
    between: bool = False


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """Everything that was recorded of a program, uninterpreted.

    Attributes:
        log: The events, and what their numbers mean.
        windows: The windows, in the order of time.
        begin_ns: When hooks were in place.
        end_ns: When the block ended, or this was asked for.
        thread: The thread that the block is on.
        lines: What the block's thread ran, by samples.
        workers: What the children ran that were forked meanwhile, by samples.
        forks: How many children were forked.
        warnings: What a reader should know.
        left_by: Class of the exception that left the block; empty if none did.
        origin: When the recording began, and inside which OpenTelemetry span.
        providers: The providers of the session, in their order.
        children_s: Processor seconds of child processes that ended.
        preempted: How often the system took a processor away from the process.
        layers: Whether layers were to be recorded.
        operators: Whether anything deeper was.
        inside_costs: What recording system calls costs inside of these.
        thread_times: Times of threads in the program, by the kernel's numbers; none where the
            system was not to be recorded.
        native: The kernel's number of the thread that the block is on.
        monitored: What monitors recorded beside it; none where they took no part.
    """

    log: LogData
    windows: tuple[Window, ...]
    begin_ns: int
    end_ns: int
    thread: int
    lines: LineSamples
    warnings: tuple[TraceWarning, ...]
    left_by: str
    origin: Origin
    providers: tuple[Provider, ...]
    children_s: float = 0.0
    preempted: int = 0
    layers: bool = True
    operators: bool = True
    inside_costs: tuple[InsideCost, ...] = ()
    thread_times: Mapping[int, ThreadTime] = field(default_factory=dict)
    native: int = 0
    workers: tuple[WorkerSamples, ...] = ()
    forks: int = 0
    monitored: tuple[Monitored, ...] = ()


class Recorder:
    """Records a program from `begin` to `end`.

    Args:
        selection: Providers and kinds of span.
        budget_s: Seconds after which hooks are in only as long as they cost little; None: never.
        seed: By which windows are drawn; ranks of one job have the same. None: by chance.
        among_ranks: Whether windows are counted in backward passes (in calls where there are
            none), so that all ranks of a job make the same ones.
        when: Which steps are recorded.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        budget_s: float | None = 20.0,
        seed: int | None = None,
        among_ranks: bool = False,
        when: schedule | None = None,
    ) -> None:
        self.session = Session(selection.providers, kinds=selection.kinds)
        self.log = Log(self._boundary, self._warn)
        self._turns = Turns(self.log)
        self._selection = selection
        self._budget_ns = _NEVER if budget_s is None else int(budget_s * 1e9)
        self._among_ranks = among_ranks
        self._when = when or schedule()
        self.watchers: list[ProgramWatcher] = []
        self._logged: frozenset[Kind] = frozenset({Kind.REGION})
        self._loggers: frozenset[str] = frozenset()  # providers whose watchers log layers
        # By a generator of its own: the program's own draws must be as they are without xsp.
        self._seed = random.Random().randrange(1 << 30) if seed is None else seed
        self.windows: list[Window] = []
        self._armed = ExitStack()
        self._monitoring = ExitStack()
        self._monitored: list[tuple[Provider, Records]] = []
        self._lock = threading.RLock()
        self._switching = False
        self._ended = self._suspended = False
        self._resume_ns = _NEVER
        self._units = 0  # backward passes, by which ranks count; calls until there is a pass
        self._began_units = 0
        self._passes = False  # whether there has been a pass
        self._sized = 0, 0  # entries of the log, when that was asked last
        self._calls = 0  # outermost calls that began windows, for `schedule`
        self.begin_ns = self.end_ns = 0
        self.thread = threading.get_ident()
        self.left_by = ""
        self._children_s = _children_s()
        self._preempted = _preempted()
        self._native = 0
        self._times_before: dict[int, ThreadTime] = {}
        self._times: dict[int, ThreadTime] = {}
        self._sampler = LineSampler(self.thread, self._look_after)
        self._workers = WorkerSampler()
        self.forks = 0

    def begin(self, frame: FrameType | None = None) -> None:
        """Put all hooks in place, and begin to log."""
        _ACTIVE.add(self)
        self.log.home = id(frame)
        self.thread = threading.get_ident()
        if any(isinstance(provider, Monitor) for provider in self._selection.providers):
            beside = self.session.recording(_MONITOR, whole_model=False, waiting=False)
            self._monitored = self._monitoring.enter_context(beside)
        for watcher in self.session.watchers:
            made = self.session.attempt(
                watcher.watcher, f"{watcher.name} failed to watch for models, which are not seen"
            )
            if made and made[0] is not None:
                self.watchers.append(made[0])
                self._loggers |= {watcher.name} if made[0].logs_layers else frozenset()
        logs_layers = any(watcher.logs_layers for watcher in self.watchers)
        self._logged |= {Kind.LAYER} & self._kinds if logs_layers else frozenset()
        every = all(watcher.name in self._loggers for watcher in self.session.watchers)
        deep = self._kinds - {Kind.REGION, Kind.SYSCALL} - ({Kind.LAYER} if every else frozenset())
        self._deepest = Pass(frozenset(deep))
        self.lottery = Lottery(
            self._seed,
            layers=Kind.LAYER in self._logged,
            operators=bool(deep),
            system=Kind.SYSCALL in self._kinds,
        )
        self.log.until = 0
        for made_watcher in tuple(self.watchers):
            name = type(made_watcher).__module__
            begun = self.session.attempt(
                partial(made_watcher.begin, self.log),
                f"{name} failed to watch for models, which are not seen",
            )
            if begun is None:
                self.watchers.remove(made_watcher)
        tracer.attach(self.log)
        self._turns.begin()
        self._sampler.begin(frame)
        self._native = threading.get_native_id()
        self._times_before = thread_times() if Kind.SYSCALL in self._kinds else {}
        self._workers.begin()
        self.begin_ns = self.log.now()

    @property
    def was_out(self) -> bool:
        """Whether hooks were out for a part of the program."""
        return any(each.records is Recorded.OUT and not each.between for each in self.windows)

    @property
    def _kinds(self) -> frozenset[Kind]:
        return self._selection.kinds

    def end(self, left_by: str = "") -> None:
        """Take all hooks out, and end what is being recorded."""
        self.end_ns = self.log.now()
        if Kind.SYSCALL in self._kinds:
            self._times = since(self._times_before, thread_times())
        self.left_by = left_by
        with self._lock:
            self._ended = True
            self.log.until = _NEVER
            self._close_window(self.end_ns)
        tracer.attach(None)
        self._turns.end()
        for watcher in self.watchers:
            self.session.attempt(watcher.end, "hooks could not be taken out")
        self.watchers.clear()
        self._sampler.end()
        self._workers.end()
        _ACTIVE.discard(self)
        self._children_s = max(_children_s() - self._children_s, 0.0)
        self._monitoring.close()  # after that, as its helper is none of the program's children

    def abandon(self, frame: FrameType | None) -> None:
        """Take all hooks out in the child of a fork, for the parent is measured; sample it.

        Args:
            frame: The frame that forks.
        """
        self._ended = True
        self.log.until = _NEVER
        tracer.attach(None)
        self._turns.end()
        for watcher in self.watchers:
            with suppress(Exception):
                watcher.end()
        self.watchers.clear()
        with suppress(Exception):
            self._workers.sample(frame)

    def suspend(self, *, between: bool = False) -> None:
        """Take all hooks out for a while; regions are logged all the same.

        Args:
            between: Whether what happens until `resume` is no part of the program.
        """
        with self._lock:
            if self._suspended or self._ended:
                return
            self._suspended = True
            now = self.log.now()
            self._close_window(now)
            for watcher in self.watchers:
                self.session.attempt(watcher.suspend, "hooks could not be taken out")
            if between:
                tracer.attach(None)
                self._turns.end()
                self._sampler.end()
                self._workers.end()
            self.windows.append(
                Window(Recorded.OUT, now, self.log.now(), self.thread, between=between)
            )

    def resume(self) -> None:
        """Put all hooks back in place; the next outermost call begins a window."""
        with self._lock:
            if not self._suspended or self._ended:
                return
            self._suspended, self._resume_ns = False, _NEVER
            if self.windows[-1].between:
                tracer.attach(self.log)
                self._turns.begin()
                self._sampler.begin(sys._getframe(1))
                self._workers.begin()
            self.log.placed += 1
            for watcher in self.watchers:
                self.session.attempt(watcher.resume, "hooks could not be put back in place")
            self._close_window(self.log.now())
            self.log.until = 0

    def record(self) -> ProgramRecord:
        """Copy the record so far."""
        return ProgramRecord(
            log=self.log.data(),
            windows=tuple(self.windows),
            begin_ns=self.begin_ns,
            end_ns=self.end_ns or self.log.now(),
            thread=self.thread,
            lines=self._sampler.samples(),
            warnings=self.session.warnings,
            left_by=self.left_by,
            origin=self.session.origin,
            providers=self.session.providers,
            children_s=self._children_s if self._ended else 0.0,
            preempted=_preempted() - self._preempted,
            layers=Kind.LAYER in self._logged,
            operators=bool(self._kinds - self._logged - {Kind.SYSCALL}),
            inside_costs=self.session.inside_costs(),
            thread_times=self._times
            or (since(self._times_before, thread_times()) if self._times_before else {}),
            native=self._native,
            workers=self._workers.samples(),
            forks=self.forks,
            monitored=(Monitored(self.begin_ns, self.end_ns, 0, tuple(self._monitored)),)
            if self._monitored
            else (),
        )

    def forget(self) -> None:
        """Let go of what was recorded."""
        self.log.forget()
        self.windows.clear()
        self._workers.forget()
        self._monitored = []

    def kept_calls(self) -> Mapping[int, ModelCall]:
        """Return the last call of each kind of which there were only a few, and forget them."""
        kept, self.log.kept = self.log.kept, {}
        return kept

    def _warn(self, message: str) -> None:
        self.session.warning("provider", message)

    def _boundary(self, now_ns: int) -> None:
        """End the present window, and begin the next one; called by the hook of a call."""
        if self._switching or not self._lock.acquire(blocking=False):
            return  # another thread does, or a signal's handler has interrupted that
        try:
            self._switching = True
            if now_ns >= self.log.until and not (self._ended or self._suspended):
                self._switch(now_ns)
        except Exception as error:  # noqa: BLE001  the hook runs in the user's call
            self.log.until = _NEVER
            self._warn(
                f"recording ended early ({type(error).__name__}: {error}); later calls are missing"
            )
        finally:
            self._switching = False
            self._lock.release()

    def _switch(self, now_ns: int) -> None:
        log, last = self.log, self.windows[-1] if self.windows else None
        elapsed_ns = now_ns - self.begin_ns
        own = last is None or last.thread == threading.get_ident()
        if (
            last is not None
            and log.deep
            and not own
            and now_ns - last.begin_ns < 2 * LONGEST_DEEP_NS
        ):
            log.until = now_ns + _AGAIN_NS  # it ends at the next call of its own thread
            return
        if self._among_ranks and not self._ranks_may_switch(last):
            return
        cost = self._cost(now_ns)
        self._close_window(now_ns)
        if self._is_over(elapsed_ns, cost):
            return
        self._calls += 1
        records = Recorded.NOTHING
        if self._when._records(self._calls - 1):
            records = self.lottery.draw(elapsed_ns, None if self._among_ranks else cost)
        window = Window(records, now_ns, now_ns, threading.get_ident())
        self._began_units = self._units
        if records >= Recorded.SYSTEM:
            # Arm the providers of deeper kinds; what that takes is no part of the window.
            detail = window.records is Recorded.DETAIL
            kinds = self._deepest.kinds
            if records is Recorded.SYSTEM:
                kinds = frozenset({Kind.SYSCALL})
                self.session.calibrate(Pass(kinds))
            if detail and not any(kind.order > Kind.CALL.order for kind in kinds):
                kinds = frozenset(kind for kind in kinds if kind is not Kind.CALL) or kinds
            pass_ = Pass(kinds, detail=detail)
            self._armed = ExitStack()
            recording = self.session.recording(pass_, whole_model=False, logged=self._loggers)
            kept = self._armed.enter_context(recording)
            window.pass_ = pass_
            self._kept = kept
        log.layers = records >= Recorded.LAYERS and Kind.LAYER in self._logged
        log.deep = records >= Recorded.OPERATORS
        self.windows.append(window)
        window.begin_ns = log.now()
        length = self.lottery.length_ns(records, elapsed_ns)
        # However long a program loaded or compiled: one of three calls has windows of all kinds.
        if self._when != schedule() or self.lottery.drawn <= _SINGLE:
            length = 0  # each call is counted
        log.until = 0 if self._among_ranks else window.begin_ns + length

    def _ranks_may_switch(self, last: Window | None) -> bool:
        """Return whether all ranks end a window here; called at each outermost call.

        A rank may call a model that the others do not, but all make the same backward passes. So
        calls count only until the first pass, with which the windows begin anew.
        """
        passes = self.log.backwards
        if passes and not self._passes:
            self._passes = True
            self.lottery = self.lottery.anew()
            self._began_units = 0
            self._units = passes
            return True
        self._units = passes or self._units + 1
        if last is None:
            return True
        if not passes and self._units <= _CALLS_OF_A_STEP:
            return False
        return self._units - self._began_units >= self.lottery.units(
            last.records, self._began_units
        )

    def _is_over(self, elapsed_ns: int, cost: float) -> bool:
        """Take the hooks out for a while, or for good, where they have been in long enough."""
        if self.log.size() > MOST_ENTRIES or self._when._ended(self._calls):
            self.suspend()
            return True
        watched_ns = elapsed_ns + self.begin_ns - self.windows[0].begin_ns if self.windows else 0
        if self._among_ranks or watched_ns < self._budget_ns or cost <= ON_SHARE:
            return False  # an import that took long is no part of the budget
        watched = self.windows[-1]
        lasted_ns = max((watched.end_ns or 0) - watched.begin_ns, LONGEST_NS // 10)
        if watched.records is Recorded.OUT:  # just resumed: one window is recorded now
            return False
        self.suspend()
        wait_ns = int(lasted_ns * (cost / ON_SHARE - 1.0))
        if 2 * self.log.size() > MOST_ENTRIES:
            wait_ns = max(wait_ns, elapsed_ns // 4)
        self._resume_ns = self.log.now() + wait_ns
        return True

    def _cost(self, now_ns: int) -> float:
        """Return the share of the present window's time that recording took, about."""
        size, (before, since_ns) = self.log.size(), self._sized
        self._sized = size, now_ns
        lasted_ns = max(now_ns - since_ns, 1)
        mine = self.log.local.log
        last = [code & KIND_MASK for code in mine.events[-_LAST::2]] if mine is not None else []
        each_ns = EVENT_NS + HOOK_NS * last.count(ENTER) / max(len(last), 1)
        return min((size - before) / 2 * each_ns / lasted_ns, 1.0)

    def _close_window(self, now_ns: int) -> None:
        window = self.windows[-1] if self.windows else None
        if window is None or window.end_ns is not None:
            return
        window.end_ns = max(now_ns, window.begin_ns)  # another thread may just have begun it
        if window.pass_ is not None:
            self._armed.close()
            window.kept = tuple(self._kept)
            self._kept = []
            armed = window.begin_ns - window.switch_ns
            paused = self.log.now() - window.end_ns + armed
            self.lottery.took(paused, window.end_ns - window.begin_ns)
        self.log.deep = False

    def _look_after(self, now_ns: int) -> None:
        """End a window that no call ends, or put hooks back; called by the sampling thread."""
        if now_ns >= self._resume_ns:
            self.resume()
        last = self.windows[-1:]  # the block's thread may let go of them meanwhile
        if not last or not self.log.deep or self._among_ranks:
            return
        [window] = last
        # PyTorch records shapes on one thread only, which should end that, too.
        patience_ns = _DETAIL_NS if window.records is Recorded.DETAIL else 2 * LONGEST_DEEP_NS
        if now_ns - window.begin_ns > patience_ns and self._is_between(window.thread):
            with self._lock:
                if window.end_ns is None and not (self._ended or self._switching):
                    self._close_window(self.log.now())
                    self.log.layers = False
                    self.log.until = 0

    def _is_between(self, thread: int) -> bool:
        """Return whether a thread is in no call, pass or step, as far as its log says."""
        for log in tuple(self.log._threads):
            if log.thread != thread:
                continue
            last = log.events[-2:-1]
            if log.depth or (last and last[0] & KIND_MASK not in _OVER):
                return False
        return True


_ACTIVE: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _abandon_all() -> None:
    for recorder in tuple(_ACTIVE):
        recorder.abandon(sys._getframe(1))


def _count_fork() -> None:
    for recorder in tuple(_ACTIVE):
        recorder.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all, after_in_parent=_count_fork)


def _preempted() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
