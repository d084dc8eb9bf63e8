"""The PyTorch provider: layers, operators and training steps as rows of layer, op and regions.

Layers are recorded by the code of `torch.nn.Module.__call__`, operators by PyTorch's CPU
profiler; `Torch.spans` makes rows of both. `Torch.watch` hands over a model's steps.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import (
    EmptySpan,
    ModelCall,
    Records,
    Request,
    SpanRows,
    concat_rows,
)
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.memory import memory_columns
from xsp_levels.framework.torch.compiler import hide_from_compiler
from xsp_levels.framework.torch.module.graph import WrittenGraphs, in_layers
from xsp_levels.framework.torch.module.layer import LayerRecorder
from xsp_levels.framework.torch.module.module_path import COMPILED, LayerRecords
from xsp_levels.framework.torch.module.row import layer_rows, predict_rows
from xsp_levels.framework.torch.module.source_line import LineRecorder, LineRecords, with_callers
from xsp_levels.framework.torch.profiler.operator import (
    OperatorRecorder,
    OperatorRecords,
    allocations,
    operator_rows,
)
from xsp_levels.framework.torch.program.call import fingerprint, is_module, module_call
from xsp_levels.framework.torch.program.step import (
    BACKWARD,
    Interval,
    StepRecorder,
    in_backward,
    step_rows,
)
from xsp_levels.framework.torch.program.watcher import TorchWatcher

_REGION = "Torch-Compiled Region: "  # PyTorch's own mark around what torch.compile made
_SAMPLER = "xsp_levels.stack"  # is called within compiled code, too
# PyTorch's own annotations of what `step` records as region spans.
_ANNOTATIONS = ("Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")

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
    """

    request: Request
    layers: LayerRecords
    steps: tuple[Interval, ...] = ()
    operators: OperatorRecords | None = None
    lines: LineRecords | None = None


class Torch:
    """Observes PyTorch models."""

    name = "torch"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.REGION, Kind.LAYER, Kind.OP})
    record_type = TorchRecords

    def __init__(self) -> None:
        self._request: Request | None = None
        self._layers: LayerRecorder | None = None
        self._steps: StepRecorder | None = None
        self._operators: OperatorRecorder | None = None
        self._lines: LineRecorder | None = None
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
        layers = Kind.LAYER in request.kinds
        regions = Kind.REGION in request.kinds and not request.whole_model
        with undone_on_failure(self._disarm):
            # Detail runs of layers need the operators' recorder for memory.
            if Kind.OP in request.kinds or (request.detail and layers):
                self._operators = OperatorRecorder()
                kernels = Kind.KERNEL in request.measured
                self._operators.start(clock, request.detail, kernels=kernels)
            if regions:
                self._steps = StepRecorder()
                self._steps.start(clock)
            if layers or regions:
                operators = self._operators
                self._layers = LayerRecorder(operators.anchor_thread if operators else None)
                self._layers.start(clock, detail=request.detail, outermost=not layers)
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
        request = self._request or Request(frozenset())
        if kept is None:
            warnings = calls.warnings
        else:
            events = kept.handle
            regions = events is not None and any(name.startswith(_REGION) for name in events.names)
            found = (*calls.warnings, *kept.warnings, *([COMPILED] if regions else []))
            warnings = tuple(dict.fromkeys(found))
        return Records(
            data=TorchRecords(request, calls, stepped, kept, logged),
            dropped=calls.dropped,
            warnings=warnings,
            notes=kept.notes if kept is not None else (),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: region spans, layers, operators. Pure."""
        data: TorchRecords = records.data
        kinds = data.request.kinds
        frames = []
        if Kind.REGION in kinds and not data.request.whole_model:
            back = [(each.start_ns, each.end_ns) for each in data.steps if each.name == BACKWARD]
            frames += [predict_rows(data.layers, "forward" if back else "predict", back)]
            frames += [step_rows(data.steps)]
        if Kind.LAYER in kinds:
            memory = None
            if data.request.detail and data.operators is not None:
                memory = partial(memory_columns, allocations(data.operators))
            frames += [layer_rows(data.layers, memory)]
        if Kind.OP in kinds and data.operators is not None:
            rows = _operator_rows(
                data.operators, data.layers, stepped=bool(data.steps) or Kind.REGION not in kinds
            )
            if Kind.REGION in kinds and not data.request.whole_model:
                rows = in_backward(rows, data.steps)
            rows = rows if data.lines is None else with_callers(rows, data.lines)
            if Kind.LAYER in kinds:
                rows = in_layers(rows, data.layers.graph_calls())
            frames += [rows]
        return concat_rows(frames)

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty layer or operator; None where the program would notice one.

        A program without PyTorch would notice the import, and hooks for all modules or a mode that
        sees every operator would see the span.
        """
        if "torch" not in sys.modules:
            return None
        if kind is Kind.LAYER:
            return None if _hooks() else _empty_layer()
        if kind is Kind.OP:
            return None if _modes() else _empty_operator()
        return None

    def watcher(self) -> TorchWatcher:
        """Return the watcher that logs PyTorch's calls, passes and steps in a program."""
        return TorchWatcher()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a module, else None, without importing PyTorch."""
        return module_call(function, args, kwargs) if is_module(function) else None

    def fingerprint(self, value: Any) -> Hashable:
        """Return a value that a write to a tensor or a generator changes; None for all else."""
        return fingerprint(value)

    def synchronize(self) -> bool:
        """Wait for every CUDA device that this process uses; return False if there is none."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        for device in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):
                torch.cuda.synchronize(device)
        return True

    def _disarm(self) -> _Recorders:
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
    if stepped:
        own = pl.any_horizontal(pl.col("name").str.starts_with(own) for own in _ANNOTATIONS)
        rows = rows.filter(~own)
    return rows


def _empty_layer() -> EmptySpan:
    from torch import nn  # noqa: PLC0415

    class EmptyModule(nn.Module):  # type: ignore[misc]
        def forward(self) -> None:
            pass

    module = EmptyModule()
    return EmptySpan(EmptyModule.__name__, module, bare=module)


def _empty_operator() -> EmptySpan:
    """Return an operator that does nothing but return what it was given.

    The span of an operator is the dispatcher's work and the kernel's, not the way from Python to
    the dispatcher and back. `torch.is_conj` goes the same way, and asks no dispatcher.
    """
    import torch  # noqa: PLC0415

    tensor = torch.empty(0, device="cpu")
    operator = partial(torch.resolve_conj, tensor)
    return EmptySpan(
        "aten::resolve_conj", operator, bare=operator, apart=partial(torch.is_conj, tensor)
    )


def _hooks() -> bool:
    from torch.nn.modules import module  # noqa: PLC0415

    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    return any(getattr(module, f"_global_{kind}_hooks") for kind in kinds)


def _modes() -> bool:
    import torch  # noqa: PLC0415

    modes: Any = torch._C
    return bool(modes._len_torch_function_stack() or modes._len_torch_dispatch_stack())
