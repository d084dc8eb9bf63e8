"""Records how long JAX traces, lowers and compiles functions.

JAX traces a function, lowers it to HLO and has XLA compile that at the first call with arguments of
these shapes. It tells the length of each when it has ended.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows

COMPILE = "compile"
_PREFIX = "/jax/core/compile/"
_STAGES = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "XLA compile",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of compiling a function.

    Attributes:
        name: `trace`, `lower` or `XLA compile`.
        function: The function.
        start_ns: When the stage began, on the system's monotonic clock.
        end_ns: When it ended.
        thread: Python's number of the thread.
    """

    name: str
    function: str
    start_ns: int
    end_ns: int
    thread: int


class CompilationRecorder:
    """Notes the stages of all compiling between `start` and `stop`, on all threads."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._armed = False

    def start(self) -> None:
        """Begin to note; nothing is noted while JAX is not imported."""
        monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
        if not self._armed and monitoring is not None:
            monitoring.register_event_duration_secs_listener(self._note)
            self._armed = True

    def stop(self) -> tuple[Stage, ...]:
        """End the recording, and return the stages of compilations."""
        if self._armed:
            from jax import monitoring  # noqa: PLC0415

            if hasattr(monitoring, "unregister_event_duration_listener"):
                monitoring.unregister_event_duration_listener(self._note)
            else:
                from jax._src import monitoring as inner  # noqa: PLC0415

                inner._unregister_event_duration_listener_by_callback(self._note)
            self._armed = False
        stages, self._stages = self._stages, []
        # Leave out stages within others of their thread, as functions in functions are traced.
        outermost: list[Stage] = []
        for stage in sorted(stages, key=lambda each: (each.thread, each.start_ns, -each.end_ns)):
            last = outermost[-1] if outermost else None
            if last is None or last.thread != stage.thread or stage.start_ns >= last.end_ns:
                outermost.append(stage)
        return tuple(outermost)

    def _note(self, event: str, seconds: float, **facts: Any) -> None:
        end_ns = monotonic_ns()
        name = _STAGES.get(event.removeprefix(_PREFIX))
        if name is not None:
            function = str(facts.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
            start_ns = end_ns - round(seconds * 1e9)
            self._stages.append(Stage(name, function, start_ns, end_ns, threading.get_ident()))


def compile_rows(stages: tuple[Stage, ...]) -> SpanRows:
    """Return a row of kind region for each stage of compiling."""
    if not stages:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.REGION.value,
            "name": [f"{COMPILE} {stage.function}: {stage.name}" for stage in stages],
            "start_ns": pl.Series([stage.start_ns for stage in stages], dtype=pl.Int64),
            "end_ns": pl.Series([stage.end_ns for stage in stages], dtype=pl.Int64),
            "thread": pl.Series([stage.thread for stage in stages], dtype=pl.Int64),
        }
    )
