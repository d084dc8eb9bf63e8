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
    "PRECISIONS",
    "SOURCES",
    "Spec",
    "Subject",
    "Value",
    "check",
    "hint",
    "prepare",
    "resolve",
]

TargetKind = Literal["model", "function", "script"]
Value = int | float | str | bool

PRECISIONS = ("float32", "bfloat16", "float16", "float64")  # element types of PyTorch


@dataclass(frozen=True, slots=True)
class Spec:
    """The specification of a target, as written on the command line.

    Attributes:
        target: `torchvision:NAME` and the like, `path.py:function`, or a script.
        arguments: A script's own arguments.
        batch: Size of a model's batch; None: 1, or the function's own default.
        device: `cpu`, `cuda`, `cuda:1`; None: cpu, or the function's own default.
        train: Whether one evaluation is a training step instead of a prediction.
        inputs: Further settings by name: of a model that takes texts `sequence`, their length
            in tokens; of a function any of its parameters.
        precision: Element type of a model's weights and inputs, one of `PRECISIONS`; None:
            float32, as models come.
        compiled: Whether a model goes through torch.compile; None: no.
    """

    target: str
    arguments: tuple[str, ...] = ()
    batch: int | None = None
    device: str | None = None
    train: bool = False
    inputs: tuple[tuple[str, Value], ...] = ()
    precision: str | None = None
    compiled: bool | None = None

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that are known: of a model with its defaults, of others what was set."""
        known: dict[str, Value | None] = {"batch": self.batch, **dict(self.inputs)}
        known |= {"precision": self.precision, "compiled": self.compiled, "device": self.device}
        if self.kind == "model":
            known["batch"] = self.batch or 1
            known["precision"] = self.precision or "float32"
            known["compiled"] = bool(self.compiled)
            known["device"] = self.device or "cpu"
        known["train"] = self.train or None
        return {name: value for name, value in known.items() if value is not None}

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
        inputs = [list(pair) for pair in self.inputs]
        return asdict(self) | {"arguments": list(self.arguments), "inputs": inputs}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Return the specification that `to_json` wrote."""
        inputs = tuple((name, value) for name, value in data["inputs"])
        return cls(**{**data, "arguments": tuple(data["arguments"]), "inputs": inputs})


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


def check(spec: Spec) -> None:
    """Verify that a model or a function takes its settings, without building or calling it.

    Raises:
        UnknownTargetError: There is no such target, or it does not take these settings.
        MeasurementError: A library or device that the target needs is missing.
    """
    if spec.kind == "function":
        _function(spec)
        return
    prepare(spec)
    _device(spec)
    scheme, _, name = spec.target.partition(":")
    source.check(scheme, name, sequence=_sequence(spec))


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
    dtype = getattr(torch, spec.precision) if spec.precision else None
    built = source.build(scheme, name, batch=spec.batch or 1, sequence=_sequence(spec))
    subject = _subject(spec, built.to(device, dtype))
    if spec.compiled:
        built.model.compile()
        with subject.mode():  # torch.compile compiles at the first call: no evaluation of it
            subject.function(*subject.args)
    return subject


def _subject(spec: Spec, built: source.ModelWithInputs) -> Subject:
    import torch  # noqa: PLC0415

    if spec.train:
        return Subject(source.training_step(built), (), spec.name, "training")
    return Subject(built.model.eval(), built.inputs, spec.name, "model", torch.inference_mode)


def _sequence(spec: Spec) -> int | None:
    """Return the length of texts that a model's specification asks for.

    Raises:
        UnknownTargetError: There is another setting, which no model takes, or no length.
    """
    scheme = spec.target.partition(":")[0]
    for key, value in spec.inputs:
        if key != "sequence" or scheme != "transformers":
            takes = "sequence, the length of a text in tokens"
            raise UnknownTargetError(
                f"{spec.target} takes no setting {key!r}"
                f"{suggest(key, ['sequence']) if scheme == 'transformers' else ''}; a model of "
                f"transformers takes {takes}; of others measure path.py:function, whose "
                "parameters are settings"
            )
        if type(value) is not int or value < 1:
            raise UnknownTargetError(
                f"{spec.target}: sequence={value!r} is no length: a whole number of tokens, from 1"
            )
    return next((value for _, value in spec.inputs if isinstance(value, int)), None)


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
    wanted = {"batch": spec.batch, "device": spec.device, **dict(spec.inputs)}
    wanted |= {"precision": spec.precision, "compiled": spec.compiled}
    given = {key: value for key, value in wanted.items() if value is not None}
    _check_module(spec.target, function, given)
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
        asked = "".join(f" {_OPTIONS.get(key, f'--set {key}')}" for key in given)
        raise UnknownTargetError(
            f"{target} cannot be called{' with' + asked if asked else ''}: {error}. It is called "
            "without arguments, but for batch, device and other settings if it has such "
            "parameters and the options are given: wrap it in a function that supplies the rest"
        ) from error


def _check_module(target: str, function: object, given: Mapping[str, Any]) -> None:
    """Refuse a module of PyTorch that needs an input, which nobody here could make up."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return
    try:
        inspect.signature(function.forward).bind(**given)
    except TypeError as error:
        raise UnknownTargetError(
            f"{target} is a module ({type(function).__name__}), which takes an input ({error}): "
            "wrap it in a function that calls it with an input, and measure that"
        ) from error


# How settings are spelt on the command line; `--set` takes all others.
_OPTIONS = {
    "batch": "--batch",
    "device": "--device",
    "precision": "--precision",
    "compiled": "--compile",
}
