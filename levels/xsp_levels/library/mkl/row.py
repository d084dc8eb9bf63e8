"""Calls of MKL, and the times of their lines, in; one row per call out. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.library.mkl.line import MklCall
from xsp_levels.native.perf_event import Hit

# Operators of frameworks that call BLAS or LAPACK: calls of unknown time are placed inside
# these operators, by order.
CALLERS = (
    r"^aten::(b?mm|mv|dot|vdot|addmm|addmv|addr|baddbmm|_addmm_activation|_int_mm"
    r"|_?linalg_\w+|_?cholesky\w*|_?lu_\w+|geqrf|orgqr|ormqr|triangular_solve"
    r"|_fft_\w+|mkldnn_linear|_scaled_dot_product_flash_attention_for_cpu|slow_conv\w*"
    r"|_slow_conv\w*)$"
)

_MOST_LOST = 0.1  # of the lines of threads that write at once: of 10,000 some four were
_ROUNDING = 0.05  # of a duration, which MKL writes with two digits after the point, or of its trap
_WRITTEN_NS = 100_000  # a thread that reaches MKL's printer has written its line within this time

BY_END, BY_ORDER = "end", "order"


def call_rows(
    lines: Sequence[MklCall | None],
    hits: Sequence[Hit] | None,
    threads: Mapping[int, int],
    version: str | None,
) -> SpanRows:
    """Return one row per call, placed by the time of its line; where none was recorded, by order.

    A thread reaches the function that writes lines (a hit), and writes its line: the k-th
    hit is the time of the k-th line. Threads that reach the function together may write in
    another order, and over each other's lines: see `with_lines`.

    Args:
        lines: The call of each line; None for a line that cannot be read, which has a hit too.
        hits: Time and thread of each line, by time, perhaps of some more (`explained`); None if
            not recorded.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        version: MKL's version, None if unknown.
    """
    calls = [call for call in lines if call is not None]
    if not calls:
        return no_rows()
    columns = _described(calls, f"MKL {version}" if version else "MKL")
    if hits is None:
        return span_rows({**columns, **_ordered(calls)})
    written = with_lines(hits, lines)
    ends = [hit for hit, call in zip(written, lines, strict=True) if call is not None]
    return span_rows({**columns, **_placed(calls, ends, threads)})


def crowd(hits: Sequence[Hit]) -> list[int]:
    """Return which hits come so soon after another thread's that the lines may be exchanged.

    >>> crowd([Hit(0, 1), Hit(99_000, 1), Hit(200_000, 2), Hit(250_000, 1)])
    [3]
    """
    return [
        at
        for at, (one, other) in enumerate(itertools.pairwise(hits), 1)
        if one.thread != other.thread and other.time_ns - one.time_ns < _WRITTEN_NS
    ]


def explained(hits: Sequence[Hit], count: int) -> bool:
    """Return whether there are as many lines as hits, but for some that threads wrote over.

    >>> explained([Hit(0, 1), Hit(9, 2)], 2), explained([Hit(0, 1), Hit(9, 1)], 1)
    (True, False)
    """
    return 0 <= len(hits) - count <= _MOST_LOST * len(crowd(hits))


def with_lines(hits: Sequence[Hit], lines: Sequence[MklCall | None]) -> Sequence[Hit]:
    """Return the hits that belong to lines, in the lines' order.

    A call cannot have begun before its thread's hit before: where it would, the hit is another's,
    whose line is missing. Lines of which no call tells are missing at the end.
    """
    lost, crowded = len(hits) - len(lines), crowd(hits)
    together = set(crowded)
    gone, last, at = set[int](), dict[int, int](), 0
    for call in lines if lost else ():
        while call is not None and len(gone) < lost and at in together:
            begin_ns = hits[at].time_ns - call.duration_ns
            if begin_ns + _ROUNDING * call.duration_ns >= last.get(hits[at].thread, begin_ns):
                break
            gone.add(at)
            at += 1
        last[hits[at].thread] = hits[at].time_ns
        at += 1
    rest = [at for at in reversed(crowded) if at not in gone]
    gone.update(rest[: lost - len(gone)])
    return [hit for at, hit in enumerate(hits) if at not in gone]


def _described(calls: Sequence[MklCall], library: str) -> dict[str, Any]:
    works = [call.work for call in calls]
    return {
        "kind": Kind.CALL.value,
        "name": [call.routine for call in calls],
        "attr.library": library,
        "attr.problem": pl.Series(
            [work.problem if work else None for work in works], dtype=pl.String
        ),
        "attr.flops": pl.Series([work.flops if work else None for work in works], dtype=pl.Int64),
        "attr.threads": pl.Series([call.threads for call in calls], dtype=pl.Int64),
    }


def _placed(
    calls: Sequence[MklCall], hits: Sequence[Hit], threads: Mapping[int, int]
) -> dict[str, Any]:
    end = np.array([hit.time_ns for hit in hits], np.int64)
    duration = np.array([call.duration_ns for call in calls], np.int64)
    return {
        "start_ns": end - duration,
        "end_ns": end,
        # Only Python's threads have operators; other threads work for one of Python's.
        "thread": pl.Series([threads.get(hit.thread) for hit in hits], dtype=pl.Int64),
        "attr.placement": BY_END,
    }


def _ordered(calls: Sequence[MklCall]) -> dict[str, Any]:
    return {
        "start_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
        "end_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
        "duration_ns": [call.duration_ns for call in calls],
        "inside": CALLERS,
        "attr.placement": BY_ORDER,
    }
