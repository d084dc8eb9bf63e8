"""Measuring: a point in, its result and its trace's file out, whatever becomes of the target."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path

from xsp.errors import XspError
from xsp.measurement import Progress
from xsp.session import Settings, limited_threads
from xsp.sweep.point import Point
from xsp.sweep.result import Result, Status, numbers_of, without_trace
from xsp.target import measure_isolated
from xsp.trace import Trace

_INTERRUPTED = "interrupted"


def measure_point(point: Point, plan: Settings, folder: Path, report: Progress) -> Result:
    """Measure a point in fresh processes, save its trace, and return its result.

    Args:
        point: The point.
        plan: How to measure.
        folder: Folder for the trace.
        report: Called with the fraction done.

    Raises:
        ExportError: The trace could not be saved.
        KeyboardInterrupt: The measurement was interrupted; nothing of the point is kept.
    """
    began = time.monotonic()
    try:
        trace = _measured(point, plan, report)
    except (XspError, OSError) as error:
        result = _failure(point, error)
    else:
        saved = trace.save(folder / point.file_name)
        sentences = tuple(problem.message for problem in trace.problems)
        result = Result(
            point.key,
            point.settings,
            Status.MEASURED,
            trace=saved.name,
            measured=numbers_of(trace),
            problems=sentences,
        )
    return replace(result, took_s=time.monotonic() - began)


def _measured(point: Point, plan: Settings, report: Progress) -> Trace:
    with limited_threads(point.threads):
        trace = measure_isolated(point.spec, plan, report)
    if any(problem.code == _INTERRUPTED for problem in trace.problems):
        raise KeyboardInterrupt
    metadata = {**trace.metadata, "settings": point.settings}
    return Trace(trace.spans, metadata, trace.typical_runs)


def _failure(point: Point, error: XspError | OSError) -> Result:
    """Return the result of a point that could not be measured.

    Raises:
        OSError: The error says nothing of the target.
    """
    memory = getattr(error, "out_of_memory", False)
    if isinstance(error, OSError):
        memory = error.errno == errno.ENOMEM  # there was no room even for a process
        if not memory:
            raise error
    status = Status.OUT_OF_MEMORY if memory else Status.FAILED
    return without_trace(point, status, str(error))
