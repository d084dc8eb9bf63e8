"""Kernels of a recording and measured ones in; which is which out.

A tool that measures single kernels (Nsight Compute) does not say when they ran, and numbers them
by itself. So kernels are found again by name and order: the third `gemm` that was measured is the
third `gemm` of the recording. Where only a part was measured (`--launch-skip`, `--kernel-name`),
the part is looked for first: the place at which most names follow each other as measured.

    recorded    add  gemm  gemm  relu  add  gemm  relu
    measured               gemm  relu  add             from the second gemm on

Grid and block, where both tools tell them, belong to the name.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.importers.recording import KernelMetrics, Recording
from xsp.level import Kind
from xsp.provider import ATTRIBUTE
from xsp.text import full_name, short_name

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
    recorded, measured = _keys(kernels, metrics.rows)
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


def _keys(recorded: pl.DataFrame, measured: pl.DataFrame) -> tuple[Integers, Integers]:
    """Return numbers that are equal for kernels which may be the same, recorded and measured.

    Names are compared as they are if thereby as many of the measured kernels are found as
    without result, namespaces, template arguments and parameters, which tools write differently.
    """
    full = [_full_names(rows) for rows in (recorded, measured)]
    short = [name.map_elements(short_name, pl.String, skip_nulls=True) for name in full]
    found = [int(of.is_in(among.implode()).sum()) for among, of in (full, short)]
    names = full if found[0] == found[1] else short
    sizes = [name for name in _SIZES if _all_told(recorded, name) and _all_told(measured, name)]
    frames = [
        name.alias("name").to_frame().with_columns(rows[size] for size in sizes)
        for rows, name in zip((recorded, measured), names, strict=True)
    ]
    key = pl.concat(frames).select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy()
    return key[: recorded.height].astype(np.int64), key[recorded.height :].astype(np.int64)


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
