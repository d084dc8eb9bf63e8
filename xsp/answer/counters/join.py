"""Gives counters of kernels that ran again to the equal kernels of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.errors import MeasurementError
from xsp.level import Kind
from xsp.provider import ATTRIBUTE
from xsp.reading.importers import KernelMetrics
from xsp.text import counted, full_name, short_name, shorten
from xsp.trace import Trace
from xsp.warning import TraceWarning

_NAME = 60  # characters of a kernel's name in a message
_MOST_NAMES = 5  # in a message


def with_counters(trace: Trace, metrics: KernelMetrics, kernels: Sequence[str]) -> Trace:
    """Add counters to every kernel of a trace that equals a counted one.

    Kernels are equal that have the same name, grid and block: full names are compared first, then
    names without namespaces and parameters, which tools write differently. Of several equal counted
    launches the one of median duration stands for all.

    Args:
        trace: The trace; its times stay as they are.
        metrics: What `ncu` counted of single launches.
        kernels: Short names that counters were asked for.

    Returns:
        The trace with the counters, and a warning that names kernels without.

    Raises:
        MeasurementError: No counted launch equals a kernel of the trace.
    """
    fields = trace.spans["attributes"].struct.unnest()
    among = (trace.spans["kind"] == Kind.KERNEL.value).to_numpy()
    told = fields["full_name"] if "full_name" in fields.columns else trace.spans["name"]
    shapes = [
        fields[name].to_list() if name in fields.columns else [None] * fields.height
        for name in ("grid", "block")
    ]
    found = _by_identity(metrics.rows)
    rows: list[int | None] = [None] * trace.spans.height
    missing: dict[str, int] = {}
    for row in among.nonzero()[0].tolist():
        full = full_name(told[row] or trace.spans["name"][row])
        size = tuple(tuple(shape[row] or ()) for shape in shapes)
        rows[row] = found.get((full, *size), found.get((short_name(full), *size)))
        if rows[row] is None and (name := short_name(full)) in kernels:
            missing[name] = missing.get(name, 0) + 1
    number = pl.Series(rows, dtype=pl.Int64)
    columns = []
    for name in metrics.rows.columns:
        if not name.startswith(ATTRIBUTE) or name == f"{ATTRIBUTE}full_name":
            continue
        field = name.removeprefix(ATTRIBUTE)
        values = metrics.rows[name].gather(number).alias(field)
        if field in fields.columns:
            values = fields.select(pl.coalesce(field, values.cast(fields[field].dtype)))[field]
        columns.append(values)
    spans = trace.spans.with_columns(fields.with_columns(columns).to_struct("attributes"))
    if all(row is None for row in rows):
        raise MeasurementError(
            f"{metrics.tool} counted {counted(metrics.rows.height, 'launch')}, and none is of a "
            "kernel of the trace with its grid and block. Run the program of the trace, with the "
            "same sizes."
        )
    warnings = [*trace.metadata.get("warnings", ()), *_entries(metrics.warnings)]
    if missing:
        names = ", ".join(
            f"{count:,} \u00d7 {shorten(name, _NAME)}"
            for name, count in list(missing.items())[:_MOST_NAMES]
        )
        warnings += _entries(
            [
                TraceWarning(
                    "unmeasured-kernels",
                    f"{metrics.tool} did not count {counted(sum(missing.values()), 'kernel')} "
                    f"that xsp asked for ({names}). Raise --launches, or run the same sizes.",
                )
            ]
        )
    return trace.replaced(spans, {**trace.metadata, "warnings": warnings})


def _entries(warnings: Iterable[TraceWarning]) -> list[dict[str, Any]]:
    return [{"code": warning.code, "message": warning.message} for warning in warnings]


def _by_identity(rows: pl.DataFrame) -> Mapping[tuple[object, ...], int]:
    """Map names with grid and block to a row of the metrics; short names where they tell enough."""
    launches: dict[tuple[object, ...], list[int]] = {}
    templates: dict[tuple[object, ...], set[str]] = {}
    for row, (name, grid, block) in enumerate(
        rows.select("attr.full_name", "attr.grid", "attr.block").iter_rows()
    ):
        full = full_name(name)
        size = (tuple(grid or ()), tuple(block or ()))
        launches.setdefault((full, *size), []).append(row)
        short = (short_name(full), *size)
        launches.setdefault(short, []).append(row)
        templates.setdefault(short, set()).add(full)
    durations = rows["duration_ns"].fill_null(0).to_list()
    return {
        identity: sorted(own, key=durations.__getitem__)[(len(own) - 1) // 2]
        for identity, own in launches.items()
        if len(templates.get(identity, ())) <= 1
    }
