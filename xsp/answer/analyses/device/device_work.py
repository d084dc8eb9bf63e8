"""Device work of a trace in groups, and the sums of these with intervals over steps.

A recording of several steps keeps what devices did in each of them, so that the interval of a sum
is that of its sums in single steps, however few steps have all of its parts. Of other traces it
is the sum of the kernels' intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.shape import shapes_text
from xsp.answer.analyses.tree import Floats, Tree
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import Ints, half_width, summarize
from xsp.trace import Trace

_SHAPES = pl.List(pl.List(pl.Int64))
_TIMES = ("latency_ns", "latency_low_ns", "latency_high_ns")
_AROUND = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Groups of kernels, copies and sets that have their names and their places in common.

    Attributes:
        groups: A row for each group: `kind`, `kernel` (full name), `operator` and `layer` around,
            null for none, `shapes` put into the operator as text, `phase`, `row` of the innermost
            shown span around, but launches, and `count` a step.
        parts_ns: What sums are made of, `[parts, groups]`: time in each step; or, where steps are
            not kept, the latency and the ends of its interval, NaN where it has none.
        by_step: Whether the parts are steps.
    """

    groups: pl.DataFrame
    parts_ns: Floats
    by_step: bool

    @classmethod
    def of(cls, trace: Trace) -> DeviceWork:
        """Return the device work of a trace, without rows where no device worked."""
        kept = trace.metadata.get("steps") or {}
        tree = Tree.of(trace)
        return _of_steps(tree, kept) if "work" in kept else _of_spans(tree)

    def sums(self, group: Ints, count: int) -> Floats:
        """Return the parts of sums, `[parts, sums]`, of which `group` has each group's number."""
        result = np.zeros((len(self.parts_ns), count))
        for part, total in zip(self.parts_ns, result, strict=True):
            np.add.at(total, group, part)
        return result

    def interval(self, sums: Floats) -> tuple[Floats, Floats, Floats]:
        """Return value, lower and upper end of sums that are given by their parts.

        What is not in every step is rare: its mean counts, for the trimmed mean would drop it.
        """
        if not self.by_step:
            value, low, high = sums
            return value, low, high
        rare = (sums == 0).any(axis=0)
        value, half = (
            np.where(rare, of(sums, "mean"), of(sums, "trimmed")) for of in (summarize, half_width)
        )
        return value, np.maximum(value - half, 0.0), value + half


def step_device_ns(trace: Trace) -> Floats | None:
    """Return the time in which devices worked in each step; None where that is not kept."""
    kept = trace.metadata.get("steps") or {}
    return np.array(kept["device_ns"], np.float64) if "device_ns" in kept else None


def _of_steps(tree: Tree, kept: Mapping[str, Any]) -> DeviceWork:
    work = kept["work"]
    names, shapes = pl.Series(kept["names"], dtype=pl.String), _texts(kept["shapes"])

    def named(column: str, among: pl.Series) -> pl.Series:
        return among.gather(pl.Series(work[column], dtype=pl.Int64))

    steps = len(kept["latency_ns"])
    rows = pl.DataFrame(
        {"id": tree.spans["span_id"], "row": np.arange(tree.spans.height, dtype=np.int64)}
    )

    def shown(column: str) -> pl.Series:
        ids = pl.DataFrame({"id": pl.Series(work[column], dtype=pl.UInt64)})
        return ids.join(rows, on="id", how="left", maintain_order="left")["row"]

    groups = pl.select(
        kind=pl.Series(work["kind"], dtype=pl.String),
        kernel=named("kernel", names),
        operator=named("operator", names),
        layer=named("layer", names),
        shapes=named("shapes", shapes),
        phase=pl.Series(work["phase"], dtype=pl.String),
        row=pl.coalesce(shown("span"), shown("layer_span"), pl.lit(0)),
        count=pl.Series(work["count"]) / steps,
    )
    parts = np.array([list(each) for each in work["time_ns"]], np.float64)
    return DeviceWork(groups, parts.reshape(groups.height, steps).T, by_step=True)


def _texts(shapes: Any) -> pl.Series:
    listed = [[None if s is None else list(s) for s in each] for each in shapes]
    return shapes_text(pl.Series(listed, dtype=_SHAPES))


@once_per_trace
def _of_spans(tree: Tree) -> DeviceWork:
    rows = tree.rows(*DEVICE_ACTIVITIES)
    operator, layer = (tree.nearest(tree.is_of(kind))[rows] for kind in (Kind.OP, Kind.LAYER))
    module = pl.coalesce(tree.attribute("module_path"), tree.spans["name"])
    shapes = shapes_text(tree.attribute("input_shapes", _SHAPES))
    kernel = pl.coalesce(tree.attribute("full_name"), tree.spans["name"])
    groups = pl.select(
        kind=tree.spans["kind"][rows],
        kernel=pl.select(kernel).to_series()[rows],
        operator=_at(tree.spans["name"], operator),
        layer=_at(pl.select(module).to_series(), layer),
        shapes=_at(shapes, operator),
        phase=_at(tree.attribute("phase"), layer),
        row=pl.Series(np.maximum(tree.nearest(tree.is_of(*_AROUND))[rows], 0)),
        count=tree.attribute("calls", pl.Int64)[rows].fill_null(1).cast(pl.Float64),
    )
    times = [
        tree.spans[name][rows].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in _TIMES
    ]
    value, low, high = np.nan_to_num(times[0]), times[1], times[2]
    # What one of many runs did has no interval: it may take as much again, or nothing.
    rare = np.isnan(low) | np.isnan(high)
    if not rare.all():
        low, high = np.where(rare, 0.0, low), np.where(rare, 2 * value, high)
    return DeviceWork(groups, np.array([value, low, high]), by_step=False)


def _at(values: pl.Series, rows: Ints) -> pl.Series:
    found = values.gather(np.maximum(rows, 0)).to_frame("value")
    return found.select(pl.when(pl.Series(rows >= 0)).then("value")).to_series()
