"""Resolves a specification to a callable subject, which the target's source makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from xsp.errors import UnknownTargetError
from xsp.garbage import uncollected_imports
from xsp.measuring.target.source import function, jax, keras, made, onnx, pytorch, saved_model, zoo
from xsp.measuring.target.spec import Spec, Subject, hint

# Modules that make subjects; each has `prepare`, `check` and `subject`.
_SOURCES: dict[str, ModuleType] = {
    **dict.fromkeys(("torchvision", "timm", "transformers"), pytorch),
    "keras": keras,
    "onnx": onnx,
    "tf-saved-model": saved_model,
    "jax": jax,
}


def prepare(spec: Spec) -> None:
    """Import the library that a model comes from; of a file nothing is known beforehand.

    Raises:
        UnknownTargetError: The framework that was asked for cannot run the target.
        MeasurementError: The library is not installed.
    """
    if spec.source:
        _ = spec.runs_on
        with uncollected_imports():
            _SOURCES[spec.source].prepare(spec)


def resolve(spec: Spec) -> Subject:
    """Return the subject that a model's or function's specification names.

    Raises:
        UnknownTargetError: There is no such target, or it does not take these options.
        MeasurementError: A library or device that the target needs is missing.
    """
    if spec.kind == "script":
        raise UnknownTargetError(f"{spec.target} is a script: it runs as it is, it is not called")
    prepare(spec)
    with uncollected_imports():
        subject: Subject = _source(spec).subject(spec)
    return subject


def check(spec: Spec) -> None:
    """Verify that a model or a function takes its settings, without building or calling it.

    Raises:
        UnknownTargetError: There is no such target, or it does not take these settings.
        MeasurementError: A library or device that the target needs is missing.
    """
    prepare(spec)
    if spec.source or spec.in_file[2]:
        _source(spec).check(spec)
    else:
        function.subject(spec)


def _source(spec: Spec) -> ModuleType:
    in_file = made if spec.in_file[2] else function
    return _SOURCES.get(spec.source, in_file)


def matching(text: str) -> tuple[str, ...]:
    """Return the targets that a source, a pattern, or a function that makes models stands for.

    Args:
        text: `torchvision` (its classifiers), `timm:resnet*`, `keras`, `onnx:FOLDER`,
            `path.py:function`, `path.py:function[mlp*]`, or a target.

    Raises:
        UnknownTargetError: There is none.
        MeasurementError: A library that has to say which there are is not installed.
    """
    source, _, pattern = text.partition(":")
    if source in _LISTED:
        return tuple(f"{source}:{name}" for name in _LISTED[source](pattern))
    spec = Spec(text)
    if spec.kind == "script":
        raise UnknownTargetError(f"{text} is a script, and a script is no model of a zoo")
    if spec.source:  # what is in the file of a jax: target only its own process imports
        path = spec.in_file[0]
        if not Path(path).is_file():
            raise UnknownTargetError(f"there is no file {path}{hint(path)}")
        return (text,)
    path, name, chosen = spec.in_file
    target = f"{path}:{name}"
    return tuple(f"{target}[{each}]" for each in made.models(target, chosen))


# How the models of a source are found by a pattern, which is empty for all.
_LISTED: dict[str, Callable[[str], tuple[str, ...]]] = {
    **{name: partial(zoo.models, name) for name in ("torchvision", "timm", "transformers")},
    "keras": keras.models,
    "onnx": onnx.models,
    "tf-saved-model": saved_model.models,
}
