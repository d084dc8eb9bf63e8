"""Runs TensorFlow's profiler from the making of a `Session` to the session's `end`.

There can be one session of the profiler in a process. What it recorded comes back whole only by a
file, in a folder of the session's own that is removed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from xsp_levels.arming import OWN, undone_on_failure
from xsp_levels.native.stderr_filter import vendor_silenced

NAME = "tensorflow"

# Level 2 has the operators of graphs that TensorFlow knows to take more than some 3 us, and costs 2
# to 3 % of MobileNetV2 on two cores; level 3 has all operators, with shapes, and costs 11 to 15 %.
_USUAL, _BRIEF = 2, 3
_LEVELS = range(-1, 4)  # -1: off; any other value is not that of a level
_FILES = "*.xplane.pb"
# Holds the level while the profiler runs. TensorFlow 2.21 takes no level from Python.
_LEVEL = "_ZN3tsl8profiler8internal13g_trace_levelE"

_TAKEN = (
    "TensorFlow's profiler is already running in this process, and there can be only one; end it "
    "before xsp measures"
)


class Session:
    """A session of TensorFlow's profiler, of all threads.

    Args:
        give_way: Called before the user starts a session; must end this one.
        brief: Whether brief operators are recorded as well, and all with shapes.

    Raises:
        RuntimeError: The session cannot begin; the message says why, and what to do.
    """

    def __init__(self, give_way: Callable[[], None], *, brief: bool = False) -> None:
        self._give_way = give_way
        self._native = _native()
        # Tell whether the user has a session; one of another kind shows when ours begins.
        from tensorflow.python.profiler import profiler_v2  # noqa: PLC0415

        taken = getattr(profiler_v2, "_profiler", None) is not None
        if taken:
            raise RuntimeError(_TAKEN)
        self._folder = _folder()
        with undone_on_failure(self._remove):
            self._session = self._begin(_BRIEF if brief else _USUAL)
        OWN.add(NAME)
        self._make = self._native.ProfilerSession
        self._native.ProfilerSession = self._step_aside

    def end(self) -> bytes:
        """End the session, and return what it recorded: an XSpace.

        Raises:
            RuntimeError: What was recorded could not be written, or not be read; the message says
                why, and what to do.
        """
        OWN.discard(NAME)
        if self._native.ProfilerSession == self._step_aside:
            self._native.ProfilerSession = self._make
        try:
            with vendor_silenced():
                self._session.export_to_tb()
            return b"".join(path.read_bytes() for path in sorted(self._folder.rglob(_FILES)))
        except _errors() as error:
            raise RuntimeError(_unwritten(self._folder, error)) from error
        finally:
            self._session = None
            self._remove()

    def _begin(self, level: int) -> Any:
        # The device's tracer would take CUPTI for itself.
        options = {"host_tracer_level": level, "device_tracer_level": 0, "python_tracer_level": 0}
        with vendor_silenced():
            session = self._native.ProfilerSession()
            try:
                session.start(str(self._folder), options)
            except _errors() as error:
                raise RuntimeError(_TAKEN) from error
        # Set the level of the running profiler, where its variable can be found.
        held = _level()
        if held is not None and held.value in _LEVELS:
            held.value = level
        return session

    def _step_aside(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the class that every session of the user's is made of."""
        self._give_way()
        return self._make(*args, **kwargs)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def make_range(name: str) -> Callable[[], None]:
    """Begin a range of the profiler's, and return the function that ends it."""
    from tensorflow.python.profiler.internal import _pywrap_traceme  # noqa: PLC0415

    stop: Callable[[], None] = _pywrap_traceme.TraceMe(name).Stop
    return stop


def _native() -> Any:
    from tensorflow.python.profiler.internal import _pywrap_profiler  # noqa: PLC0415

    return _pywrap_profiler


def _errors() -> tuple[type[Exception], ...]:
    """Return the classes of exceptions that the profiler and its file raise."""
    from tensorflow.python.framework.errors_impl import OpError  # noqa: PLC0415

    return (OpError, OSError, RuntimeError)


@cache
def _level() -> ctypes.c_int | None:
    from tensorflow import sysconfig  # noqa: PLC0415

    for library in Path(sysconfig.get_lib()).glob("libtensorflow_framework.so*"):
        with contextlib.suppress(OSError, ValueError):
            loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return ctypes.c_int.in_dll(loaded, _LEVEL)
    return None


def _folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="xsp-tensorflow-"))
    except OSError as error:
        raise RuntimeError(_unwritten(None, error)) from error


def _unwritten(folder: Path | None, error: Exception) -> str:
    where = f" in {folder.parent}" if folder is not None else ""
    # The name of the folder differs from visit to visit, and the warning is one.
    told = str(error).partition("\n")[0].replace(str(folder), str(folder and folder.parent))
    return (
        f"TensorFlow's profiler needs a file{where}, which could not be written ({told}); set "
        "TMPDIR to a folder that can be written, with room"
    )
