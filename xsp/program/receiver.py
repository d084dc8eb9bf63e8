"""Receivers: what several watchers find in, the outermost evaluations of each thread out.

A model of one framework may call a model of another: a Keras layer that calls a PyTorch module,
or the other way round. Both watchers find a call, and the outermost alone is the evaluation.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xsp.provider import (
    Begun,
    Evaluations,
    Likeness,
    ModelCall,
    StepWatcher,
    Waiting,
    Watcher,
    Work,
)


class Receivers:
    """The receivers of all watchers of a program.

    Args:
        evaluations: Receives the outermost evaluation of each thread.
    """

    def __init__(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations
        self.held: dict[int, _Held] = {}  # by the thread
        self._subjects: dict[str, Watcher] = {}

    def of(self, watcher: Watcher) -> Receiver:
        """Return the receiver of a watcher."""
        return Receiver(watcher, self)

    def owns(self, watcher: Watcher, subject: str) -> bool:
        """Return whether calls of a subject are those of a watcher's framework alone."""
        return self._subjects.get(subject) is watcher

    def named(self, watcher: Watcher, call: ModelCall) -> ModelCall:
        """Return the call, its subject told apart from an equal one of another framework."""
        if self._subjects.setdefault(call.subject, watcher) is watcher:
            return call
        framework = getattr(watcher, "name", type(watcher).__name__)
        return replace(call, subject=f"{call.subject} of {framework}")


class Receiver:
    """Takes what one watcher finds, and leaves out what lies in another watcher's evaluation.

    Args:
        watcher: The watcher.
        receivers: What the receivers of all watchers share.

    Attributes:
        watcher: The watcher.
        by_hand: Whether the program marks its evaluations itself.
        mark: Notes a part of the program that is no evaluation, whoever evaluates.
    """

    def __init__(self, watcher: Watcher, receivers: Receivers) -> None:
        self.watcher = watcher
        self._receivers = receivers
        self._held, self._evaluations = receivers.held, receivers.evaluations
        self.by_hand = receivers.evaluations.by_hand
        self.mark = receivers.evaluations.mark
        self._call = _Held(self, calls=True)

    def run(self, call: ModelCall) -> Any:
        """Make a call, which is an evaluation unless it lies in one of another framework."""
        thread = threading.get_ident()
        if self._lies_in_another(thread):
            return call()
        call = self._receivers.named(self.watcher, call)
        self._held[thread] = _Held(self, calls=True)
        try:
            return self._evaluations.run(call)
        finally:
            self._held.pop(thread, None)

    def again(self, like: Likeness, work: Work, found_ns: int) -> tuple[Any, Waiting] | None:
        """Make a call as others before, whose times alone are wanted; None: it was not made."""
        thread = threading.get_ident()
        if thread in self._held or not self._receivers.owns(self.watcher, like[0]):
            return None
        self._held[thread] = self._call
        try:
            return self._evaluations.again(like, work, found_ns)
        finally:
            self._held.pop(thread, None)

    def begin(self, call: ModelCall | None) -> Begun | None:
        """Open a training step, unless it lies in an evaluation of another framework."""
        thread = threading.get_ident()
        if self._lies_in_another(thread):
            return None
        named = call and self._receivers.named(self.watcher, call)
        self._held[thread] = held = _Held(self)
        held.begun = self._evaluations.begin(named)
        return held.begun

    def identify(self, call: ModelCall) -> None:
        """Name the first call of a model in the open training step."""
        if self._holds(threading.get_ident()):
            self._evaluations.identify(self._receivers.named(self.watcher, call))

    def extend(self, until_ns: int | None = None, pauses: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the open training step has lasted at least until a time."""
        thread = threading.get_ident()
        if self._holds(thread):
            self._held[thread].extended = True
            self._evaluations.extend(until_ns, pauses)

    def end(self, variant: str = "", calls: int = 1) -> None:
        """Close the open training step at the time last noted."""
        thread = threading.get_ident()
        if self._holds(thread):
            self._held.pop(thread)
            self._evaluations.end(variant, calls)

    def problem(self, message: str) -> None:
        """Note what a reader of the trace should know of an evaluation."""
        self._evaluations.problem(message)

    def _holds(self, thread: int) -> bool:
        held = self._held.get(thread)
        return held is not None and held.receiver is self

    def _lies_in_another(self, thread: int) -> bool:
        """Return whether a call of this framework lies in an evaluation of another framework."""
        held = self._held.get(thread)
        return held is not None and held.receiver is not self and held.goes_on()


@dataclass(slots=True)
class _Held:
    """The evaluation that a thread is in.

    Attributes:
        receiver: Receiver of the watcher that found it.
        calls: Whether it is a single call, which has not returned.
        extended: Whether the first call of a training step has returned.
        begun: The training step, whose watcher may set its end by itself.
    """

    receiver: Receiver
    calls: bool = False
    extended: bool = False
    begun: Begun | None = None

    def goes_on(self) -> bool:
        """Return whether the evaluation goes on while a model of another framework is called."""
        ended = self.begun is not None and self.begun.end_ns is not None
        if self.calls or not (self.extended or ended):
            return True
        watcher = self.receiver.watcher
        # Of a step whose watcher cannot tell the time last noted is its end.
        return isinstance(watcher, StepWatcher) and watcher.goes_on()
