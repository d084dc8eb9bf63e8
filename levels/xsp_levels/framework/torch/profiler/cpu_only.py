"""A process in; Kineto, initialized in it so that it leaves CUPTI alone, out.

Where there is CUDA, the first use of Kineto subscribes to CUPTI, and before PyTorch 2.15 for as
long as the process lives. CUPTI serves one subscriber, so the kernel level would get none. Also,
later releases have CUPTI record calls for operators alone, and give CUPTI a clock of Kineto's.

The levels record operators of the CPU only, so in processes that xsp starts Kineto is
initialized without CUPTI, by the call that PyTorch makes on machines without CUDA, before
PyTorch makes the call. In the user's own process that takes kernels from the user's
torch.profiler, so there it is done only where the measurement has the kernel level, which
would get none otherwise, and is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WORKER = "xsp.target.__main__"  # what processes that xsp starts for a target run
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"  # PyTorch has Kineto say as little, once it has initialized Kineto

_done: list[int] = []  # the processes that did it: a forked child has what its parent has


def leave_cupti_alone(*, kernels: bool) -> bool:
    """Initialize Kineto for the CPU alone, once, where that is right.

    Args:
        kernels: Whether the kernel level needs CUPTI in this process.

    Returns:
        Whether a profiler of the user's would miss kernels now.
    """
    import torch  # noqa: PLC0415

    worker = _is_worker()
    if _done or torch.version.cuda is None or not (worker or (kernels and _keeps_cupti(torch))):
        return False
    _done.append(os.getpid())
    initialize(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    return not worker


def initialize(path: Path) -> None:
    """Initialize the Kineto in a library without CUPTI; a library without Kineto stays as it is.

    Args:
        path: The file that the process has loaded as `libtorch_cpu.so`.
    """
    with contextlib.suppress(OSError, AttributeError):
        init = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).libkineto_init
        init.argtypes, init.restype = (ctypes.c_bool, ctypes.c_bool), None
        with _quiet():
            init(True, False)  # for the CPU only; without a message if CUPTI cannot be used


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Have Kineto, which reads a variable when it is initialized, be silent."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]


def _keeps_cupti(torch: Any) -> bool:
    """Tell whether this PyTorch's Kineto holds CUPTI for good once it has been used."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15)


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _WORKER
