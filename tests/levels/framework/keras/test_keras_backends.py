"""Keras on PyTorch, in a process of its own: which back end Keras has is decided at its import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("keras")

PROGRAM = """
import keras, numpy as np
model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(8, name="a"), keras.layers.Dense(2, name="b")],
    name="mlp",
)
x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
import xsp
with xsp.profile(levels=2, runs=2, repeat=False) as prof:
    for _ in range(4):
        model(x)
[trace] = prof.groups.values()
layers = trace.spans.filter(trace.spans["kind"] == "layer")
known = layers["attributes"].struct.unnest()
assert layers["name"].to_list() == ["mlp", "a", "b"], layers["name"]
assert known["module_path"].to_list() == ["", "a", "b"]
assert known["module_class"].to_list()[1:] == ["Dense", "Dense"]
assert list(prof.groups) == ["mlp 8×4"], list(prof.groups)
model.compile("sgd", "mse")
with xsp.profile(levels=1, runs=2, repeat=False) as prof:
    model.fit(x, y, batch_size=4, verbose=0, epochs=3)
assert list(prof.groups) == ["mlp training step 4×4"], list(prof.groups)
names = set(prof.trace.spans["name"])
assert {"backward", "optimizer step"} <= names, names
"""


@pytest.mark.slow
def test_keras_on_pytorch_has_its_layers() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
