"""The providers for cuBLAS (with cuBLASLt) and cuDNN: messages of their loggers in, rows out.

A logger calls back when a call begins, with the function and its arguments; the callback adds
time and thread. Most messages do not tell the end of a call: the correlation takes the end of
the last launch inside the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.cuda.call import calls
from xsp_levels.library.cuda.log import Log, messages
from xsp_levels.library.cuda.logger import (
    CUBLAS_VARIABLES,
    CUDNN_VARIABLES,
    TakenError,
    Undo,
    find,
    point_cublas,
    point_cublaslt,
    point_cudnn,
    shipped,
    user_logs,
)
from xsp_levels.library.cuda.row import call_rows
from xsp_levels.native import forked_child, stub, thread

_NO_DRIVER = "there is no NVIDIA driver, so nothing calls {library}"
_NONE = "no {library} is loaded; import the framework that brings it first"
_USER = "{variable} is set, so the logger of {library} is the user's; unset it to measure"
_REMARK = (
    "calls whose end {library} does not tell are ended by the launches inside of them, where level "
    "4 is recorded as well"
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
        self._problems: list[str] = []
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
        """Return how well calls are placed in time."""
        return _REMARK.format(library=self.library)

    def start(self, clock: Clock, request: Request) -> None:
        """Point the loggers at the log; a library that is loaded later is not seen.

        Raises:
            OSError: The system does not reserve the log's memory.
        """
        self._disarm()
        self._problems = []
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
        return Records(CudaRecords(content, thread.names()), lost, tuple(self._problems))

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
            self._problems.append(_LATE.format(library=name, why=error))

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
