"""The dispatcher: calls of models, as the program makes them, in; recorded visits, a journal out.

A watcher hands each call over. The dispatcher finds the group of the call, asks the plan of the
group which rung is recorded, arms the providers of that rung, makes the call, and notes its times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from xsp import tracer
from xsp.composition import Evaluation, Group, Groups, Journal, Mark, Pause
from xsp.evaluation import Rung
from xsp.program.recording import Recorder, Recording, Window
from xsp.program.stretch import schedule
from xsp.program.turns import WARM, Step, Turns
from xsp.provider import ModelCall
from xsp.session import Session, Settings

_KEPT_CALLS = 8  # groups whose last call is kept, to be repeated after the block
_MOST_MARKS = 1_000_000
# Watching may take so much of a program's time, once there is nothing more to measure.
_MOST_WATCHING = 0.01
_WATCHED_AFTER = 20  # evaluations after the last recorded one, by which that part is judged


class _Kind(NamedTuple):
    """What is known of a training step when it has ended, as `Evaluations.end` is told."""

    variant: str = ""
    calls: int = 1


@dataclass(slots=True)
class _Open:
    """An evaluation under way.

    Attributes:
        call: The first call of a model in it; None if that is still to come.
        group: The group whose plan chose the step; None if nothing was planned.
        step: What is recorded; None: nothing that counts.
        recording: The recording under way when it began.
        unnamed: Whether it began before its first call of a model.
        unprepared: Whether no provider was armed or disarmed for it.
        seen_ns: When xsp's own work for it began.
        begin_ns: When it began.
        end_ns: Until when it has lasted at least; None if that was never noted.
    """

    call: ModelCall | None
    group: Group | None
    step: Step | None
    recording: Recording | None
    unnamed: bool
    unprepared: bool
    seen_ns: int
    begin_ns: int = 0
    end_ns: int | None = None


class Dispatcher:
    """Makes each evaluation of a program a step of the plan of its group (`provider.Evaluations`).

    Every call is made exactly once, whatever happens. Each thread has at most one evaluation open;
    what a thread calls in an open evaluation belongs to that evaluation. One rung is recorded
    at a time, in all threads.

    Args:
        rungs: The ladder, bare rung first.
        settings: When a plan is complete.
        session: The session that arms providers.
        when: Which evaluations are measured.

    Attributes:
        groups: The groups of like evaluations.
        turns: The plan of each group, by the group's number.
        journal: What the program did.
        calls: The last call of some groups, by the group's number, kept to be repeated.
        stop_watching: Called when nothing is left to be measured, and watching on would slow
            the program.
    """

    def __init__(
        self, rungs: Sequence[Rung], settings: Settings, session: Session, when: schedule
    ) -> None:
        self.session = session
        self.groups = Groups()
        self.turns: dict[int, Turns] = {}
        self.journal = Journal(threading.get_ident(), session.clock.now())
        self.calls: dict[int, ModelCall] = {}
        self._rungs, self._settings, self._when = tuple(rungs), settings, when
        self._now = session.clock.now
        self._lock = threading.RLock()  # a signal's handler may call a model, too
        self._opens: dict[int, _Open] = {}
        self._recorder = Recorder(session)
        self._kinds: dict[tuple[str, _Kind], _Kind] = {}  # by the model, and the step before
        self._last_kind = _Kind()
        self._last_unnamed: Group | None = None
        self.stop_watching: Callable[[], None] = _nothing
        self._named = False  # whether the program marks evaluations (`begin_named`)
        self._paused_until: dict[int, int] = {}
        self._seen = 0
        self._idle: list[tuple[int, int]] = []  # begin, and xsp's own time, of unrecorded ones

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        thread = threading.get_ident()
        if self._named or thread in self._opens:
            return call()
        now, synchronize = self._now, self.session.synchronize
        opened = self._open(thread, call)
        function, args, kwargs = call.function, call.args, call.kwargs
        try:
            begin = now()
            result = function(*args, **kwargs)
            returned = now()
            synchronize()
            end = now()
        except BaseException:
            self._drop(thread)
            raise
        opened.begin_ns, opened.end_ns = begin, end
        group = self._close(thread, end, end - returned)
        if group is None:  # the block ended meanwhile, by a signal
            return result
        if group in self.calls or len(self.calls) < _KEPT_CALLS:
            self.calls[group] = call
        self._stop_if_done()
        return result

    def begin(self, call: ModelCall | None) -> None:
        """Open an evaluation that goes on after its first call: a training step."""
        thread = threading.get_ident()
        if not self._named and thread not in self._opens:
            opened = self._open(thread, call)
            opened.begin_ns = self._now()

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open evaluation."""
        opened = self._opens.get(threading.get_ident())
        if opened is not None and opened.call is None:
            opened.call = call

    def extend(self) -> None:
        """Note that the open evaluation has lasted at least until now."""
        opened = self._opens.get(threading.get_ident())
        if opened is not None and not self._named:
            opened.end_ns = self._now()

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open evaluation at the time last noted."""
        if not self._named:
            self._finish(_Kind(variant, calls))
            self._stop_if_done()

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note a part of the program that is no evaluation."""
        thread = threading.get_ident()
        opened = self._opens.get(thread)
        if opened is not None and (opened.end_ns is None or start_ns < opened.end_ns):
            return  # a part of the evaluation, which the providers record
        if len(self.journal.marks) < _MOST_MARKS:
            self.journal.marks.append(Mark(name, start_ns, end_ns, thread, attributes))
        else:
            self.session.problem(
                "marks-lost",
                f"after {_MOST_MARKS:,} parts of the program, such as data loading, no more were "
                "noted: what they took is own time of what lies around them",
            )

    def begin_named(self, name: str) -> bool:
        """Open an evaluation that the program marks, and return whether it was opened.

        From now on only marked evaluations count. An evaluation that is marked while
        another is open, on whatever thread, is not opened.
        """
        if not self._named:
            self._forget_found()
        if self._opens:
            self.session.problem(
                "evaluation-in-evaluation",
                f"an evaluation ({name}) was marked while another was open, and is not counted; "
                "mark parts of an evaluation with xsp.span",
            )
            return False
        thread = threading.get_ident()
        call = ModelCall(_nothing, name=name, subject=name, whole_model=False)
        self._open(thread, call).begin_ns = self._now()
        return True

    def end_named(self) -> None:
        """Close the evaluation that the program marked, at the present time."""
        opened = self._opens.get(threading.get_ident())
        if opened is not None:
            opened.end_ns = self._now()
            self._finish(_Kind())

    def drop(self) -> None:
        """Drop the open evaluation of this thread, which was cut short."""
        self._drop(threading.get_ident())

    def finish(self) -> None:
        """Close what is open, and disarm all providers."""
        with self._lock:
            for thread in tuple(self._opens):
                opened = self._opens[thread]
                if opened.end_ns is None or opened.call is None:
                    self._opens.pop(thread)
                else:
                    self._close(thread, self._now(), 0)
            self._recorder.disarm()
            tracer.between(outside=True)

    def forget(self) -> None:
        """Forget the calls that were kept, so that models and inputs can be freed."""
        self.calls.clear()

    def pause(self) -> None:
        """Disarm all providers, so that a trace can be made of what there is until now."""
        with self._lock:
            self._recorder.disarm()
            self.journal.end_ns = self._now()

    @property
    def _over(self) -> bool:
        return not self._named and self._when.ended(self._seen) and not self._opens

    @property
    def _complete(self) -> bool:
        """Whether all plans are complete."""
        seen = [group.number for group in self.groups.current() if group.calls]
        return bool(seen) and all(self._turns(number).done for number in seen)

    @property
    def _costs(self) -> bool:
        """Whether watching on would slow the program down, with nothing left to be measured."""
        idle = self._idle
        if len(idle) < _WATCHED_AFTER or not self._complete:
            return False
        spent = sum(pause for _, pause in idle)
        return spent > _MOST_WATCHING * (idle[-1][0] - idle[0][0])

    def _open(self, thread: int, call: ModelCall | None) -> _Open:
        with self._lock:
            found_ns = call.found_ns if call is not None else 0
            # The call may have ended a training step first, whose pause has been noted.
            seen_ns = max(found_ns or self._now(), self._paused_until.get(thread, 0))
            group = self._expected(call)
            tracer.between(outside=False)  # before anything of xsp's own marks spans
            step = self._step(group)
            whole = call is not None and call.whole_model
            before = self._recorder.current
            step = self._recorder.prepare(step, self._opens, whole_model=whole)
            recording = self._recorder.join(thread)
            unprepared = before is recording
            opened = _Open(call, group, step, recording, call is None, unprepared, seen_ns)
            self._opens[thread] = opened
            self._seen += 1
        return opened

    def _expected(self, call: ModelCall | None) -> Group | None:
        """Return the group that an evaluation is likely to be of."""
        if call is None:  # it is likely to be as the last that began without a call
            return self._last_unnamed
        kind = _Kind()
        if not call.whole_model:
            kind = self._kinds.get((call.subject, self._last_kind), kind)
        return self.groups.find(call, *kind)

    def _step(self, group: Group | None) -> Step | None:
        if group is None or not self._when.records(self._seen):
            return None
        armed = self._recorder.current
        step = self._turns(group.number).step(armed.rung if armed is not None else None)
        if step is not None and not self._when.counts(self._seen):
            step = replace(step, round=WARM, counts=False)
        return step

    def _turns(self, number: int) -> Turns:
        number = self.groups.final(number)
        if number not in self.turns:
            self.turns[number] = Turns(self._rungs, self._settings)
        return self.turns[number]

    def _close(
        self, thread: int, since_ns: int, waited_ns: int, kind: _Kind | None = None
    ) -> int | None:
        """Note an evaluation that came to its end, and return the number of its group.

        None if the evaluation is open no more, as the block has ended meanwhile.

        Args:
            thread: Thread of the evaluation.
            since_ns: Since when the program has waited for xsp.
            waited_ns: How long the evaluation only waited for devices at its end.
            kind: What kind of step it was; None: a single call.
        """
        tracer.between(outside=len(self._opens) <= 1)
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is None:
                return None
            call, end_ns = opened.call, opened.end_ns
            assert call is not None
            assert end_ns is not None
            group = self.groups.count(self.groups.find(call, *(kind or _Kind())), call)
            if kind is not None:
                self._kinds[call.subject, self._last_kind] = kind
                self._last_kind = kind
            if opened.unnamed:
                self._last_unnamed = group
            self._note(thread, opened, group, call, end_ns, waited_ns)
            self._recorder.leave(opened.recording, thread)
            self.journal.pauses.append(Pause(thread, opened.seen_ns, opened.begin_ns))
            now = self._now()
            self.journal.pauses.append(Pause(thread, since_ns, now))
            self._paused_until[thread] = now
            if opened.recording is None and opened.unprepared:
                spent_ns = now - since_ns + opened.begin_ns - opened.seen_ns
                self._idle.append((opened.seen_ns, spent_ns))
                del self._idle[:-_WATCHED_AFTER]
            return group.number

    def _stop_if_done(self) -> None:
        """Stop watching, once nothing is left to be measured, where watching costs time."""
        if self.journal.unwatched_ns is None and (self._over or self._costs):
            self.journal.unwatched_ns = self._now()
            self.stop_watching()

    def _note(
        self,
        thread: int,
        opened: _Open,
        group: Group,
        call: ModelCall,
        end_ns: int,
        waited_ns: int,
    ) -> None:
        step, recording = opened.step, opened.recording
        begin_ns = opened.begin_ns
        same = opened.group is not None and self.groups.final(opened.group.number) == group.number
        valid = step is not None and recording is self._recorder.current and recording is not None
        counts = step is not None and valid and same and step.counts
        if step is not None and recording is not None and valid:
            round_number = step.round if counts else -1
            recording.windows.append(
                Window(thread, group.number, call.name, round_number, begin_ns, end_ns, waited_ns)
            )
            if same:
                self._turns(group.number).record(step, begin_ns, end_ns)
        self.journal.evaluations.append(
            Evaluation(
                thread,
                group.number,
                begin_ns,
                end_ns,
                recording.rung if recording is not None else None,
                counts,
                call.inputs,
            )
        )

    def _finish(self, kind: _Kind) -> None:
        thread = threading.get_ident()
        opened = self._opens.get(thread)
        if opened is None:
            return
        if opened.call is None or opened.end_ns is None:
            self._drop(thread)
            return
        since_ns = self._now()
        self.session.synchronize()
        waited_ns = self._now() - since_ns if self.session.watchers else 0
        opened.end_ns += waited_ns
        self._close(thread, since_ns, waited_ns, kind)

    def _drop(self, thread: int) -> None:
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is not None and opened.call is not None:
                self.journal.raised.setdefault(opened.call.subject)
        tracer.between(outside=not self._opens)

    def _forget_found(self) -> None:
        """Forget the calls of models so far: they were not the evaluations that count."""
        with self._lock:
            self._opens.clear()
            self._recorder.disarm()
            self.session.visits.clear()
            self.groups, self.turns = Groups(), {}
            self.journal.evaluations.clear()
            self.journal.pauses.clear()
            self.calls.clear()
            self._named = True


def _nothing() -> None:
    """Stand for what a marked evaluation does."""
