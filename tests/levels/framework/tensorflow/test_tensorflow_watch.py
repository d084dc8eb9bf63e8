"""Programs with tiny TensorFlow models: which calls, steps and parts their traces have."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xsp
from xsp_levels.framework.keras.calls import KerasCall
from xsp_levels.framework.tensorflow.program.call import model_call

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

X, Y = np.ones((10, 4), np.float32), np.ones((10, 2), np.float32)


def profiled(levels: Any = "model") -> xsp.profile:
    return xsp.profile(levels=levels, repeat=False, progress=False)


def calls(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def counts(prof: xsp.profile) -> dict[str, int]:
    """Return how often each span outside of calls came; first ones are told without "first"."""
    found: dict[str, int] = {}
    for row in prof.trace.spans.iter_rows(named=True):
        name = row["name"].removeprefix("first ")
        found[name] = found.get(name, 0) + round(row["attributes"]["calls"])
    return found


@pytest.fixture
def mlp() -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(2), keras.layers.BatchNormalization()]
    return keras.Sequential(layers, name="mlp")


def trained_by_hand(model: Any) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    for x, y in tf.data.Dataset.from_tensor_slices((X, Y)).batch(5):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def test_calls_of_a_model_are_a_group_by_name_and_shape(mlp: Any) -> None:
    with profiled() as prof:
        for _ in range(3):
            mlp(X)
        mlp(X[:2])
    assert calls(prof) == {"mlp 10×4": 3, "mlp 2×4": 1}


def test_models_of_one_name_are_told_apart() -> None:
    def same() -> Any:
        return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)], name="same")

    one, other = same(), same()
    with profiled() as prof:
        one(X)
        other(X)
        one(X)
    assert calls(prof) == {"same 10×4": 2, "same (2) 10×4": 1}


def test_a_function_that_is_traced_anew_is_named() -> None:
    def grown(given: Any) -> Any:
        return given + 1.0

    call, same = tf.function(grown), tf.function(grown)
    with profiled() as prof:
        for size in (2, 2, 3, 3):
            call(tf.ones(size))
            same(tf.ones(4))
    told = [p for p in map(str, prof.trace.warnings) if "TensorFlow traced grown again" in p]
    assert len(told) == 1


def test_predict_calls_the_model_once_a_batch_and_loads_data(mlp: Any) -> None:
    with profiled() as prof:
        mlp.predict(X, batch_size=5, verbose=0)
        mlp.predict_on_batch(X)
    assert calls(prof) == {"mlp 5×4": 2, "mlp 10×4": 1}
    assert counts(prof)["data loading"] == 2


def test_fit_and_evaluate_have_training_and_test_steps(mlp: Any) -> None:
    mlp.compile("sgd", "mse")
    with profiled() as prof:
        mlp.fit(X, Y, batch_size=5, epochs=2, validation_data=(X, Y), verbose=0)
    found = {name.rpartition(" step")[0]: count for name, count in calls(prof).items()}
    assert found == {"mlp training": 4, "mlp test": 4}


def test_fit_without_graphs_has_parts_in_its_steps(mlp: Any) -> None:
    mlp.compile(keras.optimizers.SGD(), "mse", run_eagerly=True)
    with profiled() as prof:
        mlp.fit(X, Y, batch_size=5, verbose=0)
        mlp.evaluate(X, Y, batch_size=10, verbose=0)
    assert calls(prof) == {"mlp training step 5×4": 2, "mlp 10×4": 1}
    assert counts(prof)["backward"] == counts(prof)["optimizer step"] == 2


def test_a_loop_with_a_tape_has_steps_with_all_their_parts(mlp: Any) -> None:
    with profiled() as prof:
        trained_by_hand(mlp)
    assert calls(prof) == {"mlp training step 5×4": 2}
    found = counts(prof)
    assert found["backward"] == found["optimizer step"] == found["data loading"] == 2
    assert found["start of data loading"] == found["end of data loading"] == 1


def test_profiled_training_ends_with_the_same_bits(mlp: Any) -> None:
    twin = keras.models.clone_model(mlp)
    twin.set_weights(mlp.get_weights())
    trained_by_hand(twin)
    with profiled(2):
        trained_by_hand(mlp)
    for one, other in zip(mlp.get_weights(), twin.get_weights(), strict=True):
        assert one.tobytes() == other.tobytes()


def test_functions_and_their_traces_are_called_by_name() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def double(x: Any) -> Any:
        return x * 2

    concrete = double.get_concrete_function(tf.constant(X))
    with profiled() as prof:
        double(X)
        concrete(tf.constant(X))
    assert sorted(calls(prof).values()) == [1, 1]
    assert all("double" in name for name in calls(prof))


@pytest.mark.parametrize("traced_before", [False, True])
def test_a_function_that_trains_is_a_training_step(mlp: Any, traced_before: bool) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(mlp.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((mlp(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, mlp.trainable_variables)
        optimizer.apply_gradients(zip(gradients, mlp.trainable_variables, strict=True))

    if traced_before:
        train(X, Y)
    with profiled() as prof:
        for _ in range(3):
            train(X, Y)
    assert calls(prof) == {"train training step 10×4": 3}


def test_tracing_a_function_is_no_call(mlp: Any) -> None:
    with profiled() as prof, xsp.span("tracing"):
        tf.function(mlp).get_concrete_function(tf.constant(X))
    assert calls(prof) == {}


def test_functions_from_a_file_are_called(tmp_path: Path) -> None:
    class Doubles(tf.Module):  # type: ignore[misc]
        @tf.function  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return x * 2

    made = Doubles()
    made(tf.constant(X))
    tf.saved_model.save(made, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    with profiled() as prof:
        loaded(tf.constant(X))
    [name] = calls(prof)
    assert name.startswith("SavedModel")


def test_what_a_call_raises_comes_through(mlp: Any) -> None:
    with profiled() as prof:
        with tf.GradientTape(), pytest.raises(ValueError, match="incompatible"):
            mlp(np.ones((2, 5), np.float32))
        mlp(X)
    assert calls(prof)["mlp 10×4"] == 1


def test_calls_from_a_generator_and_from_threads_are_counted(mlp: Any) -> None:
    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield mlp(X)

    with profiled() as prof:
        list(batches())
        threads = [threading.Thread(target=mlp, args=(X,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls(prof) == {"mlp 10×4": 5}


def test_layers_and_operators_lie_in_the_calls(mlp: Any) -> None:
    mlp(X), mlp.predict_on_batch(X)
    with profiled(2) as prof:
        for _ in range(40):
            mlp(X)
            mlp.predict_on_batch(X)
    assert sorted(calls(prof).values()) == [40, 40]
    for trace in prof.groups.values():
        trace.check()
        layers = set(trace.spans.filter(kind="layer")["name"])
        assert {"dense", "batch_normalization"} <= {name.rstrip("_0123456789") for name in layers}
        assert trace.spans.filter(kind="op").height


def test_brief_operators_are_counted_and_self_times_sum_to_the_block() -> None:
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)]
    )
    model.compile("adam", "mse")
    with profiled(2) as prof:  # after some hundred steps TensorFlow knows what is brief
        model.fit(np.ones((400, 4), "f4"), np.ones((400, 2), "f4"), batch_size=1, verbose=0)
    prof.trace.check()
    spans = prof.trace.spans
    assert spans["self_ns"].sum() == pytest.approx(spans["latency_ns"][0], rel=1e-6)
    steps = spans.filter(name="optimizer")["attributes"].struct.field("calls").item()
    updates = spans.filter(name="AssignSubVariableOp")["attributes"].struct.field("calls").item()
    assert updates == 4 * steps  # of two kernels and two biases


def test_the_programs_own_profiler_works_in_the_block(mlp: Any, tmp_path: Path) -> None:
    with profiled(2) as prof:
        for number in range(40):
            if number in (2, 20):
                tf.profiler.experimental.start(str(tmp_path))
            mlp(X)
            if number in (4, 30):
                tf.profiler.experimental.stop()
    assert calls(prof) == {"mlp 10×4": 40}


def test_a_model_dies_when_the_program_lets_go_of_it() -> None:
    with profiled(2) as prof:
        model = keras.Sequential([keras.layers.Dense(2)], name="short")
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
        for _ in range(5):
            model(X)
        gone = weakref.ref(model)
        del model
    gc.collect()
    assert gone() is None  # within the block, a window of layers keeps those that it recorded
    assert prof.trace.metadata["groups"]


def test_a_call_is_repeated_unasked_only_if_it_changes_nothing(mlp: Any) -> None:
    assert KerasCall.of(mlp, (X,), {}).hazard() is None
    assert "training=True" in str(KerasCall.of(mlp, (X,), {"training": True}).hazard())
    held = tf.Variable(1.0)
    writing, plain = tf.function(held.assign_add), tf.function(lambda x: held + x)
    writing(1.0), plain(1.0)
    hazards = [
        call and call.hazard() for call in (model_call(f, (1.0,), {}) for f in (writing, plain))
    ]
    assert "writes to variables" in str(hazards[0])
    assert hazards[1] is None


@pytest.mark.parametrize("changes", ["variable", "list"])
def test_a_layer_that_changes_is_not_repeated_and_its_variables_are_as_they_were(
    changes: str,
) -> None:
    class Counts(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.seen = keras.layers.Dense(2), list[int]()
            self.count = self.add_weight(
                shape=(), initializer="zeros", trainable=False, name="count"
            )

        def call(self, x: Any) -> Any:
            if changes == "variable":
                self.count.assign_add(1.0)
            else:
                self.seen.append(1)
            return self.dense(x)

    layer = Counts()
    layer(X)
    before = float(layer.count)
    with xsp.profile(levels=1, runs=2, progress=False) as prof:
        layer(X)
    [message] = [p.message for p in prof.trace.warnings if p.code == "not-repeated"]
    assert {"variable": "count", "list": "seen"}[changes] in message
    assert float(layer.count) == before + (changes == "variable")


def test_traces_of_functions_are_parts_and_those_that_are_traced_again_say_why() -> None:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def inner(x: Any) -> Any:
        return x + 1

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def outer(x: Any, factor: int = 1) -> Any:
        return inner(x) * factor

    with profiled() as prof:
        for size in (2, 2, 3, 3):
            outer(tf.ones(size))
        outer(tf.ones(3), factor=2)
    spans = list(prof.trace.spans.iter_rows(named=True))
    assert [row["name"] for row in spans if row["name"].startswith("trace ")] == ["trace outer"]
    again = [row for row in spans if row["name"] == "retrace outer"]
    assert [row["attributes"]["recompile_reason"] for row in again] == [
        "float32 (2,) became float32 (3,)",
        "Literal[1] became Literal[2]",
    ]
    names = {row["span_id"]: row["name"] for row in spans}
    assert names[again[0]["parent_id"]] == "recompiled call of outer 3"


def test_a_function_that_makes_its_variables_is_traced_twice_and_not_again() -> None:
    made: list[Any] = []

    @tf.function  # type: ignore[untyped-decorator]
    def counting(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(1.0))
        return x * made[0]

    with profiled() as prof:
        for _ in range(3):
            counting(tf.ones(2))
    assert counts(prof)["trace counting"] == 2
    assert "retrace counting" not in counts(prof)
