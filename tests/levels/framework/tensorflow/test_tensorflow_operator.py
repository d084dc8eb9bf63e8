from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from xsp.clock import SystemClock
from xsp.errors import ProviderError
from xsp.provider import SpanRows
from xsp_levels.framework.tensorflow.profiler.operator import (
    OperatorRecorder,
    OperatorRecords,
    operator_rows,
)

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")


@dataclass(frozen=True)
class Program:
    """A model of three layers, and functions that are traced once."""

    model: Any
    images: Any
    infer: Any
    train: Any
    nested: Any


@pytest.fixture(scope="module")
def program() -> Program:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            # Named, for Keras counts the layers that other tests have made.
            layers.Conv2D(64, 3, activation="relu", name="conv2d"),
            layers.Flatten(name="flatten"),
            layers.Dense(8, name="dense"),
        ],
        name="small",
    )
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    apart = tf.function(
        lambda given: tf.matmul(given, given), experimental_attributes={"_noinline": True}
    )

    def train(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(given, training=True) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(found, model.trainable_variables)
        return loss

    def nested(given: Any) -> Any:
        return apart(given) + 1.0

    training, nesting = tf.function(train), tf.function(nested)
    images, square = tf.ones((16, 8, 8, 3)), tf.ones((64, 64))
    infer = tf.function(model)
    for function, given in ((infer, images), (training, images), (nesting, square)):
        function(given)
    model(images)
    return Program(model, images, infer, training, lambda: nesting(square))


def record(work: Callable[[], Any], *, detail: bool = True) -> OperatorRecords:
    recorder = OperatorRecorder()
    recorder.start(SystemClock(), detail=detail)
    try:
        work()
    finally:
        records = recorder.stop()
    return records


def around(rows: SpanRows, name: str) -> list[str]:
    """Names of what is around the first operator of a name, outermost first."""
    names = dict(rows.filter(pl.col("id").is_not_null()).select("id", "name").rows())
    parents = dict(rows.filter(pl.col("id").is_not_null()).select("id", "parent_id").rows())
    parent = rows.filter(pl.col("name") == name)["parent_id"][0]
    found: list[str] = []
    while parent is not None:
        found.insert(0, names[parent])
        parent = parents[parent]
    return found


def test_operators_of_a_graph_lie_in_their_layers_in_the_function(program: Program) -> None:
    begin = SystemClock.now()
    records = record(lambda: program.infer(program.images))
    end = SystemClock.now()
    rows = operator_rows(records)
    convolution = next(name for name in rows["name"] if "Conv2D" in name)
    assert around(rows, convolution) == ["tf.function", "small", "conv2d"]
    function = rows.row(by_predicate=pl.col("name") == "tf.function", named=True)
    assert function["thread"] == threading.get_ident()
    assert begin <= function["start_ns"] < function["end_ns"] <= end
    inside = rows.filter(pl.col("kind") == "op", pl.col("name") != "tf.function")
    assert inside["start_ns"].min() >= function["start_ns"]
    assert inside["end_ns"].max() <= function["end_ns"]
    assert function["thread"] not in inside["thread"]


def test_clock_reads_around_an_operator_hold_its_time() -> None:
    clock = SystemClock()
    given = tf.ones((64, 64))
    tf.matmul(given, given)
    reads: list[int] = []

    def work() -> None:
        reads.append(clock.now())
        tf.matmul(given, given)
        reads.append(clock.now())

    rows = operator_rows(record(work, detail=False))
    assert rows["name"].to_list() == ["MatMul"]
    assert reads[0] <= rows["start_ns"][0] < rows["end_ns"][0] <= reads[1]


def test_a_saved_model_has_layers_from_its_scopes_and_says_what_was_fused(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    given = keras.Input((16, 16, 3))
    made = keras.layers.Conv2D(8, 3, name="conv_a", padding="same")(given)
    made = keras.layers.ReLU(name="relu_a")(made)
    model = keras.Model(
        given, keras.layers.GlobalAveragePooling2D(name="pool")(made), name="saved_net"
    )
    model.export(str(tmp_path / "saved_net"), verbose=False)
    del model, made, given
    gc.collect()
    loaded = tf.saved_model.load(str(tmp_path / "saved_net"))
    run = loaded.signatures["serving_default"]
    images = tf.zeros((4, 16, 16, 3))
    [name] = run.structured_input_signature[1]
    run(**{name: images})
    rows = operator_rows(record(lambda: run(**{name: images}), detail=True))
    layers = rows.filter(pl.col("kind") == "layer")
    assert {"saved_net", "conv_a", "pool"} <= set(layers["name"])
    paths = dict(layers.select("name", "attr.module_path").rows())
    assert (paths["saved_net"], paths["conv_a"]) == ("", "conv_a")
    fused = rows.filter(pl.col("name").str.contains("Fused")).row(0, named=True)
    assert fused["attr.fused_layers"] == ["relu_a"]
    assert fused["parent_id"] == dict(layers.select("name", "id").rows())["conv_a"]


def test_training_has_backward_layers_and_an_optimizer(program: Program) -> None:
    rows = operator_rows(record(lambda: program.train(program.images)))
    phases = rows.filter(pl.col("name") == "conv2d", pl.col("kind") == "layer")["attr.phase"]
    assert sorted(phases) == ["backward", "forward"]
    optimizer = rows.filter(pl.col("name") == "optimizer")
    assert optimizer["kind"].to_list() == ["region"]
    assert around(rows, "AssignSubVariableOp") == ["tf.function train", "optimizer"]


def test_operators_of_a_session_lie_in_its_run() -> None:
    square = tf.ones((64, 64)).numpy()
    graph = tf.Graph()
    with graph.as_default(), tf.name_scope("of_session"):
        given = tf.compat.v1.placeholder(tf.float32, (64, 64))
        made = tf.linalg.matmul(given, given)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(made, {given: square})
        rows = operator_rows(record(lambda: session.run(made, {given: square})))
    product = next(name for name in rows["name"] if "MatMul" in name)
    assert around(rows, product) == ["Session.run"]
    assert "of_session" in rows["attr.scope"].to_list()


def test_detail_run_has_shapes_and_memory(program: Program) -> None:
    rows = operator_rows(record(lambda: program.infer(program.images)))
    row = rows.row(by_predicate=pl.col("attr.node").str.ends_with("conv2d_1/Relu"), named=True)
    assert row["attr.input_shapes"][:2] == [[16, 8, 8, 3], [3, 3, 3, 64]]
    assert row["attr.input_dtypes"][0] == "float32"
    assert row["attr.output_shapes"] == [[16, 6, 6, 64]]
    large = tf.ones((512, 512))
    row = operator_rows(record(lambda: tf.matmul(large, large))).row(0, named=True)
    assert row["name"] == "MatMul"
    assert row["attr.allocated_bytes"] == 512 * 512 * 4
    assert row["attr.output_shapes"] == [[512, 512]]


def test_operators_of_a_real_model_lie_in_the_layers_that_their_nodes_name() -> None:
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3))
    call, images = tf.function(model), tf.ones((1, 32, 32, 3))
    call(images)
    rows = operator_rows(record(lambda: call(images)))
    layers = {layer.name for layer in model.layers}
    found = dict(rows.filter(pl.col("kind") == "layer").select("id", "name").rows())
    told = rows.filter(pl.col("kind") == "op", pl.col("attr.scope").is_not_null())
    right = [
        found.get(parent) == named[-1]
        for scope, parent in told.select("attr.scope", "parent_id").rows()
        if (named := [n for each in scope.split("/") if (n := each.removesuffix("_1")) in layers])
    ]
    assert len(right) >= len(layers) / 2
    assert sum(right) >= 0.99 * len(right)


def test_operators_of_xla_lie_in_the_layers_they_were_made_of(program: Program) -> None:
    compiled = tf.function(program.model, jit_compile=True)
    compiled(program.images)
    rows = operator_rows(record(lambda: compiled(program.images)))
    row = rows.row(by_predicate=pl.col("attr.hlo_op").str.starts_with("convolution"), named=True)
    assert around(rows, row["name"])[-2:] == ["small", "conv2d"]
    assert row["attr.output_shapes"] == [[16, 6, 6, 64]]
    assert [16, 8, 8, 3] in row["attr.input_shapes"]


def test_nothing_is_left_behind(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    capfd.readouterr()
    assert not record(lambda: program.infer(program.images)).warnings
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_folder_that_cannot_be_written_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    records = record(lambda: None)
    assert "set TMPDIR to a folder that can be written" in records.warnings[0]
    assert operator_rows(records).height == 0


def test_file_that_cannot_be_written_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def take_folder() -> None:
        [folder] = tmp_path.iterdir()
        folder.rmdir()
        folder.write_text("in the way")

    records = record(take_folder)
    assert "set TMPDIR" in records.warnings[0]


def test_profiler_that_the_user_starts_meanwhile_gets_its_way(
    program: Program, tmp_path: Path
) -> None:
    def work() -> None:
        program.infer(program.images)
        tf.profiler.experimental.start(str(tmp_path))
        tf.profiler.experimental.stop()

    records = record(work)
    assert "from the moment TensorFlow's profiler started" in records.warnings[0]
    assert "conv2d" in operator_rows(records)["name"]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_damaged_recording_makes_rows_or_a_plain_error(program: Program) -> None:
    records = record(lambda: program.infer(program.images))
    whole = operator_rows(records).height
    for kept in range(0, len(records.space), 997):
        assert rows_or_none(replace(records, space=records.space[:kept])) <= whole


def rows_or_none(records: OperatorRecords) -> int:
    """Return how many rows there are; without anchors there are none, and the error says so."""
    try:
        return operator_rows(records).height
    except ProviderError as error:
        if "recorded none of xsp's marks" not in str(error):
            raise
        return 0


def test_pytorch_and_tensorflow_are_recorded_at_once(program: Program) -> None:
    torch = pytest.importorskip("torch")
    kineto = pytest.importorskip("xsp_levels.framework.torch.profiler.operator")
    beside = kineto.OperatorRecorder()
    beside.start(SystemClock(), False)
    records = record(
        lambda: (program.infer(program.images), torch.ones(4, 4) @ torch.ones(4, 4)), detail=False
    )
    other = kineto.operator_rows(beside.stop())
    assert not records.warnings
    assert "conv2d" in operator_rows(records)["name"]
    assert "aten::mm" in other["name"]
