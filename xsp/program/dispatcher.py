"""The dispatcher: calls of models, as the program makes them, in; recorded visits, a journal out.

A watcher hands each call over. The dispatcher finds the group of the call, asks the plan of the
group which rung is recorded, arms the providers of that rung, makes the call, and notes its times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from xsp import tracer
from xsp.composition import MARKS_LOST, Journal, Mark
from xsp.evaluation import Rung
from xsp.program.evaluation import Closed, IdleWatching, Lap, OpenEvaluation, Streak, attempt, timed
from xsp.program.recording import KeptCalls, Recorder
from xsp.program.streak import Key, Streaks, key_of, note
from xsp.program.turns import Plans, StepKind
from xsp.provider import Likeness, ModelCall, Work
from xsp.session import Collections, NotedLock, Session, Settings, page_faults, schedule

_MOST_EVALUATIONS, _JUST_NS = 500_000, 20_000_000
_GOING_ON = OpenEvaluation(0, None, None, None, None, False, False, 0)


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
        plans: The groups of like evaluations, and the plan of each.
        journal: What the program did.
        calls: Calls of the groups that took most time, kept to be repeated.
        collections: Notes, once begun, collections of garbage that xsp brings about.
        stop_watching: Called when watching on would slow the program, and measure nothing.
    """

    def __init__(
        self, rungs: Sequence[Rung], settings: Settings, session: Session, when: schedule
    ) -> None:
        self.session, self._now = session, session.clock.now
        self.plans = Plans(rungs, settings, when)
        self.journal = Journal(threading.get_ident(), session.clock.now())
        self.calls = KeptCalls(self.plans.groups)
        self._when, self._scheduled = when, when != schedule()
        self._opens: dict[int, OpenEvaluation] = {}
        self._recorder = Recorder(session)
        self.stop_watching: Callable[[], None] = lambda: None
        self._ended = self.by_hand = False
        self._streaks, self._seen, self._idle = Streaks(), 0, IdleWatching()
        self.collections = Collections(self._now, self.journal.pause)
        # A signal's handler may call a model, too.
        self._lock = NotedLock(self._now, partial(self.journal.pause, idle=True))
        self._waits = True  # whether there are devices to wait for, as far as is known

    def run(self, call: ModelCall) -> Any:
        """Make a call that is an evaluation by itself, and return its result."""
        thread = threading.get_ident()
        idle = self.by_hand or self.journal.unwatched_ns is not None
        if idle or (opened := attempt(self.session, self._open, thread, call)) is None:
            return call()
        try:
            result, begin, returned, end = timed(self.session, call.work)
        except BaseException:
            self.drop()
            raise
        opened.begin_ns, opened.end_ns, self._waits = begin, end, end > returned
        attempt(self.session, self._close, thread, end, end - returned, None, call)
        if not opened.streak:
            self._stop_if_done()
        return result

    def again(self, like: Likeness, work: Work, found_ns: int) -> tuple[Any, Lap] | None:
        """Make a call that goes on with a streak; None: there is none, and it was not made."""
        thread = threading.get_ident()
        if (streak := self._going_on(thread, like)) is None:
            return None
        began_ns = self._now()
        try:
            result, begin, returned, end = timed(self.session, work, waits=self._waits)
        except BaseException:
            with self._lock:
                self._opens.pop(thread, None)
                self.journal.raised[streak.like.subject] += 1
                self.journal.pause(found_ns, began_ns)
            raise
        finally:
            tracer.leave_evaluation(thread)
        with self._lock:
            goes_on = self._opens.pop(thread, None) is _GOING_ON  # else the block has ended
            if goes_on and len(streak.recording.threads) == 1:
                self.calls.take(streak.group, work, like[2], end - begin)
            times = found_ns, begin, end, end, (), end, end - returned, self._now()
            lap = Lap(streak, thread, like[2], None, *times)
            if goes_on:
                self._streaks.laps.append(lap)
        return result, lap

    def _going_on(self, thread: int, like: Likeness) -> Streak | None:
        """Return the streak that a single call goes on with, if any."""
        with self._lock:
            streak = self._next(thread, like) if thread not in self._opens else None
            if streak is not None:
                self._opens[thread] = _GOING_ON
                tracer.enter_evaluation(thread)
            return streak

    def _next(self, thread: int, like: Key) -> Streak | None:
        """Return the streak that one more evaluation goes on with, if any, and count it there."""
        streak = self._streaks.of(like, self.plans.groups)
        if streak is None or streak.left.number <= 0:
            return None
        unwatched = self.journal.unwatched_ns is not None
        if unwatched or streak.recording is not self._recorder.current:
            return None
        if self._scheduled and self._when.turns(self._seen):
            return None
        self._seen += 1
        streak.left.number -= 1
        streak.recording.threads.add(thread)
        return streak

    def begin(self, call: ModelCall | None) -> OpenEvaluation | None:
        """Open an evaluation that goes on after its first call: a training step."""
        if self.by_hand or self.journal.unwatched_ns is not None:
            return None
        opened = attempt(self.session, self._open, threading.get_ident(), call)
        if opened is not None and opened.expected:
            tracer.may_leave_evaluation(threading.get_ident())  # nothing more is told until its end
        return opened

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open evaluation."""
        if (opened := self._opens.get(threading.get_ident())) is not None:
            opened.identify(call)

    def extend(self, until_ns: int | None = None, pauses: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the open evaluation has lasted at least until a time, or until now."""
        opened = self._opens.get(thread := threading.get_ident())
        if opened is not None and not self.by_hand:
            for mark in opened.extend(self._now() if until_ns is None else until_ns, pauses):
                self._note_mark(mark)
            tracer.may_leave_evaluation(thread)
            if not pauses or pauses[-1][0] != until_ns:
                opened.left_ns = self._now()

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open evaluation at the time last noted."""
        if not self.by_hand:
            attempt(self.session, self._finish, StepKind(variant, calls))
            self._stop_if_done()

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note a part of the program that is no evaluation."""
        began_ns, thread = self._now(), threading.get_ident()
        opened, mark = self._opens.get(thread), Mark(name, start_ns, end_ns, thread, attributes)
        self.journal.loading |= bool(attributes.get("workers"))
        held = opened is not None and opened.holds(mark)  # so that the providers record it
        if not held and self._note_mark(mark):
            self.journal.pause(began_ns, self._now())

    def _note_mark(self, mark: Mark) -> bool:
        """Note a part of the program; return whether there was room for it."""
        if not (kept := self.journal.mark(mark)):
            self.session.problem("marks-lost", MARKS_LOST)
        return kept

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
            self._streaks = Streaks()
            self._recorder.disarm()
            self.session.visits.clear()
            self.plans.forget()
            self.journal.evaluations.clear()
            self.calls = KeptCalls(self.plans.groups)
            self.by_hand = True

    def begin_named(self, name: str) -> bool:
        """Open an evaluation that the program marks, and return whether it was opened.

        From now on these alone count. None is opened while another is, on whatever thread.
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
        self._open(threading.get_ident(), call)
        return True

    def end_named(self) -> None:
        """Close the evaluation that the program marked, at the present time."""
        if (opened := self._opens.get(threading.get_ident())) is not None:
            opened.end_ns = self._now()
            self._finish(StepKind())

    def drop(self) -> None:
        """Drop the open evaluation of this thread, which was cut short."""
        thread = threading.get_ident()
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is not None:
                self.journal.pause(opened.seen_ns, opened.begin_ns)
                if opened.call is not None:
                    self.journal.raised[opened.call.subject] += 1
        tracer.leave_evaluation(thread)

    def finish(self) -> None:
        """Close what is open, and disarm all providers."""
        with self._lock:
            self._ended = True
            for thread in tuple(self._opens):
                self._end_stale(thread)
            self._settle()
            self._recorder.disarm()

    def _end_stale(self, thread: int) -> None:
        """Close a step whose thread will not tell of its end, at the time last noted."""
        opened = self._opens[thread]
        if opened.end_ns is None or opened.call is None:
            self._opens.pop(thread)
            tracer.leave_evaluation(thread)
            return
        self._close(thread, self._now(), 0, opened.usual_kind)

    def progress(self) -> tuple[int, bool, int]:
        """Return how many evaluations have begun; if the thread is in one; when one last ended."""
        opened, now_ns = self._opens.get(self.journal.thread), self._now()
        made, laps = self.journal.evaluations, self._streaks.laps
        last = opened or next(iter(laps[-1:] or made[-1:]), None)
        ended_ns = 0 if last is None else last.end_ns or now_ns
        inside = opened is not None and now_ns - ended_ns < _JUST_NS
        return len(made) + len(laps) + len(self._opens), inside, ended_ns

    def rest(self) -> bool:
        """Disarm all providers, unless an evaluation is under way; return whether that was done."""
        with self._lock:
            under_way = any(each.may_go_on(self._now()) for each in self._opens.values())
            if self._ended or under_way or self._recorder.tied:
                return False
            with self.paused():
                return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disarm all providers, so that a trace can be made of what there is until now."""
        began_ns = self._now()
        with self._lock:
            self._settle()
            self._recorder.disarm()
            self.journal.end(began_ns)
            self.journal.spans = tracer.watched()
        yield
        self.journal.pause(began_ns, self._now())

    def _open(self, thread: int, call: ModelCall | None) -> OpenEvaluation:
        with self._lock:
            if thread in self._opens:  # of a thread that ended, and whose number is used again
                self._end_stale(thread)
            seen_ns = (call.found_ns if call is not None else 0) or self._now()
            tracer.enter_evaluation(thread)  # before anything of xsp's own marks spans
            streak = self._next(thread, key_of(call, self._streaks.last_kind or self.plans.before))
            if streak is not None:
                streak.wait = self._synchronized if self._waits else None
                streak.counted = self._scheduled
                opened = streak.opened(thread, seen_ns, call.inputs if call else streak.like.inputs)
            else:
                with self.collections.own_work():
                    opened = self._planned(thread, call, seen_ns)
            if self._ended:  # by a signal, while providers were being armed
                self._recorder.disarm()
                tracer.leave_evaluation(thread)
            else:
                self._opens[thread] = opened
        opened.begin_ns = self._now()
        return opened

    def _planned(self, thread: int, call: ModelCall | None, seen_ns: int) -> OpenEvaluation:
        """Return an evaluation for which the plan of its group says what is recorded."""
        self._settle()
        group = self.plans.expected(call)
        before = self._recorder.current
        step = self.plans.step(group, self._seen, before.rung if before is not None else None)
        whole = call is not None and call.whole_model
        step = self._recorder.prepare(step, self._opens, whole_model=whole)
        recording = self._recorder.join(thread)
        if not (unprepared := before is recording):
            self.plans.note_change()
        self._seen += 1
        known = thread, call, group, step, recording, call is None, unprepared, seen_ns
        opened = OpenEvaluation(*known, page_faults=page_faults())
        if group is not None:
            left = self.plans.of(group.number).left - 1
            self._streaks.begin(key_of(call, self.plans.before), opened, left)
        return opened

    def _close(
        self,
        thread: int,
        since_ns: int,
        waited_ns: int,
        kind: StepKind | None = None,
        call: ModelCall | None = None,
    ) -> None:
        """Note an evaluation that came to its end, if it is still open: the block may have ended.

        Args:
            thread: Thread of the evaluation.
            since_ns: Since when the program has waited for xsp.
            waited_ns: How long the evaluation only waited for devices at its end.
            kind: What kind of step it was; None: a single call.
            call: The call, which is kept to be repeated, perhaps; None: it cannot be.
        """
        tracer.leave_evaluation(thread)
        with self._lock:
            opened = self._opens.pop(thread, None)
            if opened is None:
                return
            opened.close()
            closed = Closed(opened, kind, since_ns, waited_ns)
            group = opened.group
            if group is not None and opened.is_as_expected(*(kind or StepKind())):
                self._streaks.laps.append(closed)
                self.plans.before = kind or self.plans.before
                self.calls.note(group, call, closed.ran_ns)
                closed.until_ns = self._now()
                return
            self._settle()
            opened.streak = None
            group = note(closed, self.plans, self._recorder, self.journal)
            if group is not opened.group:  # it was not what was expected
                self._streaks.clear()
            elif opened.unnamed:  # the next one may begin as it did
                key = key_of(None, self.plans.before)
                self._streaks.begin(key, opened, self.plans.of(group.number).left)
            self._recorder.leave(opened.recording, thread)
            self.calls.note(group, call, closed.ran_ns)
            closed.until_ns = self._now()
            self.journal.pauses += closed.pauses
            if opened.recording is None and opened.unprepared:
                self._idle.add(opened.seen_ns, closed.spent_ns)

    def _settle(self) -> None:
        """Note the evaluations of streaks of which nothing is noted yet."""
        for closed in self._streaks.settle():
            note(closed, self.plans, self._recorder, self.journal)
            self.journal.pauses += closed.pauses
            self.plans.before = closed.kind or self.plans.before

    def _stop_if_done(self) -> None:
        """Stop watching, once nothing is left to be measured, where watching costs time."""
        many = len(self.journal.evaluations) >= _MOST_EVALUATIONS
        over = (many or self._when.ended(self._seen)) and not (self.by_hand or self._opens)
        over = over or (self._idle.costly and self.plans.complete)
        if over and self.journal.unwatched_ns is None:
            self.journal.unwatched_ns = self._now()
            self.stop_watching()

    def _finish(self, kind: StepKind) -> None:
        opened = self._opens.get(thread := threading.get_ident())
        if opened is not None and not kind.calls:
            opened.call = None  # which was expected, and did not come
        if opened is None:
            return
        broken = self.journal.left_by and opened.lacks_optimizer(kind.variant)
        if broken or opened.call is None or opened.end_ns is None:
            self.drop()
        else:
            self._close(thread, *self._synchronized(), kind)

    def _synchronized(self) -> tuple[int, int]:
        """Wait until devices have finished; return since when, and how long that took."""
        since_ns = self._now()
        self._waits = self.session.synchronize()
        return since_ns, self._now() - since_ns if self._waits else 0
