"""Builds the trace of a measurement from the runs of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from xsp import __version__
from xsp.errors import MeasurementError
from xsp.level import MEASURED
from xsp.reading.accounting import with_call_rows
from xsp.reading.merge import merge
from xsp.reading.monitor import (
    attributes_of,
    layer_energies,
    part_attributes,
    with_attributes,
)
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.reading.runs.synchronous import left, resolve, with_latencies
from xsp.record.session import Settings
from xsp.trace import FORMAT, Trace, made_of
from xsp.warning import AMBIGUITIES, TraceWarning, resolved, warnings_of


def build_trace(
    processes: Sequence[ProcessRuns],
    settings: Settings,
    synchronous: ProcessRuns | None = None,
    *,
    warnings: Sequence[TraceWarning] = (),
) -> Trace:
    """Return the trace that the runs of one or several processes make.

    Subject, environment and origin of the trace are those of the first process.

    Args:
        processes: The runs of each process.
        settings: How the processes measured.
        synchronous: The runs of a process in which the host waited for each kernel: they tell
            the parents of ambiguous rows, and give the attribute `synchronous_ns`, but no other
            number.
        warnings: Warnings that no process knows of; they stand first in the trace.

    Raises:
        MeasurementError: There is not a single run.
    """
    runs = [
        replace(run, process=number)
        for number, process in enumerate(processes)
        for run in process.runs
    ]
    if not runs:
        raise MeasurementError(
            "there is not a single complete step to make a trace of: the target raised, or "
            "was interrupted, before its first one ended; let it run longer"
        )
    counts = [count for process in processes for count in process.counts]
    warnings = [*warnings, *(warning for process in processes for warning in process.warnings)]
    if synchronous is not None:
        runs, told = resolve(runs, synchronous.runs)
        counts = left(counts, told)
        if told:
            warnings.append(resolved(told))
    merged = merge(runs, statistic=settings.statistic)
    warnings += [*warnings_of(counts, synchronous=synchronous is not None), *merged.warnings]
    if synchronous is not None:
        waiting = merge(synchronous.runs, statistic=settings.statistic)
        merged = with_latencies(merged, waiting)
        own = (*synchronous.warnings, *warnings_of(synchronous.counts), *waiting.warnings)
        warnings += [
            TraceWarning(warning.code, f"in the synchronous pass: {warning.message}")
            for warning in own
            if warning.code not in AMBIGUITIES and warning not in warnings
        ]
    monitoring = next((each.monitoring for each in processes if each.monitoring), None)
    of_root, contradictions = attributes_of(monitoring) if monitoring else ({}, [])
    warnings += contradictions
    metadata = describe(
        processes,
        settings,
        warnings,
        passes=merged.passes.to_dicts(),
        intervals="within this run"
        if merged.processes < 2
        else f"across {merged.processes} processes",
    )
    spans = with_call_rows(merged.spans)
    told_of = {0: of_root} if of_root else {}
    if monitoring:
        parts = layer_energies(spans, monitoring).items()
        told_of |= {row: part_attributes(energy) for row, energy in parts}
    spans = with_attributes(spans, told_of)
    metadata |= made_of(spans)
    readings = monitoring.readings if monitoring else None
    return Trace(spans, metadata, merged.typical_runs, readings)


def describe(
    processes: Sequence[ProcessRuns],
    settings: Settings | None,
    warnings: Sequence[TraceWarning],
    *,
    passes: Sequence[Mapping[str, Any]],
    intervals: str,
) -> dict[str, Any]:
    """Return the metadata of a trace.

    Args:
        processes: The runs of each process.
        settings: How the processes measured; None where nothing was measured by a plan, but
            recorded by another tool.
        warnings: Warnings that a reader should know.
        passes: What is known of each pass, as `merge.Merged.passes`.
        intervals: What the 95 % intervals hold, in words.
    """
    first = processes[0]
    levels = {label: state for process in processes for label, state in process.levels.items()}
    left_out = [
        TraceWarning("level-left-out", f"the {label} level is missing: {state}")
        for label, state in levels.items()
        if state != MEASURED
    ]
    origin = first.origin
    beginning = (
        {
            "began_unix_ns": origin.unix_ns,
            "traceparent": origin.traceparent,
            "tracestate": origin.tracestate,
        }
        if origin
        else {}
    )
    return {
        "format": FORMAT,
        "xsp_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": first.subject,
        # Processes may have the same warning: each sentence stands once.
        "warnings": [asdict(warning) for warning in dict.fromkeys((*warnings, *left_out))],
        "levels": levels,
        "passes": list(passes),
        "intervals": intervals,
        **({"plan": settings.to_json()} if settings else {}),
        "environment": dict(first.environment),
        **beginning,
    }
