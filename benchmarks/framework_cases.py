"""Models of TensorFlow, ONNX Runtime and JAX: random weights, inputs made from a seed.

A case imports its framework when it is made, and no other one. Each knows how its framework's own
profiler is switched on around some steps.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what TensorFlow says of the machine

TOKENS, WIDTH, HEADS, BLOCKS = 32, 128, 4, 4  # of the small transformers
IMAGE = (3, 224, 224)


@dataclass(frozen=True, slots=True)
class Case:
    """One model with one input.

    Attributes:
        name: Name of the model.
        batch: The batch size.
        function: What is measured.
        arguments: What it is called with.
        profiled: Yields, inside of the framework's own profiler, what evaluates the model once.
        wait: Returns once the outputs that it is given are ready.
    """

    name: str
    batch: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    profiled: Callable[[], AbstractContextManager[Any]] = nullcontext
    wait: Callable[[Any], Any] = lambda outputs: outputs

    def evaluate(self) -> Any:
        """Call the function once, and wait for its outputs."""
        return self.wait(self.function(*self.arguments))


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def keras_transformer() -> Any:
    """Return a small transformer of Keras's layers, written as classes."""
    import keras  # noqa: PLC0415

    class Block(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = (keras.layers.LayerNormalization() for _ in range(2))
            self.attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
            self.grow = keras.layers.Dense(4 * WIDTH, activation="gelu")
            self.shrink = keras.layers.Dense(WIDTH)

        def call(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attention(y, y)
            return x + self.shrink(self.grow(self.norm2(x)))

    class Transformer(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [Block() for _ in range(BLOCKS)]
            self.head = keras.layers.Dense(10)

        def call(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    keras.utils.set_random_seed(0)
    return Transformer()


def _keras(name: str, batch: int) -> tuple[Any, Any]:
    """Return a model of Keras's, and its input."""
    import keras  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    if name == "transformer":
        return keras_transformer(), _numbers(batch, TOKENS, WIDTH)
    model = getattr(keras.applications, name)(weights=None)
    return model, _numbers(batch, *model.input_shape[1:])


def tensorflow_case(name: str, batch: int) -> Case:
    """Return a model of Keras's as a graph of TensorFlow."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow  # noqa: PLC0415

    model, x = _keras(name, batch)

    @tensorflow.function  # type: ignore[untyped-decorator]
    def predict(x: Any) -> Any:
        return model(x, training=False)

    tensors = (tensorflow.constant(x),)

    @contextmanager
    def profiled() -> Iterator[Callable[[], Any]]:
        with tempfile.TemporaryDirectory() as folder:
            tensorflow.profiler.experimental.start(folder)
            try:
                yield partial(predict, *tensors)
            finally:
                tensorflow.profiler.experimental.stop()

    return Case(name, batch, predict, tensors, profiled)


def eager_case(batch: int) -> tuple[Case, dict[str, tuple[Any, str]]]:
    """Return the transformer, called layer by layer on TensorFlow, and where its layers are.

    A layer is at an attribute of the one that holds it, by the layer's path in the trace.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow  # noqa: PLC0415

    model, x = _keras("transformer", batch)
    names = ("norm1", "attention", "norm2", "grow", "shrink")
    places: dict[str, tuple[Any, str]] = {
        f"blocks.{at}.{name}": (block, name)
        for at, block in enumerate(model.blocks)
        for name in names
    }
    places["head"] = (model, "head")
    return Case("transformer", batch, model, (tensorflow.constant(x),)), places


def _export(name: str, batch: int, file: str) -> None:
    """Write a model of PyTorch's as ONNX, by the exporter that traces."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if name == "ResNet-50":
        model, shape = torchvision.models.resnet50(weights=None), (batch, *IMAGE)
    else:
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, batch_first=True, activation="gelu"
        )
        model = torch.nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
        shape = (batch, TOKENS, WIDTH)
    inputs = (torch.zeros(shape),)
    torch.onnx.export(model.eval(), inputs, file, dynamo=False, input_names=["x"])


def onnxruntime_case(name: str, batch: int) -> Case:
    """Return a session of ONNX Runtime, of a model that another process exports from PyTorch."""
    import onnxruntime  # noqa: PLC0415

    folder = tempfile.TemporaryDirectory()
    file = str(Path(folder.name, f"{name}.onnx"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_export, name, batch, file).result()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder.name, "profile"))
    own = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    arguments = (None, {"x": _numbers(*session.get_inputs()[0].shape)})

    @contextmanager
    def profiled() -> Iterator[Callable[[], Any]]:
        folder.name  # noqa: B018  # it and the session's profile live as long as the case
        yield partial(own.run, *arguments)

    return Case(name, batch, session.run, arguments, profiled)


def jax_case(name: str, batch: int) -> Case:
    """Return a model of Keras's or Flax's, jitted; weights are arguments."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax  # noqa: PLC0415

    function, arguments = _flax(batch) if name == "Flax CNN" else _keras_on_jax(name, batch)

    @contextmanager
    def profiled() -> Iterator[Callable[[], Any]]:
        with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
            yield lambda: jax.block_until_ready(function(*arguments))

    return Case(name, batch, function, arguments, profiled, jax.block_until_ready)


def _keras_on_jax(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    import jax  # noqa: PLC0415

    model, x = _keras(name, batch)

    @jax.jit
    def predict(weights: Any, state: Any, x: Any) -> Any:
        return model.stateless_call(weights, state, x, training=False)[0]

    weights, state = model.trainable_variables, model.non_trainable_variables
    return predict, ([each.value for each in weights], [each.value for each in state], x)


def _flax(batch: int) -> tuple[Any, tuple[Any, ...]]:
    import flax.linen as nn  # noqa: PLC0415
    import jax  # noqa: PLC0415

    class Network(nn.Module):  # type: ignore[misc]  # as users of Flax see it
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for features in (32, 64, 128):
                x = nn.relu(nn.Conv(features, (3, 3))(x))
                x = nn.avg_pool(x, (2, 2), (2, 2))
            return nn.Dense(10)(x.mean(axis=(1, 2)))

    network, x = Network(), jax.numpy.asarray(_numbers(batch, 64, 64, 3))
    return jax.jit(network.apply), (network.init(jax.random.key(0), x), x)


CASES: Mapping[str, tuple[Callable[[str, int], Case], tuple[str, ...]]] = {
    "tensorflow": (tensorflow_case, ("transformer", "MobileNetV2", "EfficientNetB0", "ResNet50")),
    "onnxruntime": (onnxruntime_case, ("encoder", "ResNet-50")),
    "jax": (jax_case, ("Flax CNN", "ResNet50")),
}
