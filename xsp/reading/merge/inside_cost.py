"""Averages the cost of recording between the two ends of each span on a pass.

The session measures that cost with empty spans (`record.session.calibration`), and each row bears
the cost that was measured for its provider and kind. On no pass is the span there without the cost,
so it is not part of what differs between passes (`recording_cost`), and nothing is taken off twice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xsp.matching import inside_costs as costs_of_rows
from xsp.reading.merge.ladder import Ladder, PassRuns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def inside_costs(ladder: Ladder, pass_: PassRuns) -> tuple[Floats, Floats]:
    """Return the cost of recording each span on a pass inside the span, and the standard error.

    Both are means over the runs, on the scale of all processes; 0 where the cost is not known,
    and for spans whose recording cost the host nothing (`RunSpans.paid`).
    """
    total, number = _totals(ladder, pass_)
    cost, error = np.where(ladder.spans.paid, total / np.maximum(number, 1), 0.0)
    return cost, error


def inside_cost_of_pass(ladder: Ladder, pass_: PassRuns) -> float:
    """Return the mean cost over the spans of the pass's own kinds; NaN if it is not known."""
    total, number = _totals(ladder, pass_)
    own = ladder.spans.paid & (ladder.spans.order == pass_.order)
    return float(total[0, own].sum() / number[own].sum()) if number[own].any() else float("nan")


def _totals(ladder: Ladder, pass_: PassRuns) -> tuple[Floats, Ints]:
    """Return sums over the runs of a pass for each span: `[2, spans]` of cost and error, and n."""
    seen, count, members = ladder.seen, len(ladder.spans.key), pass_.members.tolist()
    if not members:
        return np.zeros((2, count)), np.zeros(count, dtype=np.int64)
    frames = [rows for run in members if (rows := seen.runs[run].rows) is not None]
    assert len(frames) == len(members)
    found = [costs_of_rows(rows) for rows in frames]
    column = np.concatenate([ladder.place[seen.of(run)] for run in members])
    factor = np.repeat(pass_.factor, [len(cost) for cost, _ in found])
    costs = [np.concatenate(each) * factor for each in zip(*found, strict=True)]
    known = np.isfinite(costs[0]) & (column >= 0)
    total = [np.bincount(column[known], each[known], count) for each in costs]
    return np.array(total), np.bincount(column[known], minlength=count)
