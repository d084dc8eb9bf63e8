"""Recordings: steps of plans in, armed providers and the visits that evaluations make out.

Also the calls that are kept, so that further visits can be made of them after the program.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from xsp.composition import Group, Groups, elements
from xsp.evaluation import Rung
from xsp.program.turns import Step
from xsp.provider import Inputs, ModelCall, Provider, Records, Work
from xsp.session import PlannedVisit, Session, Visit

_KEPT = 4  # groups of which a call is kept
_ABOUT = 1.7  # times as large as the average, or as small, is about average


class Window(NamedTuple):
    """A recorded evaluation.

    Attributes:
        thread: Thread that the evaluation ran on.
        group: Number of its group.
        name: Name of the root span.
        round: Round of the group's plan, -1 if its latency does not count.
        begin_ns: When it began.
        end_ns: When it ended, devices synchronised.
        waited_ns: How long it only waited for devices at its end.
        pauses: Start and end of each time in it in which the thread waited for xsp.
    """

    thread: int
    group: int
    name: str
    round: int
    begin_ns: int
    end_ns: int
    waited_ns: int
    pauses: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Recording:
    """Providers that are armed, and what happens meanwhile.

    Attributes:
        rung: The rung that is recorded.
        whole_model: Whether every evaluation is a call of a model itself.
        stack: Disarms the providers when it is closed.
        records: Each provider with its records, once disarmed.
        thread: The thread that armed the providers.
        threads: Threads that called models.
        windows: The evaluations.
        over: Whether the providers are disarmed.
    """

    rung: Rung
    whole_model: bool
    stack: ExitStack
    records: list[tuple[Provider, Records]]
    thread: int
    threads: set[int]
    windows: list[Window] = field(default_factory=list)
    over: bool = False

    @property
    def bound(self) -> bool:
        """Whether one thread alone can be recorded: for memory and for samples.

        Samples may be ended by any thread.
        """
        return not self.rung.timed


class Recorder:
    """Arms the providers of one rung at a time, for evaluations on all threads.

    Args:
        session: The session, which gets the visits.

    Attributes:
        current: What is being recorded; None: nothing.
    """

    def __init__(self, session: Session) -> None:
        self.current: Recording | None = None
        self._session = session

    @property
    def tied(self) -> bool:
        """Whether one thread alone can end what is recorded, as it must where memory is."""
        return self.current is not None and self.current.rung.detail

    def prepare(
        self, step: Step | None, open_on: Collection[int], *, whole_model: bool
    ) -> Step | None:
        """Arm what a step records, and return the step; None if nothing is recorded for it.

        Args:
            step: What the plan asks for; None: nothing.
            open_on: Threads that have an evaluation open.
            whole_model: Whether the evaluation is a call of a model itself.
        """
        armed = self.current
        if armed is not None and armed.bound and armed.thread != threading.get_ident():
            if armed.rung.detail or armed.thread in open_on:
                return None
            self.disarm()  # what lies between two evaluations of that thread was sampled
            armed = None
        if step is None:
            if armed is not None and not open_on:
                self.disarm()
            return None
        if armed is None or (armed.rung, armed.whole_model) != (step.rung, whole_model):
            # Evaluations that other threads have open are cut in two, and do not count.
            self.disarm()
            self._arm(step, open_on, whole_model=whole_model)
        return step

    def join(self, thread: int) -> Recording | None:
        """Note that a thread begins an evaluation; return what is recorded of it."""
        if self.current is not None:
            self.current.threads.add(thread)
        return self.current

    def leave(self, recording: Recording | None, thread: int) -> None:
        """Note that an evaluation has ended: where memory is recorded, the recording ends with it.

        Samples go on, so that the time until the next evaluation gets names as well.
        """
        if recording is not None and recording.rung.detail and recording.thread == thread:
            self.disarm()

    def disarm(self) -> None:
        """Disarm the providers, and make visits of the evaluations."""
        recording, self.current = self.current, None
        if recording is None:
            return
        recording.over = True
        recording.stack.close()
        for thread in sorted(recording.threads):
            windows = [window for window in recording.windows if window.thread == thread]
            if windows:
                shared = len(recording.threads) > 1
                self._session.visits.append(_visit(recording, windows, shared=shared))

    def _arm(self, step: Step, open_on: Collection[int], *, whole_model: bool) -> None:
        if step.round < 0:
            self._session.calibrate(step.rung)
        stack = ExitStack()
        records = stack.enter_context(self._session.recording(step.rung, whole_model=whole_model))
        self.current = Recording(
            step.rung, whole_model, stack, records, threading.get_ident(), set(open_on)
        )


def _visit(recording: Recording, windows: Sequence[Window], *, shared: bool) -> Visit:
    return Visit(
        planned=PlannedVisit(recording.rung, len(windows), round=max(w.round for w in windows)),
        name=windows[0].name,
        thread=windows[0].thread,
        windows=tuple((window.begin_ns, window.end_ns) for window in windows),
        records=tuple(recording.records),
        waited_ns=tuple(window.waited_ns for window in windows),
        groups=tuple(window.group for window in windows),
        rounds=tuple(window.round for window in windows),
        names=tuple(window.name for window in windows),
        shared=shared,
        pauses=tuple(pause for window in windows for pause in window.pauses),
    )


class KeptCalls:
    """Calls of the groups that took most time, one of each, to be repeated after the program.

    Memory may have no room for what was put into the calls of all groups. The call is the last one;
    of a group whose inputs vary, the last one whose inputs are of about average size. While the
    program runs, methods are called with the dispatcher's lock held.

    Args:
        groups: The groups of like evaluations.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._joined = 0  # groups that have become part of others, as far as is known here
        self._kept: dict[int, ModelCall] = {}
        self._took_ns: Counter[int] = Counter()
        self._sizes: dict[int, tuple[int, int]] = {}  # calls that were seen, and all their elements

    def __len__(self) -> int:
        """Return how many calls are kept."""
        return len(self._kept)

    def get(self, number: int) -> ModelCall | None:
        """Return the call that is kept of a group, by the group's number."""
        self._join()
        return self._kept.get(number)

    def clear(self) -> None:
        """Let go of all calls."""
        self._kept.clear()

    def note(self, group: Group, call: ModelCall | None, took_ns: int) -> None:
        """Keep a call of a group, unless each group that has one kept took more time so far.

        Args:
            group: The group.
            call: The call; None: it cannot be repeated.
            took_ns: How long it took.
        """
        if call is None:
            return
        self._join()
        number = self._groups.final(group.number)
        self._took_ns[number] += took_ns
        fits = self._fits(group, call.inputs, self._kept.get(number))
        if number not in self._kept and len(self._kept) >= _KEPT:
            least = min(self._kept, key=self._took_ns.__getitem__)
            if self._took_ns[least] >= self._took_ns[number]:
                return
            del self._kept[least]
        if fits:
            self._kept[number] = call

    def take(self, group: Group, work: Work, inputs: Inputs, took_ns: int) -> None:
        """Note a call that is like the one that is kept, if one is, and keep it in its place."""
        self._took_ns[group.number] += took_ns
        kept = self._kept.get(group.number)
        if kept is not None and self._fits(group, inputs, kept):
            kept.take(work, inputs)

    def _join(self) -> None:
        """Put together what is known of groups that have become one."""
        if self._joined == (joined := len(self._groups.moved)):
            return
        final, took_ns, kept = self._groups.final, self._took_ns, self._kept
        self._joined, self._took_ns, self._kept = joined, Counter(), {}
        self._sizes.clear()
        for number, ns in took_ns.items():
            self._took_ns[final(number)] += ns
        for number, call in kept.items():
            group = self._groups.members[final(number)]
            if self._fits(group, call.inputs, self._kept.get(group.number), seen=False):
                self._kept[group.number] = call

    def _fits(
        self, group: Group, inputs: Inputs, kept: ModelCall | None, *, seen: bool = True
    ) -> bool:
        """Return whether inputs are to be kept rather than those that are.

        Args:
            group: The group, which knows of this call.
            inputs: What was put into the call.
            kept: The call that is kept.
            seen: Whether the call is one more, and no earlier one.
        """
        if not group.varies:
            return True
        size = elements(inputs)
        if group.number in self._sizes:
            calls, together = self._sizes[group.number]
            calls, together = calls + seen, together + seen * size
        else:
            calls = group.calls
            together = sum(elements(each) * count for (_, each), count in group.sizes.items())
        self._sizes[group.number] = calls, together
        if kept is None:
            return True
        average = max(together / max(calls, 1), 1.0)
        sizes = size, elements(kept.inputs)
        far, was_far = (max(each / average, average / each) for each in sizes)
        return far <= max(was_far, _ABOUT)
