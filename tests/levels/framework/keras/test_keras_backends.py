"""Keras on PyTorch and on JAX: the framework that runs records, with Keras's layers.

Which back end Keras runs on is decided when it is imported: each has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("keras")

MODEL = """
import keras, numpy as np
model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(8, name="a"), keras.layers.Dense(2, name="b")],
    name="mlp",
)
x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
"""

ON_TORCH = """
import xsp
with xsp.profile(levels=2, runs=2, replay=False) as prof:
    for _ in range(4):
        model(x)
[trace] = prof.groups.values()
layers = trace.spans.filter(trace.spans["kind"] == "layer")
known = layers["attributes"].struct.unnest()
assert layers["name"].to_list() == ["mlp", "a", "b"], layers["name"]
assert known["module_path"].to_list() == ["", "a", "b"]
assert known["module_class"].to_list() == ["Sequential", "Dense", "Dense"]
assert known["parameter_bytes"].to_list() == [232, 160, 72]
assert set(known["framework"]) == {"keras"}
assert list(prof.groups) == ["mlp 8×4"], list(prof.groups)
model.compile("sgd", "mse")
with xsp.profile(levels=1, runs=2, replay=False) as prof:
    model.fit(x, y, batch_size=4, verbose=0, epochs=3)
assert list(prof.groups) == ["mlp training step 4×4"], list(prof.groups)
names = set(prof.trace.spans["name"])
assert {"forward", "backward", "optimizer step"} <= names, names
"""

ON_JAX = """
import jax
from xsp.clock import SystemClock
from xsp_levels.framework.keras.index import layer_index
from xsp_levels.framework.keras.layer import LayerRecorder
from xsp_levels.framework.keras.row import layer_rows

def recorded(call):
    recorder = LayerRecorder()
    recorder.start(SystemClock())
    call()
    return layer_rows(recorder.stop())

x = jax.numpy.asarray(x)
assert sorted(recorded(lambda: model(x))["name"]) == ["a", "b", "mlp"]
compiled = jax.jit(lambda x: model.stateless_call(model.trainable_variables, [], x)[0])
assert recorded(lambda: compiled(x)).height == 0
index = layer_index()
assert index.path("jit(f)/mlp/a/dot_general") == ("mlp", "a")
assert index.path("jit(f)/b/dot_general") == ("mlp", "b")  # called without the model's scope
assert index.path("jit(f)/c/dot_general") == ()
"""


@pytest.mark.parametrize(("backend", "script"), [("torch", ON_TORCH), ("jax", ON_JAX)])
def test_keras_on_another_framework_has_its_layers(backend: str, script: str) -> None:
    pytest.importorskip(backend)
    done = subprocess.run(
        [sys.executable, "-c", MODEL + script],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
