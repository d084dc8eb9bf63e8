"""The PyTorch provider: layers and operators, and where a model's evaluations begin and end.

Layers come from the code of `torch.nn.Module.__call__`, operators from
PyTorch's CPU profiler; both become rows in `spans`, later.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import (
    Evaluations,
    ModelCall,
    Records,
    Request,
    SpanRows,
    concat_rows,
    pack,
    unpack,
)
from xsp_levels.arming import undone_on_failure
from xsp_levels.framework.torch import call as torch_call
from xsp_levels.framework.torch.call import is_module, module_call
from xsp_levels.framework.torch.layer import LayerRecorder
from xsp_levels.framework.torch.module_path import LayerRecords, ModuleFacts, ThreadCalls
from xsp_levels.framework.torch.row import layer_rows, predict_rows
from xsp_levels.framework.torch.step import BACKWARD, Interval, StepRecorder, step_rows
from xsp_levels.framework.torch.watcher import Watch


@dataclass(frozen=True, slots=True)
class TorchRecords:
    """What one visit kept: module calls, training steps, operators.

    Attributes:
        request: What was recorded.
        layers: Module calls; only the outermost ones where layers were not asked for.
        steps: Backward passes and optimizer steps.
        operators: What the operator recorder kept, None where it was off.
    """

    request: Request
    layers: LayerRecords
    steps: tuple[Interval, ...] = ()
    operators: Any = None


class Torch:
    """Observes PyTorch models."""

    name = "torch"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE, Kind.LAYER, Kind.OP})

    def __init__(self) -> None:
        self._request: Request | None = None
        self._layers: LayerRecorder | None = None
        self._steps: StepRecorder | None = None
        self._operators: Any = None
        self._watch: Watch | None = None

    def unavailable(self) -> str | None:
        """Return why PyTorch cannot be observed here, or None if it can."""
        if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
            return None
        return "PyTorch is not installed; `pip install xsp[torch]` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Arm what `request` asks for; what disturbs most is armed first."""
        self._request = request
        pipeline = Kind.PIPELINE in request.kinds and not request.whole_model
        with undone_on_failure(self._disarm):
            self._start_operators(clock, request)
            if pipeline:
                self._steps = StepRecorder()
                self._steps.start(clock)
            if Kind.LAYER in request.kinds or pipeline:
                self._start_layers(clock, request)

    def stop(self) -> Records:
        """Disarm, and hand over what was recorded."""
        layers, steps, operators = self._disarm()
        calls = layers.stop() if layers is not None else LayerRecords()
        stepped = steps.stop() if steps is not None else ()
        kept = operators.stop() if operators is not None else None
        return Records(
            data=TorchRecords(self._request or Request(frozenset()), calls, stepped, kept),
            dropped=calls.dropped + (kept.dropped if kept is not None else 0),
            problems=(*calls.problems, *(kept.problems if kept is not None else ())),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: pipeline spans, layers, operators. Pure."""
        data: TorchRecords = records.data
        kinds = data.request.kinds
        frames = []
        if Kind.PIPELINE in kinds and not data.request.whole_model:
            trains = any(step.name == BACKWARD for step in data.steps)
            frames += [predict_rows(data.layers, "forward" if trains else "predict")]
            frames += [step_rows(data.steps)]
        if Kind.LAYER in kinds:
            frames += [layer_rows(data.layers, _memory(data))]
        if Kind.OP in kinds and data.operators is not None:
            frames += [_operator_rows(data.operators, stepped=bool(data.steps))]
        return concat_rows(frames)

    def pack(self, records: Records) -> bytes:
        """Return records as bytes, with the profiler's events as columns. Pure."""
        from xsp_levels.framework.torch.operator import plain_records  # noqa: PLC0415

        data: TorchRecords = records.data
        if data.operators is not None:
            data = replace(data, operators=plain_records(data.operators))
        return pack(replace(records, data=data), _kept())

    def unpack(self, content: bytes) -> Records:
        """Return the records that `pack` made bytes of. Pure."""
        records: Records = unpack(content, _kept())
        return records

    def watch(self, evaluations: Evaluations) -> None:
        """Hand the outermost calls of the model to `evaluations` from now on."""
        self.unwatch()
        self._watch = Watch(evaluations)

    def unwatch(self) -> None:
        """Stop watching; nothing stays behind."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a module, else None; PyTorch is not imported."""
        return module_call(function, args, kwargs) if is_module(function) else None

    def hazard(self, call: ModelCall) -> str | None:
        """Return why the call must not be repeated unasked, or None if it is safe."""
        return torch_call.hazard(call)

    def versions(self, call: ModelCall) -> tuple[int, ...]:
        """Return numbers that change when the call's tensors are written to."""
        return torch_call.versions(call)

    def conditions(self, call: ModelCall) -> AbstractContextManager[None]:
        """Return a context with the grad, inference and autocast modes of the call.

        Calls repeated inside it need not set them one by one.
        """
        modes = getattr(call, "modes", None)
        return nullcontext() if modes is None else modes.entered()

    def synchronize(self) -> None:
        """Wait for every CUDA device that this process uses; nothing without one."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        for device in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):
                torch.cuda.synchronize(device)

    def _start_operators(self, clock: Clock, request: Request) -> None:
        """Start the operator recorder; layers need it in detail runs, for memory."""
        if Kind.OP in request.kinds or (request.detail and Kind.LAYER in request.kinds):
            from xsp_levels.framework.torch.operator import OperatorRecorder  # noqa: PLC0415

            self._operators = OperatorRecorder()
            self._operators.start(clock, request.detail)

    def _start_layers(self, clock: Clock, request: Request) -> None:
        operators = self._operators
        arrived = operators.anchor_thread if operators is not None else lambda: None
        self._layers = LayerRecorder(arrived)
        self._layers.start(clock, detail=request.detail, outermost=Kind.LAYER not in request.kinds)

    def _disarm(self) -> tuple[LayerRecorder | None, StepRecorder | None, Any]:
        """Disarm and let go of all recorders, whatever one of them raises, and return them."""
        layers, steps, operators = self._layers, self._steps, self._operators
        with ExitStack() as last_first:  # what disturbs most was armed first
            for recorder in (operators, steps, layers):
                if recorder is not None:
                    last_first.callback(recorder.disarm)
            self._layers = self._steps = self._operators = None
        return layers, steps, operators


def _kept() -> tuple[type, ...]:
    """Return what records consist of."""
    from xsp_levels.framework.torch.anchor import Reading  # noqa: PLC0415
    from xsp_levels.framework.torch.event import Events  # noqa: PLC0415
    from xsp_levels.framework.torch.operator import OperatorRecords  # noqa: PLC0415

    own = (Records, TorchRecords, Request, Kind, Interval)
    return (*own, LayerRecords, ThreadCalls, ModuleFacts, OperatorRecords, Reading, Events)


def _operator_rows(operators: Any, *, stepped: bool) -> SpanRows:
    from xsp_levels.framework.torch.operator import operator_rows  # noqa: PLC0415

    rows: SpanRows = operator_rows(operators)
    if stepped:
        # PyTorch's own mark of what is recorded as a pipeline span already, around its hooks.
        rows = rows.filter(~pl.col("name").str.starts_with("Optimizer.step#"))
    return rows


def _memory(data: TorchRecords) -> Any:
    if not data.request.detail or data.operators is None:
        return None
    from xsp_levels.framework.torch.memory import memory_columns  # noqa: PLC0415
    from xsp_levels.framework.torch.operator import allocations  # noqa: PLC0415

    return partial(memory_columns, allocations(data.operators))
