"""The callback for Keras, tried with a real fit."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import xsp
from xsp.integration.keras import XspCallback

BATCHES = 6


@pytest.mark.filterwarnings("ignore")
def test_callback_profiles_fit_with_its_validation_and_predict_apart(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    callback = XspCallback(levels=1, folder=tmp_path)
    data = np.zeros((4 * BATCHES, 8), np.float32), np.zeros((4 * BATCHES, 4), np.float32)
    model.fit(*data, batch_size=4, verbose=0, validation_data=data, callbacks=[callback])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.xsp"]
    trace = xsp.load(tmp_path / "fit.xsp")
    calls = {group["phase"]: group["calls"] for group in trace.metadata["groups"]}
    assert sum(count for phase, count in calls.items() if "train" in phase) == BATCHES
    model.predict(data[0], verbose=0, callbacks=[callback])
    assert callback.training.path == tmp_path / "predict.xsp"
