"""The PyTorch provider: a request to record in; records, and later rows made of them, out.

Layers are recorded by the code of `torch.nn.Module.__call__`, operators by PyTorch's CPU
profiler; `Torch.spans` makes rows of both. `Torch.watch` hands over a model's evaluations.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

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
from xsp_levels.framework.memory import memory_columns
from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.module.compiled import CompiledGraphs, compiled_calls
from xsp_levels.framework.torch.module.empty_span import empty_span
from xsp_levels.framework.torch.module.graph import Graph, in_layers
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.module_path import LayerRecords
from xsp_levels.framework.torch.module.row import layer_rows, predict_rows
from xsp_levels.framework.torch.module.source_line import LineRecorder, LineRecords, with_callers
from xsp_levels.framework.torch.module.written import WrittenGraphs
from xsp_levels.framework.torch.profiler.operator import (
    OperatorRecorder,
    OperatorRecords,
    allocations,
    operator_rows,
)
from xsp_levels.framework.torch.program.call import is_module, module_call
from xsp_levels.framework.torch.program.state import keep, keep_random, parts, role
from xsp_levels.framework.torch.program.step import (
    BACKWARD,
    Interval,
    StepRecorder,
    in_backward,
    step_rows,
)
from xsp_levels.framework.torch.program.watcher import Watch

_SAMPLER = "xsp_levels.stack"  # is called within compiled code, too
# PyTorch's own annotations of what `step` records as pipeline spans.
_ANNOTATIONS = ("Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")
# PyTorch's name of a call of compiled code that no cache has, and ours.
_WITHOUT_KEY = {"## Call CompiledFxGraph None ##": "## Call CompiledFxGraph ##"}

_Recorders = tuple[
    LayerRecorder | None, StepRecorder | None, OperatorRecorder | None, LineRecorder | None
]


@dataclass(frozen=True, slots=True)
class TorchRecords:
    """The records of one visit: module calls, training steps, operators.

    Attributes:
        request: What the recorders were asked for.
        layers: Module calls; only the outermost ones where layers were not asked for.
        steps: Parts besides the model, such as backward passes and data loading.
        operators: Records of the operator recorder; None if the recorder was off.
        lines: The user's lines that ran; None in timed runs.
        graphs: Graphs that torch.compile made, by Inductor's key.
    """

    request: Request
    layers: LayerRecords
    steps: tuple[Interval, ...] = ()
    operators: OperatorRecords | None = None
    lines: LineRecords | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)


class Torch:
    """Observes PyTorch models."""

    name = "torch"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP})
    record_type = TorchRecords

    def __init__(self) -> None:
        self._request: Request | None = None
        self._layers: LayerRecorder | None = None
        self._steps: StepRecorder | None = None
        self._operators: OperatorRecorder | None = None
        self._lines: LineRecorder | None = None
        self._watch: Watch | None = None
        self._compiled = CompiledGraphs()
        self._written = WrittenGraphs()

    def unavailable(self) -> str | None:
        """Return why PyTorch cannot be observed here, or None if it can."""
        if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
            return None
        return "PyTorch is not installed; `pip install xsp[torch]` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the recorders that `request` needs, the recorder that disturbs most first.

        A program that has not imported PyTorch, as one of another framework, is left alone.
        """
        self._request = request
        if "torch" not in sys.modules:
            return
        if _SAMPLER in sys.modules:
            hide_from_compiler(_SAMPLER)
        pipeline = Kind.PIPELINE in request.kinds and not request.whole_model
        with undone_on_failure(self._disarm):
            self._start_operators(clock, request)
            if pipeline:
                self._steps = StepRecorder()
                self._steps.start(clock)
            if Kind.LAYER in request.kinds or pipeline:
                self._start_layers(clock, request)
            if Kind.OP in request.kinds and request.detail:
                self._lines = LineRecorder()
                self._lines.start(clock)

    def stop(self) -> Records:
        """Disarm, and return the records."""
        layers, steps, operators, lines = self._disarm()
        graph_of = self._written.of if operators is not None else None
        calls = layers.stop(graph_of) if layers is not None else LayerRecords()
        stepped = steps.stop() if steps is not None else ()
        kept = operators.stop(calls.owners) if operators is not None else None
        logged = lines.stop() if lines is not None else None
        graphs = self._compiled.now() if layers is not None and kept is not None else {}
        request = self._request or Request(frozenset())
        return Records(
            data=TorchRecords(request, calls, stepped, kept, logged, graphs),
            dropped=calls.dropped + (kept.dropped if kept is not None else 0),
            problems=(*calls.problems, *(kept.problems if kept is not None else ())),
            notes=kept.notes if kept is not None else (),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: pipeline spans, layers, operators. Pure."""
        data: TorchRecords = records.data
        kinds = data.request.kinds
        frames = []
        if Kind.PIPELINE in kinds and not data.request.whole_model:
            back = [(each.start_ns, each.end_ns) for each in data.steps if each.name == BACKWARD]
            frames += [predict_rows(data.layers, "forward" if back else "predict", back)]
            frames += [step_rows(data.steps)]
        if Kind.LAYER in kinds:
            frames += [layer_rows(data.layers, _memory(data))]
        if Kind.OP in kinds and data.operators is not None:
            rows = _operator_rows(data.operators, data.layers, stepped=bool(data.steps))
            if Kind.PIPELINE in kinds and not data.request.whole_model:
                rows = in_backward(rows, data.steps)
            rows = rows if data.lines is None else with_callers(rows, data.lines)
            if Kind.LAYER in kinds:
                calls = data.layers.graph_calls()
                calls += compiled_calls(rows, data.graphs, data.layers.home)
                rows = in_layers(rows, calls)
            frames += [rows]
        return concat_rows(frames)

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty layer or operator; None where the program would notice one.

        A program without PyTorch would notice the import.
        """
        return empty_span(kind) if "torch" in sys.modules else None

    def watch(self, evaluations: Evaluations) -> None:
        """Hand the outermost calls of the model to `evaluations` from now on."""
        self.unwatch()
        self._watch = Watch(evaluations)

    def unwatch(self) -> None:
        """Stop watching; nothing stays behind."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def goes_on(self) -> bool:
        """Return whether a training step of this thread goes on."""
        return self._watch is not None and self._watch.goes_on()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a module, else None, without importing PyTorch."""
        return module_call(function, args, kwargs) if is_module(function) else None

    def role(self, cls: type) -> Role | None:
        """Return what the objects of a class are to a call; None if they are not PyTorch's."""
        return role(cls)

    def keep(self, value: Any, room_bytes: int) -> Kept:
        """Keep what a tensor or a generator of random numbers is now."""
        return keep(value, room_bytes)

    def parts(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return what a module holds outside of Python's objects, by name."""
        return parts(model)

    def keep_random(self) -> Callable[[], None]:
        """Return a function that puts PyTorch's random numbers back to where they are now."""
        return keep_random()

    def synchronize(self) -> bool:
        """Wait for every CUDA device that this process uses; return False if there is none."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        for device in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):
                torch.cuda.synchronize(device)
        return True

    def _start_operators(self, clock: Clock, request: Request) -> None:
        """Start the operator recorder; detail runs of layers need the recorder for memory."""
        if Kind.OP in request.kinds or (request.detail and Kind.LAYER in request.kinds):
            self._operators = OperatorRecorder()
            kernels = Kind.KERNEL in request.measured
            self._operators.start(clock, request.detail, kernels=kernels)

    def _start_layers(self, clock: Clock, request: Request) -> None:
        operators = self._operators
        arrived = operators.anchor_thread if operators is not None else lambda: None
        self._layers = LayerRecorder(arrived)
        self._layers.start(clock, detail=request.detail, outermost=Kind.LAYER not in request.kinds)

    def _disarm(self) -> _Recorders:
        """Disarm all recorders, whatever any of them raises, and return them."""
        armed = (self._layers, self._steps, self._operators, self._lines)
        layers, steps, operators, lines = armed
        with ExitStack() as last_first:  # the recorder armed last is disarmed first
            for recorder in (operators, steps, layers, lines):
                if recorder is not None:
                    last_first.callback(recorder.disarm)
            self._layers = self._steps = self._operators = self._lines = None
        return armed


def _operator_rows(operators: OperatorRecords, layers: LayerRecords, *, stepped: bool) -> SpanRows:
    rows = operator_rows(operators, layers.owners)
    rows = rows.with_columns(pl.col("name").replace(_WITHOUT_KEY))
    if stepped:
        own = pl.any_horizontal(pl.col("name").str.starts_with(own) for own in _ANNOTATIONS)
        rows = rows.filter(~own)
    return rows


def _memory(data: TorchRecords) -> Any:
    if not data.request.detail or data.operators is None:
        return None
    return partial(memory_columns, allocations(data.operators))
