"""Imports a library that a target needs, and checks its models, devices and threads."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import ModuleType

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.spec import Spec
from xsp.record.session import THREAD_NUMBERS
from xsp.text import suggest

# Extras of xsp that bring a library; of all others PyTorch's.
_EXTRAS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "onnxruntime": "onnxruntime",
    "jax": "jax",
}
_QUIET = "TF_CPP_MIN_LOG_LEVEL"  # read once, when TensorFlow first has something to say


def require(library: str, target: str) -> ModuleType:
    """Return a library that a target needs.

    What TensorFlow says while it is imported (which instructions it could use, that it finds no
    GPU) is left out unless the user has chosen what TensorFlow says.

    Raises:
        MeasurementError: The library is not installed; the message names the extra.
    """
    try:
        with _quiet():
            return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        extras = _EXTRAS.get(library, "torch,zoo")
        raise MeasurementError(
            f"{target} needs {library}, which is not installed. Install it: pip install "
            f"'xsp[{extras}]'"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    if _QUIET in os.environ:
        yield
        return
    os.environ[_QUIET] = "1"  # remarks; warnings and errors are shown
    try:
        yield
    finally:
        os.environ.pop(_QUIET, None)


def known(name: str, names: Iterable[str], library: str) -> None:
    """Verify that a library has a model.

    Raises:
        UnknownTargetError: It has none of that name; the message says which are named alike.
    """
    if name not in (all_names := tuple(names)):
        raise UnknownTargetError(f"{library} has no model {name!r}{suggest(name, all_names)}")


def matching(pattern: str, names: Iterable[str], library: str) -> tuple[str, ...]:
    """Return the names of a library's models that a pattern such as `resnet*` matches.

    Raises:
        UnknownTargetError: None does.
    """
    all_names = tuple(names)
    if not is_pattern(pattern):
        known(pattern, all_names, library)
    found = tuple(name for name in all_names if fnmatchcase(name, pattern))
    if not found:
        close = suggest(pattern.strip("*"), all_names)
        raise UnknownTargetError(f"{library} has no model that {pattern!r} matches{close}")
    return found


def is_pattern(name: str) -> bool:
    """Return whether a name stands for all that it matches: `resnet*`."""
    return any(mark in name for mark in "*?")


def version(library: str) -> str:
    """Return the version of an installed library."""
    return str(require(library, library).__version__)


def gpu_number(spec: Spec) -> int | None:
    """Return the number of the GPU that a specification asks for; None for the CPU.

    Raises:
        UnknownTargetError: The device is neither.
    """
    match = re.fullmatch(r"(cpu)|cuda(?::(\d+))?", spec.device or "cpu")
    if match is None:
        raise UnknownTargetError(f"there is no device {spec.device!r}; try cpu or cuda")
    return None if match[1] else int(match[2] or 0)


def check_gpu(spec: Spec, library: str, found: int) -> None:
    """Verify that a library finds the GPU that a specification asks for.

    Args:
        spec: The specification.
        library: Name and version of the library.
        found: How many GPUs it finds.

    Raises:
        MeasurementError: It does not.
    """
    number = gpu_number(spec)
    if number is not None and number >= found:
        raise MeasurementError(
            f"{library} found {found or 'no'} CUDA device{'s' * (found > 1)} ({spec.device}). "
            "Use --device cpu, or run `xsp doctor`."
        )


def asked_threads() -> int | None:
    """Return the number of threads that `--threads` or the user's own variables ask for."""
    asked = os.environ.get(THREAD_NUMBERS[0], "")
    return int(asked) if asked.isdigit() and int(asked) else None
