"""Defines a target's specification, as written on the command line, and the subject to call."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from xsp.errors import UnknownTargetError
from xsp.text import suggest

TargetKind = Literal["model", "function", "script"]
Value = int | float | str | bool

AUTOCAST = "autocast"  # weights and inputs of float32, of which a framework makes bfloat16
PRECISIONS = ("float32", "bfloat16", "float16", "float64", AUTOCAST)

# Frameworks that can run the targets of each source; the first does unless another is asked for.
FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "torchvision": ("torch", "onnxruntime"),
    "timm": ("torch", "onnxruntime"),
    "transformers": ("torch", "onnxruntime"),
    "keras": ("tensorflow", "torch", "jax"),
    "onnx": ("onnxruntime",),
    "tf-saved-model": ("tensorflow",),
    "jax": ("jax",),
}
SOURCES = tuple(FRAMEWORKS)

# A function in a file, and of several models that the function makes one of them.
_IN_FILE = re.compile(r"(?P<file>.*?\.py):(?P<function>[^\[]+)(?:\[(?P<made>.+)\])?", re.DOTALL)
_FILES = ("onnx", "tf-saved-model")  # sources whose models are files
SAVED_MODEL = "saved_model.pb"
_KERAS_COMPILES = ("tensorflow", "jax")  # back ends on which Keras itself predicts by a graph


def known_frameworks() -> tuple[str, ...]:
    """Return the frameworks that run targets."""
    return tuple(dict.fromkeys(name for names in FRAMEWORKS.values() for name in names))


@dataclass(frozen=True, slots=True)
class Spec:
    """The specification of a target, as written on the command line.

    Attributes:
        target: `torchvision:NAME` and the like, `path.py:function`, `path.py:function[NAME]` for
            one of the models that the function makes, or a script.
        arguments: A script's own arguments.
        batch: Size of a model's batch; None: 1, or the function's own default.
        device: `cpu`, `cuda`, `cuda:1`; None: cpu, or the function's own default.
        train: Whether one step is a training step instead of a prediction.
        inputs: Further settings by name: of a model that takes texts `sequence`, their length
            in tokens; of a model in a file sizes of its inputs; of a function any of its
            parameters.
        precision: Element type of a model's weights and inputs, one of `PRECISIONS`; None:
            float32, as models come; `autocast`: computed in bfloat16 where the framework deems
            that exact enough (torch.autocast, Keras's mixed_bfloat16).
        compiled: Whether a model is compiled: by torch.compile, as a tf.function, by jax.jit.
            None: what the framework itself does (`compiles`).
        framework: What runs a model that several frameworks can run: one of `FRAMEWORKS`; None:
            the first of its source.
    """

    target: str
    arguments: tuple[str, ...] = ()
    batch: int | None = None
    device: str | None = None
    train: bool = False
    inputs: tuple[tuple[str, Value], ...] = ()
    precision: str | None = None
    compiled: bool | None = None
    framework: str | None = None

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that are known: of a model with its defaults, of others what was set."""
        known = self.asked
        if self.kind == "model":
            known |= {"framework": self.runs_on, "device": self.device or "cpu"}
            if self.source not in _FILES:  # only the file itself tells what a file holds
                known["batch"] = self.batch or 1
                known["precision"] = self.precision or "float32"
                known["compiled"] = self.compiles
        return known | ({"train": True} if self.train else {})

    @property
    def asked(self) -> dict[str, Value]:
        """The settings that were asked for, by the names of a function's parameters."""
        names = ("batch", "framework", "precision", "compiled", "device")
        asked = {name: getattr(self, name) for name in names} | dict(self.inputs)
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def compiles(self) -> bool:
        """Whether the target is compiled: as asked for, else as the framework itself does.

        Keras makes a graph of a model to predict and to train, on TensorFlow and JAX; functions of
        `jax:` are for compiling.
        """
        if self.compiled is not None:
            return self.compiled
        by_keras = self.source == "keras" and self.runs_on in _KERAS_COMPILES
        return by_keras or self.source == "jax"

    @property
    def source(self) -> str:
        """The name before the colon where that is one of `SOURCES`; else an empty text."""
        scheme, colon, name = self.target.partition(":")
        return scheme if colon and name and scheme in SOURCES else ""

    @property
    def inner(self) -> str:
        """The target without its source: a model's name, a file, `path.py:function`."""
        return self.target.removeprefix(f"{self.source}:") if self.source else self.target

    @property
    def in_file(self) -> tuple[str, str, str]:
        """A file, the function in it, and which of the models that it makes.

        All are empty where the target is of another form, the last where it is the function itself.
        """
        found = _IN_FILE.fullmatch(self.inner)
        return (found["file"], found["function"], found["made"] or "") if found else ("", "", "")

    @property
    def runs_on(self) -> str:
        """The framework that runs the target; empty where only its code knows.

        Keras runs on the back end that is set for all programs, else on the first.

        Raises:
            UnknownTargetError: The framework that was asked for cannot run the target.
        """
        possible = FRAMEWORKS.get(self.source, ())
        if not possible:
            return ""
        usual = os.environ.get("KERAS_BACKEND", "") if self.source == "keras" else ""
        asked = self.framework or usual or possible[0]
        if asked not in possible:
            raise UnknownTargetError(
                f"{self.target} does not run on {asked!r}{suggest(asked, possible)}: "
                f"--framework {' or '.join(possible)}"
            )
        return asked

    @property
    def file(self) -> Path | None:
        """The file that holds the function or the model, whose content results rest on."""
        if self.kind == "function":
            return Path(self.in_file[0])
        if self.source not in _FILES:
            return None
        return Path(self.inner) if self.source == "onnx" else Path(self.inner) / SAVED_MODEL

    @property
    def kind(self) -> TargetKind:
        """Kind of target.

        Raises:
            UnknownTargetError: The target has none of the known forms, or is a file that
                xsp itself wrote.
        """
        if self.source and self.source != "jax":
            return "model"
        if any(self.in_file):
            return "function"
        if self.source:
            raise UnknownTargetError(
                f"Unknown target {self.target!r}. Name a file and a function: jax:predict.py:run"
            )
        if self.target.endswith(".py") or Path(self.target).is_file():
            _check_source(Path(self.target))
            return "script"
        if (Path(self.target) / SAVED_MODEL).is_file():
            raise UnknownTargetError(
                f"{self.target} is a model in a folder. Did you mean tf-saved-model:{self.target}?"
            )
        meant = suggest(self.target.partition(":")[0], SOURCES) or hint(self.target) or "."
        if meant == "." and self.target.isidentifier():
            meant = f". Did you mean torchvision:{self.target}?"
        raise UnknownTargetError(f"Unknown target {self.target!r}{meant} See xsp profile --help.")

    @property
    def name(self) -> str:
        """Short name, for files and headings: `resnet50`, `predict`, `train`."""
        if self.source in _FILES:
            path = Path(self.inner)
            return path.stem if self.source == "onnx" else path.absolute().name
        _, function, made = self.in_file
        last = made or function or self.target.rpartition(":")[2]
        return Path(last).stem if self.kind == "script" else last

    def to_json(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Return the specification that `to_json` wrote."""
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class Subject:
    """A function that is called again and again: one call is one step.

    Attributes:
        function: The function, or the model.
        args: Its positional arguments.
        name: Its name for people.
        kind: `model` for a prediction, `training`, or `function`.
        mode: Returns the context manager in which the calls are to be made.
        kwargs: Its keyword arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    kind: Literal["model", "training", "function"]
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Make one step in its mode."""
        with self.mode():
            return self.function(*self.args, **self.kwargs)


def hint(target: str) -> str:
    """Return `; did you mean …?` if a Python file is missing and a neighbor is named alike."""
    path = Path(target.partition(":")[0])
    if path.suffix != ".py" or path.is_file() or not path.parent.is_dir():
        return ""
    return suggest(path.name, (neighbor.name for neighbor in path.parent.glob("*.py")))


def _check_source(path: Path) -> None:
    """Refuse files that hold a model, or a result of xsp, instead of a script.

    Raises:
        UnknownTargetError: The file is a model, a trace or a recording.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(4)
    except OSError:  # `run_script` says so
        return
    if path.suffix == ".onnx":
        raise UnknownTargetError(f"{path} is a model and no program: did you mean onnx:{path}?")
    if begin == b"PAR1" and path.suffix == ".parquet":
        raise UnknownTargetError(f"{path} is a table and no program: polars and pandas read it")
    if begin == b"PAR1":
        raise UnknownTargetError(f"{path} is a saved trace: xsp show {path}")
    if begin == b"PK\3\4" and path.suffix == ".xsprec":
        raise UnknownTargetError(
            f"{path} is a recording: xsp.testing.replay({str(path)!r}) makes its trace"
        )
