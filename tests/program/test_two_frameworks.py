from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xsp

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
keras = pytest.importorskip("keras", reason="needs Keras: pip install xsp[tensorflow]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        keras.config.backend() != "tensorflow", reason="needs Keras on TensorFlow in this process"
    ),
]


def module_in_a_keras_layer() -> Any:
    net = torch.nn.Linear(4, 4).eval()

    class KerasCalling(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(4, name="dense")

        def call(self, values: Any) -> Any:
            inner = net(torch.from_numpy(np.array(values)))
            return self.dense(keras.ops.convert_to_tensor(inner.numpy()))

    return KerasCalling()


def keras_model_in_a_module() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")], name="model")

    class TorchCalling(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, values: Any) -> Any:
            return self.linear(torch.from_numpy(np.array(model(values.numpy()))))

    return TorchCalling().eval()


def test_models_that_call_one_another_are_one_call_each_with_all_layers_in_one_tree() -> None:
    layer, module = module_in_a_keras_layer(), keras_model_in_a_module()
    array, tensor = np.ones((2, 4), np.float32), torch.ones(2, 4)
    with torch.no_grad():
        layer(array), module(tensor)
        with xsp.profile(levels=2, repeat=False, progress=False) as prof:
            for _ in range(400):
                layer(array)
                module(tensor)
    assert [group["calls"] for group in prof.trace.metadata["groups"]] == [400, 400]
    layers = {name: trace.spans.filter(kind="layer") for name, trace in prof.groups.items()}
    found = {name: set(rows["name"]) for name, rows in layers.items()}
    assert found == {
        # Nobody looks a Keras layer through for modules: these have no names.
        "KerasCalling 2×4": {"KerasCalling", "?", "dense"},
        "TorchCalling 2×4": {"TorchCalling", "model", "dense", "linear"},
    }
    for trace in prof.groups.values():
        trace.check()
