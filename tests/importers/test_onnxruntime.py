"""ONNX Runtime's profiles, and the rows of their runs, nodes and kernels."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source, trace_of
from xsp.onnxruntime_profile import read_profile
from xsp.reading.importers.onnxruntime import OnnxRuntime
from xsp.trace import Trace

Event = dict[str, Any]


def event(name: str, ts: Any, dur: Any, cat: str = "Session", **more: Any) -> Event:
    common = {"cat": cat, "pid": 7, "tid": 9, "dur": dur, "ts": ts, "ph": "X", "name": name}
    return {**common, "args": {}, **more}


def node(name: str, ts: int, dur: int, op: str, **more: Any) -> Event:
    args = {"op_name": op, "provider": "CPUExecutionProvider", **more.pop("args", {})}
    return event(f"{name}_kernel_time", ts, dur, "Node", args=args, **more)


def kernel(name: str, ts: int, dur: int, **args: Any) -> Event:
    sizes = {
        f"{size}_{axis}": str(at) for size in ("grid", "block") for at, axis in enumerate("xyz")
    }
    more = {"stream": "13", **sizes, **args}
    return event(name, ts, dur, "Kernel", pid=-1, tid=-1, args=more)


def run(ts: int, dur: int) -> list[Event]:
    return [event("SequentialExecutor::Execute", ts + 1, dur - 2), event("model_run", ts, dur)]


LOADING = [event("model_loading_uri", 4, 50), event("session_initialization", 60, 900)]


def text(events: Sequence[Event]) -> str:
    """Return a profile as ONNX Runtime writes it: a line per event."""
    return "[\n" + ",\n".join(json.dumps(each) for each in events) + "\n]\n"


def source(tmp_path: Path, content: str | bytes) -> Source:
    path = tmp_path / "profile"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Source(path)


def read(tmp_path: Path, content: str | bytes | Sequence[Event]) -> Recording:
    if not isinstance(content, str | bytes):
        content = text(content)
    found = source(tmp_path, content)
    assert OnnxRuntime().recognizes(found)
    (recording,) = OnnxRuntime().read(found)
    assert isinstance(recording, Recording)
    return recording


def codes(recording: Recording) -> list[str]:
    return [warning.code for warning in recording.warnings]


def tree(trace: Trace) -> list[tuple[str, str]]:
    """Return the kind of each span, and its path below the root."""
    trace.check()
    spans = list(trace.spans.select("kind", "path").rows())
    return [(kind, path.partition("/")[2]) for kind, path in spans]


def test_runs_are_evaluations_and_nodes_are_operators(tmp_path: Path) -> None:
    events = [
        *LOADING,
        *(node("mm", 1003, 40, "MatMul"), node("act", 1050, 10, "Relu"), *run(1000, 100)),
        *(node("mm", 2003, 30, "MatMul"), node("act", 2040, 20, "Relu"), *run(2000, 80)),
    ]
    recording = read(tmp_path, events)
    assert recording.roots.select("name", "start_ns", "end_ns").rows() == [
        ("model_run", 1_000_000, 1_100_000),
        ("model_run", 2_000_000, 2_080_000),
    ]
    assert tree(trace_of(recording, "net")) == [
        ("region", ""),
        ("op", "SequentialExecutor::Execute"),
        ("op", "SequentialExecutor::Execute/MatMul"),
        ("op", "SequentialExecutor::Execute/Relu"),
    ]
    (warning,) = recording.warnings
    assert warning.code == "outside-of-runs"
    assert "session_initialization (900 \u00b5s)" in warning.message


def test_nodes_have_their_name_shapes_and_sizes(tmp_path: Path) -> None:
    args = {
        "input_type_shape": [{"float": [4, 16]}, {"int64": []}],
        "output_type_shape": [{"float16": [4, 32]}],
        "parameter_size": "2048",
        "activation_size": "264",
        "output_size": "256",
        "thread_scheduling_stats": {"main_thread": {}},
    }
    events = [node("/block.1/mm", 1003, 40, "MatMul", args=args), *run(1000, 100)]
    op = read(tmp_path, events).rows.filter(name="MatMul").row(0, named=True)
    assert op["attr.node"] == "/block.1/mm"
    assert op["attr.execution_provider"] == "CPUExecutionProvider"
    assert op["attr.input_shapes"] == [[4, 16], []]
    assert op["attr.input_dtypes"] == ["float32", "int64"]
    assert (op["attr.output_shapes"], op["attr.output_dtypes"]) == ([[4, 32]], ["float16"])
    assert (op["attr.parameter_bytes"], op["attr.input_bytes"], op["attr.output_bytes"]) == (
        *(2_048, 264, 256),
    )
    assert op["thread"] == 9


def test_nodes_of_a_sub_graph_lie_in_the_node_that_runs_it(tmp_path: Path) -> None:
    # Durations are cut to whole microseconds: the loop seems to end before what it holds.
    events = [
        node("body", 1012, 5, "Sin"),
        event("SequentialExecutor::Execute", 1011, 6),
        node("body", 1018, 9, "Sin"),
        event("SequentialExecutor::Execute", 1018, 8),
        node("loop", 1010, 16, "Loop"),
        node("end", 1027, 2, "Add"),
        *run(1000, 100),
    ]
    assert tree(trace_of(read(tmp_path, events), "net")) == [
        ("region", ""),
        ("op", "SequentialExecutor::Execute"),
        ("op", "SequentialExecutor::Execute/Loop"),
        ("op", "SequentialExecutor::Execute/Loop/SequentialExecutor::Execute"),
        ("op", "SequentialExecutor::Execute/Loop/SequentialExecutor::Execute/Sin"),
        ("op", "SequentialExecutor::Execute/Loop/SequentialExecutor::Execute#2"),
        ("op", "SequentialExecutor::Execute/Loop/SequentialExecutor::Execute#2/Sin"),
        ("op", "SequentialExecutor::Execute/Add"),
    ]


def test_kernels_lie_in_the_node_that_launched_them(tmp_path: Path) -> None:
    conv, relu = node("conv", 1003, 10, "Conv"), node("act", 1014, 5, "Relu")
    events = [
        conv,
        kernel("MemcpyHostToDevice", 1005, 2, op_name="Conv", parent_name=conv["name"]),
        kernel("void cudnn::conv<float>(int)", 1008, 30, op_name="Conv", parent_name=conv["name"]),
        relu,
        kernel("_Z4reluPfi", 1040, 4, op_name="Relu", parent_name=relu["name"]),
        *run(1000, 100),
    ]
    recording = read(tmp_path, events)
    device = recording.rows.filter(device=0).sort("start_ns")
    assert device.select("kind", "name", "stream", "thread").rows() == [
        ("memcpy", "memcpy", 13, None),
        ("kernel", "conv", 13, None),
        ("kernel", "relu", 13, None),
    ]
    assert device["attr.direction"].to_list() == ["HtoD", None, None]
    assert device["attr.full_name"].to_list()[1:] == [
        "void cudnn::conv<float>(int)",
        "relu(float*, int)",
    ]
    assert device["attr.grid"].to_list()[1] == [0, 1, 2]
    assert tree(trace_of(recording, "net")) == [
        ("region", ""),
        ("op", "SequentialExecutor::Execute"),
        ("op", "SequentialExecutor::Execute/Conv"),
        ("memcpy", "SequentialExecutor::Execute/Conv/memcpy"),
        ("kernel", "SequentialExecutor::Execute/Conv/conv"),
        ("op", "SequentialExecutor::Execute/Relu"),
        ("kernel", "SequentialExecutor::Execute/Relu/relu"),
    ]


@pytest.mark.parametrize("damage", ["cut", "no end", "gzip", "NaN"])
def test_what_is_whole_of_a_damaged_file_is_read(tmp_path: Path, damage: str) -> None:
    events = [*LOADING, node("mm", 1003, 40, "MatMul"), *run(1000, 100)]
    whole = text([*events, node("mm", 2000, 40, "MatMul", args={"input_type_shape": [{}]})])
    contents: dict[str, str | bytes] = {
        "cut": whole[: -len("]\n") - 30],
        "no end": text(events).rstrip("\n]") + ",\n",
        "gzip": gzip.compress(whole.encode(), mtime=0)[:-20],
        "NaN": text([*events, event("odd", float("nan"), 1)]),
    }
    recording = read(tmp_path, contents[damage])
    assert recording.roots.height == 1
    assert recording.rows["name"].to_list().count("MatMul") in (1, 2)
    assert ("damaged-times" if damage == "NaN" else "cut-short") in codes(recording)


def test_a_file_whose_events_have_no_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="no events with times"):
        read(tmp_path, text([event("model_run", None, 1)]))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[\n",
        '{"schemaVersion": 1, "traceEvents": [{"cat": "Node", "name": "model_run"}]}',
        '[{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2}]',
        '[{"cat": "Session", "name": "of the parliament", "ts": 1, "dur": 2}]',
        '"ID","Kernel Name"\n',
    ],
)
def test_other_files_are_not_recognized(tmp_path: Path, content: str) -> None:
    assert not OnnxRuntime().recognizes(source(tmp_path, content))


SPANS: st.SearchStrategy[Any] = st.recursive(
    st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=12
)


@given(SPANS, st.randoms(use_true_random=False))
def test_nodes_lie_in_the_nodes_that_they_were_in_before_times_were_cut(
    shape: tuple[Any, ...], random: Any
) -> None:
    """Random trees, written as ONNX Runtime does: at their ends, and times cut down."""
    events: list[Event] = []
    parents: dict[str, str | None] = {}

    def write(children: tuple[Any, ...], now: float, parent: str | None) -> float:
        name = f"n{len(parents)}"
        parents[name] = parent
        start = now + random.random() * 3 + 1
        end = start
        for child in children:
            end = write(child, end, name)
        end += random.random() * 3 + 1
        events.append(node(name, int(start), int(end - start), "Op"))
        return end

    write(shape, 100.0, None)
    found = {each.name: each for each in read_profile(text(events).encode()).events}
    for name, parent in parents.items():
        if parent is not None:
            inner, outer = (found[f"{each}_kernel_time"] for each in (name, parent))
            assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_profile_that_onnxruntime_writes(tmp_path: Path) -> None:
    runtime = pytest.importorskip(
        "onnxruntime", reason="needs onnxruntime: pip install onnxruntime"
    )
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install onnx")
    helper, float_ = onnx.helper, onnx.TensorProto.FLOAT
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "x"], ["m"], name="mm"),
            helper.make_node("Relu", ["m"], ["y"], name="act"),
        ],
        "net",
        [tensor("x", float_, [8, 8])],
        [tensor("y", float_, [8, 8])],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = runtime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    providers = ["CPUExecutionProvider"]
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=providers)
    for _ in range(3):
        session.run(None, {"x": np.ones((8, 8), np.float32)})
    found = Source(Path(session.end_profiling()))
    assert OnnxRuntime().recognizes(found)
    (recording,) = OnnxRuntime().read(found)
    assert isinstance(recording, Recording)
    assert recording.roots.height == 3
    paths = [path for _, path in tree(trace_of(recording, "net"))]
    assert paths[-2:] == [
        "SequentialExecutor::Execute/MatMul",
        "SequentialExecutor::Execute/Relu",
    ]
    op = recording.rows.filter(name="MatMul").row(0, named=True)
    assert (op["attr.node"], op["attr.input_shapes"]) == ("mm", [[8, 8], [8, 8]])
