"""Reads the GPU's number and the number of threads that the user asks for."""

from __future__ import annotations

import os
import re

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.spec import Spec
from xsp.record.session import THREAD_NUMBERS


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
