"""Makes rows of what MKL told: lines and moments in, one row per call out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.row import SpanRows, no_rows, span_rows
from xsp_levels.library.mkl_line import Call
from xsp_levels.library.perf_event import Hit

# Operators of frameworks that call BLAS or LAPACK, by which calls are placed whose
# moment is not known.
CALLERS = (
    r"^aten::(b?mm|mv|dot|vdot|addmm|addmv|addr|baddbmm|_addmm_activation|_int_mm"
    r"|_?linalg_\w+|_?cholesky\w*|_?lu_\w+|geqrf|orgqr|ormqr|triangular_solve"
    r"|_fft_\w+|mkldnn_linear|_scaled_dot_product_flash_attention_for_cpu|slow_conv\w*"
    r"|_slow_conv\w*)$"
)

BY_END, BY_ORDER = "end", "order"


def call_rows(
    calls: Sequence[Call],
    hits: Sequence[Hit] | None,
    threads: Mapping[int, int],
    version: str | None,
) -> SpanRows:
    """Return one row per call, placed in time by its moment or else by its order.

    Moments and lines are in the same order: a thread reaches the function that writes
    the line, and writes it. A line without its moment was written by a thread that
    began after recording did; then none of them can be told apart.

    Args:
        calls: What MKL wrote, line by line.
        hits: When lines were about to be written, in order; None if that is not known.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        version: Of MKL, None if it is not known.
    """
    if not calls:
        return no_rows()
    columns = _described(calls, f"MKL {version}" if version else "MKL")
    if hits is None or len(hits) < len(calls):
        return span_rows({**columns, **_ordered(calls)})
    return span_rows({**columns, **_placed(calls, hits[: len(calls)], threads)})


def _described(calls: Sequence[Call], library: str) -> dict[str, Any]:
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
    calls: Sequence[Call], hits: Sequence[Hit], threads: Mapping[int, int]
) -> dict[str, Any]:
    end = np.array([hit.time_ns for hit in hits], np.int64)
    duration = np.array([call.duration_ns for call in calls], np.int64)
    return {
        "start_ns": end - duration,
        "end_ns": end,
        # A thread that is not Python's works for one that is: it has no operators of its own.
        "thread": pl.Series([threads.get(hit.thread) for hit in hits], dtype=pl.Int64),
        "attr.placement": BY_END,
    }


def _ordered(calls: Sequence[Call]) -> dict[str, Any]:
    return {
        "start_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
        "end_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
        "duration_ns": [call.duration_ns for call in calls],
        "inside": CALLERS,
        "attr.placement": BY_ORDER,
    }
