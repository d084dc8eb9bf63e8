"""Computes the latency of each span without the cost of recording.

A span's latency is the summary of its times in the runs of its own pass, less the cost of
recording the spans inside it on that pass, and less what recording the span itself cost between
its two ends.

    layer "fc" took 17 in the runs of pass layer; recording 1 span inside cost 1.8, and recording
    "fc" itself 0.2 inside: latency 15
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xsp.inexact import FEWEST_RUNS, Codes, Inexact, encoded
from xsp.matching import Z95, RunSpans, half_width, sibling_shares, summarize
from xsp.provider import ATTRIBUTE
from xsp.reading.merge.inside_cost import inside_costs
from xsp.reading.merge.ladder import Ladder, PassRuns
from xsp.reading.merge.recording_cost import PassCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BARE, _REGION = -1, 0  # orders of passes
_MANY = 2  # times as many

# Column of layers that a provider made of their operators: in which time at least one of these ran.
OPERATORS = f"{ATTRIBUTE}operators_ns"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latency of each span without overhead.

    Attributes:
        value_ns: The latency.
        low_ns: Lower end of the latency's 95 % interval, NaN where there is a single run.
        high_ns: Upper end of that interval.
        runs: Number of runs that the latency rests on.
        order: Order of the pass that the latency was taken from.
        carried: Whether overhead is left in the latency: the pass is deeper than the span's
            own, or what recording cost there is not known, as of all that another tool recorded
            on the host.
    """

    value_ns: Floats
    low_ns: Floats
    high_ns: Floats
    runs: Ints
    order: Ints
    carried: Bools


def latencies(ladder: Ladder, costs: Sequence[PassCost], statistic: str) -> Latencies:
    """Return each span's latency, from its own pass or the next deeper pass that saw the span.

    Args:
        ladder: The runs of all passes.
        costs: The cost of recording on each pass.
        statistic: How runs are summarized: one of `xsp.matching.STATISTICS`.
    """
    spans = ladder.spans
    count = len(spans.key)
    value, half = np.full((2, count), np.nan)
    runs, order = np.zeros((2, count), dtype=np.int64)
    carried = np.zeros(count, dtype=bool)
    overhead, error = np.zeros((2, count))
    known = np.ones(count, dtype=bool)
    # Passes with their costs from outside in, the one that gives the root's latency first.
    # That is the region pass, whose runs hold the root's parts as well; the bare pass where there
    # is no other, or where rounds have many more runs on it, as those of programs do.
    pairs = sorted(zip(ladder.passes, costs, strict=True), key=lambda pair: pair[0].order)
    rounds = {
        pass_.order: list(zip(pass_.processes.tolist(), pass_.rounds.tolist(), strict=True))
        for pass_, _ in pairs
    }
    visited = rounds.get(_REGION, [])
    shared = set(visited)
    bare = sum(visit in shared for visit in rounds.get(_BARE, []))
    if bare >= len(visited) * _MANY:
        outside_in = pairs
    else:
        outside_in = sorted(pairs, key=lambda pair: pair[0].order != _REGION)
    for pass_, cost in outside_in:
        matrix = ladder.durations(pass_)
        overhead, error = overhead + cost.nested_ns, error + cost.error_ns
        known &= np.isfinite(spans.nested(cost.charge_ns))
        seen = np.count_nonzero(~np.isnan(matrix), axis=0)
        new = np.isnan(value) & (seen > 0) & (spans.order <= max(pass_.order, 0))
        part = _part_inside(spans, cost)
        inside, inside_error = inside_costs(ladder, pass_)
        taken = _taken_off(spans, overhead * part, inside)
        removed = taken[new], np.hypot(error * part, inside_error)[new]
        value[new] = np.maximum(summarize(matrix[:, new], statistic) - removed[0], 0.0)
        within = half_of_interval(ladder, pass_, matrix[:, new], statistic, host=spans.host[new])
        half[new] = np.hypot(within, Z95 * removed[1])
        runs[new], order[new] = seen[new], pass_.order
        carried[new] = ~known[new] | (spans.order[new] < pass_.order)
    if ladder.foreign:
        carried = spans.host.copy()
    value = _with_what_is_inside(spans, value)
    return Latencies(value, np.maximum(value - half, 0.0), value + half, runs, order, carried)


def inexact_codes(ladder: Ladder, found: Latencies) -> Codes:
    """Return the reasons why each latency is not exact; none where there is no latency.

    Times of device activities are the device's own, so that these carry no overhead; all other
    reasons are theirs as well.
    """
    spans = ladder.spans
    cold = [pass_.order for pass_ in ladder.passes if (pass_.rounds < 0).all()]
    codes = encoded(
        {
            Inexact.INCLUDES_OVERHEAD: found.carried,
            Inexact.WARM_UP_ONLY: np.isin(found.order, cold),
            Inexact.FEW_SAMPLES: found.runs < FEWEST_RUNS,
            Inexact.UNSTABLE: ladder.varies,
            Inexact.INFERRED: spans.derived | spans.ended,
        }
    )
    return np.where(np.isnan(found.value_ns), 0, codes).astype(np.uint8)


def side_by_side(spans: RunSpans) -> Ints:
    """Return the rows of spans that ran on the thread of their parent, and so after one another."""
    thread = spans.rows["thread"].fill_null(-1).to_numpy()
    child: Ints = np.flatnonzero(
        (spans.parent >= 0) & spans.host & (thread == thread[spans.parent])
    )
    return child


def half_of_interval(
    ladder: Ladder, pass_: PassRuns, matrix: Floats, statistic: str, *, host: Bools
) -> Floats:
    """Return half of the 95 % interval of each span's summary, recording costs aside.

    Three things vary: a span from round to round, the machine's level over seconds, and the
    processes. A straight drift is known, and is no part of the interval. Devices have a speed of
    their own, which is not modeled.

    Args:
        ladder: The ladder, which knows level and processes.
        pass_: The pass that was measured.
        matrix: Measured times, `[runs, spans]`.
        statistic: How runs are summarized.
        host: Which of these spans ran on the host.
    """
    drift = ladder.level.drift(pass_.began_ns)[:, None]
    within = half_width(np.where(host, matrix / drift, matrix), statistic, rounds=pass_.rounds)
    shared = host * np.hypot(ladder.level.half_width, ladder.speeds.half_width)
    result: Floats = np.hypot(within, shared * summarize(matrix, statistic))
    return result


def _with_what_is_inside(spans: RunSpans, value: Floats) -> Floats:
    """Return latencies of which no layer made of its operators is shorter than what is in it.

    The cost of recording may lie in the operators, and not between them, from where it is taken;
    and an operator at the end of the layer may be missing in some runs, which are then shorter.
    """
    if OPERATORS not in spans.rows.columns:
        return value
    made = spans.derived & spans.host & spans.rows[OPERATORS].is_not_null().to_numpy()
    inside = (spans.parent >= 0) & spans.host & made[spans.parent] & ~np.isnan(value)
    share = sibling_shares(spans.parent, np.flatnonzero(inside), spans.start_ns, spans.end_ns)
    for level in reversed(spans.levels):
        rows = level[inside[level]]
        sums = np.bincount(spans.parent[rows], share[rows] * value[rows], len(value))
        value = np.where(made, np.maximum(value, sums), value)
    return value


def _taken_off(spans: RunSpans, between: Floats, inside: Floats) -> Floats:
    """Compute the overhead that is subtracted from each span.

    Of the operators of a derived span one counts as outside (`_part_inside`). Only what recording
    that one cost before its start and after its end is: what it cost inside lies in the span.

    Args:
        spans: The spans.
        between: Cost of recording the spans inside each span, as far as it lies in the span.
        inside: Cost of recording each span between its own two ends.
    """
    below = spans.nested(inside)
    count = np.maximum(spans.nested((inside > 0).astype(float)), 1)
    derived = np.maximum(between + below / count, below)
    result: Floats = np.where(spans.derived, derived, between + inside)
    return result


def _part_inside(spans: RunSpans, cost: PassCost) -> Floats:
    """Return which part of the cost of the spans inside each span lies between its two ends.

    A derived span begins with its first operator and ends with its last operator, so that the
    cost of one operator lies outside of the span. Where a launch ends a span, half of the cost
    of that launch lies outside.
    """
    inside = spans.nested((cost.charge_ns > 0).astype(float))
    outside = spans.derived + spans.ended / 2
    part = np.maximum(inside - outside, 0.0) / np.maximum(inside, 1)
    return np.where(inside > 0, part, 1.0)
