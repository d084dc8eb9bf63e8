"""Resolution: a specification in, a callable subject out, made by the target's source."""

from __future__ import annotations

from types import ModuleType

from xsp.errors import UnknownTargetError
from xsp.target.source import function, jax, keras, onnx, pytorch, saved_model
from xsp.target.spec import Spec, Subject

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
    made: Subject = _SOURCES.get(spec.source, function).subject(spec)
    return made


def check(spec: Spec) -> None:
    """Verify that a model or a function takes its settings, without building or calling it.

    Raises:
        UnknownTargetError: There is no such target, or it does not take these settings.
        MeasurementError: A library or device that the target needs is missing.
    """
    prepare(spec)
    if spec.source:
        _SOURCES[spec.source].check(spec)
    else:
        function.subject(spec)
