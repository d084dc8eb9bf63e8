"""Recordings and metrics of kernels in, recordings whose kernels have the metrics out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from xsp.importers.metrics.match import Integers, kernels_of, matches
from xsp.importers.recording import KernelMetrics, Recording
from xsp.problem import Problem
from xsp.provider import ATTRIBUTE, SpanRows
from xsp.text import counted, shorten

_MOST_NAMES = 5  # in a message
_NAME = 60  # characters of a name in a message


def joined(
    recordings: Sequence[Recording], metrics: Sequence[KernelMetrics]
) -> tuple[Recording, ...]:
    """Return recordings whose kernels have the attributes that were measured of them.

    Metrics of one file are of one process: the recording most of whose kernels they match gets
    them, of several equal ones the first.

    Args:
        recordings: One per process; at least one.
        metrics: What was measured of single kernels, one per file.
    """
    found = list(recordings)
    for measured in metrics:
        ways = [matches(recording, measured) for recording in found]
        best = int(np.argmax([int((match >= 0).sum()) for match in ways]))
        found[best] = _with_metrics(found[best], measured, ways[best])
    return tuple(found)


def attached(rows: SpanRows, kernel: Integers, match: Integers, metrics: pl.DataFrame) -> SpanRows:
    """Return rows with the attributes of metrics; what the rows tell themselves stays.

    Args:
        rows: Rows of a recording.
        kernel: Which of them were measured.
        match: Row of the metrics of each of these, -1 for none.
        metrics: Attributes under names that begin with `attr.`, and other columns.
    """
    number = np.full(rows.height, -1)
    number[kernel] = match
    taken = pl.Series(number).replace(-1, None)
    columns = []
    for name in filter(lambda name: name.startswith(ATTRIBUTE), metrics.columns):
        values = metrics[name].gather(taken).alias(name)
        if name in rows.columns:
            values = rows.select(pl.coalesce(name, values.cast(rows[name].dtype)))[name]
        columns.append(values)
    return rows.with_columns(columns)


def _with_metrics(recording: Recording, metrics: KernelMetrics, match: Integers) -> Recording:
    """Return a recording with metrics.

    Args:
        recording: The recording.
        metrics: The metrics.
        match: Row of the metrics of each kernel, in the order of `kernels_of`, or -1.
    """
    kernels = kernels_of(recording)
    repeated = _repeated(kernels, match)
    problems = (
        *recording.problems,
        *metrics.problems,
        *_problems(kernels, metrics, match, repeated),
    )
    rows = attached(recording.rows, kernels["row"].to_numpy(), repeated, metrics.rows)
    tool = f"{recording.tool} and {metrics.tool}"
    return replace(recording, tool=tool, rows=rows, problems=problems)


def _repeated(kernels: pl.DataFrame, match: Integers) -> Integers:
    """Return the match of all steps, where one was measured and all run the same kernels."""
    steps = kernels["step"].to_numpy()
    measured = np.unique(steps[match >= 0])
    if len(measured) != 1 or measured[0] < 0 or not _steps_are_equal(kernels):
        return match
    everywhere = match.copy()
    inside = steps >= 0
    everywhere[inside] = np.tile(match[steps == measured[0]], len(np.unique(steps[inside])))
    return everywhere


def _steps_are_equal(kernels: pl.DataFrame) -> bool:
    """Tell whether all steps run the same kernels in the same order."""
    steps = kernels.filter(pl.col("step") >= 0)
    each = steps.group_by("step").agg(pl.exclude("row")).drop("step")
    return each.height > 0 and each.unique().height == 1


def _problems(
    kernels: pl.DataFrame, metrics: KernelMetrics, match: Integers, everywhere: Integers
) -> Iterator[Problem]:
    """Yield what was not found again, and which steps were not measured."""
    lost = np.setdiff1d(np.arange(metrics.rows.height), match)
    if len(lost):
        names = metrics.rows["name"].gather(lost)
        yield Problem(
            "unmatched-metrics",
            f"{counted(len(lost), 'kernel')} that {metrics.tool} measured of "
            f"{metrics.rows.height:,} are not in the recording: {_listed(names)}",
        )
    without = int((everywhere < 0).sum())
    if without:
        yield Problem(
            "unmeasured-kernels",
            f"{metrics.tool} measured {counted(len(match) - without, 'kernel')} of "
            f"{len(match):,}; not {_listed(kernels['name'].filter(pl.Series(everywhere < 0)))}",
        )
    if (everywhere != match).any():
        yield Problem(
            "one-step-measured",
            f"{metrics.tool} measured one step; the others run the same kernels in the same order, "
            "and have its metrics",
        )


def _listed(names: pl.Series) -> str:
    found = names.value_counts(sort=True).rows()
    more = len(found) - _MOST_NAMES
    told = ", ".join(
        f"{count:,} \u00d7 {shorten(name, _NAME)}" for name, count in found[:_MOST_NAMES]
    )
    return told + (f" and kernels of {more:,} more names" if more > 0 else "")
