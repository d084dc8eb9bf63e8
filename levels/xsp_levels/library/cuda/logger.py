"""A log in; a logger of cuBLAS, cuBLASLt or cuDNN pointed at the log, and the way back, out.

cuBLASLt cannot be asked for the settings of its logger: a program that has set them in code
has to set them again. Loggers that the environment turns on are left alone.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xsp_levels.library.cuda.log import Log
from xsp_levels.native.mapping import libraries, mappings

# Variables by which a user turns the loggers on; if any is set, the logger is the user's.
CUBLAS_VARIABLES = (
    "CUBLAS_LOGINFO_DBG",
    "CUBLAS_LOGDEST_DBG",
    "CUBLASLT_LOG_LEVEL",
    "CUBLASLT_LOG_MASK",
    "CUBLASLT_LOG_FILE",
)
CUDNN_VARIABLES = ("CUDNN_LOGLEVEL_DBG", "CUDNN_LOGDEST_DBG", "CUDNN_LOGINFO_DBG")

_TRACE = 2  # of cuBLASLt's masks: calls that launch kernels, with all parameters
_INFO = 1 << 3  # CUDNN_SEV_INFO_EN
_TAKEN = "the logger of {library} is in use by another tool; end it"

Undo = Callable[[], None]


class TakenError(Exception):
    """A logger serves another tool; the message is a sentence."""


def find(name: str) -> ctypes.CDLL | None:
    """Return a library of this process, None if the library is not loaded.

    Args:
        name: Beginning of the file's name: `libcublas`.
    """
    for path in libraries(mappings()):
        if os.path.basename(path).startswith(f"{name}.so"):
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


def shipped(name: str) -> bool:
    """Tell whether one of NVIDIA's Python packages contains a library."""
    spec = importlib.util.find_spec("nvidia")
    folders: Iterable[str] = (spec.submodule_search_locations or ()) if spec else ()
    return any(next(Path(f).glob(f"*/lib/{name}.so.*"), None) for f in folders)


def user_logs(variables: Iterable[str]) -> str | None:
    """Return the variable by which the user has turned a logger on, None if none is set."""
    return next((name for name in variables if os.environ.get(name)), None)


def point_cublas(library: Any, log: Log) -> Undo:
    """Point cuBLAS's logger at a log; return a function that resets the logger.

    Raises:
        TakenError: Another tool uses the logger.
        AttributeError: This cuBLAS has no such functions.
    """
    before = ctypes.c_void_p()
    library.cublasGetLoggerCallback(ctypes.byref(before))
    if before.value:
        raise TakenError(_TAKEN.format(library="cuBLAS"))
    library.cublasSetLoggerCallback(ctypes.c_void_p(log.callbacks["cublas"]))
    library.cublasLoggerConfigure(1, 0, 0, None)

    def undo() -> None:
        library.cublasLoggerConfigure(0, 0, 0, None)
        library.cublasSetLoggerCallback(None)

    return undo


def point_cublaslt(library: Any, log: Log) -> Undo:
    """Point cuBLASLt's logger at a log; return a function that turns the logger off.

    cuBLASLt writes messages to a file as well, by default standard output: the null device
    takes its place.

    Raises:
        AttributeError: This cuBLASLt has no such functions.
        OSError: There is no null device.
    """
    library.cublasLtLoggerSetFile(ctypes.c_void_p(_null_file()))
    library.cublasLtLoggerSetCallback(ctypes.c_void_p(log.callbacks["cublaslt"]))
    library.cublasLtLoggerSetMask(_TRACE)

    def undo() -> None:
        library.cublasLtLoggerSetMask(0)
        library.cublasLtLoggerSetCallback(None)
        library.cublasLtLoggerSetFile(ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout"))

    return undo


def point_cudnn(library: Any, log: Log) -> Undo:
    """Point cuDNN's logger at a log; return a function that resets the logger.

    Raises:
        AttributeError: This cuDNN has no such functions.
    """
    mask, user, function = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    library.cudnnGetCallback(ctypes.byref(mask), ctypes.byref(user), ctypes.byref(function))
    library.cudnnSetCallback(_INFO, None, ctypes.c_void_p(log.callbacks["cudnn"]))

    def undo() -> None:
        library.cudnnSetCallback(mask, user, function)

    return undo


_files: list[int] = []


def _null_file() -> int:
    """Return C's handle of the null device, the same each time."""
    if not _files:
        fopen = ctypes.CDLL(None).fopen
        fopen.restype = ctypes.c_void_p
        file = fopen(os.devnull.encode(), b"w")
        if not file:
            raise OSError(f"{os.devnull} cannot be opened")
        _files.append(file)
    return _files[0]
