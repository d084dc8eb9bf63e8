"""Whole programs with TensorFlow, profiled."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import xsp

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

X, Y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)

# TensorFlow is imported in the middle of the block, and not by xsp.
LATE = """
import sys, xsp
with xsp.profile(levels=1, runs=2, repeat=False) as prof:
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    import tensorflow as tf
    double = tf.function(lambda x: x * 2, autograph=False)
    double(tf.ones(3))
    import keras
    model = keras.Sequential([keras.layers.Dense(2)], name="late")
    model(tf.ones((2, 3)))
assert set(prof.groups) == {"<lambda> 3", "late 2×3"}, list(prof.groups)
assert not any(type(finder).__name__ == "Imports" for finder in sys.meta_path)
assert type(tf.__spec__.loader).__module__ != "xsp_levels.imported"
"""


def made() -> Any:
    keras.utils.set_random_seed(7)
    layers = [
        *(keras.layers.Input((4,)), keras.layers.Dense(8, name="a")),
        *(keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(2, name="b")),
    ]
    model = keras.Sequential(layers, name="mlp")
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_layers_of_an_eager_model_with_the_users_spans_inside() -> None:
    class Marked(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            with xsp.span("mine"):
                return self.inner(x)

    layer = Marked()
    with xsp.profile(levels=("model", "framework"), runs=2) as prof:
        layer(X)
    [trace] = prof.groups.values()
    trace.check()
    spans = {row["span_id"]: row for row in trace.spans.to_dicts()}
    inner = next(row for row in spans.values() if row["name"] == "inner")
    mine = spans[inner["parent_id"]]
    assert mine["name"] == "mine"
    assert spans[mine["parent_id"]]["name"] == "Marked"


def test_a_function_is_measured() -> None:
    model = made()
    trace = xsp.measure(tf.function(model), tf.constant(X), levels=1, runs=2)
    trace.check()
    assert trace.spans["name"][0] == "predict"


@pytest.mark.slow
def test_tensorflow_may_be_imported_in_the_block() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
