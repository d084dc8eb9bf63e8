"""ONNX Runtime's provider: rows and warnings of real sessions of tiny models."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import polars as pl
import pytest
from onnx_models import branches, dense, looped, residual

import xsp
from xsp.analyses import parallelism, scheduling
from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.provider import Records, Request, SpanRows, pack, unpack
from xsp_levels.framework.onnxruntime.provider import OnnxRuntime

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 8), np.float32)
IMAGE = np.ones((1, 16, 8, 8), np.float32)
NODES = frozenset({Kind.REGION, Kind.OP})


def session(model: bytes | str, options: Any = None) -> Any:
    return ort.InferenceSession(model, options, providers=CPU)


def records_of(
    provider: OnnxRuntime, run: Any, *, detail: bool = False, kinds: frozenset[Kind] = NODES
) -> Records:
    provider.start(SystemClock(), Request(kinds, detail=detail))
    try:
        run()
    finally:
        records = provider.stop()
    return records


def visits(run: Any, count: int = 2, *, detail: bool = False) -> tuple[SpanRows, Records]:
    """Return the rows and the records of the last of several visits of a function."""
    provider = OnnxRuntime()
    made = [records_of(provider, run, detail=detail) for _ in range(count)]
    return provider.spans(made[-1]), made[-1]


def names(rows: SpanRows, kind: Kind) -> list[str]:
    return rows.filter(pl.col("kind") == kind.value)["name"].to_list()


def folders() -> list[str]:
    return sorted(os.listdir(tempfile.gettempdir()))


def test_nodes_lie_in_their_layers_and_in_the_run() -> None:
    made = session(residual())
    rows, _ = visits(lambda: made.run(None, {"x": IMAGE}))
    assert names(rows, Kind.REGION) == ["predict"]
    assert names(rows, Kind.OP).count("Conv") == 2
    assert {"block", "conv1", "conv2"} <= set(names(rows, Kind.LAYER))
    nodes = rows.filter(pl.col("kind") == "op").sort("start_ns")
    run = rows.row(0, named=True)
    assert nodes["start_ns"].min() >= run["start_ns"]
    assert nodes["end_ns"].max() <= run["end_ns"]
    assert (nodes["thread"] == threading.get_ident()).all()
    assert (nodes["end_ns"][:-1] <= nodes["start_ns"][1:]).all()
    assert set(nodes["attr.execution_provider"]) == set(CPU)
    assert set(nodes["attr.framework"]) == {"onnxruntime"}
    convs = nodes.filter(pl.col("name") == "Conv")
    assert convs["attr.source_ops"].to_list() == ["Conv, Relu", "Conv, Add, Relu"]
    assert convs["attr.fused_layers"].to_list() == [["block.relu"], ["block.relu_1"]]


def test_shapes_and_sizes_are_told_in_detail_runs() -> None:
    made = session(dense())
    rows, _ = visits(lambda: made.run(None, {"x": X}), detail=True)
    node = rows.filter(pl.col("name") == "MatMul").row(0, named=True)
    assert node["attr.input_shapes"] == [[2, 8], [8, 8]]
    assert node["attr.input_dtypes"] == ["float32", "float32"]
    assert node["attr.output_shapes"] == [[2, 8]]
    assert node["attr.parameter_bytes"] == 256
    layer = rows.filter(pl.col("name") == "fc").row(0, named=True)
    assert layer["attr.parameter_bytes"] == 256
    assert layer["attr.module_path"] == "fc"


def test_every_visit_has_its_own_runs() -> None:
    made, provider = session(dense()), OnnxRuntime()
    kept = [
        records_of(provider, lambda times=times: [made.run(None, {"x": X}) for _ in range(times)])
        for times in (1, 2, 3)
    ]
    counts = [names(provider.spans(records), Kind.OP).count("MatMul") for records in kept]
    assert counts == [0, 2, 3]  # in the first visit nothing was known of the session


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def test_nothing_stays_behind() -> None:
    before, code = folders(), ort.InferenceSession.run.__code__
    made = session(dense())
    rows, records = visits(lambda: made.run(None, {"x": X}))
    assert rows.height
    assert folders() == before
    assert ort.InferenceSession.run.__code__ is code
    del records


def test_a_folder_that_cannot_be_written_is_named_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = session(dense())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    rows, records = visits(lambda: made.run(None, {"x": X}))
    assert names(rows, Kind.OP) == []
    (warning,) = records.warnings
    assert "could not be written (No such file or directory); set TMPDIR" in warning


def test_a_profile_that_is_gone_is_named_and_its_twin_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    before, provider, made = folders(), OnnxRuntime(), session(dense())
    records = [records_of(provider, lambda: made.run(None, {"x": X})) for _ in range(2)]
    monkeypatch.setattr(Path, "read_bytes", lambda path: os.stat(f"{path}.gone"))
    with pytest.raises(ProviderError, match=r"could not be read \(No such file .* set TMPDIR"):
        provider.spans(records[-1])
    assert folders() == before


@pytest.mark.forks
def test_a_forked_child_leaves_the_twin_alone_and_is_not_observed() -> None:
    provider, made, code = OnnxRuntime(), session(dense()), ort.InferenceSession.run.__code__
    kept = [records_of(provider, lambda: made.run(None, {"x": X})) for _ in range(2)]
    provider.start(SystemClock(), Request(NODES))
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(ort.InferenceSession.run.__code__ is not code)
    assert os.waitpid(child, 0)[1] == 0
    made.run(None, {"x": X})
    rows = provider.spans(provider.stop())
    assert "MatMul" in names(rows, Kind.OP)


def test_the_profile_of_a_session_that_the_user_profiles_is_left_alone(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "own")
    made = session(dense(), options)
    rows, _ = visits(lambda: made.run(None, {"x": X}))
    assert "MatMul" in names(rows, Kind.OP)
    assert options.profile_file_prefix == str(tmp_path / "own")
    assert Path(made.end_profiling()).stat().st_size


def test_a_model_whose_file_is_gone_has_no_nodes_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(dense())
    made = session(str(path))
    path.unlink()
    rows, records = visits(lambda: made.run(None, {"x": X}))
    assert names(rows, Kind.OP) == []
    assert names(rows, Kind.REGION) == ["predict"]
    (said,) = records.warnings
    assert said.startswith("the operators of net are missing")
    assert said.endswith(f"its file {path} is there no more")


def test_without_a_folder_for_profiles_the_program_runs_on_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    made, outputs = session(dense()), []
    rows, records = visits(lambda: outputs.append(session_run(made)))
    assert len(outputs) == 2
    assert names(rows, Kind.OP) == []
    assert "No such file or directory" in " ".join(records.warnings)


def session_run(made: Any) -> Any:
    return made.run(None, {"x": X})


@pytest.mark.parametrize("feeds", [{"z": X}, {"x": np.ones((2, 3), np.float32)}, {"x": "no"}])
def test_wrong_feeds_raise_what_they_raise_without_xsp(feeds: dict[str, Any]) -> None:
    made, provider = session(dense()), OnnxRuntime()
    with pytest.raises(Exception) as bare:  # noqa: PT011  ONNX Runtime has classes of its own
        made.run(None, feeds)
    session_run(made)
    records_of(provider, lambda: session_run(made))
    with pytest.raises(type(bare.value)) as seen:
        records_of(provider, lambda: made.run(None, feeds))
    assert str(seen.value) == str(bare.value)


def test_a_run_that_raised_is_told_with_its_error() -> None:
    made, provider = session(dense()), OnnxRuntime()

    def run() -> None:
        with pytest.raises(ValueError, match="missing"):
            made.run(None, {})

    rows = provider.spans(records_of(provider, run))
    assert rows["attr.error"].to_list() == ["ValueError"]


def test_bodies_of_loops_lie_in_the_loop() -> None:
    made = session(looped(rounds=3))
    rows, _ = visits(lambda: made.run(None, {"x": X[0]}))
    loop = rows.filter(pl.col("name") == "Loop").row(0, named=True)
    adds = rows.filter(pl.col("name") == "Add")
    assert adds.height == 3
    assert adds["start_ns"].min() >= loop["start_ns"]
    assert adds["end_ns"].max() <= loop["end_ns"]


def test_nodes_on_ONNX_Runtimes_own_threads_lie_in_the_run() -> None:  # noqa: N802
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads, options.intra_op_num_threads = 2, 1
    made = session(branches(), options)
    rows, _ = visits(lambda: made.run(None, {"x": X}))
    run = rows.row(0, named=True)
    nodes = rows.filter(pl.col("kind") == "op")
    assert nodes.height == 4
    elsewhere = nodes.filter(pl.col("thread") < 0)
    homes = rows.filter(pl.col("kind") == "layer", pl.col("name").str.starts_with("branch"))
    assert elsewhere.height
    outermost = elsewhere.filter(~pl.col("parent_id").is_in(homes["id"].implode()))
    assert set(outermost["parent_id"]) <= {run["id"]}


def test_a_full_twin_is_replaced_between_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xsp_levels.framework.onnxruntime.recorder.MOST_EVENTS", 20)
    made, provider, before = session(dense()), OnnxRuntime(), folders()
    kept = [records_of(provider, lambda: [session_run(made) for _ in range(3)]) for _ in range(5)]
    counts = [names(provider.spans(records), Kind.OP).count("MatMul") for records in kept]
    assert counts == [0, 3, 3, 3, 3]
    kept.clear()  # the last twin waits for a visit to come
    assert folders() == before


def test_records_without_objects_of_ONNX_Runtime_make_the_same_rows() -> None:  # noqa: N802
    made, provider = session(residual()), OnnxRuntime()
    kept = [
        records_of(provider, lambda: made.run(None, {"x": IMAGE}), detail=True) for _ in range(2)
    ]
    plain = provider.plain(kept[-1])
    assert isinstance(plain.data, OnnxRuntime.record_type)
    assert provider.spans(plain).equals(provider.spans(kept[-1]))
    packed = unpack(provider, pack(provider, kept[-1]))
    assert provider.spans(packed).equals(provider.spans(kept[-1]))


def test_nodes_tell_whose_outputs_they_take_and_how_many_threads_they_may_use() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    made = session(branches(), options)
    rows, _ = visits(lambda: made.run(None, {"x": X}))
    nodes = rows.filter(pl.col("kind") == "op")
    products = [f"/branch{at}/MatMul" for at in range(3)]
    found = dict(nodes.select("attr.node", "attr.inputs").iter_rows())
    assert found == {product: [] for product in products} | {"/Sum": products}
    assert nodes["attr.threads"].to_list() == [1] * 4
    made = session(residual())
    rows, _ = visits(lambda: made.run(None, {"x": IMAGE}))
    nodes = rows.filter(pl.col("kind") == "op").sort("start_ns")
    assert nodes["attr.threads"].null_count() == nodes.height  # ONNX Runtime chooses
    before = [[], *([node] for node in nodes["attr.node"][:-1])]
    told = zip(nodes["attr.inputs"].to_list(), before, strict=True)
    assert all(set(own) <= set(inputs) for inputs, own in told)  # a chain, with the blocks' layout


def test_dataflow_of_a_session_is_told_by_a_whole_measurement() -> None:
    made = session(branches())
    trace = xsp.measure(made.run, None, {"x": X}, levels=2, budget=0.5)
    table = scheduling(trace)
    assert sorted(table["node"]) == ["/Sum", *(f"/branch{at}/MatMul" for at in range(3))]
    times = parallelism(trace).filter(~pl.col("used") | pl.col("problem").is_null())
    assert times["latency_ns"].is_sorted(descending=True)
