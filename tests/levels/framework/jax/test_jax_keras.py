from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
import keras, numpy as np, tensorflow, xsp
layers = [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="conv"),
          keras.layers.BatchNormalization(name="bn"), keras.layers.Flatten(),
          keras.layers.Dense(4, name="head")]
model = keras.Sequential(layers, name="tiny")
model.compile("sgd", "mse")
x, y = np.ones((8, 8, 8, 3), "float32"), np.ones((8, 4), "float32")
with xsp.profile(levels=2, budget=0.3, progress=False) as prof:
    model.fit(x, y, batch_size=4, epochs=3, verbose=0)
    for _ in range(3):
        model(x)
rows = prof.trace.spans.filter(kind="layer")
found = [(row["name"], row["attributes"]["module_class"], row["attributes"]["framework"])
         for row in rows.to_dicts()]
measured = xsp.measure(lambda: model(x), levels=1, runs=2, budget=0.3, progress=False)
codes = [warning["code"] for warning in measured.metadata["warnings"]]
print(json.dumps([found, codes, str(prof.trace)]))
"""


@pytest.mark.slow
def test_keras_on_jax_has_the_layers_of_keras_and_training_steps() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    layers, codes, tree = json.loads(run.stdout.splitlines()[-1])
    assert ["tiny", "Sequential", "keras"] in layers
    assert ["conv", "Conv2D", "keras"] in layers
    assert "tiny training step" in tree
    assert "3 × tiny 8×8×8×3" in tree
    assert "input-unread" not in codes
