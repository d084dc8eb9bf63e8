"""Joins metrics of single kernels to the kernels of recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import ATTRIBUTE, SpanRows
from xsp.reading.importers.recording import KernelMetrics, Recording
from xsp.text import counted, full_name, short_name, shorten
from xsp.warning import TraceWarning

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
    # The match of all steps, where one was measured and all run the same kernels.
    steps = kernels["step"].to_numpy()
    measured = np.unique(steps[match >= 0])
    if len(measured) != 1 or measured[0] < 0 or not _steps_are_equal(kernels):
        repeated = match
    else:
        everywhere = match.copy()
        inside = steps >= 0
        everywhere[inside] = np.tile(match[steps == measured[0]], len(np.unique(steps[inside])))
        repeated = everywhere
    warnings = (
        *recording.warnings,
        *metrics.warnings,
        *_warnings(kernels, metrics, match, repeated),
    )
    rows = attached(recording.rows, kernels["row"].to_numpy(), repeated, metrics.rows)
    tool = f"{recording.tool} and {metrics.tool}"
    return replace(recording, tool=tool, rows=rows, warnings=warnings)


def _steps_are_equal(kernels: pl.DataFrame) -> bool:
    """Tell whether all steps run the same kernels in the same order."""
    steps = kernels.filter(pl.col("step") >= 0)
    each = steps.group_by("step").agg(pl.exclude("row")).drop("step")
    return each.height > 0 and each.unique().height == 1


def _warnings(
    kernels: pl.DataFrame, metrics: KernelMetrics, match: Integers, everywhere: Integers
) -> Iterator[TraceWarning]:
    """Yield what was not found again, and which steps were not measured."""
    lost = np.setdiff1d(np.arange(metrics.rows.height), match)
    if len(lost):
        names = metrics.rows["name"].gather(lost)
        yield TraceWarning(
            "unmatched-metrics",
            f"{counted(len(lost), 'kernel')} that {metrics.tool} measured of "
            f"{metrics.rows.height:,} are not in the recording; their metrics are left out: "
            f"{_listed(names)}",
        )
    without = int((everywhere < 0).sum())
    if without:
        yield TraceWarning(
            "unmeasured-kernels",
            f"{metrics.tool} measured {counted(len(match) - without, 'kernel')} of "
            f"{len(match):,}; not {_listed(kernels['name'].filter(pl.Series(everywhere < 0)))}",
        )
    if (everywhere != match).any():
        yield TraceWarning(
            "one-step-measured",
            f"{metrics.tool} measured one step; xsp gave its metrics to the other steps, which run "
            "the same kernels",
        )


def _listed(names: pl.Series) -> str:
    found = names.value_counts(sort=True).rows()
    more = len(found) - _MOST_NAMES
    told = ", ".join(
        f"{count:,} \u00d7 {shorten(name, _NAME)}" for name, count in found[:_MOST_NAMES]
    )
    return told + (f" and kernels of {more:,} more names" if more > 0 else "")


# Finds measured kernels again among the kernels of a recording.

Integers = npt.NDArray[np.int64]

_FULL = f"{ATTRIBUTE}full_name"
_SIZES = (f"{ATTRIBUTE}grid", f"{ATTRIBUTE}block")
_PAIRS = 20_000_000  # comparisons of names by which the measured part is looked for


def kernels_of(recording: Recording) -> pl.DataFrame:
    """Return the kernels of a recording in the order in which they were launched.

    Columns: `row` (in the recording), `step` (-1 outside of all) and what kernels are found by.
    """
    rows = recording.rows.with_row_index("row")
    launches = rows.filter(kind=Kind.LAUNCH.value).select("correlation_id", called="start_ns")
    launches = launches.drop_nulls().unique("correlation_id", keep="first", maintain_order=True)
    kernels = rows.filter(kind=Kind.KERNEL.value).join(launches, on="correlation_id", how="left")
    kernels = kernels.with_columns(pl.coalesce("called", "start_ns").alias("called"))
    kernels = kernels.sort("called", "start_ns", "row")
    start, end = (recording.roots[name].sort().to_numpy() for name in ("start_ns", "end_ns"))
    step = np.searchsorted(start, kernels["called"].to_numpy(), side="right") - 1
    if len(end):
        step[kernels["called"].to_numpy() >= end[step]] = -1
    told = [name for name in (_FULL, *_SIZES) if name in kernels.columns]
    return kernels.select("row", "name", *told).with_columns(step=step)


def matches(recording: Recording, metrics: KernelMetrics) -> Integers:
    """Return the row of the metrics of each kernel, in the order of `kernels_of`, or -1."""
    kernels = kernels_of(recording)
    # Numbers that are equal for kernels which may be the same, recorded and measured.
    # Names are compared as they are if thereby as many of the measured kernels are found as without
    # result, namespaces, template arguments and parameters, which tools write differently.
    full = [_full_names(rows) for rows in (kernels, metrics.rows)]
    short = [name.map_elements(short_name, pl.String, skip_nulls=True) for name in full]
    found = [int(of.is_in(among.implode()).sum()) for among, of in (full, short)]
    names = full if found[0] == found[1] else short
    sizes = [name for name in _SIZES if _all_told(kernels, name) and _all_told(metrics.rows, name)]
    frames = [
        name.alias("name").to_frame().with_columns(rows[size] for size in sizes)
        for rows, name in zip((kernels, metrics.rows), names, strict=True)
    ]
    key = pl.concat(frames).select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy()
    recorded, measured = (
        key[: kernels.height].astype(np.int64),
        key[kernels.height :].astype(np.int64),
    )
    at, of = (
        np.flatnonzero(np.isin(*keys)) for keys in ((recorded, measured), (measured, recorded))
    )
    match = np.full(len(recorded), -1)
    if len(at):
        offset = _offset(recorded[at], measured[of])
        at, of = at[max(offset, 0) :], of[max(-offset, 0) :]
        pairs = _ordered(recorded, at).join(_ordered(measured, of), on=["key", "which"])
        match[pairs["at"].to_numpy()] = pairs["at_right"].to_numpy()
    return np.where(_same_size(kernels, metrics.rows, match), match, -1)


def _ordered(keys: Integers, at: Integers) -> pl.DataFrame:
    """Return the kernels at some places with their keys, and which one of its key each is."""
    frame = pl.DataFrame({"key": keys[at], "at": at})
    return frame.with_columns(which=pl.int_range(pl.len()).over("key"))


def _offset(recorded: Integers, measured: Integers) -> int:
    """Return the place in `recorded` at which most of `measured` follow as they do there.

    A negative place: what was measured began earlier. Of places that are equally good: 0, else the
    first one. If nowhere half of `measured` follow, the order is another one: 0.
    """
    some = measured[: max(_PAIRS // len(recorded), 1)]
    matches = np.zeros(len(recorded) + len(some), np.int64)
    for key in np.unique(some):
        places = np.subtract.outer(np.flatnonzero(recorded == key), np.flatnonzero(some == key))
        matches += np.bincount(places.ravel() + len(some), minlength=len(matches))
    if 2 * matches.max() <= len(some):
        return 0
    best = np.flatnonzero(matches == matches.max()) - len(some)
    later = best[best >= 0]
    return int(later[0] if len(later) else best[-1])


def _full_names(rows: pl.DataFrame) -> pl.Series:
    told = [name for name in (_FULL, "name") if name in rows.columns]
    return rows.select(name=pl.coalesce(told))["name"].map_elements(full_name, pl.String)


def _all_told(rows: pl.DataFrame, name: str) -> bool:
    return name in rows.columns and not rows[name].null_count()


def _same_size(
    kernels: pl.DataFrame, metrics: pl.DataFrame, match: Integers
) -> npt.NDArray[np.bool_]:
    """Return which kernels have the grid and block of their metrics, where both tell them."""
    same = np.full(len(match), True)
    for name in _SIZES:
        if name in kernels.columns and name in metrics.columns:
            measured = metrics[name].gather(pl.Series(match).replace(-1, None))
            same &= (kernels[name] == measured).fill_null(value=True).to_numpy()
    return same
