"""A session in; a second session of the same model and options, which ONNX Runtime profiles, out.

ONNX Runtime profiles only sessions that were made for it, keeps all events in memory, and writes
them once, when profiling ends for good. So a twin serves many visits, and ends when the first of
these is interpreted, or when it holds many events.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from xsp.clock import Clock
from xsp.errors import ProviderError
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.onnxruntime.graph import Graph, read_graph
from xsp_levels.framework.onnxruntime.layer import Layers, find_layers
from xsp_levels.framework.onnxruntime.model import model_content, model_name, model_source
from xsp_levels.framework.onnxruntime.profile import Window, read_windows
from xsp_levels.framework.onnxruntime.record import NodeEvents

MOST_EVENTS = 30_000  # in a twin; each takes about 5 kB while they are interpreted

_ERRORS_ONLY = "3"  # level of the log: what it warns of, the user's session has warned of
_WEIGHTS = "weights"
_SAVED = "optimised.onnx"
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

    Attributes:
        model: Name of the model.
        session: The second session; None once its profile has been read.
        runs: How often it was run.

    Raises:
        ProviderError: No twin can be made; the message says why.
    """

    def __init__(self, session: Any) -> None:
        self.model = model_name(session)
        self.runs = 0
        self._windows: list[Window] = []
        self._read: list[NodeEvents] = []
        source = model_source(session)
        folder = _folder()
        made: list[Any] = []
        self._discard = weakref.finalize(self, _discard, made, folder, os.getpid())
        with undone_on_failure(self._discard):
            made.append(_made(session, source, folder))
            _check_same(session, made[0])
            self._layers, self._nodes = _layers(source, folder)
        self._made, self._folder = made, folder

    @property
    def session(self) -> Any:
        """The second session; None once its profile has been read."""
        return self._made[0] if self._made else None

    @property
    def is_full(self) -> bool:
        """Whether the twin holds as many events as is good for it."""
        return self.runs * (self._nodes + 3) >= MOST_EVENTS

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
        self._read = list(read_windows(content, began_ns, self._windows, self.model, self._layers))


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
    refusals = []
    for save, own in ((True, False), (False, False), (False, True)):
        with _options(session, folder, save=save, own=own) as given:
            if given is None:
                continue
            try:
                return ort.InferenceSession(
                    source, given, providers=providers, provider_options=options, enable_fallback=0
                )
            except Exception as error:  # noqa: BLE001  ONNX Runtime raises classes of its own
                refusals.append(str(error))
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


def _layers(source: str | bytes, folder: str) -> tuple[Layers, int]:
    """Return the layers of a model, and how many nodes are run."""
    saved = Path(folder) / _SAVED
    optimised = read_graph(saved.read_bytes()) if saved.is_file() else None
    try:
        with model_content(source) as content:
            model = read_graph(content)
    except ValueError:  # the format ORT, which is no message of protocol buffers
        model = optimised or Graph()
    return find_layers(model, optimised), len((optimised or model).nodes)
