"""The OpenBLAS provider records NumPy's and SciPy's BLAS calls with uprobes.

OpenBLAS has no verbose mode or logger, so the kernel watches its exported functions.
Putting the probes in and taking them out takes up to seconds for every visit, and NumPy is
in every process that xsp measures; so the provider is off unless XSP_OPENBLAS=1 is set.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, concat_rows, no_rows, span_rows
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.blas_flop import Work, work
from xsp_levels.native import thread
from xsp_levels.native.mapping import libraries, mappings
from xsp_levels.native.perf_event import explain, native_threads
from xsp_levels.native.symbol import Place, exported
from xsp_levels.native.uprobe import Probes, TimedCall, weigh

_OPT_IN = "XSP_OPENBLAS"
_NAME = re.compile(r"openblas", re.IGNORECASE)
_ROUTINES = ("gemm", "gemv", "syrk", "symm", "trsm", "trmm", "dot", "axpy")
_EXPORTS = ("{}", "{}64_", "scipy_{}", "scipy_{}64_")  # names in builds of OpenBLAS, and in SciPy's
_HEAD = 4  # functions with the same first 4 bytes begin with the same instruction

# Fortran's letters by CBLAS's enumerations (cblas.h).
_LETTER = {111: "N", 112: "T", 113: "C", 121: "U", 122: "L", 131: "N", 132: "U"}
_SIDE = {141: "L", 142: "R"}
# The leading integer arguments, before the first float or address, in CBLAS's order.
_ARGUMENTS = {
    "gemm": "order letter letter size size size",
    "gemv": "order letter size size",
    "syrk": "order letter letter size size",
    "symm": "order side letter size size",
    "dot": "size",
    "axpy": "size",
}
# Arguments with which a routine returns at once and reads nothing (BLAS: "quick return if
# possible"): sizes are 0, strides 1, all matrices column-major.
_NOTHING: dict[str, tuple[float | None, ...]] = {
    "gemm": (102, 111, 111, 0, 0, 0, 1.0, None, 1, None, 1, 1.0, None, 1),
    "gemv": (102, 111, 0, 0, 1.0, None, 1, None, 1, 1.0, None, 1),
    "syrk": (102, 121, 111, 0, 0, 1.0, None, 1, 1.0, None, 1),
    "symm": (102, 141, 121, 0, 0, 1.0, None, 1, None, 1, 1.0, None, 1),
    "trsm": (102, 141, 121, 111, 131, 0, 0, 1.0, None, 1, None, 1),
    "trmm": (102, 141, 121, 111, 131, 0, 0, 1.0, None, 1, None, 1),
    "dot": (0, None, 1, None, 1),
    "axpy": (0, 1.0, None, 1, None, 1),
}
_UNTOLD = (
    "{count} of OpenBLAS's calls were too short to measure with probes, which take {ns} ns "
    "here; their times are unknown, all others right."
)


@dataclass(frozen=True, slots=True)
class LibraryRecords:
    """The records of one visit of one OpenBLAS.

    Attributes:
        calls: The calls, by end.
        traps_ns: Time that the probes take in a call, by function.
    """

    calls: tuple[TimedCall, ...] = ()
    traps_ns: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenBlasRecords:
    """The records of one visit.

    Attributes:
        libraries: The records of each OpenBLAS.
        threads: Identifiers of Python's threads, by the kernel's numbers.
    """

    libraries: tuple[LibraryRecords, ...] = ()
    threads: dict[int, int] = field(default_factory=dict)


class OpenBlas:
    """Observes every OpenBLAS that is loaded."""

    name = "openblas"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})
    record_type = OpenBlasRecords

    def __init__(self) -> None:
        self._probes: list[tuple[str, Probes]] = []  # (path of the library, its probes)
        self._traps_ns: dict[str, dict[str, int]] = {}  # by path and function

    def unavailable(self) -> str | None:
        """Return why OpenBLAS cannot be observed here, or None if it can."""
        if os.environ.get(_OPT_IN) != "1":
            return (
                "off, because its probes can take seconds; set XSP_OPENBLAS=1 to see the calls "
                "of NumPy and SciPy"
            )
        found = _loaded()
        if not found:
            return "no OpenBLAS with exported functions is loaded; NumPy and SciPy bring one"
        try:
            self._weigh(found)
        except OSError as error:
            return explain(error)
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Put the probes in; only threads of Python that exist now are watched.

        Raises:
            OSError: The kernel does not let this process watch functions.
        """
        self.stop()
        if Kind.CALL not in request.kinds:
            return
        found = _loaded()
        pythons = thread.names()
        # The calling thread runs the model: it comes first, which gets the largest ring.
        threads = [number for number in native_threads() if number in pythons]
        with undone_on_failure(self.stop):
            try:
                self._weigh(found)
                for path, functions in found.items():
                    self._probes.append((path, Probes(functions, threads)))
            except OSError as error:
                raise OSError(explain(error)) from error

    def stop(self) -> Records:
        """Take the probes out, and return the records."""
        probes, self._probes = self._probes, []
        seen = [(path, *each.close()) for path, each in probes]
        libraries = tuple(
            LibraryRecords(tuple(calls), self._traps_ns.get(path, {})) for path, calls, _ in seen
        )
        return Records(
            OpenBlasRecords(libraries, thread.names()),
            dropped=sum(lost for *_, lost in seen),
            warnings=tuple(filter(None, map(_untold, libraries))),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call. Pure."""
        data: OpenBlasRecords = records.data
        return concat_rows([_rows(each, data.threads) for each in data.libraries])

    def _weigh(self, found: Mapping[str, Mapping[str, Place]]) -> None:
        """Measure how long the probes themselves take, once for each library.

        Raises:
            OSError: The kernel does not let this process watch functions.
        """
        for path, functions in found.items():
            if path not in self._traps_ns:
                self._traps_ns[path] = _traps_ns(functions)


def _loaded() -> dict[str, dict[str, Place]]:
    """Return the functions of every loaded OpenBLAS, by the library's path."""
    found = {path: exports(path) for path in libraries(mappings()) if _NAME.search(path)}
    return {path: functions for path, functions in found.items() if functions}


def _traps_ns(functions: Mapping[str, Place]) -> dict[str, int]:
    """Measure the probes' time in each function; of functions that begin alike, one for all.

    Raises:
        OSError: The kernel does not let this process watch functions.
    """
    alike: dict[bytes, list[str]] = {}
    for name, place in functions.items():
        alike.setdefault(ctypes.string_at(place.address, _HEAD), []).append(name)
    idle = {names[0]: _idle(names[0], functions[names[0]].address) for names in alike.values()}
    found = weigh({name: functions[name] for name in idle}, lambda name: idle[name]())
    return {name: found.get(names[0], 0) for names in alike.values() for name in names}


def _idle(function: str, address: int) -> Callable[[], object]:
    """Return a callable that calls a BLAS function with arguments for which it does nothing."""
    number = ctypes.c_float if function[0] == "s" else ctypes.c_double
    given = _NOTHING[function[1:]]
    # Sizes have 4 or 8 bytes, depending on the build; 8-byte arguments are right for both.
    types = [
        number if isinstance(each, float) else ctypes.c_void_p if each is None else ctypes.c_int64
        for each in given
    ]
    call = ctypes.CFUNCTYPE(None, *types)(address)
    return lambda: call(*given)


def _rows(data: LibraryRecords, threads: Mapping[int, int]) -> SpanRows:
    if not data.calls:
        return no_rows()
    works = [work_of(call.function, call.arguments) for call in data.calls]
    times = [_times(call, data.traps_ns.get(call.function, 0)) for call in data.calls]
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [call.function.upper() for call in data.calls],
            "start_ns": [start for start, _ in times],
            "end_ns": pl.Series([end for _, end in times], dtype=pl.Int64),
            "thread": pl.Series([threads.get(call.thread) for call in data.calls], dtype=pl.Int64),
            "attr.library": "OpenBLAS",
            "attr.problem": pl.Series([w and w.problem for w in works], dtype=pl.String),
            "attr.flops": pl.Series([w and w.flops for w in works], dtype=pl.Int64),
            "attr.placement": ["start" if end is None else "ends" for _, end in times],
        }
    )


def _times(call: TimedCall, traps_ns: int) -> tuple[int, int | None]:
    """Take the probes' time off a call, half at each end; no end where nothing is left."""
    lasted = call.end_ns - call.start_ns
    if lasted <= traps_ns:
        return call.start_ns + lasted // 2, None
    return call.start_ns + traps_ns // 2, call.end_ns - (traps_ns - traps_ns // 2)


def _untold(data: LibraryRecords) -> str | None:
    traps_ns = (data.traps_ns.get(call.function, 0) for call in data.calls)
    pairs = zip(data.calls, traps_ns, strict=True)
    short = [ns for call, ns in pairs if _times(call, ns)[1] is None]
    return _UNTOLD.format(count=len(short), ns=max(short)) if short else None


def exports(path: str) -> dict[str, Place]:
    """Return the CBLAS functions that a library exports, by name in BLAS (`sgemm`)."""
    names = {
        form.format(f"cblas_{letter}{routine}"): letter + routine
        for letter in "sd"
        for routine in _ROUTINES
        for form in _EXPORTS
    }
    return {names[name]: place for name, place in exported(path, names).items()}


@lru_cache(maxsize=1024)
def work_of(function: str, arguments: tuple[int, ...]) -> Work | None:
    """Return the work of a call, given its first six integer arguments; None if unknown.

    >>> work_of("sgemm", (101, 111, 112, 8, 4, 2))
    Work(problem='NT m8 n4 k2', flops=128)
    """
    meaning = _ARGUMENTS.get(function[1:])
    if meaning is None or not arguments:
        return None
    fields = []
    for what, value in zip(meaning.split(), arguments, strict=False):
        # Enumerations have 4 bytes; the upper half of their registers is undefined.
        number = value & 0xFFFFFFFF
        if what == "size":
            fields.append(str(value))
        elif what != "order":
            fields.append((_SIDE if what == "side" else _LETTER).get(number, "?"))
    return work(function.upper(), fields)
