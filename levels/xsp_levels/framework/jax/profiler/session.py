"""Runs a session of JAX's profiler, and keeps its bytes and the programs that ran.

No file is written: the profiler hands its recording over as bytes. XLA's programs are asked for
once each, in an empty session of its own, as describing them takes longer than recording.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from xsp.clock import Clock
from xsp.xplane import read_module, read_space
from xsp_levels.framework.jax.profiler.anchor import make_anchors
from xsp_levels.framework.jax.profiler.program import Program, describe
from xsp_levels.framework.keras.index import LayerIndex, layer_index
from xsp_levels.native.alignment import AnchorReading

HOST = "/host:CPU"
_BUSY = (
    "operators are missing, because JAX's profiler is already running "
    "(jax.profiler.start_trace, or another tool). Stop it before you measure."
)
_RIVAL = (
    "operators are missing from the moment JAX's profiler started, because a process can have "
    "only one session. End it before you measure."
)
_FAILED = "operators are missing, because JAX's profiler failed: {}"
_DAMAGED = (
    "XLA's description of the program is damaged, so the layers of {} are missing, and the work "
    "of its operators; times are right."
)
_NAMED = re.compile(r"(.*)\((\d+)\)$")  # jit_f(4)


@dataclass(frozen=True, slots=True)
class OperatorRecords:
    """Records of JAX's profiler in one visit.

    Attributes:
        space: Its recording, an XSpace.
        readings: Anchors, by which its clock is known.
        programs: The programs that ran.
        warnings: Why something is missing.
        keras: Layers of Keras's models.
    """

    space: bytes = b""
    readings: tuple[AnchorReading, ...] = ()
    programs: tuple[Program, ...] = ()
    warnings: tuple[str, ...] = ()
    keras: LayerIndex = field(default_factory=LayerIndex)


class OperatorRecorder:
    """Records XLA's operators between `start` and `disarm`.

    Args:
        known: Programs that are known already, by number; those that run are added.
    """

    def __init__(self, known: dict[int, Program]) -> None:
        self._known = known
        self._session: Any = None
        self._readings: list[AnchorReading] = []
        self._space = b""
        self._warnings: list[str] = []

    def start(self, clock: Clock) -> None:
        """Begin to record; a JAX that is not imported stays so, and nothing is recorded."""
        self._now = clock.now
        jax = sys.modules.get("jax")
        if jax is None or not hasattr(jax, "profiler"):
            return
        if is_running():
            self._warnings.append(_BUSY)
            return
        self._annotate = jax.profiler.TraceAnnotation
        for array in jax.live_arrays():  # operators of earlier calls are none of this recording
            if not array.is_deleted():
                array.block_until_ready()
        self._session = _session(programs=False)
        self._make = _library().ProfilerSession
        _library().ProfilerSession = self._step_aside
        self._readings = make_anchors(self._annotate, self._now)

    def disarm(self) -> None:
        """End recording."""
        session, self._session = self._session, None
        if session is None:
            return
        if _library().ProfilerSession == self._step_aside:
            _library().ProfilerSession = self._make
        try:
            self._readings += make_anchors(self._annotate, self._now)
        finally:
            try:
                self._space = bytes(session.stop())
            except RuntimeError as error:  # another session was there first
                self._warnings.append(_FAILED.format(error))

    def _step_aside(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the class that every session of the user's is made of: ours ends first."""
        self._warnings.append(_RIVAL)
        self.disarm()
        return _library().ProfilerSession(*args, **kwargs)

    def stop(self) -> OperatorRecords:
        """End recording, and return the records."""
        self.disarm()
        if not self._space:
            return OperatorRecords(warnings=tuple(self._warnings))
        plane = read_space(self._space).plane(HOST)
        if plane is None:
            programs_run = []
        else:
            frame = plane.events({"program_id": pl.Int64}).frame
            programs_run = sorted(frame["program_id"].drop_nulls().unique().to_list())
        programs = tuple(self._programs(programs_run))
        damaged = [_DAMAGED.format(each.name) for each in programs if not each.operators]
        readings, warnings = tuple(self._readings), (*self._warnings, *damaged)
        return OperatorRecords(self._space, readings, programs, warnings, layer_index())

    def _programs(self, numbers: Iterable[int]) -> Iterable[Program]:
        numbers = list(numbers)
        if not self._known.keys() >= set(numbers):
            self._known |= _described({n for n in numbers if n not in self._known})
        return (self._known[number] for number in numbers if number in self._known)


def is_running() -> bool:
    """Return whether the program has started JAX's profiler."""
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    return getattr(state, "profile_session", None) is not None


def _session(*, programs: bool) -> Any:
    profiler = _library()
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python functions take long, and are not read
    options.host_tracer_level = 1  # what XLA says of itself beside its operators is not read
    options.enable_hlo_proto = programs
    return profiler.ProfilerSession(options)


def _library() -> Any:
    from jax._src import profiler  # noqa: PLC0415

    found = getattr(profiler, "_profiler", None)  # jaxlib 0.8 and newer
    return found if found is not None else profiler.xla_client.profiler


def _described(numbers: set[int]) -> dict[int, Program]:
    """Return descriptions of programs, by their numbers; those that exist no more are left out.

    A damaged one is without operators.
    """
    try:
        space = read_space(bytes(_session(programs=True).stop()))
    except RuntimeError:  # the program has begun a session meanwhile
        return {}
    plane = space.plane("/host:metadata")
    found = {}
    for kind in plane.metadata if plane is not None else ():
        named = _NAMED.match(kind.name)
        proto = next((value for value in kind.stats.values() if isinstance(value, bytes)), None)
        if named is not None and proto is not None and int(named[2]) in numbers:
            number = int(named[2])
            try:
                # The folder that JAX and other libraries are installed in.
                libraries = str(Path(sys.modules["jax"].__file__ or "").parent.parent) + "/"
                found[number] = describe(number, read_module(proto), is_own(), libraries)
            except ValueError:
                found[number] = Program(number, named[1])
    return found


def is_own() -> Callable[[str], bool]:
    """Return a function that tells whether a function's name is one of JAX's own functions."""
    names = ("numpy", "lax", "nn", "random", "scipy.special")
    rooms = [room for name in names if (room := sys.modules.get(f"jax.{name}")) is not None]

    def own(name: str) -> bool:
        if name.strip("_<>") == "lambda":
            return False
        return name.startswith("_") or any(hasattr(room, name) for room in rooms)

    return own
