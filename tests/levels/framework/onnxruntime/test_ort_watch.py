"""Programs that run sessions of ONNX Runtime: their groups and traces."""

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
from xsp.record.session import installed_providers
from xsp.testing import only_providers

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 8), np.float32)
SHORT: dict[str, Any] = {"runs": 5, "budget": 1.0, "progress": False}
BLOCK: dict[str, Any] = {"levels": 2, "progress": False}


def provider() -> Any:
    (found,) = (each for each in installed_providers() if each.name == "onnxruntime")
    return found


def session(model: bytes | None = None) -> Any:
    return ort.InferenceSession(model or dense(), providers=CPU)


def nodes(trace: xsp.Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("kind") == "op")


def calls(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


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
    assert all("inferred" in reasons for reasons in layers["attributes"].struct.field("inexact"))


def test_runs_in_a_block_are_groups_by_shape_and_have_nodes() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(**BLOCK) as prof:
        for _ in range(30):
            made.run(None, {"x": X})
        made.run(None, {"x": X[:1]})
    assert calls(prof) == {"dense 2×8": 30, "dense 1×8": 1}
    assert {"MatMul", "Sigmoid"} <= set(nodes(prof.groups["dense 2×8"])["name"])
    for trace in (prof.trace, *prof.groups.values()):
        trace.check()
    assert "operators come from a profiled copy of the session" in prof.trace.tree(
        warnings=True
    ).replace("\n", " ")


def test_runs_are_seen_whatever_makes_them() -> None:
    made, done = session(), threading.Event()
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu")
    value = ort.OrtValue.ortvalue_from_numpy(X)
    with only_providers(provider()), xsp.profile(**BLOCK, repeat=False) as prof:
        for _ in range(4):
            made.run_with_iobinding(binding)
        made.run_with_ort_values(None, {"x": value})
        made.run_async(None, {"x": X}, lambda results, data, error: done.set(), None)
        done.wait(10)
    assert calls(prof) == {"dense 2×8": 5, "dense begin of run_async 2×8": 1}


def test_a_session_made_in_the_block_is_a_part_of_the_program() -> None:
    with only_providers(provider()), xsp.profile(**BLOCK) as prof:
        made = session()
        for _ in range(5):
            made.run(None, {"x": X})
    paths = prof.trace.spans["path"]
    assert paths.str.contains("session creation/session initialization").any()
    assert paths.str.contains("session creation/model loading").any()


def test_exceptions_of_a_run_reach_the_program() -> None:
    made = session()
    with only_providers(provider()), xsp.profile(**BLOCK) as prof:
        with pytest.raises(ValueError, match="missing from input feed"):
            made.run(None, {})
        made.run(None, {"x": X})
    assert calls(prof)["dense 2×8"] == 1


def test_a_session_that_the_program_deletes_is_let_go() -> None:
    with only_providers(provider()), xsp.profile(**BLOCK, repeat=False) as prof:
        made = session()
        for _ in range(5):
            made.run(None, {"x": X})
        gone = weakref.ref(made)
        del made
        gc.collect()
        assert gone() is None
    assert prof.trace.metadata["groups"]


def test_layers_of_each_thread_lie_in_its_own_runs() -> None:
    made, feeds = session(residual()), {"x": np.ones((1, 16, 8, 8), np.float32)}
    made.run(None, feeds)
    with only_providers(provider()), xsp.profile(**BLOCK) as prof:
        threads = [
            threading.Thread(target=lambda: [made.run(None, feeds) for _ in range(30)])
            for _ in range(2)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    prof.trace.check()
    spans = prof.trace.spans
    known = {row["span_id"]: row for row in spans.to_dicts()}
    layers = [row for row in known.values() if row["kind"] == "layer"]
    assert {row["name"] for row in layers} == {"block", "conv1", "conv2"}
    for row in layers:
        around = known[row["parent_id"]]
        assert around["name"].endswith("residual 1×16×8×8" if row["name"] == "block" else "block")
        assert around["attributes"]["calls"] == row["attributes"]["calls"]


def test_after_a_block_sessions_are_as_they_were() -> None:
    native = ort.capi.onnxruntime_pybind11_state.InferenceSession
    before = (ort.InferenceSession.run.__code__, vars(native)["initialize_session"])
    with only_providers(provider()), xsp.profile(**BLOCK):
        session().run(None, {"x": X})
        assert ort.InferenceSession.run.__code__ is not before[0]
    assert (ort.InferenceSession.run.__code__, vars(native)["initialize_session"]) == before
