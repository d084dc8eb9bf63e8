"""The ONNX Runtime provider: a request to record in; records, and later rows made of them, out.

Runs are found by the functions of ONNX Runtime's Python class of sessions; nodes are recorded by
ONNX Runtime's own profiler, in a `twin` of each session.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import (
    EmptySpan,
    Evaluations,
    Kept,
    ModelCall,
    Records,
    Request,
    Role,
    SpanRows,
    concat_rows,
)
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.onnxruntime.call import Again, session_call, session_of
from xsp_levels.framework.onnxruntime.empty_span import empty_span
from xsp_levels.framework.onnxruntime.entry_point import EntryPoint
from xsp_levels.framework.onnxruntime.record import OrtRecords, UnreadRecords
from xsp_levels.framework.onnxruntime.recorder import RunRecorder, Twins
from xsp_levels.framework.onnxruntime.row import node_rows, part_rows
from xsp_levels.framework.onnxruntime.watcher import Watch

_CLOSED_PACKAGES = ("onnxruntime.", "xsp_levels.framework.onnxruntime.")


class OnnxRuntime:
    """Observes sessions of ONNX Runtime."""

    name = "onnxruntime"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE, Kind.OP})
    record_type = OrtRecords

    def __init__(self) -> None:
        self._entry = EntryPoint()
        self._twins = Twins()
        self._coming: dict[Any, Again | None] = {}
        self._recorder: RunRecorder | None = None
        self._watch: Watch | None = None

    def unavailable(self) -> str | None:
        """Return why ONNX Runtime cannot be observed here, or None if it can."""
        if "onnxruntime" in sys.modules or importlib.util.find_spec("onnxruntime") is not None:
            return None
        return "ONNX Runtime is not installed; `pip install xsp[onnxruntime]` brings it"

    def remark(self) -> str | None:
        """Return how nodes are recorded."""
        return "nodes are recorded in a second session of each model, which takes as much memory"

    def start(self, clock: Clock, request: Request) -> None:
        """Make the twins that are needed, and record runs from now on."""
        with undone_on_failure(self._disarm):
            self._recorder = RunRecorder(clock, request, self._twins, self._coming)
            self._entry.recorder = self._recorder
            self._entry.place()

    def stop(self) -> Records:
        """Stop recording, and return the records; profiles are read later."""
        recorder = self._recorder
        self._disarm()
        return (
            recorder.stop() if recorder is not None else Records(OrtRecords(Request(frozenset())))
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: runs, nodes, and the layers of these. Pure."""
        data = _read(records.data)
        frames = []
        if Kind.PIPELINE in data.request.kinds:
            frames += [part_rows(data.parts)]
        if Kind.OP in data.request.kinds:
            frames += [node_rows(data)]
        return concat_rows(frames)

    def plain(self, records: Records) -> Records:
        """Return records with the events of the twins' profiles."""
        return replace(records, data=_read(records.data))

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty node; None for other kinds, and where no session has run."""
        session = self._twins.one_seen() if kind is Kind.OP else None
        return empty_span(session, self._record) if session is not None else None

    def watch(self, evaluations: Evaluations) -> None:
        """Hand runs of sessions to `evaluations` from now on."""
        self.unwatch()
        self._twins.forget()
        self._watch = Watch(evaluations, self._entry, self._come)

    def unwatch(self) -> None:
        """Stop watching; nothing stays behind."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a session or runs one; else None."""
        self._twins.forget()
        call = session_call(function, args, kwargs)
        if call is not None:
            self._twins.see(session_of(call.args, call.kwargs, call.function))
        return call

    def role(self, cls: type) -> Role | None:
        """Return what the objects of a class are to a call; None if they are not ONNX Runtime's."""
        return Role.CLOSED if str(cls.__module__).startswith(_CLOSED_PACKAGES) else None

    def keep(self, value: Any, room_bytes: int) -> Kept:
        """Raise: no class of ONNX Runtime has the role of a value."""
        raise TypeError(f"a {type(value).__name__} is no value of ONNX Runtime")

    def parts(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return nothing: no class of ONNX Runtime has the role of a model."""
        return ()

    def keep_random(self) -> Callable[[], None]:
        """Return a function that does nothing: random numbers are drawn within sessions."""
        return lambda: None

    def synchronize(self) -> bool:
        """Return False: a run returns when its outputs are there."""
        return False

    def _record(self, session: Any, *args: Any) -> None:
        """Make a run of a session, recorded if anything is."""
        recorder = self._recorder
        if recorder is not None:
            recorder.expect(session, None)
            recorder.run(type(session).run, (session, *args), {}, "run")

    def _come(self, session: Any, again: Again | None) -> None:
        """Note that a session is about to run; None: that the run is over."""
        self._coming = {} if session is None else {session: again}
        if session is not None:
            self._twins.see(session)
            if self._recorder is not None:
                self._recorder.expect(session, again)

    def _disarm(self) -> None:
        self._recorder = self._entry.recorder = None
        self._entry.place()


def _read(data: OrtRecords | UnreadRecords) -> OrtRecords:
    return data.read() if isinstance(data, UnreadRecords) else data
