"""Devices and threads: what a specification asks for in, numbers that every framework takes out."""

from __future__ import annotations

import os
import re

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.session import THREAD_NUMBERS
from xsp.target.spec import Spec


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
            f"the device {spec.device} is not to be had: {library} finds {found or 'no'} CUDA "
            f"GPU{'s' * (found > 1)} here. Measure on the CPU (--device cpu), or see what "
            "`xsp doctor` says."
        )


def asked_threads() -> int | None:
    """Return the number of threads that `--threads` or the user's own variables ask for."""
    asked = os.environ.get(THREAD_NUMBERS[0], "")
    return int(asked) if asked.isdigit() and int(asked) else None
