"""Runs of sessions in; their times, and what their twins' profiles will hold, out."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xsp.clock import Clock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import Records, Request
from xsp_levels.framework.onnxruntime.call import (
    BOUND,
    RUNS,
    Again,
    is_repeatable,
    repeated,
    run_bound,
    session_of,
    subject,
)
from xsp_levels.framework.onnxruntime.entry_point import unseen
from xsp_levels.framework.onnxruntime.record import OrtRecords, Part, UnreadRecords
from xsp_levels.framework.onnxruntime.twin import Twin
from xsp_levels.native import thread

PREDICT = "predict"

_TWIN = (
    "ONNX Runtime profiles only sessions that were made for it: operators are those of a second "
    "session, which xsp made from the same model and options; all other latencies are of the "
    "session itself"
)
_NO_TWIN = "the operators of {} are missing: {}"
_ASYNC = "what {} does in runs begun by run_async is missing: they go on after the call"


class Twins:
    """The twins of sessions, as long as records need them."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Any, weakref.ref[Twin]] = weakref.WeakKeyDictionary()
        self._refused: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def forget(self) -> None:
        """Forget which sessions were seen: a new measurement begins."""
        self._seen = weakref.WeakSet()

    def see(self, session: Any) -> None:
        """Note that a session runs in the measurement."""
        self._seen.add(session)

    def one_seen(self) -> Any:
        """Return one of the sessions that were seen; None if none was."""
        return next(iter(self._seen), None)

    def refusal(self, session: Any) -> str | None:
        """Return why a session has no twin; None if it has, or if none was tried to be made."""
        return self._refused.get(session)

    def of_seen(self, again: Mapping[Any, Again | None]) -> dict[Any, Twin]:
        """Return the twins of all sessions that were seen, which are made if need be.

        Args:
            again: Makes a run of a session once more, which a new twin warms up by.
        """
        found = {session: self.twin(session, again.get(session)) for session in tuple(self._seen)}
        return {session: twin for session, twin in found.items() if twin is not None}

    def twin(self, session: Any, again: Again | None) -> Twin | None:
        """Return the twin of a session; None if there can be none."""
        held = self._found.get(session)
        twin = held() if held is not None else None
        if twin is not None and twin.session is not None:
            return twin
        if session in self._refused:
            return None
        try:
            with unseen():
                twin = Twin(session)
                if again is not None:
                    with contextlib.suppress(Exception):  # the program has met the exception itself
                        again(twin.session)
        except (ProviderError, OSError, RuntimeError) as error:
            self._refused[session] = str(error)
            return None
        self._found[session] = weakref.ref(twin)
        return twin


class RunRecorder:
    """Records runs of sessions during one visit; those with a twin are the twin's.

    Args:
        clock: The clock of the visit.
        request: What is recorded.
        twins: The twins.
        again: Makes the run that is about to begin once more.
    """

    def __init__(
        self, clock: Clock, request: Request, twins: Twins, again: Mapping[Any, Again | None]
    ) -> None:
        self._clock, self._request, self._twins = clock, request, twins
        self._nodes = Kind.OP in request.kinds
        self._pipeline = Kind.PIPELINE in request.kinds
        self._parts: list[Part] = []
        self._again: dict[Any, Again | None] = {}
        self._problems: dict[str, None] = {}
        self._notes: dict[str, None] = {}
        self._mine = twins.of_seen(again) if self._nodes else {}
        self._used: dict[Any, Twin] = {}
        self._begin_ns = clock.now()

    def expect(self, session: Any, again: Again | None) -> None:
        """Make the twin of a session that is about to run, if need be."""
        if self._nodes and session not in self._mine:
            twin = self._twins.twin(session, again)
            if twin is not None:
                self._mine[session] = twin

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        method: str,
    ) -> Any:
        """Make a run, of the twin where there is one."""
        session = session_of(args, kwargs)
        if method not in RUNS:
            self._problems[_ASYNC.format(subject(session))] = None
            return function(*args, **kwargs)
        self._twins.see(session)
        made = repeated(function, args, kwargs)
        chosen = session
        if self._nodes:
            thread.meet()
            self._again[session] = made if is_repeatable(method) else None
            twin = self._mine.get(session)
            if twin is not None:
                twin.runs += 1
                self._used[session] = twin
                chosen = twin.session
                made = repeated(run_bound, args, kwargs) if method == BOUND else made
        return made(chosen) if self._request.whole_model else self._timed(session, made, chosen)

    def made(self, session: Any, parts: Sequence[tuple[str, int, int]]) -> None:
        """Note that a session was made."""
        if self._pipeline:
            model = subject(session)
            self._parts += [_part(name, begin, end, model) for name, begin, end in parts]

    def stop(self) -> Records:
        """Return the records, and make ready the twins of the visits to come."""
        pending = tuple(
            twin.window(self._begin_ns, self._clock, detail=self._request.detail)
            for twin in self._used.values()
        )
        ready = [self._prepare(session, again) for session, again in self._again.items()]
        kept = (*ready, *self._mine.values())  # a twin takes as long to make as its session
        records = OrtRecords(self._request, tuple(self._parts), thread.names())
        problems, notes = tuple(self._problems), tuple(self._notes)
        return Records(UnreadRecords(records, pending, kept), problems=problems, notes=notes)

    def _timed(self, session: Any, made: Again, chosen: Any) -> Any:
        now, error = self._clock.now, None
        begin = now()
        try:
            return made(chosen)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            end = now()
            if self._pipeline:
                self._parts.append(_part(PREDICT, begin, end, subject(session), error))

    def _prepare(self, session: Any, again: Again | None) -> Twin | None:
        """Say where the nodes of a session come from, and return the twin of the next visit."""
        twin, name = self._used.get(session), subject(session)
        if twin is not None and twin.is_full:
            twin.end()
        ready = self._twins.twin(session, again)
        refusal = self._twins.refusal(session)
        if refusal is None:
            self._notes[_TWIN] = None
        else:
            self._problems[_NO_TWIN.format(name, refusal)] = None
        return ready


def _part(name: str, begin: int, end: int, model: str, error: str | None = None) -> Part:
    return Part(name, begin, end, threading.get_ident(), model, error)
