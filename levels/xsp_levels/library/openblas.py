"""The OpenBLAS provider: calls of the BLAS that NumPy and SciPy bring, seen by uprobes.

OpenBLAS tells nothing of what it does, so the kernel watches its exported functions.
To put the probes in and take them out takes a moment for every visit, and NumPy is in
every process that xsp measures; so this is off until XSP_OPENBLAS=1 asks for it.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, no_rows, pack, span_rows, unpack
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.blas_flop import Work, work
from xsp_levels.native import thread
from xsp_levels.native.perf_event import explain, native_threads
from xsp_levels.native.symbol import Place, exported, libraries, mappings
from xsp_levels.native.uprobe import Probes, Seen, tare_ns, weighed

_OPT_IN = "XSP_OPENBLAS"
_NAME = re.compile(r"openblas", re.IGNORECASE)
_ROUTINES = ("gemm", "gemv", "syrk", "symm", "trsm", "trmm", "dot", "axpy")
_EXPORTS = ("{}", "{}64_", "scipy_{}", "scipy_{}64_")  # as built by OpenBLAS, and by SciPy
_IDLE = "openblas_get_num_threads"  # does next to nothing

# CBLAS's names for what Fortran's letters say (cblas.h).
_LETTER = {111: "N", 112: "T", 113: "C", 121: "U", 122: "L", 131: "N", 132: "U"}
_SIDE = {141: "L", 142: "R"}
# Integer arguments before the first that is a number or an address, by CBLAS's order.
_ARGUMENTS = {
    "gemm": "order letter letter size size size",
    "gemv": "order letter size size",
    "syrk": "order letter letter size size",
    "symm": "order side letter size size",
    "dot": "size",
    "axpy": "size",
}


@dataclass(frozen=True, slots=True)
class OpenBlasRecords:
    """What one visit kept.

    Attributes:
        calls: In the order of their ends.
        tare_ns: What a call that does nothing seems to take.
        threads: Identifiers of Python's threads, by the kernel's numbers.
    """

    calls: tuple[Seen, ...] = ()
    tare_ns: int = 0
    threads: dict[int, int] = field(default_factory=dict)


_KEPT = (Records, OpenBlasRecords, Seen)


class OpenBlas:
    """Observes every OpenBLAS that is loaded."""

    name = "openblas"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})

    def __init__(self) -> None:
        self._probes: list[Probes] = []
        self._tare: int | None = None

    def unavailable(self) -> str | None:
        """Return why OpenBLAS cannot be observed here, or None if it can."""
        if os.environ.get(_OPT_IN) != "1":
            return (
                "off, for its probes take up to seconds for every visit; set XSP_OPENBLAS=1 "
                "to see the calls that NumPy and SciPy make"
            )
        found = [(path, exports(path)) for path in libraries(mappings()) if _NAME.search(path)]
        if not any(functions for _, functions in found):
            return "no OpenBLAS with exported functions is loaded; NumPy and SciPy bring one"
        try:
            self._weigh(*next(one for one in found if one[1]))
        except OSError as error:
            return explain(error)
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Put the probes in; only Python's threads of this moment are watched.

        Raises:
            OSError: The kernel does not let us.
        """
        self.stop()
        if Kind.CALL not in request.kinds:
            return
        pythons = thread.names()
        # The calling one comes first, for which there is most room: it runs the model.
        threads = [number for number in native_threads() if number in pythons]
        with undone_on_failure(self.stop):
            try:
                for path in libraries(mappings()):
                    if _NAME.search(path) and (functions := exports(path)):
                        self._probes.append(Probes(functions, threads))
            except OSError as error:
                raise OSError(explain(error)) from error

    def stop(self) -> Records:
        """Take the probes out, and hand over what was recorded."""
        probes, self._probes = self._probes, []
        seen = [each.close() for each in probes]
        calls = tuple(call for found, _ in seen for call in found)
        return Records(
            OpenBlasRecords(calls, self._tare or 0, thread.names()),
            dropped=sum(lost for _, lost in seen),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call. Pure."""
        data: OpenBlasRecords = records.data
        if not data.calls:
            return no_rows()
        ends = [weighed(call, data.tare_ns) for call in data.calls]
        works = [work_of(call.function, call.arguments) for call in data.calls]
        return span_rows(
            {
                "kind": Kind.CALL.value,
                "name": [call.function.upper() for call in data.calls],
                "start_ns": [start for start, _ in ends],
                "end_ns": [end for _, end in ends],
                "thread": pl.Series(
                    [data.threads.get(call.thread) for call in data.calls], dtype=pl.Int64
                ),
                "attr.library": "OpenBLAS",
                "attr.problem": pl.Series([w and w.problem for w in works], dtype=pl.String),
                "attr.flops": pl.Series([w and w.flops for w in works], dtype=pl.Int64),
                "attr.placement": "ends",
            }
        )

    def pack(self, records: Records) -> bytes:
        """Return records as bytes. Pure."""
        return pack(records, _KEPT)

    def unpack(self, content: bytes) -> Records:
        """Return the records that `pack` made bytes of. Pure."""
        records: Records = unpack(content, _KEPT)
        return records

    def _weigh(self, path: str, functions: dict[str, Place]) -> None:
        """Find out what the probes themselves take, once.

        Raises:
            OSError: The kernel does not let us.
        """
        if self._tare is not None:
            return
        for form in _EXPORTS:
            name = form.format(_IDLE)
            if place := exported(path, [name]).get(name):
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
                self._tare = tare_ns(place, getattr(library, name), threading.get_native_id())
                return
        self._tare = 0


def exports(path: str) -> dict[str, Place]:
    """Return the CBLAS functions that a library exports, by BLAS's names: `sgemm`."""
    names = {
        form.format(f"cblas_{letter}{routine}"): letter + routine
        for letter in "sd"
        for routine in _ROUTINES
        for form in _EXPORTS
    }
    return {names[name]: place for name, place in exported(path, names).items()}


def work_of(function: str, arguments: Sequence[int]) -> Work | None:
    """Return what a call computes, by its first six integer arguments; None if that is not known.

    >>> work_of("sgemm", (101, 111, 112, 8, 4, 2))
    Work(problem='NT m8 n4 k2', flops=128)
    """
    meaning = _ARGUMENTS.get(function[1:])
    if meaning is None or not arguments:
        return None
    fields = []
    for what, value in zip(meaning.split(), arguments, strict=False):
        number = value & 0xFFFFFFFF  # enumerations, which leave the upper half as it was
        if what == "size":
            fields.append(str(value))
        elif what != "order":
            fields.append((_SIDE if what == "side" else _LETTER).get(number, "?"))
    return work(function.upper(), fields)
