"""Adds to the rows of one process the facts that only nesting and times of the rows tell.

These are: the phase of operators, the paths of modules, overheads within calls, and which
call launched a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import depths, nearest
from xsp.reading.importers.kineto.backward import phases
from xsp.reading.importers.kineto.nesting import Integers

_LAUNCH = pl.col("kind") == Kind.LAUNCH.value
_CLASS, _SHAPES = "attr.module_class", "attr.input_shapes"
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


def with_modules(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return rows with names and paths of modules by their places.

    The profiler numbers all modules of a class. A model's tenth layer does the same as its ninth,
    so a module is called by its class, and by its number among the modules of that class in the
    module around it, if there are several. That is the module in which it was first called; the
    outermost module's path is empty.
    """
    is_module = rows[_CLASS].is_not_null().to_numpy()
    calls = np.flatnonzero(is_module)
    if not len(calls):
        return rows
    outer = nearest(around, around, is_module)[calls]
    told, classes, names = (rows[name].to_list() for name in ("name", _CLASS, "name"))
    first = np.lexsort((depths(around)[calls], rows["start_ns"].to_numpy()[calls]))
    home: dict[str, str | None] = {}
    of_class: dict[str, str] = {}
    for call, around_it in zip(calls[first].tolist(), outer[first].tolist(), strict=True):
        home.setdefault(told[call], told[around_it] if around_it >= 0 else None)
        of_class[told[call]] = classes[call]
    own = _own_names(home, of_class)
    paths: list[str | None] = [None] * rows.height
    for call in calls.tolist():
        names[call], paths[call] = own[told[call]], _path(told[call], home, own)
    return rows.with_columns(
        pl.Series("name", names), pl.Series("attr.module_path", paths, dtype=pl.String)
    )


def _own_names(home: Mapping[str, str | None], of_class: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each module among the modules in the module around it."""
    siblings: dict[tuple[str | None, str], list[str]] = {}
    for module, around in home.items():
        siblings.setdefault((around, of_class[module]), []).append(module)
    return {
        module: f"{kind}_{number}" if len(alike) > 1 else kind
        for (_, kind), alike in siblings.items()
        for number, module in enumerate(sorted(alike, key=_number))
    }


def _number(module: str) -> tuple[int, str]:
    digits = module.rpartition("_")[2]
    return (int(digits) if digits.isdecimal() and len(digits) < 20 else 0), module


def _path(module: str, home: Mapping[str, str | None], own: Mapping[str, str]) -> str:
    names: list[str] = []
    at = home[module]
    while at is not None:
        names.append(own[module])
        module, at = at, home[at]
    return ".".join(reversed(names))


def with_inputs(rows: pl.DataFrame, around: Integers) -> pl.DataFrame:
    """Return rows in which modules without others inside have the shape of their input.

    It is that of the first tensor that their first operator was given, or of the indices where it
    looks rows of a table up. What a module that holds others was given, its operators do not tell.
    """
    if _CLASS not in rows.columns or _SHAPES not in rows.columns:
        return rows
    is_module = rows[_CLASS].is_not_null().to_numpy()
    outer = nearest(around, around, is_module)
    holding = np.zeros(rows.height, np.bool_)
    holding[outer[is_module & (outer >= 0)]] = True
    known = (rows["kind"] == Kind.OP.value) & rows[_SHAPES].list.len().gt(0)
    first = (
        pl.DataFrame({"row": np.arange(rows.height), "module": outer})
        .filter(known.fill_null(value=False), pl.lit((outer >= 0) & ~holding[outer]))
        .unique("module", keep="first", maintain_order=True)
    )
    if not first.height:
        return rows
    of_table = rows["name"].gather(first["row"]).str.contains("embedding")
    given = rows[_SHAPES].gather(first["row"])
    shape = given.list.get(1, null_on_oob=True).zip_with(of_table, given.list.get(0))
    one = pl.DataFrame({"module": first["module"], "given": shape}).drop_nulls()
    inputs = one.select("module", given=pl.col("given").implode().over(pl.int_range(pl.len())))
    joined = rows.with_columns(module=pl.int_range(pl.len())).join(
        inputs, on="module", how="left", maintain_order="left"
    )
    return joined.with_columns(pl.coalesce(_SHAPES, "given").alias(_SHAPES)).drop("module", "given")


def with_overheads(
    rows: pl.DataFrame, overheads: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return rows with the overheads in each call, and the sums of those in no call, by name.

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
    """Yield the call that each overhead, whose thread is not known, lies in; -1 for none."""
    calls = (rows["kind"] == Kind.LAUNCH.value).arg_true().to_numpy()
    start, end = (rows[name].to_numpy()[calls] for name in ("start_ns", "end_ns"))
    order = np.argsort(start, kind="stable")
    for begun, ended in overheads.select("start_ns", "end_ns").iter_rows():
        last = int(np.searchsorted(start[order], begun, "right")) - 1
        fits = last >= 0 and ended <= end[order[last]]
        yield int(calls[order[last]]) if fits else -1


def with_launches(work: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return work of devices with the name of the call that launched each kernel."""
    calls = rows.filter(_LAUNCH & pl.col("correlation_id").is_not_null())
    names = calls.select("correlation_id", launched="name").unique("correlation_id")
    found = work.join(names, on="correlation_id", how="left", maintain_order="left")
    of_kernel = pl.when(pl.col("kind") == Kind.KERNEL.value).then("launched")
    return found.with_columns(of_kernel.alias("attr.launched_by")).drop("launched")
