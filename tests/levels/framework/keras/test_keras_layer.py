"""Calls of tiny Keras models on TensorFlow: what is recorded of them, and what is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from xsp.clock import SystemClock
from xsp_levels.framework.keras.entry_point import call_entry_point
from xsp_levels.framework.keras.index import layer_index
from xsp_levels.framework.keras.layer import LayerRecorder
from xsp_levels.framework.keras.record import LayerRecords
from xsp_levels.framework.keras.row import layer_rows

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

DENSE_4_TO_8 = (4 * 8 + 8) * 4  # bytes


def recorded(function: Callable[[], object], **options: bool) -> LayerRecords:
    recorder = LayerRecorder()
    recorder.start(SystemClock(), **options)
    try:
        function()
    finally:
        recorder.disarm()
    return recorder.stop()


def names(records: LayerRecords) -> list[str]:
    return (
        layer_rows(records).sort("start_ns", "end_ns", descending=[False, True])["name"].to_list()
    )


@pytest.fixture
def mlp() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((4,)), layers.Dense(8, name="a"), layers.BatchNormalization(name="norm")],
        name="mlp",
    )


@pytest.fixture(scope="module")
def nested() -> Any:
    """A model of the user's own class, with lists, a model inside, and a layer called twice."""

    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = [keras.layers.Dense(8), keras.layers.Dense(8)]

        def call(self, x: Any) -> Any:
            return self.inner[1](self.inner[0](x))

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [Block(), Block()]
            self.twice = keras.layers.Dense(8)
            self.head = keras.Sequential([keras.layers.Dense(2, name="out")], name="head")

        def call(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(self.twice(self.twice(x)))

    return Net()


NESTED_PATHS = [
    "",
    *("blocks.0", "blocks.0.inner.0", "blocks.0.inner.1"),
    *("blocks.1", "blocks.1.inner.0", "blocks.1.inner.1"),
    *("twice", "twice", "head", "head.out"),
]


def test_layers_have_names_paths_classes_and_bytes(mlp: Any) -> None:
    rows = layer_rows(recorded(lambda: mlp(tf.ones((2, 4))))).sort("start_ns")
    assert rows["name"].to_list() == ["mlp", "a", "norm"]
    assert rows["attr.module_path"].to_list() == ["", "a", "norm"]
    assert rows["attr.module_class"].to_list() == ["Sequential", "Dense", "BatchNormalization"]
    assert rows["attr.parameter_bytes"].to_list() == [DENSE_4_TO_8 + 64, DENSE_4_TO_8, 64]
    assert rows["attr.buffer_bytes"].to_list() == [64, 0, 64]
    assert set(rows["attr.framework"]) == {"keras"}


def test_layers_lie_in_the_layers_that_call_them(nested: Any) -> None:
    nested(tf.ones((2, 8)))
    rows = layer_rows(recorded(lambda: nested(tf.ones((2, 8))))).sort("start_ns")
    assert rows["attr.module_path"].to_list() == NESTED_PATHS
    root = rows.row(0, named=True)
    assert (rows["start_ns"] >= root["start_ns"]).all()
    assert (rows["end_ns"] <= root["end_ns"]).all()
    assert rows["attr.call_index"].to_list()[7:9] == [0, 1]


def test_a_model_that_is_built_by_its_first_call_is_recorded_whole() -> None:
    model = keras.Sequential([keras.layers.Dense(8, name="a")], name="lazy")
    rows = layer_rows(recorded(lambda: model(tf.ones((2, 4)))))
    assert sorted(rows["name"]) == ["a", "lazy"]
    assert set(rows["attr.parameter_bytes"]) == {DENSE_4_TO_8}


def test_tracing_a_function_records_nothing(mlp: Any) -> None:
    function = tf.function(mlp)
    assert names(recorded(lambda: function(tf.ones((2, 4))))) == []


def test_a_call_that_raises_comes_through_and_is_recorded(mlp: Any) -> None:
    def call() -> None:
        with pytest.raises(ValueError, match="incompatible"):
            mlp(tf.ones((2, 5)))

    rows = layer_rows(recorded(call))
    assert rows["name"].sort().to_list() == ["a", "mlp"]
    assert rows["attr.error"].to_list() == ["ValueError", "ValueError"]


def test_threads_are_told_apart(mlp: Any) -> None:
    def call() -> None:
        threads = [threading.Thread(target=mlp, args=(tf.ones((2, 4)),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    records = recorded(call)
    assert sorted(names(records)) == sorted(["mlp", "a", "norm"] * 3)
    assert len([thread for thread in records.threads if len(thread.layer)]) == 3


def test_the_call_is_what_it_was_afterwards(mlp: Any) -> None:
    entry = call_entry_point()
    assert entry is not None
    before = keras.layers.Layer.__call__, keras.layers.Layer.__call__.__code__
    recorded(lambda: mlp(tf.ones((2, 4))))
    assert (keras.layers.Layer.__call__, keras.layers.Layer.__call__.__code__) == before
    assert entry.untouched


@pytest.fixture(scope="module")
def operators(nested: Any) -> list[str]:
    graph = tf.function(nested).get_concrete_function(tf.ones((2, 8))).graph
    return [each.name for each in graph.get_operations() if each.type == "MatMul"]


def test_operators_of_a_graph_are_found_in_their_layers(nested: Any, operators: list[str]) -> None:
    index = layer_index()
    paths = [index.path(name) for name in operators]
    dense = ["blocks.0.inner.0", "blocks.0.inner.1", "blocks.1.inner.0", "blocks.1.inner.1"]
    assert [".".join(path[1:]) for path in paths] == [*dense, "twice", "twice", "head.out"]
    assert {path[0] for path in paths} == {"Net"}
    known = index.describe(paths[-1])
    assert known is not None
    assert (known["module_class"], known["parameter_bytes"]) == ("Dense", (8 * 2 + 2) * 4)
