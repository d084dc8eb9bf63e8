"""Rows of one process in; the same rows with what only their nesting and times tell out.

That is: the phase of operators, the paths of modules, memory, overheads within calls, and which
call launched a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from xsp.evaluation import depths, nearest
from xsp.importers.kineto.backward import phases
from xsp.importers.kineto.nesting import Integers
from xsp.level import Kind

_ALLOCATING = [Kind.LAYER.value, Kind.OP.value]
_PATH = "attr.module_path"
_CLASS = "attr.module_class"
# Attributes of a call, by what CUPTI says that the time in it went to.
_OVERHEADS: Mapping[str, str] = {
    "Activity Buffer Request": "attr.cupti_overhead_ns",
    "Buffer Flush": "attr.cupti_overhead_ns",
    "Instrumentation": "attr.cupti_overhead_ns",
    "Resource": "attr.cupti_overhead_ns",
    "Driver Compiler": "attr.module_loading_ns",
    "Runtime Triggered Module Loading": "attr.module_loading_ns",
    "Lazy Function Loading": "attr.module_loading_ns",
    "Command Buffer Full": "attr.queue_full_ns",
}


def with_phases(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return rows with `attr.phase`; that of modules' calls is known."""
    return rows.with_columns(pl.coalesce("attr.phase", phases(rows, around)).alias("attr.phase"))


def with_paths(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return rows with the path of each module: the modules that it was first called in.

    The outermost module's path is empty; a path has the names of the others, as the profiler
    numbers them: `BertEncoder_0.BertLayer_3`.
    """
    is_module = rows[_CLASS].is_not_null().to_numpy()
    if not is_module.any():
        return rows
    outer = nearest(around, around, is_module)
    names = rows["name"].to_list()
    paths: dict[str, str] = {}
    calls = np.flatnonzero(is_module)
    first = calls[np.argsort(rows["start_ns"].to_numpy()[calls], kind="stable")]
    for call in first[np.argsort(depths(outer)[first], kind="stable")].tolist():
        around_it = outer[call]
        if names[call] not in paths:
            above = paths[names[around_it]] if around_it >= 0 else None
            paths[names[call]] = (
                "" if above is None else f"{above}.{names[call]}" if above else names[call]
            )
    found = pl.Series([paths[name] if own else None for name, own in zip(names, is_module)])
    return rows.with_columns(found.alias(_PATH))


def with_memory(rows: pl.DataFrame, changes: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the bytes allocated and freed in each layer and operator.

    Args:
        rows: Rows of the host.
        changes: Columns `start_ns`, `tid`, and `memory_bytes`, which is negative for a release.
            If there are none, memory was not recorded, and there are no columns.
    """
    if not changes.height:
        return rows
    totals = np.zeros((2, rows.height), np.int64)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    changes = changes.with_columns(pl.col("tid").fill_null(0), pl.col("memory_bytes").fill_null(0))
    for (thread,), own in changes.sort("start_ns").group_by("tid"):
        members = np.flatnonzero(rows["thread"].to_numpy() == thread)
        time, size = own["start_ns"].to_numpy(), own["memory_bytes"].to_numpy()
        first = np.searchsorted(time, start[members], "left")
        last = np.maximum(np.searchsorted(time, end[members], "right"), first)
        for total, part in zip(totals, (np.maximum(size, 0), np.maximum(-size, 0)), strict=True):
            sums = np.concatenate([[0], np.cumsum(part)])
            total[members] = sums[last] - sums[first]
    none = ~rows["kind"].is_in(_ALLOCATING)
    return rows.with_columns(
        pl.Series(name, total).set(none, None)
        for name, total in zip(("attr.allocated_bytes", "attr.freed_bytes"), totals, strict=True)
    )


def with_overheads(
    rows: pl.DataFrame, overheads: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return rows with what of each call was overhead, and the sum of what lies in no call, by name.

    Args:
        rows: Rows of the host.
        overheads: Columns `name`, `start_ns` and `end_ns`.
    """
    columns: dict[str, Integers] = {}
    outside: dict[str, int] = {}
    for call, (name, start, end) in zip(
        _calls_around(rows, overheads), overheads.iter_rows(), strict=True
    ):
        attribute = _OVERHEADS.get(name)
        if call < 0 or attribute is None:
            outside[name] = outside.get(name, 0) + end - start
        else:
            columns.setdefault(attribute, np.zeros(rows.height, np.int64))[call] += end - start
    made = [pl.Series(name, column) for name, column in columns.items()]
    return rows.with_columns(each.set(each == 0, None) for each in made), outside


def _calls_around(rows: pl.DataFrame, overheads: pl.DataFrame) -> Iterator[int]:
    """Yield the call that each overhead lies in, -1 for none; the overhead's thread is not known."""
    calls = (rows["kind"] == Kind.LAUNCH.value).arg_true().to_numpy()
    start, end = (rows[name].to_numpy()[calls] for name in ("start_ns", "end_ns"))
    order = np.argsort(start, kind="stable")
    for begun, ended in overheads.select("start_ns", "end_ns").iter_rows():
        last = int(np.searchsorted(start[order], begun, "right")) - 1
        fits = last >= 0 and ended <= end[order[last]]
        yield int(calls[order[last]]) if fits else -1


def launched_by(work: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return work of devices with the name of the call that launched each kernel."""
    calls = rows.filter(pl.col("kind") == Kind.LAUNCH.value, pl.col("correlation_id").is_not_null())
    names = calls.select("correlation_id", launched="name").unique("correlation_id")
    found = work.join(names, on="correlation_id", how="left", maintain_order="left")
    of_kernel = pl.when(pl.col("kind") == Kind.KERNEL.value).then("launched")
    return found.with_columns(of_kernel.alias("attr.launched_by")).drop("launched")
