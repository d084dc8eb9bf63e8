"""Checks the runs, costs and latencies of a measurement, and words the warnings.

Each check compares two things that ought to agree, and words a warning where they do not: the
bare runs at the start with those at the end, say, or launches with the kernels they asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xsp.inexact import FEWEST_RUNS
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import (
    FEWEST_ROUNDS,
    ROOT,
    RunSpans,
    steady_signatures,
    trimmed_mean,
    unsteady,
)
from xsp.reading.merge.device_time import idle_launches, launches
from xsp.reading.merge.difference import Sample, difference, lasting_change
from xsp.reading.merge.ladder import OTHERS, Ladder, PassRuns
from xsp.reading.merge.latency import Latencies, side_by_side
from xsp.reading.merge.recording_cost import PassCost
from xsp.text import counted, duration, known_to
from xsp.warning import TraceWarning

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NAMED = 5  # examples that a message gives
_CHANGE = 0.01  # of the latency: a smaller difference is no warning
_WIDE = 0.05  # of the model's latency: half an interval wider than this is a warning
_LARGE = 0.05  # of the model's latency: a span that takes more is large
_APART = 0.02  # of the latency: processes may differ by as much
_WORK = [kind.value for kind in DEVICE_ACTIVITIES]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the checks compare (see `find_warnings`)."""

    ladder: Ladder
    costs: Sequence[PassCost]
    found: Latencies

    @property
    def spans(self) -> RunSpans:
        """The spans of the shown run."""
        return self.ladder.spans

    def names(self, rows: Ints) -> list[str]:
        """Return the names of the spans of some rows."""
        return self.spans.rows["name"].gather(rows).to_list()


def find_warnings(
    ladder: Ladder, costs: Sequence[PassCost], found: Latencies
) -> tuple[TraceWarning, ...]:
    """Return the warnings that a reader should know before trusting a number.

    Args:
        ladder: The runs of all passes.
        costs: The cost of recording on each pass.
        found: The latencies without that cost.
    """
    evidence = Evidence(ladder, costs, found)
    # Nobody can let another tool's recording go on, nor make it in another way.
    checks = _OF_TREES if ladder.foreign else (*_OF_MEASURING, *_OF_TREES)
    warnings = [check(evidence) for check in checks]
    return tuple(warning for warning in warnings if warning)


def _carries_overhead(evidence: Evidence) -> TraceWarning | None:
    missing = evidence.found.carried & ~_lost(evidence)
    if not missing.any():
        return None
    rows = np.flatnonzero(missing)
    present = set(evidence.spans.rows["kind"].gather(rows).to_list())
    kinds = ", ".join(f"{kind.value} spans" for kind in Kind if kind.value in present)
    return TraceWarning(
        "carries-overhead",
        f"xsp could not measure {kinds} without deeper spans, so their times include overhead and "
        "are "
        "too long. Use more steps or a larger budget.",
    )


def _unseen(evidence: Evidence) -> TraceWarning | None:
    lost = _lost(evidence)
    if not lost.any():
        return None
    names = _examples(evidence.names(np.flatnonzero(lost)))
    return TraceWarning(
        "unmatched",
        f"{counted(int(lost.sum()), 'span')} ({names}) did not run in the pass that measures them; "
        "their times come from a deeper pass and include overhead. Does your model take another "
        "path "
        "each time?",
    )


def _endless(evidence: Evidence) -> TraceWarning | None:
    # Tell which spans were recorded without an end, and hold no launch to end with.
    endless = evidence.spans.ended & np.isnan(evidence.found.value_ns)
    if not endless.any():
        return None
    names = _examples(evidence.names(np.flatnonzero(endless)))
    if evidence.ladder.deepest.order < Kind.LAUNCH.order:
        why = "Record launches with levels=4."
    else:
        why = "No launch was seen in them."
    return TraceWarning(
        "no-end",
        f"the library reports no end of {counted(int(endless.sum()), 'call')} ({names}), so their "
        f"times are unknown. {why}",
    )


def _lost(evidence: Evidence) -> Bools:
    """Tell which spans are missing in all runs of their own pass, though there are such runs."""
    passes = [pass_.order for pass_ in evidence.ladder.passes]
    own = evidence.spans.order
    return (evidence.found.order > own) & np.isin(own, passes)


def _not_shown(evidence: Evidence) -> TraceWarning | None:
    ladder, seen = evidence.ladder, evidence.ladder.seen
    members = np.concatenate([pass_.members for pass_ in ladder.passes])
    lost = (ladder.columns[seen.path] < 0) & ~unsteady(seen)
    rows = np.flatnonzero(lost & np.isin(seen.run, members))
    if not len(rows):
        return None
    first = rows[np.unique(seen.path[rows], return_index=True)[1]]
    names = seen.rows["name"].gather(first).to_list()
    return TraceWarning(
        "unmatched",
        f"{counted(len(names), 'span')} of other runs are not in the tree ({_examples(names)}), "
        "because your model takes different paths. Times of the spans shown are right.",
    )


_AS_MANY = "A span's time comes from runs with as many spans of its name."
_IN_ORDER = "The tree shows a run of about average length."


def _structure_varies(evidence: Evidence) -> TraceWarning | None:
    for pass_ in evidence.ladder.passes:
        marks = steady_signatures(evidence.ladder.seen, pass_.members.tolist())
        others = _unlike_most(marks)
        if others > OTHERS * len(marks):
            runs = "steps" if evidence.ladder.foreign else f"runs of pass {pass_.name}"
            return TraceWarning(
                "structure-varies",
                f"{others} of {len(marks)} {runs} took another path than most, so single times are "
                f"less certain. {_AS_MANY if evidence.ladder.usual else _IN_ORDER} Fix random "
                "choices.",
            )
    return None


def _unlike_most(marks: Sequence[int]) -> int:
    """Return how many of the marks differ from the most frequent mark."""
    return len(marks) - max(Counter(marks).values(), default=0)


def _idle_launches(evidence: Evidence) -> TraceWarning | None:
    """Compare launches with the kernels, copies and sets that have their correlation ids."""
    ladder = evidence.ladder
    idle = idle_launches(launches(ladder.seen, ladder.deepest.members))
    if not idle.height:
        return None
    said = [
        f"{lost:,} of {launches:,} calls of {name}"
        for name, launches, lost in idle.head(3).iter_rows()
    ]
    return TraceWarning(
        "idle-launches",
        f"no device work followed {', '.join(said)}: the calls had nothing to do, or records were "
        "lost and device times are too short. Profile fewer steps at once.",
    )


def _activities_vary(evidence: Evidence) -> TraceWarning | None:
    seen, members = evidence.ladder.seen, evidence.ladder.deepest.members
    work = seen.rows["kind"].is_in(_WORK).to_numpy()
    counts = np.bincount(seen.run[work], minlength=len(seen.runs))[members].tolist()
    others = _unlike_most(counts)
    if others <= OTHERS * len(counts):
        return None
    return TraceWarning(
        "executions-vary",
        f"steps launched {min(counts):,} to {max(counts):,} kernels and copies; {others} of "
        f"{len(counts)} runs differ from most. Device times are averages. Fix random choices, or "
        "measure each path by itself.",
    )


def _processes_differ(evidence: Evidence) -> TraceWarning | None:
    apart = evidence.ladder.speeds.apart
    if apart <= _APART:
        return None
    return TraceWarning(
        "processes-differ",
        f"unprofiled times differ by {apart:.1%} between processes; xsp brought them to one "
        "scale, so "
        "single spans are less certain. Use a quieter machine, or --no-isolate.",
    )


def _page_faults(evidence: Evidence) -> TraceWarning | None:
    return uneven_page_faults(evidence.ladder, float(evidence.found.value_ns[ROOT]))


def _residual(evidence: Evidence) -> TraceWarning | None:
    """Compare the bare runs of the last quarter with those of the first, process by process."""
    bare = evidence.ladder.passes[0]
    for process in np.unique(bare.processes) if bare.order < 0 else ():
        chosen = bare.processes == process
        order = np.argsort(bare.rounds[chosen], kind="stable")
        change = lasting_change(bare.root_ns[chosen][order])
        if abs(change) > _CHANGE:
            return TraceWarning(
                "residual",
                f"the unprofiled model became {abs(change):.1%} "
                f"{'slower' if change > 0 else 'faster'} during the measurement, so times are "
                "those of "
                "its middle. Measure again; if it recurs with --levels model, the machine drifts.",
            )
    return None


def _prediction(evidence: Evidence) -> TraceWarning | None:
    """Compare the bare latency with the deepest pass's latency less the cost of recording."""
    bare, deepest = evidence.ladder.passes[0], evidence.ladder.deepest
    if bare.order >= 0 or deepest.order < 1:
        return None
    if min(len(bare.host_ns), len(deepest.host_ns)) < FEWEST_RUNS:  # which the trace says anyway
        return None
    removed = float(sum(cost.nested_ns[ROOT] for cost in evidence.costs))
    error = float(sum(cost.error_ns[ROOT] for cost in evidence.costs))
    samples = [Sample(pass_.host_ns[:, None], pass_.rounds) for pass_ in (deepest, bare)]
    gap, noise = (float(value[0]) for value in difference(*samples))
    gap -= removed
    measured = max(float(trimmed_mean(bare.host_ns[:, None])[0]), 1.0)
    if abs(gap) <= 3 * np.hypot(noise, error) + _CHANGE * measured:
        return None
    return TraceWarning(
        "prediction",
        f"after correction, the {deepest.name} pass still differs by {gap / measured:+.1%} from "
        "the "
        f"unprofiled model ({duration(measured)}). Do not use its times for small differences. Use "
        "more runs or a quieter machine.",
    )


def _cost_outlier(evidence: Evidence) -> TraceWarning | None:
    """Name spans inside which recording costs so much more, or less, that it matters."""
    found = evidence.found
    for pass_, cost in zip(evidence.ladder.passes, evidence.costs, strict=True):
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
        return TraceWarning(
            "share-outlier",
            f"recording one {pass_.name} span costs {duration(float(value[worst]))} in "
            f"`{evidence.names(rows)[worst]}`, {duration(cost.per_span.pooled_ns)} elsewhere: "
            f"times in {counted(int(matters.sum()), 'such span')} are less certain. Measure longer "
            "if you need them.",
        )
    return None


def _wide_interval(evidence: Evidence) -> TraceWarning | None:
    """Name latencies that are hardly known: the model's, and those of large spans of few runs."""
    found = evidence.found
    half = (found.high_ns - found.low_ns) / 2 / np.maximum(found.value_ns, 1.0)
    if np.isnan(half[ROOT]) and found.runs[ROOT] == 1:
        return TraceWarning(
            "wide-interval",
            "the model ran only once, so the error of its time is unknown. Use more steps, --runs "
            "or a larger --budget.",
        )
    wide = []
    if half[ROOT] > _WIDE:
        wide.append(f"the model {known_to(half[ROOT])} ({found.runs[ROOT]} runs)")
    large = (found.value_ns > _LARGE * found.value_ns[ROOT]) & (found.runs < FEWEST_ROUNDS)
    large[ROOT] = False
    kind = evidence.spans.rows["kind"].to_numpy()
    for each in (each for each in Kind if np.any(large & (kind == each.value))):
        rows = large & (kind == each.value) & ~np.isnan(half)
        if rows.any() and (typical := float(np.median(half[rows]))) > 2 * _WIDE:
            runs = int(np.median(found.runs[rows]))
            to = known_to(typical)
            wide.append(f"large {each.value} spans {to} ({runs} runs)")
    if not wide:
        return None
    return TraceWarning(
        "wide-interval",
        f"error bars are wide: {', '.join(wide)}. Use more steps or a larger --budget, or see `xsp "
        "doctor`.",
    )


def _scaled(evidence: Evidence) -> TraceWarning | None:
    """Name parents whose children are longer than they are, beyond all their intervals."""
    spans, found = evidence.spans, evidence.found
    child = side_by_side(spans)
    child = child[~spans.gathering()[spans.parent[child]]]  # what is in these runs at once
    above = spans.parent[child]
    sums = np.bincount(above, weights=found.low_ns[child], minlength=len(spans.parent))
    sums[above[_longer(evidence, child)]] = 0.0  # a warning of its own kind
    over = np.flatnonzero(sums > found.high_ns * (1 + _CHANGE))
    excess = float((sums - found.high_ns)[over].sum())
    if excess <= _CHANGE * found.value_ns[ROOT]:
        return None
    names = _examples(evidence.names(over))
    return TraceWarning(
        "scaled",
        f"the children of {counted(len(over), 'span')} ({names}) take longer than the span itself. "
        "Compare times of one level only; attributes.scaled_ns has the difference. Measure longer.",
    )


def _child_longer(evidence: Evidence) -> TraceWarning | None:
    """Name the span that exceeds the span around it most, beyond both intervals."""
    spans, found = evidence.spans, evidence.found
    child = side_by_side(spans)
    child = child[_longer(evidence, child)]
    excess = found.low_ns[child] - found.high_ns[spans.parent[child]]
    if not excess.sum() > _CHANGE * found.value_ns[ROOT]:
        return None
    worst = child[np.argmax(excess)]
    around = spans.parent[worst]
    inner, outer = evidence.names(np.array([worst, around]))
    others = f" (and {len(child) - 1:,} more)" if len(child) > 1 else ""
    return TraceWarning(
        "child-longer",
        f"{inner} ({duration(float(found.value_ns[worst]))}) takes longer than {outer} "
        f"({duration(float(found.value_ns[around]))}) around it{others}: their runs differed. "
        "Trust "
        "neither; measure longer.",
    )


def _longer(evidence: Evidence, child: Ints) -> Bools:
    """Tell which of some spans are longer than the span around them, beyond both intervals."""
    found = evidence.found
    around = found.high_ns[evidence.spans.parent[child]]
    longer: Bools = found.low_ns[child] > around * (1 + _CHANGE)
    return longer


def _examples(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more names" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more


# Checks of how a measurement was made: they compare its passes, or say how to measure better.
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


# Page faults: a warning if passes differ in page faults.

_FAULT_NS = 1_000  # half of this on bare metal, several times this in some virtual machines
_FAULT_CHANGE = 0.01  # of the latency: a smaller difference is no warning
_NOISE = 3  # standard errors: a smaller difference is no warning
# Both thresholds, for whoever sets one of them switches off that glibc adapts the other
# (mallopt(3)): each large tensor would then be mapped, and fault, anew.
_REMEDY = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736"


def uneven_page_faults(ladder: Ladder, latency_ns: float) -> TraceWarning | None:
    """Return a warning that names the two neighboring passes that differ most in page faults.

    Args:
        ladder: The runs of all passes.
        latency_ns: The model's latency.

    Returns:
        None if no passes differ by more than chance, and by enough to distort what recording costs.
    """
    pairs = list(pairwise(ladder.passes))
    excess = [abs(_excess(ladder, above, pass_)) for above, pass_ in pairs]
    if max(excess, default=0.0) * _FAULT_NS <= _FAULT_CHANGE * latency_ns:
        return None
    above, pass_ = pairs[int(np.argmax(excess))]
    return TraceWarning(
        "page-faults",
        f"a step took {_typical(pass_):,.0f} page faults in the {pass_.name} pass, "
        f"{_typical(above):,.0f} in the {above.name} pass, so the removed overhead may be off. "
        "With "
        f"glibc, set both {_REMEDY}.",
    )


def _excess(ladder: Ladder, above: PassRuns, pass_: PassRuns) -> float:
    """Return how many page faults more a pass has than the pass above; 0 if that may be noise.

    Records of spans take memory, less than a page each: up to one page fault for each span more
    is a cost of recording like any other, and left out.
    """
    samples = [Sample(each.page_faults[:, None], each.rounds) for each in (pass_, above)]
    gap, noise = (float(value[0]) for value in difference(*samples))
    if not abs(gap) > _NOISE * noise:
        return 0.0
    return gap - min(max(gap, 0.0), _spans(ladder, pass_) - _spans(ladder, above))


def _spans(ladder: Ladder, pass_: PassRuns) -> float:
    heights = np.diff(ladder.seen.first)[pass_.members]
    return float(np.median(heights)) if len(heights) else 0.0


def _typical(pass_: PassRuns) -> float:
    return float(trimmed_mean(pass_.page_faults[:, None])[0])
