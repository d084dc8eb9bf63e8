"""The dispatcher: calls of models, as the program makes them, in; recorded visits, a journal out.

A watcher hands each call over. The dispatcher finds the group of the call, asks the plan of the
group which rung is recorded, arms the providers of that rung, makes the call, and notes its times.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from xsp import tracer
from xsp.composition import MARKS_LOST, Evaluation, Group, Groups, Journal, Mark, Pause
from xsp.evaluation import Rung
from xsp.program.evaluation import IdleWatching, OpenEvaluation, StepKind
from xsp.program.recording import Recorder, Window
from xsp.program.stretch import schedule
from xsp.program.turns import WARM, Step, Turns
from xsp.provider import ModelCall
from xsp.rank import Agreement
from xsp.session import Session, Settings

T = TypeVar("T")

_KEPT_CALLS = 4  # groups whose last call is kept, to be repeated after the block
_MOST_EVALUATIONS = 500_000
_SELDOM = 6  # evaluations between two of a group that comes seldom


class Dispatcher:
    """Makes each evaluation of a program a step of the plan of its group (`provider.Evaluations`).

    Every call is made exactly once, whatever happens. Each thread has at most one evaluation
    open, and what it calls there belongs to that one. One rung is recorded at a time.

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
        agreement: What the ranks of a distributed program agree on; None: there is one process.
        stop_watching: Called when watching on would slow the program, and measure nothing.
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
        self._opens: dict[int, OpenEvaluation] = {}
        self._recorder = Recorder(session)
        self._kinds: dict[tuple[str, StepKind], StepKind] = {}  # by the model, and the step before
        self._last_kind = StepKind()
        self._last_unnamed: Group | None = None
        self._recent: deque[int] = deque(maxlen=_SELDOM)  # groups of the last evaluations
        self.agreement: Agreement | None = None
        self.stop_watching: Callable[[], None] = lambda: None
        self._ended = False  # whether the block has ended
        self.by_hand = False
        self._paused_until: dict[int, int] = {}
        self._seen = 0
        self._idle = IdleWatching()

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        thread = threading.get_ident()
        if self.by_hand or self.journal.unwatched_ns is not None:
            return call()
        now, synchronize = self._now, self.session.synchronize
        if (opened := self._attempt(self._open, thread, call)) is None:
            return call()
        function, args, kwargs = call.function, call.args, call.kwargs
        with ExitStack() as raised:
            raised.callback(self._drop, thread)
            opened.begin_ns = now()  # if the call raises
            begin = now()
            result = function(*args, **kwargs)
            for await_outputs in self.session.awaits:
                await_outputs(result)
            returned = now()
            synchronize()
            end = now()
            raised.pop_all()
        opened.begin_ns, opened.end_ns = begin, end
        group = self._attempt(self._close, thread, end, end - returned)
        if group is not None and (group in self.calls or len(self.calls) < _KEPT_CALLS):
            self.calls[group] = call
        self._stop_if_done()
        return result

    def begin(self, call: ModelCall | None) -> None:
        """Open an evaluation that goes on after its first call: a training step."""
        if not self.by_hand and self.journal.unwatched_ns is None:
            opened = self._attempt(self._open, threading.get_ident(), call)
            if opened is not None:
                opened.begin_ns = self._now()

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open evaluation."""
        if (opened := self._opens.get(threading.get_ident())) is not None and opened.call is None:
            opened.call = call

    def extend(self, until_ns: int | None = None) -> None:
        """Note that the open evaluation has lasted at least until a time, or until now."""
        thread = threading.get_ident()
        opened = self._opens.get(thread)
        if opened is not None and not self.by_hand:
            opened.extend(self._now() if until_ns is None else until_ns)
            tracer.may_leave_evaluation(thread)
            opened.left_ns = self._now()

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open evaluation at the time last noted."""
        if not self.by_hand:
            self._attempt(self._finish, StepKind(variant, calls))
            self._stop_if_done()

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note a part of the program that is no evaluation."""
        thread = threading.get_ident()
        opened = self._opens.get(thread)
        if opened is not None and (opened.end_ns is None or start_ns < opened.end_ns):
            return  # a part of the evaluation, which the providers record
        if not self.journal.mark(Mark(name, start_ns, end_ns, thread, attributes)):
            self.session.problem("marks-lost", MARKS_LOST)

    def problem(self, message: str) -> None:
        """Note what a reader of the trace should know of an evaluation."""
        self.session.problem("provider", message)

    def mark_by_hand(self) -> None:
        """Forget the calls of models so far: evaluations are those that the program marks."""
        if self.by_hand:
            return
        with self._lock:
            for thread in self._opens:
                tracer.leave_evaluation(thread)
            self._opens.clear()
            self._recorder.disarm()
            self.session.visits.clear()
            self.groups, self.turns = Groups(), {}
            self.journal.evaluations.clear()
            self.calls.clear()
            self.by_hand = True

    def begin_named(self, name: str) -> bool:
        """Open an evaluation that the program marks, and return whether it was opened.

        From now on only marked evaluations count. An evaluation that is marked while
        another is open, on whatever thread, is not opened.
        """
        self.mark_by_hand()
        if self._opens:
            self.session.problem(
                "evaluation-in-evaluation",
                f"an evaluation ({name}) was marked while another was open, and is not counted; "
                "mark parts of an evaluation with xsp.span",
            )
            return False
        call = ModelCall(lambda: None, name=name, subject=name, whole_model=False)
        self._open(threading.get_ident(), call).begin_ns = self._now()
        return True

    def end_named(self) -> None:
        """Close the evaluation that the program marked, at the present time."""
        if (opened := self._opens.get(threading.get_ident())) is not None:
            opened.end_ns = self._now()
            self._finish(StepKind())

    def drop(self) -> None:
        """Drop the open evaluation of this thread, which was cut short."""
        self._drop(threading.get_ident())

    def finish(self) -> None:
        """Close what is open, and disarm all providers."""
        with self._lock:
            self._ended = True
            for thread in tuple(self._opens):
                self._end_stale(thread)
            self.calls = {self.groups.final(at): call for at, call in self.calls.items()}
            self._recorder.disarm()

    def _end_stale(self, thread: int) -> None:
        """Close a step whose thread will not tell of its end, at the time last noted."""
        opened = self._opens[thread]
        if opened.end_ns is None or opened.call is None:
            self._opens.pop(thread)
            tracer.leave_evaluation(thread)
            return
        group = opened.group
        kind = StepKind() if group is None else StepKind(group.variant, group.model_calls)
        self._close(thread, self._now(), 0, kind)

    def forget(self) -> None:
        """Forget the calls that were kept, so that models and inputs can be freed."""
        self.calls.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disarm all providers, so that a trace can be made of what there is until now."""
        began_ns = self._now()
        with self._lock:
            self._recorder.disarm()
            self.journal.end_ns = began_ns
            self.journal.spans = tracer.watched()
        yield
        self.journal.pauses.append(Pause(threading.get_ident(), began_ns, self._now()))

    @property
    def _over(self) -> bool:
        if self.by_hand or self._opens:
            return False
        return self._when.ended(self._seen) or len(self.journal.evaluations) >= _MOST_EVALUATIONS

    @property
    def _complete(self) -> bool:
        """Whether all plans are complete, and no other rank of a distributed program goes on."""
        seen = [group.number for group in self.groups.current() if group.calls]
        through = bool(seen) and all(self._turns(number).done for number in seen)
        return through and (self.agreement is None or self.agreement.may_stop())

    def _open(self, thread: int, call: ModelCall | None) -> OpenEvaluation:
        with self._lock:
            if thread in self._opens:  # of a thread that ended, and whose number is used again
                self._end_stale(thread)
            found_ns = call.found_ns if call is not None else 0
            # The call may have ended a training step first, whose pause has been noted.
            seen_ns = max(found_ns or self._now(), self._paused_until.get(thread, 0))
            group = self._expected(call)
            tracer.enter_evaluation(thread)  # before anything of xsp's own marks spans
            step = self._step(group)
            whole = call is not None and call.whole_model
            before = self._recorder.current
            step = self._recorder.prepare(step, self._opens, whole_model=whole)
            recording = self._recorder.join(thread)
            same = before is recording
            opened = OpenEvaluation(call, group, step, recording, call is None, same, seen_ns)
            self._seen += 1
            if self._ended:  # by a signal, while providers were being armed
                self._recorder.disarm()
                tracer.leave_evaluation(thread)
            else:
                self._opens[thread] = opened
        return opened

    def _attempt(self, work: Callable[..., T], *args: Any) -> T | None:
        """Return the result of xsp's own work; if it fails, note a problem, and return None."""
        try:
            return work(*args)
        except Exception as error:  # noqa: BLE001  the user's call must be made all the same
            self.session.problem(
                "not-evaluated",
                f"an evaluation is missing, for xsp failed on it: {type(error).__name__}: {error}",
            )
            return None

    def _expected(self, call: ModelCall | None) -> Group | None:
        """Return the group that an evaluation is likely to be of."""
        if call is None:  # as the last one that began without a call
            return self._last_unnamed
        kind = StepKind()
        if not call.whole_model:
            kind = self._kinds.get((call.subject, self._last_kind), kind)
        return self.groups.find(call, *kind)

    def _step(self, group: Group | None) -> Step | None:
        if group is None or not self._when.records(self._seen):
            return None
        armed = self._recorder.current
        rung = armed.rung if armed is not None else None
        number = self.groups.final(group.number)
        others = set(self._recent) - {number}
        held = rung is not None and any(self._turns(other).holds(rung) for other in others)
        step = self._turns(number).step(rung, often=number in self._recent, held=held)
        if step is not None and not self._when.counts(self._seen):
            step = replace(step, round=WARM, counts=False)
        return step

    def _turns(self, number: int) -> Turns:
        number = self.groups.final(number)
        if number not in self.turns:
            self.turns[number] = Turns(self._rungs, self._settings, self.agreement, number)
        return self.turns[number]

    def _close(
        self, thread: int, since_ns: int, waited_ns: int, kind: StepKind | None = None
    ) -> int | None:
        """Note an evaluation that came to its end, and return the number of its group.

        None if the evaluation is open no more, as the block has ended meanwhile.

        Args:
            thread: Thread of the evaluation.
            since_ns: Since when the program has waited for xsp.
            waited_ns: How long the evaluation only waited for devices at its end.
            kind: What kind of step it was; None: a single call.
        """
        tracer.leave_evaluation(thread)
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is None:
                return None
            call, end_ns = opened.call, opened.end_ns
            assert call is not None
            assert end_ns is not None
            ended_ns = end_ns if kind is None else end_ns + waited_ns
            opened.close()
            group = self.groups.count(self.groups.find(call, *(kind or StepKind())), call)
            if kind is not None:
                self._kinds[call.subject, self._last_kind] = kind
                self._last_kind = kind
            self._recent.append(self.groups.final(group.number))
            if opened.unnamed:
                self._last_unnamed = group
            self._note(thread, opened, group, call, ended_ns, waited_ns)
            self._recorder.leave(opened.recording, thread)
            now = self._now()
            waits = (opened.seen_ns, opened.begin_ns), (end_ns, opened.left_ns), (since_ns, now)
            self.journal.pauses += [Pause(thread, *wait) for wait in waits if wait[1] > wait[0]]
            self._paused_until[thread] = now
            if opened.recording is None and opened.unprepared:
                spent_ns = now - since_ns + opened.begin_ns - opened.seen_ns
                self._idle.add(opened.seen_ns, spent_ns)
            return group.number

    def _stop_if_done(self) -> None:
        """Stop watching, once nothing is left to be measured, where watching costs time."""
        if self.journal.unwatched_ns is None and (
            self._over or (self._idle.costly and self._complete)
        ):
            self.journal.unwatched_ns = self._now()
            self.stop_watching()

    def _note(
        self,
        thread: int,
        opened: OpenEvaluation,
        group: Group,
        call: ModelCall,
        ended_ns: int,
        waited_ns: int,
    ) -> None:
        """Note an evaluation for the visit and the plan that it is of, and in the journal.

        `ended_ns` is when devices had ended their work; what the host did meanwhile lies in
        the journal's time after the evaluation.
        """
        step, recording, pauses = opened.step, opened.recording, tuple(opened.pauses)
        begin_ns, end_ns = opened.begin_ns, opened.end_ns or ended_ns
        same = opened.group is not None and self.groups.final(opened.group.number) == group.number
        valid = step is not None and recording is self._recorder.current and recording is not None
        counts = step is not None and valid and same and step.counts
        if step is not None and recording is not None and valid:
            round_number = step.round if counts else -1
            window = Window(
                thread, group.number, call.name, round_number, begin_ns, ended_ns, waited_ns, pauses
            )
            recording.windows.append(window)
            if same:
                self._turns(group.number).record(step, begin_ns, ended_ns - opened.paused_ns)
        rung = recording.rung if recording is not None else None
        known = rung, counts, call.inputs, opened.paused_ns, opened.page_faults
        self.journal.evaluations.append(Evaluation(thread, group.number, begin_ns, end_ns, *known))

    def _finish(self, kind: StepKind) -> None:
        thread = threading.get_ident()
        if (opened := self._opens.get(thread)) is None:
            return
        if opened.call is None or opened.end_ns is None:
            self._drop(thread)
            return
        since_ns = self._now()
        self.session.synchronize()
        waited_ns = self._now() - since_ns if self.session.watchers else 0
        self._close(thread, since_ns, waited_ns, kind)

    def _drop(self, thread: int) -> None:
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is not None:
                self.journal.pauses.append(Pause(thread, opened.seen_ns, opened.begin_ns))
                if opened.call is not None:
                    self.journal.raised[opened.call.subject] += 1
        tracer.leave_evaluation(thread)
