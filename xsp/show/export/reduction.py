"""Cuts a trace to as many spans as a viewer can draw, and keeps the sums of latencies exact.

A reduction leaves out whole kinds of span, the deepest kinds first, and rolls up small
siblings that look alike into one span, with the spans below them, as in a flame graph. The
sum of latencies over any kind that is left stays as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.errors import TraceFormatError
from xsp.inexact import lists_of, united
from xsp.level import Kind
from xsp.matching import ON_DEVICE, Ints, Keys, generations, lineage_keys, mix
from xsp.text import counted
from xsp.trace import (
    SPAN_SCHEMA,
    Folding,
    agreed,
    alike,
    attribute_column,
    fold,
    inexact_column,
    occurrences,
    parent_rows,
    sums,
    total,
)

# Columns after those of `trace.spans`; null on a span that is not rolled up.
EXTRA: dict[str, Any] = {
    "rolled_count": pl.Int64,  # number of members of a rolled-up span, 2 or more
    "rolled_min_ns": pl.Float64,  # the least latency of a member
    "rolled_max_ns": pl.Float64,
    "hidden_spans": pl.Int64,  # number of left-out spans below without a nearer ancestor left
}
# Name of a rolled-up span whose members have several names.
MORE = "… more"

# As long as kinds can be left out instead, only spans up to this share are rolled up.
_SMALL = 0.01
_ORDERS = {kind.value: kind.order for kind in Kind}
_INNER = {kind.value: (-kind.order, place) for place, kind in enumerate(Kind)}
# Columns that members of a rolled-up span have in common, so that it has one place to be drawn.
_LANE = ("thread", "device", "stream")
# Attributes of a rolled-up span that members need not have in common.
_OURS = ("exact", "inexact", "scaled_ns", "calls", "least_ns", "most_ns", "busy_ns")
_ROLLED = {"rolled_count": "count", "rolled_min_ns": "least_ns", "rolled_max_ns": "most_ns"}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A trace reduced to a span budget.

    Each span of the full tree is left, rolled up into a span that is left
    (`rolled_count`), or hidden in one (`hidden_spans`). So `rolled_count` (1 where
    null) and `hidden_spans` (0 where null) add up to `total`.

    Attributes:
        spans: Columns of `trace.spans`, then those of `EXTRA`; root first, parents
            before children, otherwise in the order of first members.
        total: Number of spans in the full tree.
        cut_kinds: Kinds left out everywhere, the deepest first. The root is left
            whatever its kind.
        rolled: Number of spans of the full tree that are members of rolled-up spans.
    """

    spans: pl.DataFrame
    total: int
    cut_kinds: tuple[str, ...]
    rolled: int

    @property
    def left_out(self) -> str | None:
        """A sentence about the spans left out or rolled up; None if there are none."""
        if self.spans.height == self.total:
            return None
        said = [f"shown: {counted(self.spans.height, 'span')} for the {self.total:,} of the trace"]
        if self.cut_kinds:
            said.append(f"left out: every {' and every '.join(self.cut_kinds)}")
        if self.rolled:
            said.append(f"rolled up with their like: {self.rolled:,}")
        return "; ".join(said) + ". The saved trace has them all, and --full exports them"


def as_spans(run: pl.DataFrame) -> pl.DataFrame:
    """Return a run in the columns of `trace.spans`; each latency is that of this run alone.

    Args:
        run: Rows of a run of `trace.typical_runs`.
    """
    measured = {"measured_start_ns": "start_ns", "measured_end_ns": "end_ns"}
    known = run.with_columns(
        latency_ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64),
        runs=pl.lit(1, pl.Int64),
        **{name: pl.col(source) for name, source in measured.items()},
    )
    lacking = SPAN_SCHEMA.keys() - set(known.columns)
    nothing = {name: pl.lit(None, SPAN_SCHEMA[name]) for name in lacking}
    exact = pl.struct(exact=pl.lit(None, pl.Boolean))
    return known.with_columns(**nothing).select(*SPAN_SCHEMA, attributes=exact)


def reduce(spans: pl.DataFrame, most: int | None) -> Reduced:
    """Return a trace with at most `most` spans; a trace that fits is left as it is.

    For each kind that is left, the sum of latencies is that of the full tree; so are the
    sums of self time, overhead and device time. A rolled-up span has the id and path of its
    first member, and in other columns the value that all members share. A span with an
    exception is rolled up only with spans that have the same exception.

    Args:
        spans: Columns of `trace.spans`, root first and parents before children.
        most: Number of spans, 1 or more; None for all.

    Raises:
        ValueError: `most` is less than 1.
        TraceFormatError: The spans are over the budget and not one tree.
    """
    if most is not None and most < 1:
        raise ValueError(
            f"a span budget of {most} has no room for the root: ask for 1 span or more, or for "
            "None to keep all"
        )
    if most is None or spans.height <= most:
        nothing = [pl.lit(None, dtype).alias(name) for name, dtype in EXTRA.items()]
        return Reduced(spans.with_columns(nothing), spans.height, (), 0)
    # The row of each span's parent, after a check that the spans are one tree.
    parents = parent_rows(spans)
    stated = spans["span_id"].gather(pl.Series(parents).replace(-1, None))
    if not spans["span_id"].is_unique().all() or not stated.equals(spans["parent_id"]):
        raise TraceFormatError(
            "the spans are not one tree, the root first and parents before children: "
            "the trace is damaged or was put together wrongly"
        )
    part, folding = _fitting(spans, parents, most)
    rolled = int(folding.count[folding.count > 1].sum())
    kinds = spans["kind"]
    cut = set(kinds[1:].unique()) - set(kinds.gather(part.rows[1:]).unique())
    cut_kinds = tuple(sorted(cut, key=_INNER.__getitem__))
    return Reduced(_rolled(spans, part, folding), spans.height, cut_kinds, rolled)


@dataclass(frozen=True, slots=True)
class _Part:
    """The tree of the spans whose kinds are left; arrays have an entry per span in it.

    Attributes:
        rows: Row in the full tree.
        parent: Index of the parent in this part, -1 for the root.
        hidden: Number of left-out spans below that have no nearer ancestor left.
        size: The least size on the way from below the root down to the span: a span
            within a small span is small.
        levels: The spans of depth 0, of depth 1, and so on.
    """

    rows: Ints
    parent: Ints
    hidden: Ints
    size: Floats
    levels: Sequence[Ints]

    def keys(self, look: Keys, small: float) -> Keys:
        """Return a key per span, equal for spans that may become one if they are siblings.

        Spans of a size up to `small` have their key in `look`, larger spans a key of their own.
        """
        alone = mix(np.arange(len(self.rows), dtype=np.uint64))
        return np.where(self.size <= small, look[self.rows], alone)


def _fitting(spans: pl.DataFrame, parent: Ints, most: int) -> tuple[_Part, Folding]:
    """Return the part that is left and how it is folded into at most `most` spans.

    As many kinds are left as fit if only small spans that look alike become one. If not
    even the outermost kind fits so, its large spans may become one as well, and then
    spans that do not look alike. If that does not fit either, the root alone is left.
    """
    kinds = spans["kind"].replace_strict(_ORDERS, return_dtype=pl.Int64).to_numpy()
    # Latencies; where a latency is not known, the length of the span as drawn.
    drawn = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    size = pl.coalesce(pl.col("latency_ns").fill_nan(None), drawn)
    sizes = spans.select(size).to_series().to_numpy()
    look, beside = alike(spans, *_LANE), alike(spans, *_LANE, named=False)
    orders = np.unique(kinds[1:]).tolist()
    outermost = next((order for order in orders if order > kinds[0]), np.inf)
    for deepest in reversed(orders):
        part = _part(parent, kinds <= deepest, sizes)
        last_resort = deepest <= outermost
        limit = np.inf if last_resort else _SMALL * sizes[0]
        for keys in (look, beside) if last_resort else (look,):
            small = _smallest(part, keys, most=most, limit=limit)
            if small is not None:
                return part, fold(part.keys(keys, small), part.parent, part.levels)
    part = _part(parent, kinds < 0, sizes)
    return part, fold(part.keys(look, -1.0), part.parent, part.levels)


def _part(parent: Ints, left: NDArray[np.bool_], sizes: Floats) -> _Part:
    """Return the root and the spans that are left, each below its nearest ancestor left."""
    left = left.copy()
    left[0] = True
    above = parent.copy()
    astray = np.flatnonzero((above >= 0) & ~left[above])
    while len(astray):
        above[astray] = above[above[astray]]
        astray = astray[~left[above[astray]]]
    rows, index = np.flatnonzero(left), np.cumsum(left) - 1
    within = np.where(rows > 0, index[above[rows]], -1)
    hidden = np.bincount(index[above[~left]], minlength=len(rows))
    levels = tuple(generations(within))
    size = sizes[rows]
    size[0] = np.inf
    for members in levels[1:]:
        size[members] = np.minimum(size[members], size[within[members]])
    return _Part(rows, within, hidden, size, levels)


def _smallest(part: _Part, look: Keys, *, most: int, limit: float) -> float | None:
    """Return the least `small` (see `_Part.keys`) with at most `most` spans left.

    None if it is above `limit`. A larger `small` leaves fewer spans, so it is found by
    bisection.
    """
    if len(part.rows) <= most:
        return -1.0

    def fits(small: float) -> bool:
        keys = lineage_keys(part.keys(look, small), part.parent, part.levels)
        return pl.Series(keys).n_unique() <= most

    # Below this size, more than `most` spans have keys of their own.
    least = np.partition(part.size, -most)[-most]
    sizes = part.size[1:]
    sizes = np.unique(sizes[(sizes >= least) & (sizes <= limit)])
    if not len(sizes) or not fits(sizes[-1]):
        return None
    return float(sizes[bisect_left(sizes.tolist(), True, key=fits)])


def _rolled(spans: pl.DataFrame, part: _Part, folding: Folding) -> pl.DataFrame:
    """Return one row per group, in the columns of a trace and of `EXTRA`."""
    heads = spans[part.rows[folding.first]]
    merged = _merged(spans, part, folding)
    lane = pl.struct(_LANE).rank("dense").alias("lane")
    host = (~ON_DEVICE).alias("host")
    drawn = spans.select(lane, host, "start_ns", "end_ns")[part.rows]
    start, end = place(drawn, part.parent, part.levels, folding.of)
    above = heads["span_id"].gather(np.maximum(folding.parent, 0))
    several, hidden = pl.Series(folding.count > 1), merged["hidden_spans"]
    return heads.with_columns(
        pl.when(pl.int_range(pl.len()) > 0).then(above).alias("parent_id"),
        pl.Series("start_ns", start),
        pl.Series("end_ns", end),
        *(
            pl.when(several).then(merged[name]).otherwise(pl.col(name)).alias(name)
            for name in merged.columns
            if name in heads.columns
        ),
        *(pl.when(several).then(merged[name]).alias(name) for name in EXTRA),
    ).with_columns(pl.when(hidden > 0).then(hidden).alias("hidden_spans"))


def _merged(spans: pl.DataFrame, part: _Part, folding: Folding) -> pl.DataFrame:
    """Return sums over the members of each group and values they share, one row per group."""
    exact, scaled = (
        attribute_column(spans, "exact", pl.Boolean),
        attribute_column(spans, "scaled_ns", pl.Float64),
    )
    members = spans.drop("attributes").with_columns(exact=exact, scaled_ns=scaled)
    members = members.hstack(occurrences(spans))[part.rows]
    summed = sums(
        members.with_columns(hidden_spans=pl.Series(part.hidden)),
        folding.of,
        total(pl.col("scaled_ns")).alias("scaled_ns"),
        pl.when(pl.col("exact").count() > 0).then(pl.col("exact").all()).alias("exact"),
        pl.min("runs", "measured_start_ns"),
        pl.max("measured_end_ns"),
        pl.sum("hidden_spans"),
    ).with_columns(pl.col(summed).alias(rolled) for rolled, summed in _ROLLED.items())

    def shared(values: pl.Series) -> pl.Series:
        return agreed(values, folding, part.rows)

    # The name that members share, else the class that they share, else `MORE`.
    name = pl.coalesce(
        shared(spans["name"]), shared(attribute_column(spans, "module_class")), pl.lit(MORE)
    )
    fields = spans["attributes"].struct.unnest()
    attributes = pl.DataFrame([shared(fields[name]) for name in fields.columns])
    codes = united(inexact_column(spans)[part.rows], folding.of, summed.height)
    summed = summed.with_columns(lists_of(codes))
    ours = [one for one in _OURS if fields.schema.get(one) == summed.schema[one]]
    return summed.with_columns(
        name.alias("name"),
        shared(spans["correlation_id"]),
        attributes.with_columns(summed.select(ours)).to_struct("attributes"),
    )


def place(
    drawn: pl.DataFrame, parent: Ints, levels: Sequence[Ints], group: Ints
) -> tuple[Ints, Ints]:
    """Return start and end of each group of spans, in nanoseconds from the root's start.

    Members of a group are drawn end to end from the start of the first member, or later if
    another group of the same parent and lane is drawn there. So groups do not overlap, lie
    in their parent, and are as long as their members together. Where spans of a host's lane
    overlap already (coroutines take turns), they keep their times, and a group reaches from
    its first member to its last.

    Args:
        drawn: Spans as drawn before any is rolled up: `lane` (a number per thread or
            stream), `host` (whether the span is on the host, and so drawn within its
            parent), `start_ns` and `end_ns`.
        parent: Index of each span's parent, -1 for the root, which is the first.
        levels: The spans of depth 0, of depth 1, and so on.
        group: Number of each span's group, from 0, the root's; a group's members are
            on one lane, and their parents in one group.

    >>> times = {"start_ns": [0, 1, 4, 6], "end_ns": [9, 3, 6, 8]}
    >>> spans = pl.DataFrame({"lane": 1, "host": True, **times})
    >>> parent, levels = np.array([-1, 0, 0, 0]), (np.array([0]), np.array([1, 2, 3]))
    >>> place(spans, parent, levels, np.array([0, 1, 2, 1]))  # the third joins the first
    (array([0, 1, 5]), array([9, 5, 7]))
    """
    start, end = np.zeros((2, int(group.max()) + 1), dtype=np.int64)
    length = drawn.select(pl.col("end_ns") - pl.col("start_ns")).to_series().to_numpy().copy()
    end[0] = length[0]
    # When each member begins, in its group's self time, which begins with the first member.
    within = np.zeros(len(group), dtype=np.int64)
    for rows in levels[1:]:
        above = parent[rows]
        begin, finish = _bounds(drawn, rows, above, length[above])
        length[rows] = finish - begin
        members = drawn.select("lane", "host")[rows].with_columns(
            row=rows,
            group=group[rows],
            above=group[above],
            begin=begin + within[above],
            finish=finish + within[above],
        )
        members = _side_by_side(members)
        within[members["row"]] = members["within"]
        groups = _apart(members, (end - start)[members["above"].to_numpy()])
        base = start[groups["above"]]
        start[groups["group"]] = base + groups["start"].to_numpy()
        end[groups["group"]] = base + groups["end"].to_numpy()
    return start, end


def _bounds(drawn: pl.DataFrame, rows: Ints, above: Ints, room: Ints) -> tuple[Ints, Ints]:
    """Return start and end of rows in their parents' time; host spans are kept inside."""
    starts, ends = drawn["start_ns"].to_numpy(), drawn["end_ns"].to_numpy()
    begin, finish = starts[rows] - starts[above], ends[rows] - starts[above]
    host = drawn["host"].to_numpy()[rows]
    begin = np.where(host, np.clip(begin, 0, room), begin)
    return begin, np.where(host, np.clip(finish, begin, room), np.maximum(finish, begin))


def _side_by_side(members: pl.DataFrame) -> pl.DataFrame:
    """Return members sorted by lane and time, with `within`: their start in their group's time."""
    lane, begin, finish = ("above", "lane"), pl.col("begin"), pl.col("finish")
    overlaps = pl.col("host") & (begin < finish.shift(1).over(lane))
    length = finish - begin
    return (
        members.sort(*lane, "begin", "finish")
        .with_columns(length=length, crowded=overlaps.fill_null(value=False).any().over(lane))
        .with_columns(
            within=pl.when("crowded")
            .then(begin - begin.min().over("group"))
            .otherwise(length.cum_sum().over("group") - length)
        )
    )


def _apart(members: pl.DataFrame, room: Ints) -> pl.DataFrame:
    """Return start and end of each group in the time of the group above, of length `room`.

    A group that would overlap the group before it is moved to the right. Groups that then
    reach beyond the end of the group above are moved back to the left.
    """
    lane, begin, length = ("above", "lane"), pl.col("begin"), pl.col("length")
    before = length.cum_sum().over(lane) - length
    first = (begin - before).cum_max().over(lane) + before
    last = pl.col("room") - length.sum().over(lane) + before
    start = pl.when("host").then(pl.min_horizontal(first, last)).otherwise(first)
    return (
        members.with_columns(room=room)
        .group_by("group", maintain_order=True)
        .agg(pl.first(*lane, "host", "crowded", "room", "begin"), pl.max("finish"), length.sum())
        .with_columns(start=pl.when("crowded").then(begin).otherwise(start))
        .with_columns(end=pl.when("crowded").then("finish").otherwise(pl.col("start") + length))
    )
