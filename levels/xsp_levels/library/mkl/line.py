"""Lines of MKL's verbose mode in, calls out. Pure.

A call is `MKL_VERBOSE SGEMM(T,N,10,4,65536,0x…,…) 307.66us CNR:OFF Dyn:1 FastMM:1 TID:0
NThr:2`; the first line of a process names the build. MKL's guide says that fields may
be added after the duration: unknown fields are passed over. The duration has two digits after
the point, in the largest unit in which the number is above one: 1.66 ms is known to 10 µs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from xsp_levels.library.blas_flop import Work, work

# Threads that write at once write into one buffer of MKL's: a line may begin as `%KL_VERBOSE`.
MARK = "KL_VERBOSE"

_CALL = re.compile(
    MARK
    + r"(?: (\w+)\(((?:[^()\n]|\(nil\))*)\) (\d+(?:\.\d+)?)(ns|us|ms|s)(?![\w.])(?=([^\n]*)))?",
    re.ASCII,
)
_BUILD = re.compile(MARK + r" ((?:Intel|oneMKL)[^\n]*)")
_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)?)(?: Update (\d+))?", re.ASCII)
_THREADS = re.compile(r"\bNThr:(\d+)", re.ASCII)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+|\(nil\)", re.ASCII)
# LAPACK's routines in which an argument of -1 asks for the size of the workspace; in other
# routines -1 is a stride.
_ASKED = re.compile(r"[SDCZ](?:GETRI|GEQRF|(?:OR|UN)GQR|GESDD|GEEV|(?:SY|HE)EVD|GELS[YDS]?)")
_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class MklCall:
    """One call of MKL.

    Attributes:
        routine: Name, in capitals for BLAS and LAPACK: `SGEMM`.
        duration_ns: Duration of the call, as measured by MKL.
        threads: Count of threads that the call could use; None if the line does not tell.
        work: The call's work; None for an unknown routine.
    """

    routine: str
    duration_ns: int
    threads: int | None
    work: Work | None


def lines(text: str) -> tuple[MklCall | None, ...]:
    """Return the call of each of MKL's lines, None for a line that cannot be read.

    Lines that MKL did not write are passed over.

    >>> lines("MKL_VERBOSE DDOT(8,0x1,1,0x2,1) 1.50us CNR:OFF NThr:2")[0].duration_ns
    1500
    """
    return tuple(_call(*found.groups()) if found[1] else None for found in _lines(text))


def count(text: str) -> int:
    """Return the count of MKL's lines of calls, those included that cannot be read."""
    return sum(1 for _ in _lines(text))


def unread(text: str) -> int:
    """Return the count of MKL's lines that cannot be read: lines cut in half, for example."""
    return sum(1 for found in _lines(text) if not found[1])


def _lines(text: str) -> Iterator[re.Match[str]]:
    """Yield the match of each of MKL's lines but those that name the build."""
    for found in _CALL.finditer(text):
        if found[1] or not _BUILD.match(text, found.start()):
            yield found


def version(text: str) -> str | None:
    """Return the version of MKL, None if no line tells the version.

    >>> version("MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64")
    '2024.0 Update 2'
    """
    build = _BUILD.search(text)
    match = _VERSION.search(build[1]) if build else None
    if match is None:
        return None
    return f"{match[1]} Update {match[2]}" if match[2] else match[1]


def _call(routine: str, arguments: str, value: str, unit: str, rest: str) -> MklCall:
    return MklCall(
        routine=routine,
        duration_ns=round(float(value) * _NS[unit]),
        threads=_threads(rest),
        work=_work(routine, _without_addresses(arguments)),
    )


def _without_addresses(arguments: str) -> str:
    """Return arguments without addresses, so that equal problems have equal arguments."""
    return _ADDRESS.sub("-", arguments)


@lru_cache(maxsize=4096)
def _work(routine: str, arguments: str) -> Work | None:
    fields = arguments.split(",")
    if routine == "FFT":  # the problem is one word: srfo1024
        return Work(fields[0], None)
    found = work(routine, fields)
    if found is not None and "-1" in fields and _ASKED.fullmatch(routine):
        return Work(f"query {found.problem}", 0)
    return found


@lru_cache(maxsize=256)
def _threads(rest: str) -> int | None:
    match = _THREADS.search(rest)
    return int(match[1]) if match else None
