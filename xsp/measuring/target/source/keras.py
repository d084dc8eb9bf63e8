"""Makes a callable subject of a model of `keras.applications`, or of a step of its training.

One model runs on three back ends. Compiled it is a `tf.function`, a function of `torch.compile`, or
one of `jax.jit`; as it is it is called eagerly, layer by layer. Unless something else is asked for
it is run as `model.predict` runs it: eagerly on PyTorch, and compiled on the others.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.source.library import (
    check_gpu,
    gpu_number,
    known,
    matching,
    require,
    version,
)
from xsp.measuring.target.spec import AUTOCAST, Spec, Subject
from xsp.text import suggest

_BACK_END = "KERAS_BACKEND"
_XLA = "jit_compile"  # as TensorFlow calls it
_RATE = 1e-6  # of learning: weights hardly change however often a step is made


def prepare(spec: Spec) -> None:
    """Import Keras on the back end that the specification asks for.

    Raises:
        MeasurementError: A library is not installed, or Keras runs on another back end already.
    """
    require(spec.runs_on, spec.target)
    with _chosen(spec.runs_on):
        keras = require("keras", spec.target)
    if keras.config.backend() != spec.runs_on:
        raise MeasurementError(
            f"Keras runs on {keras.config.backend()} in this process already and cannot change to "
            f"{spec.runs_on}: measure in a process of its own (without --no-isolate)"
        )


@contextmanager
def _chosen(back_end: str) -> Iterator[None]:
    """Let Keras choose a back end if it is imported in the `with` block."""
    if "keras" in sys.modules:
        yield
        return
    before = os.environ.get(_BACK_END)
    os.environ[_BACK_END] = back_end
    try:
        yield
    finally:
        os.environ.pop(_BACK_END)
        if before is not None:
            os.environ[_BACK_END] = before


def check(spec: Spec) -> None:
    """Verify that there is a model, and that it takes its settings, without building it.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: A library or device that the model needs is missing.
    """
    prepare(spec)
    from keras import applications  # noqa: PLC0415

    public = (name for name in dir(applications) if name[0].isupper())
    models = [name for name in public if callable(getattr(applications, name))]
    known(spec.inner, models, f"Keras {version('keras')}")
    for name, _ in spec.inputs:
        _check_setting(spec, name)
    check_gpu(spec, f"{spec.runs_on} {version(spec.runs_on)}", _gpus(spec.runs_on))
    _check_precision(spec)


def models(pattern: str = "") -> tuple[str, ...]:
    """Return the names of the models of `keras.applications` that a pattern matches.

    They are read off the file that exports them: neither Keras nor a back end is imported.

    Raises:
        UnknownTargetError: The pattern matches none.
        MeasurementError: Keras is not installed.
    """
    found = importlib.util.find_spec("keras")
    if found is None or found.origin is None:
        require("keras", f"keras:{pattern or '*'}")
        raise MeasurementError(
            "This Keras does not list its models. Reinstall it: pip install --force-reinstall keras"
        )
    exports = Path(found.origin).parent / "applications" / "__init__.py"
    names = [alias.asname or alias.name for alias in _imported(exports)]
    models = sorted(name for name in names if name[0].isupper())
    return matching(pattern or "*", models, f"Keras {metadata.version('keras')}")


def _imported(path: Path) -> Iterator[ast.alias]:
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            yield from statement.names


def subject(spec: Spec) -> Subject:
    """Return the model, or a step of its training, as a function to call.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: A library or device that the model needs is missing.
    """
    import keras  # noqa: PLC0415

    check(spec)
    # The same weights and inputs in every process, as values may change the path taken.
    keras.utils.set_random_seed(0)
    with _placed(spec), _policy(spec.precision):
        model = getattr(keras.applications, spec.inner)(weights=None)
        inputs = _inputs(model, spec.batch or 1, spec.precision)
        made = _training(spec, model, inputs) if spec.train else _prediction(spec, model, inputs)
    if spec.compiles:
        made()  # compiles: no step of it
    return made


def _check_setting(spec: Spec, name: str) -> None:
    if name == "weights":
        raise UnknownTargetError(
            f"{spec.target} comes with random weights: nothing is downloaded, and latencies do not "
            "depend on the weights. To measure weights of yours load them in a function, and "
            "measure path.py:function"
        )
    if name != _XLA or spec.runs_on != "tensorflow" or not spec.compiles:
        raise UnknownTargetError(
            f"{spec.target} takes no setting {name!r}{suggest(name, [_XLA])}; compiled on "
            f"TensorFlow it takes {_XLA}, whether by XLA; of others measure path.py:function, "
            "whose parameters are settings"
        )


def _check_precision(spec: Spec) -> None:
    if spec.precision == "float64" and spec.runs_on == "jax":
        import jax  # noqa: PLC0415

        if not jax.config.jax_enable_x64:
            raise UnknownTargetError(
                f"{spec.target}: JAX makes float32 of float64 unless it was told otherwise: set "
                "JAX_ENABLE_X64=1"
            )


def _gpus(framework: str) -> int:
    if framework == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415

        return len(tf.config.list_physical_devices("GPU"))
    if framework == "torch":
        import torch  # noqa: PLC0415

        return int(torch.cuda.device_count())
    import jax  # noqa: PLC0415

    return sum(device.platform == "gpu" for device in jax.devices())


def _placed(spec: Spec) -> AbstractContextManager[Any]:
    import keras  # noqa: PLC0415

    if not _gpus(spec.runs_on):
        return nullcontext()
    number = gpu_number(spec)
    device: AbstractContextManager[Any]
    device = keras.device("cpu:0" if number is None else f"gpu:{number}")
    return device


@contextmanager
def _policy(precision: str | None) -> Iterator[None]:
    """Let layers made in the `with` block have weights, and compute, in an element type."""
    import keras  # noqa: PLC0415

    before = keras.config.dtype_policy()
    if precision is not None:
        keras.config.set_dtype_policy("mixed_bfloat16" if precision == AUTOCAST else precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _inputs(model: Any, batch: int, precision: str | None) -> list[Any]:
    import keras  # noqa: PLC0415

    numbers = np.random.default_rng(0)
    shapes = [(batch, *each.shape[1:]) for each in model.inputs]
    chosen = None if precision == AUTOCAST else precision
    types = [chosen or each.dtype for each in model.inputs]
    return [
        keras.ops.convert_to_tensor(numbers.random(shape, np.float32), dtype=dtype)
        for shape, dtype in zip(shapes, types, strict=True)
    ]


def _prediction(spec: Spec, model: Any, inputs: list[Any]) -> Subject:
    function, args = model, tuple(inputs)
    if spec.compiles:
        function, args = _COMPILED[spec.runs_on](spec, model, args)
    return Subject(function, args, spec.name, "model", partial(_mode, spec))


def _training(spec: Spec, model: Any, inputs: list[Any]) -> Subject:
    """Return a step of training: cross entropy against class 0, and SGD."""
    import keras  # noqa: PLC0415

    classes = np.zeros(len(inputs[0]), np.int32)
    model.compile(
        optimizer=keras.optimizers.SGD(_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        run_eagerly=not spec.compiles,
        # On the CPU TensorFlow's "auto" is no XLA, and PyTorch's is no torch.compile.
        jit_compile=spec.runs_on == "torch" or _by_xla(spec) or "auto" if spec.compiles else False,
    )
    function = model.train_on_batch
    return Subject(function, (*inputs, classes), spec.name, "training", partial(_placed, spec))


@contextmanager
def _mode(spec: Spec) -> Iterator[None]:
    """Predict: on the device that was asked for, without gradients."""
    with ExitStack() as stack:
        stack.enter_context(_placed(spec))
        if spec.runs_on == "torch":
            import torch  # noqa: PLC0415

            stack.enter_context(torch.no_grad())
        yield


_Call = tuple[Callable[..., Any], tuple[Any, ...]]


def _by_tensorflow(spec: Spec, model: Any, args: tuple[Any, ...]) -> _Call:
    import tensorflow as tf  # noqa: PLC0415

    def predict(*inputs: Any) -> Any:
        return model(*inputs)

    return tf.function(predict, jit_compile=_by_xla(spec), autograph=False), args


def _by_torch(spec: Spec, model: Any, args: tuple[Any, ...]) -> _Call:
    import torch  # noqa: PLC0415

    return torch.compile(model), args


def _by_jax(spec: Spec, model: Any, args: tuple[Any, ...]) -> _Call:
    """Compile with the weights as arguments: XLA would compute with constants beforehand."""
    import jax  # noqa: PLC0415

    def predict(trained: list[Any], others: list[Any], *inputs: Any) -> Any:
        return model.stateless_call(trained, others, *inputs)[0]

    trained = [weight.value for weight in model.trainable_variables]
    others = [weight.value for weight in model.non_trainable_variables]
    return jax.jit(predict), (trained, others, *args)


_COMPILED = {"tensorflow": _by_tensorflow, "torch": _by_torch, "jax": _by_jax}


def _by_xla(spec: Spec) -> bool:
    return dict(spec.inputs).get(_XLA) in (True, 1, "yes", "true", "True")
