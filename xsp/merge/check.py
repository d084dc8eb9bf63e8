"""Checks: the runs of a measurement, their costs and latencies in, problems out.

Each check compares two things that ought to agree, and words a problem where they do not: the
bare runs at the start with those at the end, say, or launches with the kernels they asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.evaluation import (
    FEWEST_ROUNDS,
    ROOT,
    RunSpans,
    steady_signatures,
    trimmed_mean,
    unsteady,
)
from xsp.inexact import FEWEST_RUNS
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.merge.device_time import idle_launches, launches
from xsp.merge.difference import Sample, difference, lasting_change
from xsp.merge.ladder import OTHERS, Ladder
from xsp.merge.latency import Latencies, side_by_side
from xsp.merge.page_fault import uneven_page_faults
from xsp.merge.recording_cost import RungCost
from xsp.problem import Problem
from xsp.text import counted, duration, known_to

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NAMED = 5  # examples that a message gives
_CHANGE = 0.01  # of the latency: a smaller difference is no problem
_WIDE = 0.05  # of the model's latency: half an interval wider than this is a problem
_LARGE = 0.05  # of the model's latency: a span that takes more is large
_APART = 0.02  # of the latency: processes may differ by as much
_WORK = [kind.value for kind in DEVICE_ACTIVITIES]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the checks compare (see `find_problems`)."""

    ladder: Ladder
    costs: Sequence[RungCost]
    found: Latencies

    @property
    def spans(self) -> RunSpans:
        """The spans of the shown run."""
        return self.ladder.spans

    def names(self, rows: Ints) -> list[str]:
        """Return the names of the spans of some rows."""
        return self.spans.rows["name"].gather(rows).to_list()


def find_problems(
    ladder: Ladder, costs: Sequence[RungCost], found: Latencies
) -> tuple[Problem, ...]:
    """Return the problems that a reader should know before trusting a number.

    Args:
        ladder: The runs of all rungs.
        costs: The cost of recording on each rung.
        found: The latencies without that cost.
    """
    evidence = Evidence(ladder, costs, found)
    # Nobody can let another tool's recording go on, nor make it in another way.
    checks = _OF_TREES if ladder.foreign else (*_OF_MEASURING, *_OF_TREES)
    problems = [check(evidence) for check in checks]
    return tuple(problem for problem in problems if problem)


def _carries_overhead(evidence: Evidence) -> Problem | None:
    missing = evidence.found.carried & ~_lost(evidence)
    if not missing.any():
        return None
    kinds = _kinds(evidence.spans, np.flatnonzero(missing))
    return Problem(
        "carries-overhead",
        f"the latencies of {kinds} still carry overhead: there are no runs in which these were "
        "recorded and nothing deeper; let the plan finish, with more evaluations or a larger "
        "budget",
    )


def _unseen(evidence: Evidence) -> Problem | None:
    lost = _lost(evidence)
    if not lost.any():
        return None
    names = _examples(evidence.names(np.flatnonzero(lost)))
    return Problem(
        "unmatched",
        f"{counted(int(lost.sum()), 'span')} not seen in any run of the rung that is to measure "
        f"it ({names}): the latency comes from a deeper rung and is less exact",
    )


def _endless(evidence: Evidence) -> Problem | None:
    endless = _unended(evidence)
    if not endless.any():
        return None
    names = _examples(evidence.names(np.flatnonzero(endless)))
    if evidence.ladder.deepest.order < Kind.LAUNCH.order:
        why = "they end with their last launch, and launches were not recorded; levels=4 does that"
    else:
        why = "they end with their last launch, and no launch was seen in them"
    return Problem(
        "no-end",
        f"the latency of {counted(int(endless.sum()), 'call')} ({names}) is not known: their "
        f"library tells only when they begin; {why}",
    )


def _unended(evidence: Evidence) -> Bools:
    """Tell which spans were recorded without an end, and hold no launch to end with."""
    return evidence.spans.ended & np.isnan(evidence.found.value_ns)


def _lost(evidence: Evidence) -> Bools:
    """Tell which spans are missing in all runs of their own rung, though there are such runs."""
    rungs = [rung.order for rung in evidence.ladder.rungs]
    own = evidence.spans.order
    return (evidence.found.order > own) & np.isin(own, rungs)


def _not_shown(evidence: Evidence) -> Problem | None:
    ladder, seen = evidence.ladder, evidence.ladder.seen
    members = np.concatenate([rung.members for rung in ladder.rungs])
    lost = (ladder.columns[seen.path] < 0) & ~unsteady(seen)
    rows = np.flatnonzero(lost & np.isin(seen.run, members))
    if not len(rows):
        return None
    first = rows[np.unique(seen.path[rows], return_index=True)[1]]
    names = seen.rows["name"].gather(first).to_list()
    return Problem(
        "unmatched",
        f"{counted(len(names), 'span')} of other runs not in the run that is shown "
        f"({_examples(names)}): the model does not always take the same path",
    )


_AS_MANY = """a span's latency rests on the runs that have as many siblings of its name as \
the run shown, the latency of what lies around it on all runs"""
_IN_ORDER = """a run of about average length is shown, and the first of several spans of one name \
is taken for the first in other runs, the second for the second"""


def _structure_varies(evidence: Evidence) -> Problem | None:
    for rung in evidence.ladder.rungs:
        marks = steady_signatures(evidence.ladder.seen, rung.members.tolist())
        others = _unlike_most(marks)
        if others > OTHERS * len(marks):
            runs = "steps" if evidence.ladder.foreign else f"runs of rung {rung.name}"
            return Problem(
                "structure-varies",
                f"{others} of {len(marks)} {runs} took another path than the most frequent one; "
                + (_AS_MANY if evidence.ladder.usual else _IN_ORDER),
            )
    return None


def _unlike_most(marks: Sequence[int]) -> int:
    """Return how many of the marks differ from the most frequent mark."""
    return len(marks) - max(Counter(marks).values(), default=0)


def _idle_launches(evidence: Evidence) -> Problem | None:
    """Compare launches with the kernels, copies and sets that have their correlation ids."""
    ladder = evidence.ladder
    idle = idle_launches(launches(ladder.seen, ladder.deepest.members))
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


def _activities_vary(evidence: Evidence) -> Problem | None:
    seen, members = evidence.ladder.seen, evidence.ladder.deepest.members
    work = seen.rows["kind"].is_in(_WORK).to_numpy()
    counts = np.bincount(seen.run[work], minlength=len(seen.runs))[members].tolist()
    others = _unlike_most(counts)
    if others <= OTHERS * len(counts):
        return None
    return Problem(
        "executions-vary",
        f"devices were given {min(counts):,} to {max(counts):,} kernels and copies by an "
        f"evaluation, and in {others} of {len(counts)} runs not as many as in most: the model "
        "does not always take the same path, or records were lost",
    )


def _processes_differ(evidence: Evidence) -> Problem | None:
    apart = evidence.ladder.speeds.apart
    if apart <= _APART:
        return None
    return Problem(
        "processes-differ",
        f"without a profiler the model's latency differs by {apart:.1%} between the processes of "
        "this measurement; all were brought to one scale, which is only an approximation for a "
        "single span: quieten the machine, or measure with --no-isolate",
    )


def _page_faults(evidence: Evidence) -> Problem | None:
    return uneven_page_faults(evidence.ladder, float(evidence.found.value_ns[ROOT]))


def _residual(evidence: Evidence) -> Problem | None:
    """Compare the bare runs of the last quarter with those of the first, process by process."""
    bare = evidence.ladder.rungs[0]
    for process in np.unique(bare.processes) if bare.order < 0 else ():
        chosen = bare.processes == process
        order = np.argsort(bare.rounds[chosen], kind="stable")
        change = lasting_change(bare.root_ns[chosen][order])
        if abs(change) > _CHANGE:
            return Problem(
                "residual",
                f"without a profiler the model was {abs(change):.1%} "
                f"{'slower' if change > 0 else 'faster'} at the end than at the beginning: the "
                "machine drifted, or a profiler left something behind; if it happens again with "
                "the rungs in several processes, as xsp profile has them for models and functions, "
                "it is the machine",
            )
    return None


def _prediction(evidence: Evidence) -> Problem | None:
    """Compare the bare latency with the deepest rung's latency less the cost of recording."""
    bare, deepest = evidence.ladder.rungs[0], evidence.ladder.deepest
    if bare.order >= 0 or deepest.order < 1:
        return None
    if min(len(bare.host_ns), len(deepest.host_ns)) < FEWEST_RUNS:  # which the trace says anyway
        return None
    removed = float(sum(cost.nested_ns[ROOT] for cost in evidence.costs))
    error = float(sum(cost.error_ns[ROOT] for cost in evidence.costs))
    samples = [Sample(rung.host_ns[:, None], rung.rounds) for rung in (deepest, bare)]
    gap, noise = (float(value[0]) for value in difference(*samples))
    gap -= removed
    measured = max(float(trimmed_mean(bare.host_ns[:, None])[0]), 1.0)
    if abs(gap) <= 3 * np.hypot(noise, error) + _CHANGE * measured:
        return None
    return Problem(
        "prediction",
        f"the {deepest.name} runs, less what recording cost them, are {gap / measured:+.1%} off "
        f"what the model takes without a profiler ({duration(measured)}): the overhead of that "
        "rung is not fully understood; more runs, or a quieter machine, would change that",
    )


def _cost_outlier(evidence: Evidence) -> Problem | None:
    """Name spans inside which recording costs so much more, or less, that it matters."""
    found = evidence.found
    for rung, cost in zip(evidence.ladder.rungs, evidence.costs, strict=True):
        if cost.per_span is None or not len(cost.per_span.outliers):
            continue
        outliers = cost.per_span.outliers
        rows, value = cost.anchors[outliers], cost.per_span.anchor_ns[outliers]
        moved = np.abs(value - cost.per_span.pooled_ns) * cost.count[outliers]
        half = np.nan_to_num(found.high_ns - found.low_ns)[rows] / 2
        matters = moved > np.maximum(half, _WIDE * found.value_ns[rows])
        if not moved[matters].sum() > _CHANGE * found.value_ns[ROOT]:
            continue
        worst = int(np.argmax(np.where(matters, moved, 0.0)))
        return Problem(
            "share-outlier",
            f"recording one {rung.name} span costs {duration(float(value[worst]))} inside "
            f"`{evidence.names(rows)[worst]}`, but {duration(cost.per_span.pooled_ns)} elsewhere: "
            f"the latencies inside {counted(int(matters.sum()), 'such span')} are less certain",
        )
    return None


def _wide_interval(evidence: Evidence) -> Problem | None:
    """Name latencies that are hardly known: the model's, and those of large spans of few runs."""
    found = evidence.found
    half = (found.high_ns - found.low_ns) / 2 / np.maximum(found.value_ns, 1.0)
    if np.isnan(half[ROOT]) and found.runs[ROOT] == 1:
        return Problem(
            "wide-interval",
            "the model's latency rests on a single run, so that nothing is known of its error",
        )
    wide = []
    if half[ROOT] > _WIDE:
        wide.append(f"the model's {known_to(half[ROOT])} ({found.runs[ROOT]} runs)")
    large = (found.value_ns > _LARGE * found.value_ns[ROOT]) & (found.runs < FEWEST_ROUNDS)
    large[ROOT] = False
    kind = evidence.spans.rows["kind"].to_numpy()
    for each in (each for each in Kind if np.any(large & (kind == each.value))):
        rows = large & (kind == each.value) & ~np.isnan(half)
        if rows.any() and (typical := float(np.median(half[rows]))) > 2 * _WIDE:
            runs = int(np.median(found.runs[rows]))
            to = known_to(typical)
            wide.append(f"those of the largest {each.value} spans {to} ({runs} runs)")
    if not wide:
        return None
    return Problem(
        "wide-interval",
        f"some latencies are hardly known: {', '.join(wide)}; more evaluations, a larger budget "
        "(--budget, budget=) or a quieter machine would change that: see `xsp doctor`",
    )


def _scaled(evidence: Evidence) -> Problem | None:
    """Name parents whose children are longer than they are, beyond all their intervals."""
    spans, found = evidence.spans, evidence.found
    child = side_by_side(spans)
    child = child[~spans.gathering()[spans.parent[child]]]  # what is in these runs at once
    above = spans.parent[child]
    sums = np.bincount(above, weights=found.low_ns[child], minlength=len(spans.parent))
    sums[above[_longer(evidence, child)]] = 0.0  # a problem of its own kind
    over = np.flatnonzero(sums > found.high_ns * (1 + _CHANGE))
    excess = float((sums - found.high_ns)[over].sum())
    if excess <= _CHANGE * found.value_ns[ROOT]:
        return None
    names = _examples(evidence.names(over))
    return Problem(
        "scaled",
        f"the children of {counted(len(over), 'span')} sum to more than the span itself ({names}); "
        "they are drawn shorter to fit, attributes.scaled_ns says by how much",
    )


def _child_longer(evidence: Evidence) -> Problem | None:
    """Name the span that is most longer than the span around it, beyond both intervals."""
    spans, found = evidence.spans, evidence.found
    child = side_by_side(spans)
    child = child[_longer(evidence, child)]
    excess = found.low_ns[child] - found.high_ns[spans.parent[child]]
    if not excess.sum() > _CHANGE * found.value_ns[ROOT]:
        return None
    worst = child[np.argmax(excess)]
    around = spans.parent[worst]
    inner, outer = evidence.names(np.array([worst, around]))
    others = f", and so are {len(child) - 1:,} others" if len(child) > 1 else ""
    return Problem(
        "child-longer",
        f"{inner} ({duration(float(found.value_ns[worst]))}) is longer than {outer} "
        f"({duration(float(found.value_ns[around]))}), in which it lies, by more than their "
        f"intervals allow{others}: the runs of the two were not alike, so neither is known; what "
        "does not fit is drawn shorter",
    )


def _longer(evidence: Evidence, child: Ints) -> Bools:
    """Tell which of some spans are longer than the span around them, beyond both intervals."""
    found = evidence.found
    around = found.high_ns[evidence.spans.parent[child]]
    longer: Bools = found.low_ns[child] > around * (1 + _CHANGE)
    return longer


def _kinds(spans: RunSpans, rows: Ints) -> str:
    present = set(spans.rows["kind"].gather(rows).to_list())
    return ", ".join(f"{kind.value} spans" for kind in Kind if kind.value in present)


def _examples(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more names" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more


# Checks of how a measurement was made: they compare its rungs, or say how to measure better.
_OF_MEASURING = (
    _carries_overhead,
    _wide_interval,
    _unseen,
    _processes_differ,
    _page_faults,
    _residual,
    _prediction,
    _cost_outlier,
)
# Checks of the trees themselves, whoever recorded them.
_OF_TREES = (
    _structure_varies,
    _idle_launches,
    _activities_vary,
    _not_shown,
    _endless,
    _child_longer,
    _scaled,
)
