"""The TensorFlow provider: records layers and operators, and makes rows of the records.

Layers are recorded by Keras's own calls, operators by TensorFlow's profiler; where a graph runs
and no Python does, layers are derived from the scopes of the operators. `TensorFlow.watcher` logs
what a program does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
from xsp_levels.framework.keras.layer import LayerRecorder, LayerRecords
from xsp_levels.framework.keras.row import layer_rows, predict_rows
from xsp_levels.framework.tensorflow.profiler.operator import (
    OperatorRecorder,
    OperatorRecords,
    compile_rows,
    operator_rows,
)
from xsp_levels.framework.tensorflow.program.call import model_call, synchronize
from xsp_levels.framework.tensorflow.program.step import (
    BACKWARD,
    Interval,
    StepRecorder,
    step_rows,
)
from xsp_levels.framework.tensorflow.program.watcher import TensorFlowWatcher

_Recorders = tuple[LayerRecorder | None, StepRecorder | None, OperatorRecorder | None]


@dataclass(frozen=True, slots=True)
class TensorFlowRecords:
    """The records of one visit: layer calls, training steps, operators.

    Attributes:
        request: What the recorders were asked for.
        layers: Calls of layers; only the outermost ones where layers were not asked for.
        steps: Parts besides the model, such as backward passes and data loading.
        operators: Records of the operator recorder; None if the recorder was off.
    """

    request: Request
    layers: LayerRecords
    steps: tuple[Interval, ...] = ()
    operators: OperatorRecords | None = None


class TensorFlow:
    """Observes TensorFlow models."""

    name = "tensorflow"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.REGION, Kind.LAYER, Kind.OP})
    record_type = TensorFlowRecords

    def __init__(self) -> None:
        self._request: Request | None = None
        self._layers: LayerRecorder | None = None
        self._steps: StepRecorder | None = None
        self._operators: OperatorRecorder | None = None
        self._watcher = TensorFlowWatcher()

    def unavailable(self) -> str | None:
        """Return why TensorFlow cannot be observed here, or None if it can."""
        if "tensorflow" in sys.modules or importlib.util.find_spec("tensorflow") is not None:
            return None
        return "TensorFlow is not installed; `pip install xsp[tensorflow]` brings it"

    def start(self, clock: Clock, request: Request) -> None:
        """Arm the recorders that `request` needs, the recorder that disturbs most first.

        Where the program has not imported TensorFlow there is nothing to record, and nothing is
        imported.
        """
        self._request = request
        if "tensorflow" not in sys.modules:
            return
        regions = Kind.REGION in request.kinds and not request.whole_model
        with undone_on_failure(self._disarm):
            if Kind.OP in request.kinds:
                self._operators = OperatorRecorder()
                # A program's operators are counted, and their latencies are shares of a call's.
                self._operators.start(clock, detail=request.detail, whole=self._watcher.is_active)
            if regions:
                self._steps = StepRecorder()
                self._steps.start(clock)
            if Kind.LAYER in request.kinds or regions:
                operators = self._operators
                self._layers = LayerRecorder(
                    operators.anchor_thread if operators is not None else lambda: None
                )
                self._layers.start(
                    clock, detail=request.detail, outermost=Kind.LAYER not in request.kinds
                )

    def stop(self) -> Records:
        """Disarm, and return the records."""
        layers, steps, operators = self._disarm()
        calls = layers.stop() if layers is not None else LayerRecords()
        stepped = steps.stop() if steps is not None else ()
        kept = operators.stop() if operators is not None else None
        return Records(
            data=TensorFlowRecords(self._request or Request(frozenset()), calls, stepped, kept),
            dropped=calls.dropped,
            warnings=(*calls.warnings, *(kept.warnings if kept is not None else ())),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows: region spans, layers, operators. Pure."""
        data: TensorFlowRecords = records.data
        kinds = data.request.kinds
        frames = []
        if Kind.REGION in kinds and not data.request.whole_model:
            trains = any(step.name == BACKWARD for step in data.steps)
            frames += [predict_rows(data.layers, "forward" if trains else "predict")]
            frames += [step_rows(data.steps)]
        if Kind.LAYER in kinds:
            frames += [layer_rows(data.layers)]
        if Kind.OP in kinds and data.operators is not None:
            frames += [operator_rows(data.operators), compile_rows(data.operators)]
        return concat_rows(frames)

    def watcher(self) -> TensorFlowWatcher:
        """Return the watcher that logs TensorFlow's calls, passes and steps in a program."""
        self._watcher = TensorFlowWatcher()
        return self._watcher

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        """Return the call if `function` is a Keras model or a `tf.function`, else None."""
        return model_call(function, args, kwargs)

    def synchronize(self) -> bool:
        """Wait until the devices have done their work; return False where there is none."""
        return synchronize()

    def _disarm(self) -> _Recorders:
        """Disarm all recorders, whatever any of them raises, and return them."""
        armed = (self._layers, self._steps, self._operators)
        layers, steps, operators = armed
        with ExitStack() as last_first:  # the recorder armed last is disarmed first
            for recorder in (operators, steps, layers):
                if recorder is not None:
                    last_first.callback(recorder.disarm)
            self._layers = self._steps = self._operators = None
        return armed
