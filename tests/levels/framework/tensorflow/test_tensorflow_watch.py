"""Programs with tiny TensorFlow models: which evaluations a watcher finds in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xsp.provider import ModelCall
from xsp_levels.framework.tensorflow.program.call import TensorFlowCall, model_call
from xsp_levels.framework.tensorflow.program.watcher import Watch

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

X, Y = np.ones((10, 4), np.float32), np.ones((10, 2), np.float32)
STEP = "mlp training step"


class Log:
    """Evaluations that write down what they are told."""

    by_hand = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.calls: list[ModelCall] = []
        self.marks: list[str] = []
        self.problems: list[str] = []

    def again(self, like: Any, work: Any, found_ns: int) -> tuple[Any, Any] | None:
        """Leave the call to `run`."""
        return None

    def run(self, call: ModelCall) -> Any:
        result = call()
        self.said.append(f"{call.subject} {call.phase}".strip())
        self.calls.append(call)
        return result

    def begin(self, call: ModelCall | None) -> None:
        assert call is not None
        self.said.append(f"begin {call.subject} {call.phase}")
        self.calls.append(call)

    def identify(self, call: ModelCall) -> None:
        raise AssertionError(call)

    def extend(self, until_ns: int | None = None, pauses: Any = ()) -> None:
        assert until_ns is not None

    def end(self, variant: str = "", calls: int = 1) -> None:
        self.said.append(f"end {variant} {calls}")

    def mark(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        assert start_ns <= end_ns
        assert not attributes
        self.marks.append(name)

    def problem(self, message: str) -> None:
        self.problems.append(message)


@contextmanager
def watched() -> Iterator[Log]:
    log = Log()
    watch = Watch(log)
    try:
        yield log
    finally:
        watch.close()


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


def test_a_call_of_a_model_is_an_evaluation_with_its_inputs(mlp: Any) -> None:
    with watched() as log:
        mlp(X)
    assert log.said == ["mlp"]
    assert log.calls[0].inputs == (((10, 4), "float32"),)
    assert log.calls[0].hazard() is None


def test_a_model_in_a_model_is_no_evaluation_of_its_own(mlp: Any) -> None:
    outer = keras.Sequential([mlp, keras.layers.Dense(1)], name="outer")
    with watched() as log:
        outer(X)
    assert log.said == ["outer"]


def test_a_model_that_is_built_by_its_call_is_found() -> None:
    with watched() as log:
        keras.Sequential([keras.layers.Dense(2)], name="lazy")(X)
    assert log.said == ["lazy"]


def test_models_of_one_name_are_told_apart() -> None:
    def same() -> Any:
        return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)], name="same")

    one, other = same(), same()
    with watched() as log:
        one(X)
        other(X)
        one(X)
    assert log.said == ["same", "same (2)", "same"]


def test_a_call_in_training_mode_is_not_repeated_unasked(mlp: Any) -> None:
    with watched() as log:
        mlp(X, training=True)
    assert "training=True" in (log.calls[0].hazard() or "")


def test_a_function_that_is_traced_anew_is_named_once_it_has_been_called() -> None:
    def grown(given: Any) -> Any:
        return given + 1.0

    call, named = tf.function(grown), []
    with watched() as log:
        for size in (2, 2, 3, 3):
            call(tf.ones(size))
            named.append(["the function grown was traced anew" in each for each in log.problems])
    assert named == [[], [], [True], [True]]


def test_each_step_of_predict_is_an_evaluation(mlp: Any) -> None:
    with watched() as log:
        mlp.predict(X, batch_size=5, verbose=0)
        mlp.predict_on_batch(X)
    assert log.said == ["mlp"] * 3
    assert log.calls[0].inputs == (((5, 4), "float32"),)
    assert log.calls[0].hazard() is None
    assert log.marks.count("data loading") == 2


def test_each_step_of_fit_and_evaluate_is_an_evaluation(mlp: Any) -> None:
    mlp.compile("sgd", "mse")
    with watched() as log:
        mlp.fit(X, Y, batch_size=5, epochs=2, validation_data=(X, Y), verbose=0)
        mlp.train_on_batch(X, Y)
    assert log.said == [*[STEP, STEP, "mlp test step", "mlp test step"] * 2, STEP]
    assert "iterator" in (log.calls[0].hazard() or "")


def test_fit_without_graphs_has_parts_in_its_steps(mlp: Any) -> None:
    mlp.compile(keras.optimizers.SGD(), "mse", run_eagerly=True)
    with watched() as log:
        mlp.fit(X, Y, batch_size=5, verbose=0)
        mlp.evaluate(X, Y, batch_size=10, verbose=0)
    begin, end = f"begin {STEP}", "end SGD 1 1"
    assert log.said == [begin, end, begin, end, "mlp"]


def test_a_loop_with_a_tape_has_steps_until_the_optimizer(mlp: Any) -> None:
    with watched() as log:
        trained_by_hand(mlp)
    assert log.said == [f"begin {STEP}", "end SGD 1 1"] * 2
    assert log.marks[:2] == ["start of data loading", "data loading"]
    assert log.marks[-1] == "end of data loading"


def test_watched_training_ends_with_the_same_bits(mlp: Any) -> None:
    twin = keras.models.clone_model(mlp)
    twin.set_weights(mlp.get_weights())
    trained_by_hand(twin)
    with watched():
        trained_by_hand(mlp)
    for one, other in zip(mlp.get_weights(), twin.get_weights(), strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_function_is_an_evaluation_by_its_own_name() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def double(x: Any) -> Any:
        return x * 2

    with watched() as log:
        double(X)
        double.get_concrete_function(tf.constant(X))(tf.constant(X))
    assert log.said[0] == "double"
    assert len(log.said) == 2
    assert log.calls[0].hazard() is None


def test_a_function_that_trains_is_a_training_step_from_its_first_call_on(mlp: Any) -> None:
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function  # type: ignore[untyped-decorator]
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((mlp(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, mlp.trainable_variables)
        optimizer.apply_gradients(zip(gradients, mlp.trainable_variables, strict=True))

    with watched() as log:
        train(X, Y)
        train(X, Y)
    assert log.said == ["train training step"] * 2
    assert "writes to variables" in (log.calls[1].hazard() or "")


def test_tracing_a_function_is_no_evaluation(mlp: Any) -> None:
    with watched() as log:
        tf.function(mlp).get_concrete_function(tf.constant(X))
    assert log.said == []


def test_looking_at_a_function_does_not_trace_it() -> None:
    traced = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])  # type: ignore[untyped-decorator]
    def double(x: Any) -> Any:
        traced.append("traced")
        return x * 2

    assert model_call(double, (X[0],), {}) is not None
    assert traced == []


def test_functions_from_a_file_are_evaluations(tmp_path: Path) -> None:
    class Doubles(tf.Module):  # type: ignore[misc]
        @tf.function  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return x * 2

    made = Doubles()
    made(tf.constant(X))
    tf.saved_model.save(made, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    with watched() as log:
        loaded(tf.constant(X))
    assert len(log.said) == 1
    assert log.said[0].startswith("SavedModel")
    assert log.calls[0].hazard() is None


def test_a_session_runs_evaluations_named_by_what_is_fetched() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.float32, (None, 4), name="given")
        weights = v1.get_variable("weights", (4, 2))
        made = tf.matmul(given, weights, name="made")
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(made))
        session.run(v1.global_variables_initializer())
        with watched() as log:
            session.run(made, {given: X})
            session.run(train, {given: X})
    assert log.said == ["made", "GradientDescent training step"]
    assert log.calls[0].inputs == (((10, 4), "float32"),)
    assert [call.hazard() is None for call in log.calls] == [True, False]


def test_what_a_call_raises_comes_through_and_ends_nothing_else(mlp: Any) -> None:
    with watched() as log:
        with pytest.raises(ValueError, match="incompatible"):
            mlp(np.ones((2, 5), np.float32))
        mlp(X)
    assert log.said == ["mlp"]


def test_a_step_that_raises_is_closed(mlp: Any) -> None:
    with watched() as log:
        with tf.GradientTape(), pytest.raises(ValueError, match="incompatible"):
            mlp(np.ones((2, 5), np.float32))
        mlp(X)
    assert log.said == [f"begin {STEP}", "end without backward 1", "mlp"]


def test_calls_from_a_generator_and_from_threads_are_found(mlp: Any) -> None:
    def batches() -> Iterator[Any]:
        for _ in range(2):
            yield mlp(X)

    with watched() as log:
        list(batches())
        threads = [threading.Thread(target=mlp, args=(X,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.said == ["mlp"] * 5


def test_gradients_outside_of_a_training_step_are_parts() -> None:
    with watched() as log:
        x = tf.Variable(2.0)
        with tf.GradientTape() as tape:
            y = x * x
        tape.gradient(y, x)
    assert log.said == []
    assert log.marks == ["backward"]


def test_a_program_that_marks_by_hand_is_told_of_parts_alone(mlp: Any) -> None:
    log = Log()
    log.by_hand = True
    watch = Watch(log)
    try:
        trained_by_hand(mlp)
    finally:
        watch.close()
    assert log.said == []
    assert {"backward", "optimizer step", "data loading"} <= set(log.marks)


def test_a_given_model_or_function_is_known(mlp: Any) -> None:
    known = model_call(mlp, (X,), {})
    assert isinstance(known, TensorFlowCall)
    assert (known.subject, known.inputs) == ("mlp", (((10, 4), "float32"),))
    function = model_call(tf.function(mlp), (X,), {})
    assert function is not None
    assert function.subject == "mlp"
    assert model_call(len, ("",), {}) is None
