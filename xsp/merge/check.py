"""Findings: what the runs of a measurement say against its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import (
    Observations,
    Run,
    Structure,
    bootstrap_interval,
    columns_of,
    signatures,
    trimmed_mean,
)
from xsp.level import Kind
from xsp.merge.difference import difference
from xsp.merge.ladder import Cost, Latencies, Step
from xsp.merge.tally import execution_counts, idle_launches
from xsp.problem import Problem
from xsp.quantity import counted, duration

Floats = NDArray[np.float64]

_NAMED = 5  # examples that a message gives
_CHANGE = 0.01  # of the latency: below that a difference is not worth a word
_WIDE = 0.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a measurement is judged by."""

    runs: Sequence[Run]
    seen: Observations
    steps: Sequence[Step]
    costs: Sequence[Cost]
    structure: Structure
    found: Latencies


def problems(evidence: Evidence, apart: float) -> tuple[Problem, ...]:
    """Return what a reader should know before trusting a number.

    Args:
        evidence: The runs, and what was made of them.
        apart: Largest relative difference between the bare latencies of processes.
    """
    checks = (
        _carries_overhead(evidence),
        _wide_interval(evidence),
        _structure_varies(evidence),
        _idle_launches(evidence),
        _executions_vary(evidence),
        _unmatched(evidence),
        _unseen(evidence),
        _endless(evidence),
        _processes_differ(apart),
        _residual(evidence),
        _prediction(evidence),
        _share_outlier(evidence),
        _scaled(evidence),
    )
    return tuple(problem for problem in checks if problem)


def _carries_overhead(evidence: Evidence) -> Problem | None:
    spans, found = evidence.structure, evidence.found
    missing = ~found.exact & ~_lost(evidence) & ~_unended(evidence)
    if not missing.any():
        return None
    kinds = _kinds(spans, np.flatnonzero(missing))
    return Problem(
        "carries-overhead",
        f"the latencies of {kinds} still carry overhead: there are no runs in which nothing "
        f"deeper was recorded (the outermost rung measured is {evidence.steps[0].name}); let "
        "the plan finish, with more evaluations or a larger budget",
    )


def _unseen(evidence: Evidence) -> Problem | None:
    spans = evidence.structure
    lost = _lost(evidence)
    if not lost.any():
        return None
    names = _examples([str(spans.rows["name"][int(i)]) for i in np.flatnonzero(lost)])
    return Problem(
        "unmatched",
        f"{counted(int(lost.sum()), 'span')} not seen in any run of the rung that is to measure "
        f"it ({names}): the latency comes from a deeper rung and is less exact",
    )


def _endless(evidence: Evidence) -> Problem | None:
    endless = _unended(evidence)
    if not endless.any():
        return None
    names = _examples([str(evidence.structure.rows["name"][int(i)]) for i in endless.nonzero()[0]])
    if evidence.steps[-1].order < Kind.LAUNCH.order:
        why = "they end with their last launch, and launches were not recorded; levels=4 does that"
    else:
        why = "they end with their last launch, and no launch was seen in them"
    return Problem(
        "no-end",
        f"the latency of {counted(int(endless.sum()), 'call')} ({names}) is not known: their "
        f"library tells only when they begin; {why}",
    )


def _unended(evidence: Evidence) -> NDArray[np.bool_]:
    """Tell which spans were recorded without an end, and found none."""
    unended: NDArray[np.bool_] = evidence.structure.ended & np.isnan(evidence.found.value_ns)
    return unended


def _lost(evidence: Evidence) -> NDArray[np.bool_]:
    """Tell which spans are missing in the runs of their own rung, which there are."""
    rungs = [step.order for step in evidence.steps]
    own = evidence.structure.order
    lost: NDArray[np.bool_] = (evidence.found.order > own) & np.isin(own, rungs)
    return lost


def _unmatched(evidence: Evidence) -> Problem | None:
    seen, spans = evidence.seen, evidence.structure
    members = np.concatenate([step.members for step in evidence.steps]).astype(int)
    known = np.sort(spans.key)
    names: dict[int, str] = {}
    for run in members.tolist():
        rows = seen.of(run)
        new = np.flatnonzero(~columns_of(seen.key[rows], known)[1])
        frame = seen.runs[run].rows
        if len(new) and frame is not None:
            found = frame["name"].gather(new.tolist()).to_list()
            names.update(zip(seen.key[rows][new].tolist(), found, strict=True))
    if not names:
        return None
    return Problem(
        "unmatched",
        f"{counted(len(names), 'span')} of other runs not in the run that is shown "
        f"({_examples(list(names.values()))}): the model does not always take the same path",
    )


def _structure_varies(evidence: Evidence) -> Problem | None:
    for step in evidence.steps:
        marks = signatures(evidence.seen, step.members.tolist())
        if not marks:
            continue
        others = len(marks) - Counter(marks).most_common(1)[0][1]
        if others > 0.05 * len(marks):
            return Problem(
                "structure-varies",
                f"{others} of {len(marks)} runs of rung {step.name} took another path than the "
                "most frequent one; each latency rests on the runs that have the span",
            )
    return None


def _idle_launches(evidence: Evidence) -> Problem | None:
    """Compare launches seen with kernels, copies and sets seen, in all runs that saw any."""
    idle = idle_launches(_deepest(evidence))
    if not idle.height:
        return None
    said = [
        f"{lost:,} of {launches:,} calls of {name}"
        for name, launches, lost in idle.head(3).iter_rows()
    ]
    return Problem(
        "idle-launches",
        f"nothing was seen on a device after {', '.join(said)} of all runs: records were lost, or "
        "the call had nothing to do; where records were lost, device times are too short",
    )


def _executions_vary(evidence: Evidence) -> Problem | None:
    counts = execution_counts(_deepest(evidence))
    others = len(counts) - Counter(counts).most_common(1)[0][1] if counts else 0
    if others <= 0.05 * len(counts):
        return None
    return Problem(
        "executions-vary",
        f"devices were given {min(counts):,} to {max(counts):,} kernels and copies by an "
        f"evaluation, and in {others} of {len(counts)} runs not as many as in most: the model "
        "does not always take the same path, or records were lost",
    )


def _deepest(evidence: Evidence) -> list[pl.DataFrame]:
    """Return the rows of the runs in which everything was recorded."""
    runs = evidence.steps[-1].runs
    return [run.rows for run in runs if run.rows is not None]


def _processes_differ(apart: float) -> Problem | None:
    if apart <= 0.02:
        return None
    return Problem(
        "processes-differ",
        f"without a profiler the model's latency differs by {apart:.1%} between the processes of "
        "this measurement; all were brought to one scale, which is only an approximation for a "
        "single span: quieten the machine, or measure with --no-isolate",
    )


def _residual(evidence: Evidence) -> Problem | None:
    """Compare the bare runs of the last quarter with those of the first, process by process."""
    bare = [step for step in evidence.steps if step.order < 0]
    for process in np.unique(bare[0].processes) if bare else ():
        chosen = bare[0].processes == process
        times = bare[0].root_ns[chosen][:, None]
        quarter = len(times) // 4
        if quarter < 5:
            continue
        order = np.argsort(bare[0].rounds[chosen], kind="stable")
        first, last = times[order[:quarter]], times[order[-quarter:]]
        change = float(trimmed_mean(last)[0] / max(trimmed_mean(first)[0], 1.0) - 1)
        apart = bootstrap_interval(last)[0] > bootstrap_interval(first)[1]
        apart |= bootstrap_interval(last)[1] < bootstrap_interval(first)[0]
        if abs(change) > _CHANGE and apart[0]:
            return Problem(
                "residual",
                f"without a profiler the model was {abs(change):.1%} "
                f"{'slower' if change > 0 else 'faster'} at the end than at the beginning: the "
                "machine drifted, or a profiler left something behind; if it happens again in "
                "fresh processes (xsp profile), it is the machine",
            )
    return None


def _prediction(evidence: Evidence) -> Problem | None:
    """Compare the bare latency with the deepest rung's less everything that was removed."""
    bare, deepest = evidence.steps[0], evidence.steps[-1]
    if bare.order >= 0 or deepest.order < 1:
        return None
    removed = float(sum(cost.nested_ns[0] for cost in evidence.costs))
    error = float(sum(cost.error_ns[0] for cost in evidence.costs))
    gap, noise = difference(
        deepest.sample(deepest.host_ns[:, None]), bare.sample(bare.host_ns[:, None])
    )
    gap -= removed
    measured = max(float(trimmed_mean(bare.host_ns[:, None])[0]), 1.0)
    if abs(gap[0]) <= 3 * np.hypot(noise[0], error) + _CHANGE * measured:
        return None
    return Problem(
        "prediction",
        f"the {deepest.name} runs, less what recording cost them, are {gap[0] / measured:+.1%} off "
        f"what the model takes without a profiler ({duration(measured)}): the overhead of that "
        "rung is not fully understood; more runs, or a quieter machine, would change that",
    )


def _share_outlier(evidence: Evidence) -> Problem | None:
    spans = evidence.structure
    for step, cost in zip(evidence.steps, evidence.costs, strict=True):
        if cost.shares is None or not len(cost.shares.outliers):
            continue
        rows = cost.parents[cost.shares.outliers]
        share = cost.shares.value_ns[cost.shares.outliers]
        worst = int(np.argmax(share))
        excess = share * cost.count[cost.shares.outliers]
        if not (excess > _WIDE * evidence.found.value_ns[rows]).any():
            continue
        return Problem(
            "share-outlier",
            f"recording one {step.name} span costs {duration(float(share[worst]))} inside "
            f"{spans.rows['name'][int(rows[worst])]}, but {duration(cost.shares.pooled_ns)} "
            f"elsewhere: the latencies inside {counted(len(rows), 'such span')} are less certain",
        )
    return None


def _wide_interval(evidence: Evidence) -> Problem | None:
    found = evidence.found
    half = (found.high_ns[0] - found.low_ns[0]) / 2
    if np.isnan(half):
        return Problem(
            "wide-interval",
            "the model's latency rests on a single run, so that nothing is known of its error",
        )
    if half <= _WIDE * found.value_ns[0]:
        return None
    return Problem(
        "wide-interval",
        f"the model's latency is only known to ±{half / max(found.value_ns[0], 1.0):.0%} "
        f"({found.runs[0]} runs): more runs, or a quieter machine, would change that; "
        "`xsp doctor` says what disturbs this one",
    )


def _scaled(evidence: Evidence) -> Problem | None:
    """Name parents whose children are longer than they are, beyond all their intervals."""
    spans, found = evidence.structure, evidence.found
    thread = spans.rows["thread"].fill_null(-1).to_numpy()
    child = np.flatnonzero((spans.parent >= 0) & spans.host & (thread == thread[spans.parent]))
    above = spans.parent[child]
    sums = np.bincount(above, weights=found.low_ns[child], minlength=len(thread))
    over = np.flatnonzero(sums > found.high_ns * (1 + _CHANGE))
    excess = float((sums - found.high_ns)[over].sum())
    if excess <= _CHANGE * found.value_ns[0]:
        return None
    names = _examples([str(spans.rows["name"][int(i)]) for i in over])
    return Problem(
        "scaled",
        f"the children of {counted(len(over), 'span')} sum to more than the span itself ({names}); "
        "they are drawn shorter to fit, attributes.scaled_ns says by how much",
    )


def _kinds(spans: Structure, rows: NDArray[np.int64]) -> str:
    present = set(spans.rows["kind"].gather(rows.tolist()).to_list())
    return ", ".join(f"{kind.value} spans" for kind in Kind if kind.value in present)


def _examples(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more names" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more
