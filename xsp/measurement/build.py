"""Building: what the processes of a measurement collected in, its trace out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from xsp import __version__
from xsp.correlation import Resolution, resolve
from xsp.errors import MeasurementError
from xsp.level import MEASURED, Kind
from xsp.measurement.collection import Collected
from xsp.merge import Merged, merge
from xsp.problem import AMBIGUITIES, Problem, ProblemCount, problems_of, resolved
from xsp.provider import ON_DEVICE
from xsp.session import Settings
from xsp.trace import FORMAT, Trace
from xsp.trace_context import Origin

# Kinds of span that have a latency in a serialised run: what runs on the host, launches apart.
_SERIALISED = [kind.value for kind in (Kind.PIPELINE, Kind.LAYER, Kind.OP, Kind.CALL)]


def build_trace(
    collected: Sequence[Collected],
    settings: Settings,
    serialised: Collected | None = None,
    *,
    problems: Sequence[Problem] = (),
) -> Trace:
    """Return the trace that the runs of one or several processes make.

    Subject, environment and origin are those of the first.

    Args:
        collected: What each process collected.
        settings: How it was measured.
        serialised: What was collected where the host waited for each kernel; it resolves
            what is ambiguous (`xsp.correlation`), and gives `serialised_ns`, but no other number.
        problems: What went wrong beside the processes; named first.

    Raises:
        MeasurementError: There is not a single run.
    """
    runs = [
        replace(run, process=number) for number, one in enumerate(collected) for run in one.runs
    ]
    if not runs:
        raise MeasurementError(
            "there is not a single complete evaluation to make a trace of: the target raised, or "
            "was interrupted, before its first one ended; let it run longer"
        )
    counts = [count for one in collected for count in one.counts]
    problems = [*problems, *(problem for one in collected for problem in one.problems)]
    if serialised is None:
        merged = merge(runs, statistic=settings.statistic)
        told = [*problems, *problems_of(counts), *merged.problems]
        return _trace(collected, settings, merged, told)
    found = resolve(runs, serialised.runs)
    merged = merge(found.runs, statistic=settings.statistic)
    done = [resolved(found.resolved)] if found.resolved else []
    told = [*problems, *done, *_counted_anew(counts, found), *merged.problems]
    there = merge(serialised.runs, statistic=settings.statistic)
    told += _own_problems(serialised, there, told)
    return _trace(collected, settings, _with_serialised(merged, there), told)


def _trace(
    collected: Sequence[Collected], settings: Settings, merged: Merged, problems: Sequence[Problem]
) -> Trace:
    return Trace(
        merged.spans, _metadata(collected, merged, settings, problems), merged.typical_runs
    )


def _counted_anew(counts: Sequence[ProblemCount], found: Resolution) -> tuple[Problem, ...]:
    """Return the problems that were counted, ambiguities as they are after a serialised run."""
    anew = found.resolved.keys() | found.remaining.keys()
    kept = [count for count in counts if count.code not in anew]
    left = [
        ProblemCount(code, rung, count)
        for code, rungs in found.remaining.items()
        for rung, count in rungs.items()
    ]
    return (*problems_of(kept), *problems_of(left, serialised=True))


def _own_problems(serialised: Collected, merged: Merged, known: Sequence[Problem]) -> list[Problem]:
    """Return what is wrong with a serialised measurement alone; its ambiguities are told."""
    told = (*serialised.problems, *problems_of(serialised.counts), *merged.problems)
    return [
        Problem(problem.code, f"in the serialised run: {problem.message}")
        for problem in told
        if problem.code not in AMBIGUITIES and problem not in known
    ]


def _with_serialised(merged: Merged, there: Merged) -> Merged:
    """Return the merged runs with the latencies that spans have in a serialised measurement."""
    exact = pl.col("attributes").struct.field("exact") & ~ON_DEVICE
    latencies = there.spans.filter(exact & pl.col("kind").is_in(_SERIALISED)).select(
        "span_id", serialised_ns="latency_ns"
    )
    joined = merged.spans.join(latencies, on="span_id", how="left", maintain_order="left")
    field = pl.col("attributes").struct.with_fields(serialised_ns="serialised_ns")
    columns = ("runs", "latency_ns", "latency_low_ns", "latency_high_ns")
    rung = there.spans.head(1).select(pl.lit("serialised").alias("rung"), *columns)
    return replace(
        merged,
        spans=joined.with_columns(field).drop("serialised_ns"),
        rungs=pl.concat([merged.rungs, rung], how="diagonal_relaxed"),
    )


def _metadata(
    collected: Sequence[Collected], merged: Merged, settings: Settings, told: Sequence[Problem]
) -> dict[str, Any]:
    levels = {label: state for one in collected for label, state in one.levels.items()}
    left_out = [
        Problem("level-left-out", f"the {label} level is left out: {state}")
        for label, state in levels.items()
        if state != MEASURED
    ]
    return {
        "format": FORMAT,
        "xsp_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": collected[0].subject,
        "problems": [asdict(problem) for problem in dict.fromkeys((*told, *left_out))],
        "levels": levels,
        "rungs": merged.rungs.to_dicts(),
        "plan": settings.to_json(),
        "environment": dict(collected[0].environment),
        **_beginning(collected[0].origin),
    }


def _beginning(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    return {
        "began_unix_ns": origin.unix_ns,
        "traceparent": origin.traceparent,
        "tracestate": origin.tracestate,
    }
