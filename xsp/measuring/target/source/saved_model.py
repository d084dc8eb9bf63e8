"""Makes a callable subject of a TensorFlow SavedModel: a signature with random inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.source.library import check_gpu, gpu_number, require
from xsp.measuring.target.source.size import Declared, random_inputs, refuse
from xsp.measuring.target.spec import SAVED_MODEL, Spec, Subject
from xsp.text import suggest

_SIGNATURE = "signature"  # the setting that chooses one
_DEFAULT = "serving_default"


def prepare(spec: Spec) -> None:
    """Import TensorFlow, if there is a model for it.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: TensorFlow is not installed.
    """
    _refuse(spec)
    require("tensorflow", spec.target)


def check(spec: Spec) -> None:
    """Verify that there is a model, and that it takes its settings.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: The device is not to be had here.
    """
    prepare(spec)
    subject(spec)


def models(pattern: str) -> tuple[str, ...]:
    """Return the folders of SavedModels in a folder, or the one folder.

    Raises:
        UnknownTargetError: There is none.
    """
    path = Path(pattern)
    folders = [path] if (path / SAVED_MODEL).is_file() else sorted(path.glob("*/"))
    found = tuple(str(folder) for folder in folders if (folder / SAVED_MODEL).is_file())
    if not found:
        raise UnknownTargetError(f"{path} is no SavedModel, and there is none in it")
    return found


def subject(spec: Spec) -> Subject:
    """Return a signature of the model as a function to call.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: TensorFlow cannot load it, or the device is not to be had here.
    """
    import tensorflow as tf  # noqa: PLC0415

    gpus = len(tf.config.list_physical_devices("GPU"))
    check_gpu(spec, f"TensorFlow {tf.__version__}", gpus)
    mode = partial(_placed, gpu_number(spec)) if gpus else nullcontext
    with mode():
        model = _loaded(spec)
        signature = _signature(spec, model)
        inputs = _inputs(spec, signature)
    return Subject(_call(spec, model, signature), (), spec.name, "model", mode, inputs)


def _call(spec: Spec, model: Any, signature: Any) -> Callable[..., Any]:
    """Return a function that calls a signature, which is `__wrapped__`, and keeps its model."""

    def call(**inputs: Any) -> Any:
        return signature(**inputs)

    call.__name__ = spec.name
    vars(call).update(__wrapped__=signature, model=model)  # the weights live as long as the model
    return call


def _refuse(spec: Spec) -> None:
    path = Path(spec.inner)
    if not (path / "saved_model.pb").is_file() and not (path / "saved_model.pbtxt").is_file():
        what = "there is no folder" if not path.is_dir() else "there is no saved_model.pb in"
        raise UnknownTargetError(
            f"{what} {path}: a SavedModel is a folder that tf.saved_model.save or Keras's "
            "model.export wrote; of a file .keras measure path.py:function, which loads it"
        )
    refuse(
        spec,
        train="a signature is a function, and no model to train",
        compiled="its signatures are graphs already",
        precision="element types are a part of the model",
    )


def _placed(number: int | None) -> AbstractContextManager[Any]:
    import tensorflow as tf  # noqa: PLC0415

    device: AbstractContextManager[Any]
    device = tf.device("/CPU:0" if number is None else f"/GPU:{number}")
    return device


def _loaded(spec: Spec) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    try:
        return tf.saved_model.load(spec.inner)
    except (tf.errors.OpError, OSError, ValueError) as error:
        raise MeasurementError(f"TensorFlow cannot load {spec.inner}: {error}") from error


def _signature(spec: Spec, model: Any) -> Any:
    names = list(model.signatures)
    asked = dict(spec.inputs).get(_SIGNATURE)
    if not names:
        raise UnknownTargetError(
            f"{spec.target} has no signature: save it with tf.saved_model.save(model, folder, "
            "signatures=function.get_concrete_function(...)), or call it in a function of your "
            "own, and measure path.py:function"
        )
    chosen = asked or (_DEFAULT if _DEFAULT in names or len(names) > 1 else names[0])
    if chosen not in names:
        choice = f"--set {_SIGNATURE}={' or '.join(names)}"
        raise UnknownTargetError(
            f"{spec.target} has no signature {chosen!r}{suggest(str(chosen), names)}: {choice}"
        )
    return model.signatures[chosen]


def _inputs(spec: Spec, signature: Any) -> dict[str, Any]:
    import tensorflow as tf  # noqa: PLC0415

    wanted = signature.structured_input_signature[1]
    declared = [
        Declared(name, each.dtype.name, tuple(_shape(spec, name, each)))
        for name, each in wanted.items()
    ]
    made = random_inputs(spec, declared, own=(_SIGNATURE,))
    return {name: tf.constant(value) for name, value in made.items()}


def _shape(spec: Spec, name: str, each: Any) -> list[int | None]:
    if each.shape.rank is None:
        raise UnknownTargetError(
            f"{spec.target} takes {name} of any shape: call it in a function of your own, and "
            "measure path.py:function"
        )
    shape: list[int | None] = each.shape.as_list()
    return shape
