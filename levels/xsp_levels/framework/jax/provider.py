"""The JAX provider: a request to record in; records, and later rows made of them, out.

Operators are recorded by JAX's profiler, and lie in layers that they make; what JAX compiles is
recorded as it tells. `Jax.watch` hands over calls of jitted functions.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import (
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
from xsp_levels.framework.jax.profiler.program import Program
from xsp_levels.framework.jax.profiler.row import operator_rows
from xsp_levels.framework.jax.profiler.session import OperatorRecorder, OperatorRecords
from xsp_levels.framework.jax.program import output
from xsp_levels.framework.jax.program.call import donates, is_model, jitted_call
from xsp_levels.framework.jax.program.compilation import (
    CompilationRecorder,
    Stage,
    compile_rows,
)
from xsp_levels.framework.jax.program.state import keep, role
from xsp_levels.framework.jax.program.watcher import Watch


@dataclass(frozen=True, slots=True)
class JaxRecords:
    """The records of one visit.

    Attributes:
        operators: What JAX's profiler recorded; None if it was not asked.
        stages: What JAX compiled meanwhile.
    """

    operators: OperatorRecords | None = None
    stages: tuple[Stage, ...] = ()


class Jax:
    """Observes functions that JAX compiles."""

    name = "jax"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP})
    record_type = JaxRecords

    def __init__(self) -> None:
        self._programs: dict[int, Program] = {}
        self._operators: OperatorRecorder | None = None
        self._compilation: CompilationRecorder | None = None
        self._watch: Watch | None = None
        self._donated = False  # whether the function measured last is given arrays to overwrite

    def unavailable(self) -> str | None:
        """Return why JAX cannot be observed here, or None if it can."""
        if "jax" in sys.modules or importlib.util.find_spec("jax") is not None:
            return None
        return "JAX is not installed; `pip install xsp[jax]` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the recorders that `request` needs."""
        with undone_on_failure(self._disarm):
            if Kind.PIPELINE in request.kinds:
                self._compilation = CompilationRecorder()
                self._compilation.start()
            if Kind.OP in request.kinds:
                self._operators = OperatorRecorder(self._programs)
                self._operators.start(clock)

    def stop(self) -> Records:
        """Disarm, and return the records."""
        operators = self._operators
        stages = self._disarm()
        kept = operators.stop() if operators is not None else None
        return Records(JaxRecords(kept, stages), problems=kept.problems if kept is not None else ())

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: compiling, operators, and layers made of these. Pure."""
        data: JaxRecords = records.data
        rows = [compile_rows(data.stages)]
        if data.operators is not None:
            rows.append(operator_rows(data.operators))
        return concat_rows(rows)

    def watch(self, evaluations: Evaluations) -> None:
        """Hand the outermost calls of jitted functions to `evaluations` from now on."""
        self.unwatch()
        self._donated = False  # that was the function measured before
        self._watch = Watch(evaluations)

    def unwatch(self) -> None:
        """Stop watching; nothing stays behind."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is jitted, else None, without importing JAX."""
        self._donated = is_model(function) and donates(function)
        return jitted_call(function, args, kwargs) if is_model(function) else None

    def role(self, cls: type) -> Role | None:
        """Return what the objects of a class are to a call; None if they are not JAX's."""
        return role(cls)

    def keep(self, value: Any, room_bytes: int) -> Kept:
        """Keep what an array is now."""
        return keep(value, room_bytes, donated=self._donated)

    def parts(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return nothing: JAX's models are made of Python's objects."""
        return ()

    def keep_random(self) -> Callable[[], None]:
        """Return a function that does nothing: JAX keeps no random state of its own."""
        return lambda: None

    def await_outputs(self, result: Any) -> None:
        """Wait until the arrays that a call returned are ready."""
        output.await_outputs(result)

    def synchronize(self) -> bool:
        """Wait until what the last jitted function returned here is ready; False if none did."""
        return output.await_last()

    def _disarm(self) -> tuple[Stage, ...]:
        """Disarm all recorders, whatever any of them raises, and return what was compiled."""
        operators, self._operators = self._operators, None
        compilation, self._compilation = self._compilation, None
        try:
            if operators is not None:
                operators.disarm()
        finally:
            stages = compilation.stop() if compilation is not None else ()
        return stages
