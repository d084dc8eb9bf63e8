"""What calls of TensorFlow change, noticed and put back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xsp.provider import Role
from xsp_levels.framework.tensorflow.program.state import keep, keep_random, parts, role

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

ROOM = 1 << 20


def test_a_written_variable_is_noticed_and_put_back() -> None:
    variable = tf.Variable([1.0, 2.0], trainable=False)
    kept = keep(variable, ROOM)
    assert not kept.changed()
    variable.assign_add([1.0, 1.0])
    assert kept.changed()
    kept.put_back()
    assert not kept.changed()
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_not_a_number_is_the_same_as_before() -> None:
    variable = tf.Variable(np.float32("nan"), trainable=False)
    kept = keep(variable, ROOM)
    variable.assign(variable.read_value())
    assert not kept.changed()


def test_a_parameter_is_trained_and_not_in_the_way() -> None:
    variable = tf.Variable(1.0)
    kept = keep(variable, ROOM)
    assert kept.trained
    assert kept.obstacle() == ""
    variable.assign(2.0)
    assert kept.obstacle() == "which is a parameter"


def test_a_value_too_large_to_keep_is_not_put_back() -> None:
    variable = tf.Variable(np.ones(1000, np.float32), trainable=False)
    kept = keep(variable, 10)
    variable.assign_add(np.ones(1000, np.float32))
    assert "too many" in kept.obstacle()
    kept.put_back()
    assert kept.changed()


def test_classes_have_their_roles() -> None:
    dense = keras.layers.Dense(2)
    dense.build((None, 4))
    assert role(type(dense)) is Role.MODEL
    assert role(type(dense.kernel)) is Role.VALUE
    assert role(tf.Variable) is Role.VALUE
    assert role(type(tf.function(abs))) is Role.MODEL
    assert role(type(keras.optimizers.SGD())) is Role.CLOSED
    assert role(type(tf.constant(1))) is Role.CLOSED
    assert role(dict) is None


def test_variables_of_keras_on_pytorch_are_not_tensorflows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dense = keras.layers.Dense(2)
    dense.build((1, 2))
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert role(type(dense.kernel)) is None
    assert role(tf.Variable) is Role.VALUE


def test_a_variable_of_keras_is_kept_by_its_value() -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4))
    kept = keep(layer.moving_mean, ROOM)
    assert not kept.trained
    layer(np.ones((2, 4), np.float32), training=True)
    assert kept.changed()
    kept.put_back()
    assert not layer.moving_mean.numpy().any()


def test_a_function_has_the_variables_of_its_graphs() -> None:
    variable = tf.Variable(1.0, name="held")

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> Any:
        return variable.assign_add(1.0)

    assert list(parts(add)) == []
    add()
    assert [value is variable for _, value in parts(add)] == [True]


def test_random_numbers_go_on_as_if_none_had_been_drawn() -> None:
    tf.random.set_seed(3)
    generator = tf.random.get_global_generator()
    put_back = keep_random()
    drawn = [tf.random.normal(()).numpy(), generator.normal(()).numpy()]
    put_back()
    tf.random.get_global_generator()
    assert generator.normal(()).numpy() == drawn[1]
