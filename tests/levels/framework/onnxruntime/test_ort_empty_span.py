"""Empty nodes of ONNX Runtime, which show the cost of recording inside a node."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx_models import dense

import xsp
from xsp.clock import SystemClock
from xsp.level import Kind
from xsp.record.session.calibration import calibrate, inside_cost
from xsp.testing import only_providers
from xsp_levels.framework.onnxruntime.provider import OnnxRuntime
from xsp_levels.framework.onnxruntime.recorder import Twin

X = np.ones((2, 8), np.float32)


def session() -> Any:
    return ort.InferenceSession(dense(), providers=["CPUExecutionProvider"])


def sessions() -> int:
    gc.collect()
    return sum(type(each) is ort.InferenceSession for each in gc.get_objects())


def seeing(made: Any) -> OnnxRuntime:
    """Return a provider that has seen a session."""
    provider = OnnxRuntime()
    assert provider.model_call(made, (None, {"x": X}), {}) is not None
    return provider


@pytest.mark.timing
def test_recording_a_node_costs_microseconds_inside() -> None:
    made = session()
    calibrations = [calibrate(seeing(made), Kind.OP, SystemClock()) for _ in range(3)]
    costs = [inside_cost(calibration) for calibration in calibrations if calibration is not None]
    # Other programs disturb a calibration, but hardly all of them.
    best = min((cost for cost in costs if cost is not None), key=lambda cost: cost.error_ns)
    assert best.cost_ns > 1_000
    assert 0 < best.error_ns < best.cost_ns


def test_empty_nodes_leave_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    code, made = ort.InferenceSession.run.__code__, session()
    before = sessions()
    calibrate(seeing(made), Kind.OP, SystemClock())
    assert ort.InferenceSession.run.__code__ is code
    assert sessions() == before
    assert capfd.readouterr() == ("", "")


def test_the_users_model_is_loaded_once_for_all_empty_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []

    class Noted(Twin):
        def __init__(self, session: Any, events: int = 0) -> None:
            loaded.append(session)
            super().__init__(session, events)

    monkeypatch.setattr("xsp_levels.framework.onnxruntime.recorder.Twin", Noted)
    made = session()
    calibration = calibrate(seeing(made), Kind.OP, SystemClock())
    assert calibration is not None
    assert sum(each is made for each in loaded) == 1


def test_empty_nodes_are_no_evaluations_of_the_program() -> None:
    made = session()
    with only_providers(OnnxRuntime()), xsp.profile(levels=2, budget=0.5) as prof:
        for _ in range(30):
            made.run(None, {"x": X})
    assert len(prof.groups) == 1
    assert "Mul" not in prof.trace.spans["name"].to_list()
