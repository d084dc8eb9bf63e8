"""Programs that run sessions in; their evaluations, groups and traces out."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import onnxruntime as ort
import polars as pl
import pytest
from onnx_models import dense, residual

import xsp
from xsp.session import installed_providers
from xsp.testing import only_providers

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 8), np.float32)
SHORT: dict[str, Any] = {"runs": 5, "budget": 1.0, "progress": False}


def provider() -> Any:
    (found,) = (each for each in installed_providers() if each.name == "onnxruntime")
    return found


def session(model: bytes | None = None) -> Any:
    return ort.InferenceSession(model or dense(), providers=CPU)


def nodes(trace: xsp.Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "op")


def test_a_session_is_measured_with_its_layers_and_nodes() -> None:
    with only_providers(provider()):
        trace = xsp.measure(
            session(residual()), None, {"x": np.ones((1, 16, 8, 8), "f")}, levels=2, **SHORT
        )
    trace.check()
    assert trace.metadata["name"] == "residual"
    assert nodes(trace)["name"].to_list().count("Conv") == 2
    layers = trace.spans.filter(pl.col("kind") == "layer")
    assert {"block", "conv1", "conv2"} <= set(layers["name"])
    assert all("derived" in reasons for reasons in layers["attributes"].struct.field("inexact"))


def test_a_bound_method_that_was_kept_is_measured_as_the_session() -> None:
    run = session().run
    with only_providers(provider()):
        trace = xsp.measure(run, None, {"x": X}, levels=2, **SHORT)
        inner = xsp.measure(lambda: run(None, {"x": X})[0], levels=2, **SHORT)
    assert set(nodes(trace)["name"]) == {"MatMul", "Sigmoid"}
    assert inner.spans["path"].str.contains("<lambda>/predict/fc", literal=True).any()
    assert set(nodes(inner)["name"]) == {"MatMul", "Sigmoid"}


def test_runs_in_a_block_are_evaluations_in_groups_by_shape() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(levels=2, **SHORT) as prof:
        for _ in range(3):
            made.run(None, {"x": X})
        made.run(None, {"x": X[:1]})
    groups = prof.trace.metadata["groups"]
    assert sorted((group["model"], group["calls"]) for group in groups) == [
        ("dense", 1),
        ("dense", 3),
    ]
    assert {"MatMul", "Sigmoid"} <= set(nodes(prof.trace)["name"])
    prof.trace.check()


def test_a_session_made_in_the_block_is_a_part_of_the_program() -> None:
    with only_providers(provider()), xsp.profile(levels=2, **SHORT) as prof:
        session().run(None, {"x": X})
    paths = prof.trace.spans["path"]
    assert paths.str.contains("session creation/session initialization").any()
    assert paths.str.contains("session creation/model loading").any()


def test_exceptions_of_a_run_reach_the_program() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(levels=2, **SHORT) as prof:
        with pytest.raises(ValueError, match="missing from input feed"):
            made.run(None, {})
        made.run(None, {"x": X})
    assert [group["calls"] for group in prof.trace.metadata["groups"]] == [1]


def test_a_session_that_the_program_deletes_is_let_go() -> None:
    with only_providers(provider()), xsp.profile(levels=2, replay=False, **SHORT) as prof:
        made = session()
        made.run(None, {"x": X})
        gone = weakref.ref(made)
        del made
    assert prof.trace.metadata["groups"]
    del prof
    gc.collect()
    assert gone() is None


def test_threads_that_run_one_session_at_once_are_all_evaluated() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(levels=2, **SHORT) as prof:
        threads = [
            threading.Thread(target=lambda: [made.run(None, {"x": X}) for _ in range(4)])
            for _ in range(2)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sum(group["calls"] for group in prof.trace.metadata["groups"]) == 8


def test_evaluations_that_the_program_marks_hold_their_runs() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(levels=2, **SHORT) as prof:
        for _ in range(40):
            with prof.evaluation("request"):
                made.run(None, {"x": X})
    assert prof.trace.spans["path"].str.contains("request.*/predict").any()
    assert "MatMul" in nodes(prof.trace)["name"].to_list()


def test_after_a_block_sessions_are_as_they_were() -> None:
    native = ort.capi.onnxruntime_pybind11_state.InferenceSession
    before = (ort.InferenceSession.run.__code__, vars(native)["initialize_session"])
    with only_providers(provider()), xsp.profile(levels=2, **SHORT):
        session().run(None, {"x": X})
        assert ort.InferenceSession.run.__code__ is not before[0]
    assert (ort.InferenceSession.run.__code__, vars(native)["initialize_session"]) == before
