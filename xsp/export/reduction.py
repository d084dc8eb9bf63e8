"""Reduction: a trace cut to so many spans as a viewer can draw, its sums kept exact.

Stands between a trace's frame and the picture of it that is handed over. Two
things are done, and both leave every sum over a kind as it was. Kinds of span are
left out from below, each everywhere or nowhere. And small siblings that look alike
are rolled up into one span, with the spans below them, as in a flame graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from xsp.export.grouping import CLASS, LANE, Groups, Part, fitting, tree_of
from xsp.export.placement import Drawn, place
from xsp.level import Kind
from xsp.provider import on_device
from xsp.quantity import counted
from xsp.trace import similarity as shape

# Columns that follow those of a trace; null on a span that stands for itself alone.
EXTRA: dict[str, Any] = {
    "rolled_count": pl.Int64,  # how many spans it stands for, 2 or more
    "rolled_min_ns": pl.Float64,  # the least of their latencies
    "rolled_max_ns": pl.Float64,
    "hidden_spans": pl.Int64,  # of kinds left out: how many have it as nearest ancestor left
}
# Name of a span that stands for spans of several names.
MORE = "… more"

_SUMMED = ("latency_ns", "self_ns", "overhead_ns", "device_ns")
_BOUNDS = ("latency_low_ns", "latency_high_ns")
_INNER = {kind.value: (-kind.order, place) for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Reduced:
    """A trace cut to a budget.

    Each span of the full tree is one of those that are left, was rolled up into one
    (`rolled_count`), or is hidden in one (`hidden_spans`). So `rolled_count` (1
    where null) and `hidden_spans` (0 where null) add up to `total`.

    Attributes:
        spans: Columns of `trace.spans`, then those of `EXTRA`; root first, parents
            before children, otherwise by the first span that each stands for.
        total: How many spans the full tree has.
        cut_kinds: Kinds left out everywhere, the deepest first. The root is left
            whatever its kind.
        rolled: How many spans of the full tree are inside of rolled-up spans.
    """

    spans: pl.DataFrame
    total: int
    cut_kinds: tuple[str, ...]
    rolled: int

    @property
    def left_out(self) -> str | None:
        """What the span budget left out, in a sentence; None if nothing."""
        if self.spans.height == self.total:
            return None
        said = [f"shown: {counted(self.spans.height, 'span')} for the {self.total:,} of the trace"]
        if self.cut_kinds:
            said.append(f"left out: every {' and every '.join(self.cut_kinds)}")
        if self.rolled:
            said.append(f"rolled up with their like: {self.rolled:,}")
        return "; ".join(said) + ". The saved trace has them all, and --full exports them"


def reduce(spans: pl.DataFrame, most: int | None) -> Reduced:
    """Return a trace cut to at most so many spans; one that fits is left as it is.

    The latencies of all spans of a kind that is left sum to what they do in the full
    tree; so do their own, removed and device times. A rolled-up span has the id and
    path of its first member, and of the other columns what all members share. What
    raised an exception is rolled up only with what raised the same.

    Args:
        spans: Columns of `trace.spans`, root first and parents before children.
        most: Number of spans, 1 or more; None for all.

    Raises:
        ValueError: `most` is less than 1.
        TraceFormatError: The spans are over the budget and not one tree.
    """
    if most is not None and most < 1:
        raise ValueError(
            f"a span budget of {most} has no room for the root: "
            "ask for 1 span or more, or for None to keep all"
        )
    if most is None or spans.height <= most:
        nothing = [pl.lit(None, dtype).alias(name) for name, dtype in EXTRA.items()]
        return Reduced(spans.with_columns(nothing), spans.height, (), 0)
    part, groups = fitting(tree_of(spans), most)
    rolled = int(groups.size[groups.size > 1].sum())
    return Reduced(_rolled(spans, part, groups), spans.height, _cut_kinds(spans, part), rolled)


def _cut_kinds(spans: pl.DataFrame, part: Part) -> tuple[str, ...]:
    kinds = spans["kind"]
    cut = set(kinds[1:].unique()) - set(kinds.gather(part.rows[1:]).unique())
    return tuple(sorted(cut, key=_INNER.__getitem__))


def _rolled(spans: pl.DataFrame, part: Part, groups: Groups) -> pl.DataFrame:
    """Return one row per group, in the columns of a trace and of `EXTRA`."""
    heads = spans[part.rows[groups.first]]
    agreement, sums = _Agreement(part, groups), _sums(spans, part, groups)
    merged = sums.with_columns(_names(spans, agreement), agreement.on(spans["correlation_id"]))
    start, end = place(_drawn(spans, part), groups.of)
    above = heads["span_id"].gather(np.maximum(groups.of[part.parent[groups.first]], 0))
    several = pl.Series(groups.size > 1)
    hidden = merged["hidden_spans"]
    return heads.with_columns(
        pl.when(pl.int_range(pl.len()) > 0).then(above).alias("parent_id"),
        pl.Series("start_ns", start),
        pl.Series("end_ns", end),
        _attributes(spans, agreement, sums),
        *(
            pl.when(several).then(merged[name]).otherwise(pl.col(name)).alias(name)
            for name in merged.columns
            if name in heads.columns
        ),
        *(pl.when(several).then(merged[name]).alias(name) for name in EXTRA),
    ).with_columns(pl.when(hidden > 0).then(hidden).alias("hidden_spans"))


def _sums(spans: pl.DataFrame, part: Part, groups: Groups) -> pl.DataFrame:
    """Return what the members of each group add up to, one row per group."""
    numbers = (*_SUMMED, *_BOUNDS, "runs", "measured_start_ns", "measured_end_ns")
    exact = shape.field(spans, "exact", pl.Boolean)
    members = spans.select(*numbers, exact, shape.field(spans, "scaled_ns", pl.Float64))
    known = pl.col("latency_ns").is_not_null()
    return (
        members[part.rows]
        .with_columns(pl.Series("group", groups.of), pl.Series("hidden_spans", part.hidden))
        .group_by("group", maintain_order=True)
        .agg(
            *(_sum(pl.col(name)).alias(name) for name in (*_SUMMED, "scaled_ns")),
            *(_sum_of_all(pl.col(name).filter(known)).alias(name) for name in _BOUNDS),
            pl.when(pl.col("exact").count() > 0).then(pl.col("exact").all()).alias("exact"),
            pl.min("runs", "measured_start_ns"),
            pl.max("measured_end_ns"),
            pl.len().cast(pl.Int64).alias("rolled_count"),
            pl.min("latency_ns").alias("rolled_min_ns"),
            pl.max("latency_ns").alias("rolled_max_ns"),
            pl.sum("hidden_spans"),
        )
        .drop("group")
    )


def _sum(values: pl.Expr) -> pl.Expr:
    """Return the sum of what is known, null where nothing is."""
    return pl.when(values.count() > 0).then(values.sum())


def _sum_of_all(values: pl.Expr) -> pl.Expr:
    """Return the sum, null where some of it is not known."""
    return pl.when(values.null_count() == 0).then(_sum(values))


class _Agreement:
    """Finds what all members of a group have in common."""

    def __init__(self, part: Part, groups: Groups) -> None:
        later = np.flatnonzero(groups.first[groups.of] != np.arange(len(groups.of)))
        self._group = groups.of[later]
        self._heads = part.rows[groups.first]
        self._later = part.rows[later]

    def on(self, values: pl.Series) -> pl.Series:
        """Return the value of each group, null where members differ; a value per row goes in."""
        first = values.gather(self._heads)
        if values.null_count() == values.len():
            return first
        # Hashes stand for the values: some types (lists of lists) are slow to compare.
        hashes = values.to_frame().hash_rows().to_numpy()
        odd = hashes[self._later] != hashes[self._heads][self._group]
        differ = np.bincount(self._group[odd], minlength=first.len()) > 0
        agreed = pl.when(pl.Series(differ)).then(None).otherwise(first)
        return pl.select(agreed.alias(values.name)).to_series()


def _names(spans: pl.DataFrame, agreement: _Agreement) -> pl.Series:
    """Return the members' name where it is one, else their class, else that they are several."""
    name = agreement.on(spans["name"])
    label = agreement.on(shape.field(spans, CLASS))
    return pl.select(pl.coalesce(name, label, pl.lit(MORE)).alias("name")).to_series()


def _attributes(spans: pl.DataFrame, agreement: _Agreement, sums: pl.DataFrame) -> pl.Series:
    fields = spans["attributes"].struct.unnest()
    shared = pl.DataFrame([agreement.on(fields[name]) for name in fields.columns])
    ours = [name for name in ("exact", "scaled_ns") if fields.schema.get(name) == sums.schema[name]]
    return shared.with_columns(sums[name] for name in ours).to_struct("attributes")


def _drawn(spans: pl.DataFrame, part: Part) -> Drawn:
    lane = spans.select(pl.struct(LANE).rank("dense").cast(pl.Int64)).to_series()
    return Drawn(
        parent=part.parent,
        generations=part.generations,
        lane=lane.to_numpy()[part.rows],
        host=~on_device(spans)[part.rows],
        start_ns=spans["start_ns"].to_numpy()[part.rows],
        end_ns=spans["end_ns"].to_numpy()[part.rows],
    )
