"""Sweeps: zoos of one model, whose settings are the lists given, and the best batch of each curve.

A curve is a row of points that differ in their batch alone: one task. The rule of the best batch is
that of `xsp.analyses.optimal_batch`, over rows of the results in place of traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

import polars as pl

from xsp.answer.zoo.execution import with_limits
from xsp.answer.zoo.folder import Kept
from xsp.answer.zoo.row import MEASURED, OUT_OF_MEMORY
from xsp.answer.zoo.setting import combinations
from xsp.answer.zoo.table import THRESHOLD_PCT
from xsp.answer.zoo.task import Limits, Point, Task, basis_of, basis_text, machine_facts
from xsp.errors import UnknownTargetError
from xsp.measuring.target import Spec, Value, examine
from xsp.record.session import Settings
from xsp.text import duration

T = TypeVar("T")

LARGEST = 1024  # batch at which doubling ends, whatever the throughput does
_BETWEEN_PROCESSES = 0.02  # by which equal processes differ, beside what intervals cover
_WITHOUT_LIMITS = Limits(time_s=math.inf)  # a budget of any length may be given


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


def sweep_tasks(  # noqa: PLR0913  # the axes of a sweep
    spec: Spec,
    plan: Settings,
    batches: Sequence[int] | None,
    *,
    threads: Iterable[int] = (),
    inputs: Mapping[str, tuple[Value, ...]],
    precisions: Iterable[str] = (),
    compiled: Iterable[bool] = (),
    frameworks: Iterable[str] = (),
) -> list[Task]:
    """Return a task for each combination of all settings, of which the target takes each.

    Args:
        spec: The target, with the settings that all points have in common.
        plan: How each point is measured.
        batches: Batch sizes; None: doubling from 1, if the target takes a batch.
        threads: Numbers of threads.
        inputs: Values of further settings by name.
        precisions: Element types.
        compiled: Whether to compile.
        frameworks: Frameworks that run the model.

    Raises:
        UnknownTargetError: There is no such target, or it does not take a setting.
        TargetFailedError: The file of a function raised while it was imported.
        MeasurementError: A library or device that the target needs is missing.
    """
    axes = (_or_none(frameworks), _or_none(precisions), _or_none(compiled), _or_none(threads))
    bare = [
        Point(
            replace(
                spec,
                inputs=tuple(chosen.items()),
                precision=precision,
                compiled=whether,
                framework=framework,
            ),
            number,
        )
        for chosen, framework, precision, whether, number in product(combinations(inputs), *axes)
    ]
    sizes = _examined(list(dict.fromkeys(point.spec for point in bare)), batches)
    return [
        Task(
            spec.target,
            tuple(replace(point, spec=replace(point.spec, batch=size)) for size in sizes),
            plan,
            _WITHOUT_LIMITS,
            facts={"zoo": spec.name},
            doubling=batches is None and len(sizes) > 1,
        )
        for point in bare
    ]


def _examined(specs: Sequence[Spec], batches: Sequence[int] | None) -> Sequence[int | None]:
    """Return the batches of each curve, once it is known that the target takes them."""
    first = 1 if batches is None else batches[0]
    try:
        examine([replace(spec, batch=first) for spec in specs])
    except UnknownTargetError:
        if batches is not None or specs[0].file is None:
            raise
        examine(specs)  # what is in a file and has no batch to choose has points all the same
        return (None,)
    return batches or tuple(1 << power for power in range(LARGEST.bit_length()))


def _or_none(values: Iterable[T]) -> tuple[T | None, ...]:
    return tuple(values) or (None,)


def sweep_results(tasks: Iterable[Task], folder: Kept) -> pl.DataFrame:
    """Return the rows of a sweep's points that hold now, in the order of the points."""
    frame, machine = folder.frame(), machine_facts()
    points = []
    for task in tasks:
        bases = with_limits(task, basis_of(task.points[0].spec, task.plan, machine))
        texts = [basis_text(basis) for basis in bases]
        points += [(task.model, point.key, text) for point in task.points for text in texts]
    names = ("model", "settings", "basis")
    asked = pl.DataFrame(points, dict.fromkeys(names, pl.String), orient="row")
    return asked.join(frame, on=names, maintain_order="left").select(frame.columns)


def curves_of(
    tasks: Iterable[Task], results: pl.DataFrame, target_ns: float | None = None
) -> list[Curve]:
    """Return the best batch of each curve that has a measured point with a batch.

    Args:
        tasks: The curves.
        results: Rows of their points.
        target_ns: Latency that a step may have at most; None: any.
    """
    found = []
    for task in tasks:
        keys = [point.key for point in task.points]
        rows = results.filter(pl.col("settings").is_in(keys)).sort("batch").to_dicts()
        known = [row for row in rows if row["status"] == MEASURED and row["throughput_per_s"]]
        full = next((row["batch"] for row in rows if row["status"] == OUT_OF_MEMORY), None)
        if known:
            found.append(_curve(task.points[0].common, known, full, target_ns))
    return found


def verdict(tasks: Iterable[Task], results: pl.DataFrame) -> str:
    """Say which settings, beside the batch, have the least latency, and whether that is noise.

    Curves are compared at the smallest batch that at least two have measured.

    Args:
        tasks: The curves.
        results: Rows of their points.

    Returns:
        A sentence; empty where fewer than two curves have such a batch.
    """
    names = {point.key: point.common for task in tasks for point in task.points}
    known = results.filter(pl.col("settings").is_in(list(names)), status=MEASURED)
    often = known.group_by("batch").len().filter(pl.col("len") > 1)
    if not often.height:
        return ""
    batch = often["batch"].min()
    alike = known.filter(pl.col("batch").eq_missing(pl.lit(batch, pl.Int64))).sort("latency_ns")
    best, following = alike.head(2).to_dicts()
    more = following["latency_ns"] / best["latency_ns"] - 1
    highest, lowest = best["latency_high_ns"], following["latency_low_ns"]
    if not (highest and lowest):
        said = "of so few steps that noise is not known"
    elif highest < lowest and more > _BETWEEN_PROCESSES:
        said = "more than noise"
    else:
        said = "which may be noise"
    at = "" if best["batch"] is None else f" of batch {best['batch']}"
    return (
        f"least latency{at}: {names[best['settings']]}, {duration(best['latency_ns'])}; next "
        f"{names[following['settings']]}, {duration(following['latency_ns'])}, "
        f"{100 * more:.3g} % more, {said}"
    )


def _curve(
    name: str, rows: Sequence[Mapping[str, Any]], full: int | None, target_ns: float | None
) -> Curve:
    best = next((row for row in rows if row["batch"] == row["optimal_batch"]), None)
    after = next((row for row in rows if best and row["batch"] > best["batch"]), None)
    sentences = [_by_rule(best, after, full)]
    chosen = None
    if target_ns is not None:
        fitting = [
            row for row in rows if (row["latency_high_ns"] or row["latency_ns"]) <= target_ns
        ]
        chosen = max(fitting, key=lambda row: row["throughput_per_s"], default=None)
        if chosen is None:
            by_target = (
                f"within {duration(target_ns)}: no batch measured is, to the end of its interval"
            )
        else:
            by_target = (
                f"within {duration(target_ns)}: batch {chosen['batch']} has most throughput, "
                f"{chosen['throughput_per_s']:,.1f}/s, of those whose latency is below that to "
                "the end of its interval "
                f"({duration(chosen['latency_high_ns'] or chosen['latency_ns'])})"
            )
        sentences.append(by_target)
    return Curve(
        name,
        best["batch"] if best else None,
        chosen["batch"] if chosen else None,
        tuple(sentences),
    )


def _by_rule(
    best: Mapping[str, Any] | None, after: Mapping[str, Any] | None, full: int | None
) -> str:
    threshold = f"{THRESHOLD_PCT:g} %"
    if best is None:
        return "optimal batch: not known, for there are no two batches to compare"
    if after is None:
        said = (
            f"optimal batch: {best['batch']}, the largest measured; each doubling up to it raises "
            f"throughput by more than {threshold}"
        )
        if full is not None:
            return f"{said}, and batch {full} runs out of memory"
        return f"{said}: measure larger ones to find where that ends"
    said = (
        f"optimal batch: {best['batch']}, the smallest measured of which a doubling raises "
        f"throughput by no more than {threshold} ({best['gain_pct']:+.1f} %)"
    )
    rates = (
        *(best["throughput_low_per_s"], best["throughput_high_per_s"]),
        *(after["throughput_low_per_s"], after["throughput_high_per_s"]),
    )
    if not all(rates):
        return f"{said}; the latencies' intervals are too wide to be sure of that"
    doublings = math.log2(after["batch"] / best["batch"])
    low, high = (
        100 * ((later / before) ** (1 / doublings) - 1)
        for before, later in ((rates[1], rates[2]), (rates[0], rates[3]))
    )
    if high > THRESHOLD_PCT:
        said += f"; the intervals allow {low:+.1f} to {high:+.1f} %, so it may be a larger one"
    return said
