"""Curves: the traces of points that differ in their batch in, the best batch size out, in words.

The rule is that of `xsp.analyses.optimal_batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xsp.analyses import optimal_batch
from xsp.errors import AnalysisError
from xsp.sweep.folder import Folder
from xsp.sweep.point import Point
from xsp.sweep.result import Result, Status
from xsp.text import duration

THRESHOLD_PCT = 5.0  # of the paper: a smaller rise is not worth doubling the batch
_ENOUGH = 2  # doublings in a row that were not worth it


@dataclass(frozen=True, slots=True)
class Curve:
    """The best batch of points that differ in their batch alone.

    Attributes:
        name: The settings that the points have in common, in words; empty where none was set.
        batch: The best batch by the throughput rule; None where there are not two to compare.
        within_target: The batch of most throughput within the target latency; None: there is none,
            or no target.
        sentences: The same in words, with the rule and the threshold.
    """

    name: str
    batch: int | None
    within_target: int | None
    sentences: tuple[str, ...]


def curves_of(
    curves: Sequence[Sequence[Point]],
    results: Sequence[Result],
    folder: Folder,
    target_ns: float | None = None,
) -> list[Curve]:
    """Return the best batch of each curve that has a measured point with a batch.

    Args:
        curves: The points of each curve.
        results: Results of some of the points.
        folder: Where the traces are.
        target_ns: Latency that an evaluation may have at most; None: any.
    """
    by_key = {result.key: result for result in results}
    found = []
    for points in curves:
        measured = [by_key[point.key] for point in points if point.key in by_key]
        rows = _rows(measured, folder, None)
        if rows:
            within = None if target_ns is None else _rows(measured, folder, target_ns)
            found.append(_curve(points[0].common, measured, rows, within, target_ns))
    return found


def worth_no_more(results: Sequence[Result], folder: Folder) -> bool:
    """Return whether the last doublings of a curve's batch did not raise the throughput enough."""
    last = _rows(results, folder, None)[-_ENOUGH - 1 : -1]
    return len(last) == _ENOUGH and all(row["gain_pct"] <= THRESHOLD_PCT for row in last)


def _rows(
    results: Sequence[Result], folder: Folder, target_ns: float | None
) -> list[dict[str, Any]]:
    """Return the rows of `optimal_batch` for the measured points of a curve."""
    traces = [folder.trace(result) for result in results if result.status is Status.MEASURED]
    if not traces:
        return []
    try:
        table = optimal_batch(*traces, threshold_pct=THRESHOLD_PCT, latency_target_ns=target_ns)
    except AnalysisError:  # a function without a batch
        return []
    return table.to_dicts()


def _curve(
    name: str,
    results: Sequence[Result],
    rows: list[dict[str, Any]],
    within: list[dict[str, Any]] | None,
    target_ns: float | None,
) -> Curve:
    full = next((r.settings["batch"] for r in results if r.status is Status.OUT_OF_MEMORY), None)
    # The only batch that fits is the best, and not one that nothing is compared with.
    optimal = [row for row in rows if row["optimal"] or (full and len(rows) == 1)]
    best = optimal[0] if optimal else None
    sentences = [_by_rule(best, full)]
    chosen = None
    if within is not None and target_ns is not None:
        # One point alone is the best of itself.
        fitting = [row for row in within if row["within_target"]]
        chosen = max(fitting, key=lambda row: row["throughput_per_s"], default=None)
        sentences.append(_by_target(chosen, target_ns))
    return Curve(
        name,
        best["batch"] if best else None,
        chosen["batch"] if chosen else None,
        tuple(sentences),
    )


def _by_rule(best: dict[str, Any] | None, full: int | None) -> str:
    threshold = f"{THRESHOLD_PCT:g} %"
    if best is None:
        return "optimal batch: not known, for there are no two batches to compare"
    if best["gain_pct"] is not None:
        said = (
            f"optimal batch: {best['batch']}, the smallest measured of which a doubling raises "
            f"throughput by no more than {threshold} ({best['gain_pct']:+.1f} %)"
        )
        low, high = best["gain_low_pct"], best["gain_high_pct"]
        if low is None or high is None:
            return f"{said}; the latencies' intervals are too wide to be sure of that"
        if high > THRESHOLD_PCT:
            said += f"; the intervals allow {low:+.1f} to {high:+.1f} %, so it may be a larger one"
        return said
    said = (
        f"optimal batch: {best['batch']}, the largest measured; each doubling up to it raises "
        f"throughput by more than {threshold}"
    )
    if full is not None:
        return f"{said}, and batch {full} runs out of memory"
    return f"{said}: measure larger ones to find where that ends"


def _by_target(best: dict[str, Any] | None, target_ns: float) -> str:
    if best is None:
        return f"within {duration(target_ns)}: no batch measured is, to the end of its interval"
    return (
        f"within {duration(target_ns)}: batch {best['batch']} has most throughput, "
        f"{best['throughput_per_s']:,.1f}/s, of those whose latency is below that to the end of "
        f"its interval ({duration(best['latency_high_ns'] or best['latency_ns'])})"
    )
