"""The providers for cuBLAS (with cuBLASLt) and cuDNN make rows of the libraries' log messages.

A logger calls back when a call begins, with the function and its arguments; the callback adds
time and thread. Most messages do not tell the end of a call: the correlation takes the end of
the last launch inside the call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, no_rows, span_rows
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.cuda.call import CudaCall, calls
from xsp_levels.library.cuda.log import Log, messages
from xsp_levels.native import forked_child, stub, thread
from xsp_levels.native.mapping import libraries, mappings

# Makes one row per call of cuBLAS, cuBLASLt and cuDNN. Pure.

BY_START, BY_ENDS = "start", "ends"

_SIZES = ("m", "n", "k", "batchCount", "dimA", "filterDimA", "padA", "filterStrideA", "dilationA")
_TYPE = re.compile(r"[A-Za-z]*[tT]ype\w*|\w+desc|mathPrec")
_COMPLEX = re.compile(r"cublas[CZ]|\w+ (?:CUDA_)?C_")
_FIELD = re.compile(r"(\w+)=([^\s\]]+)")
_LT_TYPES = {f"{name}desc": name for name in "ABCD"}
_VERSION = re.compile(r"_v2(_64)?$|_64$")


def call_rows(calls: Sequence[CudaCall], threads: Mapping[int, int]) -> SpanRows:
    """Return one row per call; the end is null for most calls, whose start alone is known.

    Args:
        calls: The calls.
        threads: Identifiers of Python's threads, by the kernel's numbers.
    """
    if not calls:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [_VERSION.sub("", call.function) for call in calls],
            "start_ns": [call.start_ns for call in calls],
            "end_ns": pl.Series([call.end_ns for call in calls], dtype=pl.Int64),
            "thread": thread.named(np.array([call.thread for call in calls]), threads),
            "attr.library": [call.library for call in calls],
            "attr.algorithm": _texts([call.values.get("algo") for call in calls]),
            "attr.problem": _texts([problem(call) for call in calls]),
            "attr.formats": _texts([formats(call) for call in calls]),
            "attr.flops": pl.Series([flops(call) for call in calls], dtype=pl.Int64),
            "attr.cuda_stream": _texts(
                [(None if call.stream is None else hex(call.stream)) for call in calls]
            ),
            "attr.placement": [BY_ENDS if call.end_ns else BY_START for call in calls],
        }
    )


def problem(call: CudaCall) -> str | None:
    """Return the sizes of a call in the library's own notation, None if there are none.

    >>> problem(CudaCall("cuBLAS 13", "cublasSgemm_v2", 0, 1, values={
    ...     "transa": "CUBLAS_OP_N", "transb": "CUBLAS_OP_T", "m": "8", "n": "4", "k": "2"}))
    'm8 n4 k2 NT'
    """
    values = _product(call) or call.values
    parts = [
        f"{name.removesuffix('.dimA')}{value}"
        for name, value in values.items()
        if name.rsplit(".", 1)[-1] in _SIZES
    ]
    turned = [values.get(name, "")[-1:] for name in ("transa", "transb")]
    return " ".join([*parts, "".join(turned)]).strip() or None


def formats(call: CudaCall) -> str | None:
    """Return the data types among a call's values, as `name:type`; None if there are none."""
    if product := _product(call):
        return product["formats"] or None
    found = [
        f"{name}:{value}"
        for name, value in call.values.items()
        if _TYPE.fullmatch(name.rsplit(".", 1)[-1])
    ]
    return " ".join(found) or None


def flops(call: CudaCall) -> int | None:
    """Return the operations of a matrix product: 2 m n k for each product of a batch.

    None for complex products, which take more operations, and for all other functions.
    """
    product = _product(call)
    values = product or call.values
    kind = values.get("Atype", "")
    if product is None and "gemm" not in call.function.lower():
        return None
    if _COMPLEX.match(f"{call.function} {kind}"):
        return None
    try:
        m, n, k = (int(values[name]) for name in "mnk")
        return 2 * m * n * k * int(values.get("batchCount", "1"))
    except (KeyError, ValueError):
        return None


def _product(call: CudaCall) -> dict[str, str] | None:
    """Return sizes and types of a product of cuBLASLt in cuBLAS's words; None for other calls.

    cuBLASLt tells the matrices as they lie in memory: op(A) is m x k, and D is m x n.

    >>> _product(CudaCall("cuBLASLt", "cublasLtMatmul", 0, 1, values={
    ...     "Adesc": "[type=R_16F rows=2 cols=8]", "Ddesc": "[type=R_16F rows=8 cols=4]",
    ...     "computeDesc": "[computeType=COMPUTE_32F transa=OP_T]"}))["k"]
    '2'
    """
    if call.function != "cublasLtMatmul":
        return None
    told = {name: dict(_FIELD.findall(text)) for name, text in call.values.items()}
    a, d = told.get("Adesc", {}), told.get("Ddesc", {})
    compute = told.get("computeDesc", {})
    turned = {name: compute.get(name, "OP_N") for name in ("transa", "transb")}
    k = a.get("cols", "") if turned["transa"] == "OP_N" else a.get("rows", "")
    types = {short: told.get(name, {}).get("type") for name, short in _LT_TYPES.items()}
    types["computeType"] = compute.get("computeType")
    sizes = {"m": d.get("rows", ""), "n": d.get("cols", ""), "k": k}
    sizes |= {"batchCount": d["batchCount"]} if "batchCount" in d else {}
    return {
        **({name: size for name, size in sizes.items() if size}),
        **turned,
        "Atype": types["A"] or "",
        "formats": " ".join(f"{name}:{kind}" for name, kind in types.items() if kind),
    }


def _texts(values: Sequence[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.String)


# Points the loggers of cuBLAS, cuBLASLt and cuDNN at a log, and resets the loggers.

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
    # C's handle of the null device, the same each time.
    if not _files:
        fopen = ctypes.CDLL(None).fopen
        fopen.restype = ctypes.c_void_p
        file = fopen(os.devnull.encode(), b"w")
        if not file:
            raise OSError(f"{os.devnull} cannot be opened")
        _files.append(file)
    null_file = _files[0]
    library.cublasLtLoggerSetFile(ctypes.c_void_p(null_file))
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


_NO_DRIVER = "there is no NVIDIA driver, so nothing calls {library}"
_NONE = "no {library} is loaded; import the framework that brings it first"
_USER = "{variable} is set, so the logger of {library} is the user's; unset it to measure"
_REMARK = (
    "{library} does not report the end of some calls; they end with their last launch, if you "
    "record level 4 as well."
)
_LATE = "{library} cannot be observed: {why}"

Point = Callable[[Any, Log], Undo]


@dataclass(frozen=True, slots=True)
class CudaRecords:
    """The records of one visit.

    Attributes:
        content: The log's memory, see `log.messages`.
        threads: Identifiers of Python's threads, by the kernel's numbers.
    """

    content: bytes = b""
    threads: Mapping[int, int] = field(default_factory=dict)


class _LoggedLibrary:
    """A provider that reads loggers; subclasses name their libraries."""

    name = ""
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})
    record_type = CudaRecords
    library = ""
    variables: tuple[str, ...] = ()
    points: tuple[tuple[str, Point], ...] = ()

    def __init__(self) -> None:
        self._log: Log | None = None
        self._undo = ExitStack()
        self._warnings: list[str] = []
        forked_child.register(self)

    def unavailable(self) -> str | None:
        """Return why the library cannot be observed here, or None if it can."""
        first = self.points[0][0]
        if reason := stub.unsupported():
            return reason
        if not _has_driver():
            return _NO_DRIVER.format(library=self.library)
        if variable := user_logs(self.variables):
            return _USER.format(variable=variable, library=self.library)
        found = find(first) is not None or shipped(first)
        return None if found else _NONE.format(library=self.library)

    def remark(self) -> str | None:
        """Return a sentence on how well calls are placed in time."""
        return _REMARK.format(library=self.library)

    def start(self, clock: Clock, request: Request) -> None:
        """Point the loggers at the log; a library that is loaded later is not seen.

        Raises:
            OSError: The system does not reserve the log's memory.
        """
        self._disarm()
        self._warnings = []
        if Kind.CALL not in request.kinds:
            return
        if self._log is None:
            self._log = Log()
        with undone_on_failure(self._disarm):
            for name, point in self.points:
                self._point(name, point, self._log)

    def stop(self) -> Records:
        """Reset the loggers, and return the records."""
        self._disarm()
        content, lost = self._log.take() if self._log is not None else (b"", 0)
        return Records(CudaRecords(content, thread.names()), lost, tuple(self._warnings))

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call that computes. Pure."""
        data: CudaRecords = records.data
        return call_rows(calls(messages(data.content)), data.threads)

    def abandon(self) -> None:
        """Reset the loggers in a forked child."""
        self._disarm()

    def _point(self, name: str, point: Point, log: Log) -> None:
        library = find(name)
        if library is None:
            return
        try:
            self._undo.callback(point(library, log))
        except (TakenError, AttributeError) as error:
            self._warnings.append(_LATE.format(library=name, why=error))

    def _disarm(self) -> None:
        self._undo.close()


class Cublas(_LoggedLibrary):
    """Observes cuBLAS and cuBLASLt."""

    name = "cublas"
    library = "cuBLAS"
    variables = CUBLAS_VARIABLES
    points = (("libcublas", point_cublas), ("libcublasLt", point_cublaslt))


class Cudnn(_LoggedLibrary):
    """Observes cuDNN."""

    name = "cudnn"
    library = "cuDNN"
    variables = CUDNN_VARIABLES
    points = (("libcudnn", point_cudnn),)


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
