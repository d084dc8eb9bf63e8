"""Specifications: a target as written on the command line in, a callable subject out."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measurement import check_function
from xsp.suggestion import suggest
from xsp.target import source
from xsp.target.source import SOURCES, require

_FORMS = (
    "torchvision:NAME, timm:NAME, transformers:NAME, path.py:function, "
    "or a script with its arguments"
)

__all__ = [
    "SOURCES",
    "Spec",
    "Subject",
    "hint",
    "prepare",
    "resolve",
]

TargetKind = Literal["model", "function", "script"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The specification of a target, as written on the command line.

    Attributes:
        target: `torchvision:NAME` and the like, `path.py:function`, or a script.
        arguments: A script's own arguments.
        batch: Size of a model's batch; None: 1, or the function's own default.
        device: `cpu`, `cuda`, `cuda:1`; None: cpu, or the function's own default.
        train: Whether one evaluation is a training step instead of a prediction.
    """

    target: str
    arguments: tuple[str, ...] = ()
    batch: int | None = None
    device: str | None = None
    train: bool = False

    @property
    def kind(self) -> TargetKind:
        """Kind of target.

        Raises:
            UnknownTargetError: The target has none of the known forms, or is a file that
                xsp itself wrote.
        """
        scheme, colon, name = self.target.partition(":")
        if colon and name and scheme in SOURCES:
            return "model"
        path, colon, function = self.target.rpartition(":")
        if path.endswith(".py") and function:
            return "function"
        if self.target.endswith(".py") or Path(self.target).is_file():
            _check_source(Path(self.target))
            return "script"
        raise UnknownTargetError(
            f"{self.target!r} is no target{suggest(scheme, SOURCES)}; "
            f"a target is {_FORMS}{hint(self.target)}{_sourced(self.target)}"
        )

    @property
    def name(self) -> str:
        """Short name, for files and headings: `resnet50`, `predict`, `train`."""
        last = self.target.rpartition(":")[2]
        return Path(last).stem if self.kind == "script" else last.rpartition(":")[2]

    def to_json(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold."""
        return asdict(self) | {"arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Return the specification that `to_json` wrote."""
        return cls(**{**data, "arguments": tuple(data["arguments"])})


@dataclass(frozen=True, slots=True)
class Subject:
    """A function that is called again and again: one call is one evaluation.

    Attributes:
        function: The function, or the model.
        args: Its positional arguments.
        name: Its name for people.
        kind: `model` for a prediction, `training`, or `function`.
        mode: Returns the context manager in which the calls are to be made.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    kind: Literal["model", "training", "function"]
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext


def prepare(spec: Spec) -> None:
    """Import the library that a model comes from; of a file nothing is known beforehand.

    Raises:
        MeasurementError: The library is not installed.
    """
    if spec.kind == "model":
        for library in ("torch", spec.target.partition(":")[0]):
            require(library, spec.target)


def resolve(spec: Spec) -> Subject:
    """Return the subject that a model's or function's specification names.

    Raises:
        UnknownTargetError: There is no such target, or it does not take these options.
        MeasurementError: A library or device that the target needs is missing.
    """
    if spec.kind == "model":
        return _model(spec)
    if spec.kind == "function":
        return _function(spec)
    raise UnknownTargetError(f"{spec.target} is a script: it runs as it is, it is not called")


def hint(target: str) -> str:
    """Return `; did you mean …?` if a Python file is missing and a neighbour is named alike."""
    path = Path(target.partition(":")[0])
    if path.suffix != ".py" or path.is_file() or not path.parent.is_dir():
        return ""
    return suggest(path.name, (neighbour.name for neighbour in path.parent.glob("*.py")))


def _check_source(path: Path) -> None:
    """Refuse files that hold a result of xsp instead of a script.

    Raises:
        UnknownTargetError: The file is a trace or a recording.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(4)
    except OSError:  # `run_script` says so
        return
    if begin == b"PAR1" and path.suffix == ".parquet":
        raise UnknownTargetError(f"{path} is a table and no program: polars and pandas read it")
    if begin == b"PAR1":
        raise UnknownTargetError(f"{path} is a saved trace: xsp show {path}")
    if begin == b"PK\3\4" and path.suffix == ".xsprec":
        raise UnknownTargetError(
            f"{path} is a recording: xsp.testing.replay({str(path)!r}) makes its trace"
        )


def _sourced(target: str) -> str:
    """Return how to name a model's source, if the target looks like a model's bare name."""
    if not target.isidentifier():
        return ""
    return f"; for a model say where it comes from, as in torchvision:{target}"


def _model(spec: Spec) -> Subject:
    torch = require("torch", spec.target)
    scheme, _, name = spec.target.partition(":")
    device = _device(spec)
    # The same weights and inputs in every process, as values may change the path taken.
    torch.manual_seed(0)
    built = source.build(scheme, name, batch=spec.batch or 1).to(device)
    if spec.train:
        return Subject(source.training_step(built), (), spec.name, "training")
    return Subject(built.model.eval(), built.inputs, spec.name, "model", torch.inference_mode)


def _device(spec: Spec) -> Any:
    torch = require("torch", spec.target)
    try:
        device = torch.device(spec.device or "cpu")
    except RuntimeError as error:
        raise UnknownTargetError(f"there is no device {spec.device!r}; try cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MeasurementError(
            f"the device {spec.device} is not to be had: PyTorch {torch.__version__} finds no "
            "CUDA GPU here. Measure on the CPU (--device cpu), or see what `xsp doctor` says."
        )
    return device


def _function(spec: Spec) -> Subject:
    if spec.train:
        raise UnknownTargetError(
            f"--train makes a training step of a model, and {spec.target} is a function: "
            "write the step into it, and leave --train out"
        )
    path, _, name = spec.target.rpartition(":")
    function = _attribute(_load(Path(path)), name, path)
    wanted = {"batch": spec.batch, "device": spec.device}
    given = {key: value for key, value in wanted.items() if value is not None}
    _check_parameters(spec.target, function, given)
    if given:
        function = functools.partial(function, **given)
    return Subject(function, (), name, "function")


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownTargetError(f"there is no file {path}{hint(str(path))}")
    # As for a script, modules beside the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"_xsp_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownTargetError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as pickling and dataclasses look the module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, path: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    functions = [key for key, value in vars(module).items() if callable(value)]
    if found is None:
        raise UnknownTargetError(f"{path} has no function {name!r}{suggest(name, functions)}")
    raise UnknownTargetError(f"{name} in {path} is a {type(found).__name__}, and cannot be called")


def _check_parameters(target: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    try:
        check_function(function)
    except TypeError as error:
        raise UnknownTargetError(f"{target}: {error}") from error
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(**given)
    except TypeError as error:
        asked = "".join(f" --{key}" for key in given)
        raise UnknownTargetError(
            f"{target} cannot be called{' with' + asked if asked else ''}: {error}. It is called "
            "without arguments, but for batch and device if it has such parameters and the "
            "options are given: wrap it in a function that supplies the rest"
        ) from error
