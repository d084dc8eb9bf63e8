"""Makes a callable subject of an ONNX file: the run of a session with random inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.source.library import asked_threads, gpu_number, require, version
from xsp.measuring.target.source.size import Declared, random_inputs, refuse
from xsp.measuring.target.spec import Spec, Subject, hint
from xsp.text import suggest

_PROVIDER = "provider"  # the setting that chooses an execution provider
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# ONNX's names of element types whose NumPy names differ.
_TYPES = {"float": "float32", "double": "float64"}


def prepare(spec: Spec) -> None:
    """Import ONNX Runtime, if there is a file for it.

    Raises:
        UnknownTargetError: There is no such file, or it does not take these settings.
        MeasurementError: ONNX Runtime is not installed.
    """
    _refuse(spec)
    require("onnxruntime", spec.target)


def check(spec: Spec) -> None:
    """Verify that the file is a model, and that it takes its settings, without optimizing it.

    Raises:
        UnknownTargetError: There is no such file, or the model does not take these settings.
        MeasurementError: The model, or its execution provider, is not to be had here.
    """
    prepare(spec)
    _inputs(spec, _session(spec, optimized=False))


def models(pattern: str) -> tuple[str, ...]:
    """Return the files of a folder, those that a pattern matches, or the one file.

    Raises:
        UnknownTargetError: There is none.
    """
    path = Path(pattern)
    if path.is_file():
        return (pattern,)
    found = sorted(path.glob("*.onnx") if path.is_dir() else path.parent.glob(path.name))
    if not found:
        raise UnknownTargetError(f"there is no ONNX file {path}{'/*.onnx' * path.is_dir()}")
    return tuple(map(str, found))


def subject(spec: Spec) -> Subject:
    """Return the run of a session, which was made for it, as a function to call.

    Raises:
        UnknownTargetError: There is no such file, or the model does not take these settings.
        MeasurementError: The model, or its execution provider, is not to be had here.
    """
    session = _session(spec, optimized=True)
    return Subject(session.run, (None, _inputs(spec, session)), spec.name, "model")


def _session(spec: Spec, *, optimized: bool) -> Any:
    import onnxruntime as ort  # noqa: PLC0415

    path = Path(spec.inner)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors
    threads = asked_threads()
    if threads is not None:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = _providers(spec)
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except _failures() as error:
        raise MeasurementError(
            f"ONNX Runtime {version('onnxruntime')} does not take {path}: "
            f"{str(error).strip() or type(error).__name__}"
        ) from error


def _refuse(spec: Spec) -> None:
    path = Path(spec.inner)
    if path.is_dir() or not path.exists():
        raise UnknownTargetError(f"there is no file {path}{hint(str(path))}")
    refuse(
        spec,
        train="ONNX Runtime's sessions predict, and train nothing",
        compiled="ONNX Runtime optimizes every model when it loads it",
        precision="element types are a part of the file",
    )


def _providers(spec: Spec) -> list[Any]:
    """Return the execution providers that a specification asks for, and the CPU's after them.

    Raises:
        UnknownTargetError: There is none of that name.
        MeasurementError: This build of ONNX Runtime has it not.
    """
    import onnxruntime as ort  # noqa: PLC0415

    number = gpu_number(spec)
    name = dict(spec.inputs).get(_PROVIDER, _CPU if number is None else _CUDA)
    everywhere, here = ort.get_all_providers(), ort.get_available_providers()
    if name not in everywhere:
        raise UnknownTargetError(
            f"ONNX Runtime has no execution provider {name!r}{suggest(str(name), everywhere)}; "
            f"this build has {', '.join(here)}"
        )
    if name not in here:
        raise MeasurementError(
            f"ONNX Runtime {ort.__version__} has no execution provider {name} here (it has "
            f"{', '.join(here)}). Install the build that has it, or use --device cpu."
        )
    chosen = (name, {"device_id": number}) if number else name
    return [chosen] if name == _CPU else [chosen, _CPU]


def _failures() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415

    names = (
        *("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile"),
        *("NotImplemented", "RuntimeException", "ModelLoadCanceled", "EPFail", "NoModel"),
    )
    return tuple(getattr(state, name) for name in names if hasattr(state, name))


def _inputs(spec: Spec, session: Any) -> dict[str, Any]:
    declared = [
        Declared(each.name, _TYPES.get(inner, inner), tuple(each.shape or ()))
        for each in session.get_inputs()
        for inner in (each.type.removeprefix("tensor(").removesuffix(")"),)
    ]
    return random_inputs(spec, declared, own=(_PROVIDER,))
