"""Building: the runs of the processes of a measurement in, its trace out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from xsp import __version__
from xsp.correlation import Resolution, resolve
from xsp.errors import MeasurementError
from xsp.evaluation import ON_DEVICE
from xsp.inexact import Inexact
from xsp.level import MEASURED, Kind
from xsp.measurement.process_runs import ProcessRuns
from xsp.merge import Merged, merge
from xsp.problem import AMBIGUITIES, Problem, ProblemCount, problems_of, resolved
from xsp.session import Settings
from xsp.trace import FORMAT, Trace, made_of
from xsp.trace_context import Origin

# Kinds of span that have a latency in a serialised run: what runs on the host, launches apart.
_SERIALISED = [kind.value for kind in (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL)]


def build_trace(
    processes: Sequence[ProcessRuns],
    settings: Settings,
    serialised: ProcessRuns | None = None,
    *,
    problems: Sequence[Problem] = (),
) -> Trace:
    """Return the trace that the runs of one or several processes make.

    Subject, environment and origin of the trace are those of the first process.

    Args:
        processes: The runs of each process.
        settings: How the processes measured.
        serialised: The runs of a process in which the host waited for each kernel: they
            resolve ambiguous parents (`xsp.correlation`) and give the attribute
            `serialised_ns`, but no other number.
        problems: Problems that no process knows of; they stand first in the trace.

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
            "there is not a single complete evaluation to make a trace of: the target raised, or "
            "was interrupted, before its first one ended; let it run longer"
        )
    counts = [count for process in processes for count in process.counts]
    problems = [*problems, *(problem for process in processes for problem in process.problems)]
    if serialised is None:
        merged = merge(runs, statistic=settings.statistic)
        problems += [*problems_of(counts), *merged.problems]
        return _trace(processes, settings, merged, problems)
    resolution = resolve(runs, serialised.runs)
    merged = merge(resolution.runs, statistic=settings.statistic)
    if resolution.resolved:
        problems.append(resolved(resolution.resolved))
    problems += [*_problems_left(counts, resolution), *merged.problems]
    merged_serialised = merge(serialised.runs, statistic=settings.statistic)
    problems += _serialised_problems(serialised, merged_serialised, problems)
    return _trace(processes, settings, _with_serialised(merged, merged_serialised), problems)


def _trace(
    processes: Sequence[ProcessRuns],
    settings: Settings,
    merged: Merged,
    problems: Sequence[Problem],
) -> Trace:
    metadata = describe(
        processes,
        settings,
        problems,
        rungs=merged.rungs.to_dicts(),
        intervals=_intervals(merged.processes),
    )
    metadata |= made_of(merged.spans)
    return Trace(merged.spans, metadata, merged.typical_runs)


def _problems_left(counts: Sequence[ProblemCount], resolution: Resolution) -> tuple[Problem, ...]:
    """Return the counted problems that a serialised run has left, ambiguities counted again."""
    recounted = resolution.resolved.keys() | resolution.remaining.keys()
    others = [count for count in counts if count.code not in recounted]
    ambiguities = [
        ProblemCount(code, rung, count)
        for code, rungs in resolution.remaining.items()
        for rung, count in rungs.items()
    ]
    return (*problems_of(others), *problems_of(ambiguities, serialised=True))


def _serialised_problems(
    serialised: ProcessRuns, merged: Merged, known: Sequence[Problem]
) -> list[Problem]:
    """Return the problems of a serialised process alone, without the ambiguities left in it."""
    problems = (*serialised.problems, *problems_of(serialised.counts), *merged.problems)
    return [
        Problem(problem.code, f"in the serialised run: {problem.message}")
        for problem in problems
        if problem.code not in AMBIGUITIES and problem not in known
    ]


def _with_serialised(merged: Merged, serialised: Merged) -> Merged:
    """Return the merged runs with the latencies of the merged serialised runs as an attribute."""
    reasons = pl.col("attributes").struct.field("inexact")
    carried = reasons.list.contains(Inexact.CARRIED.value).fill_null(value=False)
    # Latencies that still carry overhead could not be compared.
    chosen = ~carried & ~ON_DEVICE & pl.col("kind").is_in(_SERIALISED)
    latencies = serialised.spans.filter(chosen).select("span_id", serialised_ns="latency_ns")
    # The order is kept, as parents come before children in a trace.
    joined = merged.spans.join(latencies, on="span_id", how="left", maintain_order="left")
    field = pl.col("attributes").struct.with_fields(serialised_ns="serialised_ns")
    columns = ("runs", "latency_ns", "latency_low_ns", "latency_high_ns")
    rung = serialised.spans.head(1).select(pl.lit("serialised").alias("rung"), *columns)
    return replace(
        merged,
        # A serialised rung has no overhead or cost per span: these columns become null.
        spans=joined.with_columns(field).drop("serialised_ns"),
        rungs=pl.concat([merged.rungs, rung], how="diagonal_relaxed"),
    )


def describe(
    processes: Sequence[ProcessRuns],
    settings: Settings | None,
    problems: Sequence[Problem],
    *,
    rungs: Sequence[Mapping[str, Any]],
    intervals: str,
) -> dict[str, Any]:
    """Return the metadata of a trace.

    Args:
        processes: The runs of each process.
        settings: How the processes measured; None where nothing was measured by a plan, but
            recorded by another tool.
        problems: Problems that a reader should know.
        rungs: What is known of each rung, as `merge.Merged.rungs`.
        intervals: What the 95 % intervals hold, in words.
    """
    first = processes[0]
    levels = {label: state for process in processes for label, state in process.levels.items()}
    left_out = [
        Problem("level-left-out", f"the {label} level is left out: {state}")
        for label, state in levels.items()
        if state != MEASURED
    ]
    return {
        "format": FORMAT,
        "xsp_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": first.subject,
        # Processes may have the same problem: each sentence stands once.
        "problems": [asdict(problem) for problem in dict.fromkeys((*problems, *left_out))],
        "levels": levels,
        "rungs": list(rungs),
        "intervals": intervals,
        **({"plan": settings.to_json()} if settings else {}),
        "environment": dict(first.environment),
        **_beginning(first.origin),
    }


def _intervals(processes: int) -> str:
    """Return what the 95 % intervals hold: runs of one process, or of any process."""
    return "within this run" if processes < 2 else f"across {processes} processes"


def _beginning(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    return {
        "began_unix_ns": origin.unix_ns,
        "traceparent": origin.traceparent,
        "tracestate": origin.tracestate,
    }
