"""Records runs of sessions: their times, and what their twins' profiles will hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xsp.clock import Clock
from xsp.errors import ProviderError, guarded
from xsp.level import Kind
from xsp.provider import Records, Request
from xsp_levels.arming import undone_on_failure
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
from xsp_levels.framework.onnxruntime.graph import Graph, Node, read_graph
from xsp_levels.framework.onnxruntime.layer import Layers, find_layers
from xsp_levels.framework.onnxruntime.model import model_content, model_name, model_source
from xsp_levels.framework.onnxruntime.profile import Window, read_windows
from xsp_levels.framework.onnxruntime.record import NodeEvents, OrtRecords, Part, UnreadRecords
from xsp_levels.native import thread

PREDICT = "predict"

_TWIN = (
    "operators come from a profiled copy of the session (same model and options), because ONNX "
    "Runtime cannot profile a running one; all other times are the session's own."
)
_NO_TWIN = "the operators of {} are missing; all other times are right: {}"
_ASYNC = (
    "operators of {} in runs begun by run_async are missing, because they go on after the call. "
    "Use run to record them."
)


class Twins:
    """The twins of sessions, as long as records need them."""

    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[Any, weakref.ref[Twin]] = weakref.WeakKeyDictionary()
        self._refused: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._events: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

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

    def ended(self, session: Any, twin: Twin) -> None:
        """Note how many events each run of a session makes, as its twin's profile told."""
        self._events[session] = twin.events_of_run

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
                twin = Twin(session, self._events.get(session, 0))
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
        self._regions = Kind.REGION in request.kinds
        self._parts: list[Part] = []
        self._again: dict[Any, Again | None] = {}
        self._warnings: dict[str, None] = {}
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
            self._warnings[_ASYNC.format(subject(session))] = None
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
        if self._regions:
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
        warnings, notes = tuple(self._warnings), tuple(self._notes)
        return Records(UnreadRecords(records, pending, kept), warnings=warnings, notes=notes)

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
            if self._regions:
                self._parts.append(_part(PREDICT, begin, end, subject(session), error))

    def _prepare(self, session: Any, again: Again | None) -> Twin | None:
        """Say where the nodes of a session come from, and return the twin of the next visit."""
        twin, name = self._used.get(session), subject(session)
        if twin is not None and twin.is_full:
            twin.end()
            self._twins.ended(session, twin)
        ready = self._twins.twin(session, again)
        refusal = self._twins.refusal(session)
        if refusal is None:
            self._notes[_TWIN] = None
        else:
            self._warnings[_NO_TWIN.format(name, refusal)] = None
        return ready


def _part(name: str, begin: int, end: int, model: str, error: str | None = None) -> Part:
    return Part(name, begin, end, threading.get_ident(), model, error)


# A second session of a session's model and options, which ONNX Runtime profiles.

MOST_EVENTS = 30_000  # in a twin; each takes about 5 kB while they are interpreted
_REPEATING = ("Loop", "Scan")  # operators that run their nodes as often as data says

_BESIDE = 3  # events of a run beside those of its nodes
_ERRORS_ONLY = "3"  # level of the log: what it warns of, the user's session has warned of
_WEIGHTS = "weights"
_SAVED = "optimized.onnx"
_UNWRITTEN = (
    "ONNX Runtime's profiler needs a file, which could not be {} ({}); set TMPDIR to a folder that "
    "can be written, with room"
)
_NOWHERE = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "0",
}


class Twin:
    """The twin of a session.

    Args:
        session: The session. It is neither changed nor kept.
        events: How many events each run makes, as far as is known; 0: it is not.

    Attributes:
        model: Name of the model.
        session: The second session; None once its profile has been read.
        runs: How often it was run.

    Raises:
        ProviderError: No twin can be made; the message says why.
    """

    def __init__(self, session: Any, events: int = 0) -> None:
        self.model = model_name(session)
        self.runs = 0
        self._threads = session._sess.session_options.intra_op_num_threads or None
        self._windows: list[Window] = []
        self._read: list[NodeEvents] = []
        source = model_source(session)
        folder = _folder()
        made: list[Any] = []
        self._discard = weakref.finalize(self, _discard, made, folder, os.getpid())
        with undone_on_failure(self._discard):
            made.append(_made(session, source, folder))
            _check_same(session, made[0])
            self._layers, nodes = _layers(source, folder)
        repeating = any(node.op_type in _REPEATING for node in nodes)
        # As long as it is not known how often nodes are repeated, one visit is enough.
        self.events_of_run = events or (MOST_EVENTS if repeating else len(nodes) + _BESIDE)
        self._made, self._folder = made, folder

    @property
    def session(self) -> Any:
        """The second session; None once its profile has been read."""
        return self._made[0] if self._made else None

    @property
    def is_full(self) -> bool:
        """Whether the twin's profile has reached the number of events at which it is replaced."""
        return self.runs * self.events_of_run >= MOST_EVENTS

    def window(self, begin_ns: int, clock: Clock, *, detail: bool) -> partial[NodeEvents]:
        """Note that a visit is over, and return a function that returns the visit's events.

        Args:
            begin_ns: When the visit began, on the clock.
            clock: The clock of the visit, on which the visit ends now.
            detail: Whether all that the profile says of events is kept.
        """
        wall = clock.wall_offset()
        self._windows.append(Window(begin_ns, clock.now(), wall, detail))
        return partial(self.events, len(self._windows) - 1)

    def events(self, window: int) -> NodeEvents:
        """Return the events of a visit; the first time, profiling ends.

        Raises:
            ProviderError: ONNX Runtime wrote no profile.
        """
        self.end()
        if not self._read:
            raise ProviderError(f"ONNX Runtime wrote no profile of {self.model}")
        return self._read[window]

    def end(self) -> None:
        """End profiling, read the profile, and let go of the second session."""
        if not self._made:
            return
        session = self._made[0]
        began_ns = session.get_profiling_start_time_ns()
        try:
            content = Path(session.end_profiling()).read_bytes()
        except OSError as error:
            raise ProviderError(_UNWRITTEN.format("read", error.strerror)) from error
        finally:
            del session
            self._discard()
        events = read_windows(content, began_ns, self._windows, self.model, self._layers)
        self._read = [replace(each, threads=self._threads) for each in events]
        if self.runs:
            seen = sum(len(each.node) for each in self._read)
            self.events_of_run = max(seen // self.runs, 1) + _BESIDE


def _folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="xsp-onnxruntime-")
    except OSError as error:
        raise ProviderError(_UNWRITTEN.format("written", error.strerror)) from error


def _discard(made: list[Any], folder: str, process: int) -> None:
    if os.getpid() != process:  # a forked child, whose parent needs both
        return
    made.clear()  # before the folder goes: a session that profiles writes its file as it ends
    shutil.rmtree(folder, ignore_errors=True)


def _made(session: Any, source: str | bytes, folder: str) -> Any:
    """Return the second session, which also saves the graph that it runs, without weights.

    Raises:
        ProviderError: ONNX Runtime makes no such session.
    """
    providers = session.get_providers()
    _check_providers(providers)
    options = [session.get_provider_options().get(name, {}) for name in providers]
    ort = sys.modules["onnxruntime"]
    os.symlink(os.devnull, Path(folder) / _WEIGHTS)
    refusals: list[str] = []
    for save, own in ((True, False), (False, False), (False, True)):
        with _options(session, folder, save=save, own=own) as given:
            if given is None:
                continue
            make = partial(ort.InferenceSession, source, given, providers=providers)
            made = guarded(
                partial(make, provider_options=options, enable_fallback=0),
                lambda error: refusals.append(str(error)),
            )
            if made is not None:
                return made
    raise ProviderError(f"ONNX Runtime makes no second session of it: {refusals[0]}")


@contextlib.contextmanager
def _options(session: Any, folder: str, *, save: bool, own: bool) -> Iterator[Any]:
    """Give options as those of a session, with profiling.

    ONNX Runtime hands out a copy, of all but libraries of custom operators. These are in the
    user's own object alone, which is changed for the moment.

    Args:
        session: The session.
        folder: Where the profile is written.
        save: Whether the graph is saved.
        own: Whether the options are the user's own object; None is given where there is none.
    """
    options = session._sess_options_initial if own else session._sess.session_options
    if options is None:
        yield None
        return
    changes = {
        "enable_profiling": True,
        "profile_file_prefix": str(Path(folder) / "profile"),
        "optimized_model_filepath": str(Path(folder) / _SAVED) if save else "",
        "log_severity_level": int(_ERRORS_ONLY),
    }
    before = {name: getattr(options, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(options, name, value)
        for name, text in _NOWHERE.items() if save else ():
            options.add_session_config_entry(name, text)
        yield options
    finally:
        for name, value in before.items() if own else ():
            setattr(options, name, value)


def _check_providers(names: list[str]) -> None:
    ort = sys.modules["onnxruntime"]
    missing = [name for name in names if name not in ort.get_available_providers()]
    if missing:
        raise ProviderError(
            f"the execution provider {missing[0]} is a plug-in, whose devices a session does not "
            "tell"
        )


def _check_same(session: Any, twin: Any) -> None:
    """Verify that both sessions are of one model, as far as they tell.

    Raises:
        ProviderError: They are not.
    """
    if _signature(session) != _signature(twin):
        raise ProviderError(
            f"its file {session._model_path} has changed since the session was made"
        )


def _signature(session: Any) -> list[Any]:
    values = (*session.get_inputs(), *session.get_outputs())
    about = session.get_modelmeta()
    told = [about.graph_name, about.producer_name, about.version, about.custom_metadata_map]
    return [*told, *((value.name, value.type, list(value.shape)) for value in values)]


def _layers(source: str | bytes, folder: str) -> tuple[Layers, list[Node]]:
    """Return the layers of a model, and the nodes that are run."""
    saved = Path(folder) / _SAVED
    optimized = read_graph(saved.read_bytes()) if saved.is_file() else None
    try:
        with model_content(source) as content:
            model = read_graph(content)
    except ValueError:  # the format ORT, which is no message of protocol buffers
        model = optimized or Graph()
    return find_layers(model, optimized), (optimized or model).nodes
