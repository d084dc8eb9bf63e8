"""The JAX provider: records operators and compiling, and makes rows of the records.

Operators are recorded by JAX's profiler, and lie in layers that they make; what JAX compiles is
recorded as it tells. `Jax.watcher` logs what a program does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import (
    ModelCall,
    Records,
    Request,
    SpanRows,
    concat_rows,
)
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.jax.profiler.program import Program
from xsp_levels.framework.jax.profiler.row import operator_rows
from xsp_levels.framework.jax.profiler.session import OperatorRecorder, OperatorRecords
from xsp_levels.framework.jax.program import output
from xsp_levels.framework.jax.program.call import is_model, jitted_call
from xsp_levels.framework.jax.program.compilation import (
    CompilationRecorder,
    Stage,
    compile_rows,
)
from xsp_levels.framework.jax.program.watcher import JaxWatcher


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
    kinds = frozenset({Kind.REGION, Kind.LAYER, Kind.OP})
    record_type = JaxRecords

    def __init__(self) -> None:
        self._programs: dict[int, Program] = {}
        self._operators: OperatorRecorder | None = None
        self._compilation: CompilationRecorder | None = None

    def unavailable(self) -> str | None:
        """Return why JAX cannot be observed here, or None if it can."""
        if "jax" in sys.modules or importlib.util.find_spec("jax") is not None:
            return None
        return "JAX is not installed; `pip install xsp[jax]` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the recorders that `request` needs."""
        with undone_on_failure(self._disarm):
            if Kind.REGION in request.kinds:
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
        return Records(JaxRecords(kept, stages), warnings=kept.warnings if kept is not None else ())

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: compiling, operators, and layers made of these. Pure."""
        data: JaxRecords = records.data
        rows = [compile_rows(data.stages)]
        if data.operators is not None:
            rows.append(operator_rows(data.operators))
        return concat_rows(rows)

    def watcher(self) -> JaxWatcher:
        """Return the watcher that logs JAX's calls in a program."""
        return JaxWatcher()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is jitted, else None, without importing JAX."""
        return jitted_call(function, args, kwargs) if is_model(function) else None

    def await_outputs(self, result: Any) -> None:
        """Wait until the arrays that a call returned are ready."""
        output.await_outputs(result)

    def synchronize(self) -> bool:
        """Return False: what a call returned is waited for, and not the device."""
        return False

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
