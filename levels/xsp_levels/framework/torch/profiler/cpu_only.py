"""A process in; Kineto, first used in it so that it leaves CUPTI alone, out.

Where there is CUDA, the first use of Kineto subscribes to CUPTI, and before PyTorch 2.15 for as
long as the process lives. CUPTI serves one subscriber, so the kernel level would get none. Also,
later releases have CUPTI record calls for operators alone, and give CUPTI a clock of Kineto's.

The levels record operators of the CPU only. In processes that xsp starts Kineto is initialized
without CUPTI, by the call that PyTorch makes on machines without CUDA, before PyTorch makes the
call. In the user's own process that would crash if PyTorch had made it already, and takes kernels
from the user's torch.profiler. So there, and only where the measurement has the kernel level, xsp
subscribes to CUPTI while Kineto tries to: Kineto then does without, and that is said.
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
_GIVES_BACK = (2, 15)  # the PyTorch from which on Kineto does not keep CUPTI

_used: list[bool] = []  # of this process: whether Kineto's first use took CUPTI from the user's


def deprived() -> bool:
    """Return whether a profiler of the user's sees no kernels in this process."""
    return any(_used)


@contextlib.contextmanager
def cupti_left_alone(*, kernels: bool) -> Iterator[None]:
    """Have Kineto leave CUPTI alone if it is used in the block for the first time.

    Args:
        kernels: Whether the kernel level needs CUPTI in this process.
    """
    import torch  # noqa: PLC0415

    if _used or torch.version.cuda is None:
        yield
    elif _is_worker():
        _used.append(False)
        initialize(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
        yield
    elif kernels and _release(torch) < _GIVES_BACK:
        with subscribed(f"libcupti.so.{torch.version.cuda.split('.')[0]}") as alone:
            _used.append(alone)
            yield
    else:
        _used.append(False)
        yield


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
def subscribed(library: str) -> Iterator[bool]:
    """Subscribe to CUPTI for the block, if the process has loaded it and nobody else has.

    Args:
        library: Name of the shared object.

    Yields:
        Whether CUPTI is subscribed to.
    """
    try:
        cupti = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        yield False
        return
    callback = ctypes.CFUNCTYPE(None)(lambda: None)  # never called: no event is asked for
    subscriber = ctypes.c_void_p()
    if cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None) != 0:
        yield False
        return
    try:
        yield True
    finally:
        cupti.cuptiUnsubscribe(subscriber)


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


def _release(torch: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _WORKER
