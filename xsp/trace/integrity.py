"""Checks that spans are a well-formed trace; an error names the broken rule and the span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import DEVICE_ACTIVITIES, Kind, Level
from xsp.matching import covered_part
from xsp.trace.attribute import attribute_column
from xsp.trace.coverage import gathering_spans

# Columns of `trace.spans`; the struct `attributes` follows them.
SPAN_SCHEMA: dict[str, Any] = {
    "span_id": pl.UInt64,
    "parent_id": pl.UInt64,  # null at the root
    "level": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "path": pl.String,
    "start_ns": pl.Int64,  # the timeline without overhead, from 0 at the root's start
    "end_ns": pl.Int64,
    "latency_ns": pl.Float64,
    "latency_low_ns": pl.Float64,
    "latency_high_ns": pl.Float64,
    "self_ns": pl.Float64,
    "overhead_ns": pl.Float64,
    "device_ns": pl.Float64,
    "measured_start_ns": pl.Int64,  # as the deepest run saw it
    "measured_end_ns": pl.Int64,
    "runs": pl.Int64,
    "thread": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation_id": pl.Int64,
}

_NUMBERS = [name for name, dtype in SPAN_SCHEMA.items() if dtype == pl.Float64]
_ACTIVITIES = [kind.value for kind in DEVICE_ACTIVITIES]
_NEVER_NULL = ("span_id", "level", "kind", "name", "path", "start_ns", "end_ns", "runs")
# Relative rounding error allowed in sums and differences of float nanoseconds.
_SLACK = 1e-6

# Columns of `trace.typical_runs`: one row per span of a run, one run after the other.
RUN_SCHEMA: dict[str, Any] = {
    "pass": pl.String,
    "run_latency_ns": pl.Int64,
    "span_id": pl.UInt64,  # that of the merged span of the same path
    "parent_id": pl.UInt64,  # null at the root
    "kind": pl.String,
    "level": pl.String,
    "name": pl.String,
    "path": pl.String,
    "start_ns": pl.Int64,  # as measured, from 0 at the root's start
    "end_ns": pl.Int64,
    "thread": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation_id": pl.Int64,
}


def check_run_columns(runs: pl.DataFrame) -> None:
    """Verify names, order and types of the columns.

    Raises:
        TraceFormatError: The columns are not those of `RUN_SCHEMA`.
    """
    if runs.schema != pl.Schema(RUN_SCHEMA):
        found = ", ".join(f"{name} {dtype}" for name, dtype in runs.schema.items())
        expected = ", ".join(f"{name} {dtype}" for name, dtype in pl.Schema(RUN_SCHEMA).items())
        raise TraceFormatError(f"the columns of runs are {expected}; these are {found or 'none'}")


def check_runs(runs: pl.DataFrame) -> None:
    """Verify that typical runs have the right columns and known words, and are a tree per pass.

    Raises:
        TraceFormatError: They have not, or are not; the message names the first breach.
    """
    check_run_columns(runs)
    passes = [kind.value for kind in Kind]
    _refuse(
        runs, iter([("is of an unknown pass", ~pl.col("pass").is_in(passes, nulls_equal=True))])
    )
    check_words(runs)
    for _, run in runs.group_by("pass", maintain_order=True):
        check_tree(run)


def check_columns(spans: pl.DataFrame) -> None:
    """Verify names, order and types of the columns.

    Raises:
        TraceFormatError: A column is missing, unknown, misplaced or of another type.
    """
    expected = [*SPAN_SCHEMA, "attributes"]
    if spans.columns != expected:
        missing = [name for name in expected if name not in spans.columns]
        unknown = [name for name in spans.columns if name not in expected]
        raise TraceFormatError(
            f"the columns of a trace are {expected}; missing: {missing}, unknown: {unknown}"
            + ("" if missing or unknown else ", in another order")
        )
    wrong = [f"{n} is {spans.schema[n]}" for n, t in SPAN_SCHEMA.items() if spans.schema[n] != t]
    if not isinstance(spans.schema["attributes"], pl.Struct):
        wrong.append(f"attributes is {spans.schema['attributes']}")
    if wrong:
        raise TraceFormatError(f"columns of another type than a trace has: {', '.join(wrong)}")


def check_words(spans: pl.DataFrame) -> None:
    """Verify that all kinds and levels are known; takes some milliseconds for 100,000 spans.

    Raises:
        TraceFormatError: A kind or level is unknown.
    """
    _refuse(spans, _word_breaches())


def check_tree(spans: pl.DataFrame) -> None:
    """Verify that spans are one tree, parents before children; times are not looked at.

    Raises:
        TraceFormatError: The spans are not; the message names the first breach.
    """
    if not spans.height:
        raise TraceFormatError("a trace has at least its root, this one has no spans")
    for name in (name for name in _NEVER_NULL if name in spans.columns):
        _refuse(spans, iter([(f"has no {name}", pl.col(name).is_null())]))
    for name in ("span_id", "path"):
        if spans[name].n_unique() != spans.height:
            _refuse(spans, iter([(f"shares its {name}", pl.col(name).is_duplicated())]))
    _refuse(_linked(spans), _tree_breaches())


def check(spans: pl.DataFrame) -> None:
    """Verify that spans are one well-formed tree whose drawn timeline nests.

    Raises:
        TraceFormatError: The spans are not; the message names the first breach.
    """
    check_columns(spans)
    check_words(spans)
    check_tree(spans)
    linked = _linked(spans)
    _refuse(linked, _drawing_breaches())
    _refuse(linked, _number_breaches())
    # Spans on the host with start and end of the sibling before them on their thread.
    # `overlap` is whether any siblings of that parent and thread overlap in the measured times, as
    # coroutines on one thread do: such siblings may be drawn overlapping.
    lane = ["parent_id", "thread"]
    began, ended = pl.col("measured_start_ns"), pl.col("measured_end_ns")
    siblings = (
        linked.filter(pl.col("device").is_null() & pl.col("parent_id").is_not_null())
        .with_columns(
            elder_start=pl.col("start_ns").shift(1).over(lane),
            elder_end=pl.col("end_ns").shift(1).over(lane),
            late=(began < ended.shift(1).over(lane)).fill_null(value=False),
        )
        .with_columns(overlap=pl.col("late").any().over(lane))
    )
    _refuse(siblings, _sibling_breaches())
    _refuse(_streams(spans), _stream_breaches())
    _check_self(linked)


# Rules as what a span does that breaks the rule, with the expression that is true then.
Breaches = Iterator[tuple[str, pl.Expr]]


def _linked(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the row number of each, and row number and drawn time of its parent."""
    numbered = spans.with_row_index("row")
    parents = numbered.select(
        pl.col("span_id").alias("parent_id"),
        pl.col("row").alias("parent_row"),
        pl.col("start_ns").alias("parent_start"),
        pl.col("end_ns").alias("parent_end"),
        pl.col("thread").alias("parent_thread"),
        pl.col("device").alias("parent_device"),
    )
    return numbered.join(parents, on="parent_id", how="left", maintain_order="left")


def _word_breaches() -> Breaches:
    yield "is of an unknown kind", ~pl.col("kind").is_in([kind.value for kind in Kind])
    yield "is of an unknown level", ~pl.col("level").is_in([level.label for level in Level])


def _tree_breaches() -> Breaches:
    first = pl.col("row") == 0
    yield "has the id 0, which means no span", pl.col("span_id") == 0
    yield "comes first but is not the root", first & pl.col("parent_id").is_not_null()
    yield "is a second root", ~first & pl.col("parent_id").is_null()
    yield "names a parent that is not there", ~first & pl.col("parent_row").is_null()
    yield "comes before its parent", pl.col("parent_row") >= pl.col("row")
    levels = {kind.value: kind.level.label for kind in Kind}
    yield "is not of its kind's level", pl.col("kind").replace(levels) != pl.col("level")


def _drawing_breaches() -> Breaches:
    first = pl.col("row") == 0
    yield "ends before it starts", pl.col("end_ns") < pl.col("start_ns")
    yield "does not start at 0", first & (pl.col("start_ns") != 0)
    # A device activity may outlive the span on the host that launched it.
    outside = (pl.col("start_ns") < pl.col("parent_start")) | (
        pl.col("end_ns") > pl.col("parent_end")
    )
    of_host = pl.col("device").is_not_null() & pl.col("parent_device").is_null()
    yield "is drawn outside of its parent", outside & ~of_host


def _number_breaches() -> Breaches:
    latency, low, high = (pl.col(f"latency{part}_ns") for part in ("", "_low", "_high"))
    for name in _NUMBERS:
        yield f"has a {name} that is not a number", ~pl.col(name).is_finite()
    yield "has a negative latency", latency < 0
    yield "has a negative self_ns", pl.col("self_ns") < 0
    yield "has a negative device_ns", pl.col("device_ns") < 0
    yield "has negative runs", pl.col("runs") < 0
    slack = _SLACK * pl.max_horizontal(latency, 1.0)
    yield (
        "has an interval that misses its latency",
        (low > latency + slack) | (high < latency - slack),
    )
    yield "has an interval without a latency", latency.is_null() & low.is_not_null()


def _sibling_breaches() -> Breaches:
    yield (
        "starts before the sibling that stands before it",
        (pl.col("start_ns") < pl.col("elder_start")) & ~pl.col("overlap"),
    )
    yield (
        "overlaps the sibling before it on the same thread",
        (pl.col("start_ns") < pl.col("elder_end")) & ~pl.col("overlap"),
    )


def _streams(spans: pl.DataFrame) -> pl.DataFrame:
    """Return device activities with the end of the activity before them on their stream.

    `overlap` is whether any activities on the stream overlap in the measured times, as the
    branches of a CUDA graph do that share a stream.
    """
    lane = ["device", "stream"]
    began, ended = pl.col("measured_start_ns"), pl.col("measured_end_ns")
    return (
        spans.filter(pl.col("device").is_not_null() & pl.col("kind").is_in(_ACTIVITIES))
        .sort("measured_start_ns", "measured_end_ns", maintain_order=True)
        .with_columns(
            elder_end=pl.col("end_ns").shift(1).over(lane),
            late=(began < ended.shift(1).over(lane)).fill_null(value=False),
        )
        .with_columns(overlap=pl.col("late").any().over(lane))
    )


def _stream_breaches() -> Breaches:
    yield (
        "overlaps what comes before it on its stream",
        (pl.col("start_ns") < pl.col("elder_end")) & ~pl.col("overlap"),
    )


def _check_self(linked: pl.DataFrame) -> None:
    """Verify that self time and the children's latencies add up to the latency.

    Children on a device overlap: there self time and device time add up to the latency. In spans
    that gather what ran on several threads, self time is the part that no child covers. Of what ran
    at once in a program, the time of a clock counts (`busy_ns`). There children sum to no more than
    the span, so that the self times on its thread sum to the block.
    """
    program = bool(attribute_column(linked, "program_part", pl.Boolean)[0])
    busy_ns = attribute_column(linked, "busy_ns", pl.Float64)
    linked = linked.with_columns(latency_ns=pl.coalesce(busy_ns, "latency_ns"))
    part = _uncovered(linked)
    on_host = pl.col("device").is_null()
    same = on_host & pl.col("thread").eq_missing(pl.col("parent_thread"))
    busy = attribute_column(linked, "busy_ns", pl.Float64)  # of tasks that take turns their share
    sums = (
        linked.with_columns(counted_ns=pl.coalesce(busy, pl.col("latency_ns")))
        .filter(same & pl.col("parent_id").is_not_null())
        .group_by("parent_id")
        .agg(
            children_ns=pl.col("counted_ns").sum(),
            known=pl.col("latency_ns").is_not_null().all(),
        )
    )
    crowd = linked.group_by("parent_id").agg(crowd=pl.len())
    summed = (
        linked.with_columns(uncovered=part)
        .join(crowd, left_on="span_id", right_on="parent_id", how="left", maintain_order="left")
        .join(sums, left_on="span_id", right_on="parent_id", how="left", maintain_order="left")
        .filter(pl.col("known").fill_null(value=True))
    )
    latency = pl.col("latency_ns")
    # The ids of spans on devices that have children: layers in replayed CUDA graphs.
    holders = linked.filter(pl.col("parent_device").is_not_null())["parent_id"].implode()
    work = pl.when(pl.col("span_id").is_in(holders)).then("device_ns").otherwise(0.0)
    children = pl.when(on_host).then("children_ns").otherwise(work).fill_null(0.0)
    expected = pl.coalesce(
        pl.col("uncovered") * latency,
        (latency - children).clip(lower_bound=None if program else 0.0),
    )
    slack = 1.0 + _SLACK * pl.max_horizontal(latency, children)
    # Drawn times are whole numbers, which a program's trace makes smaller.
    drawn = (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=1)
    coarse = latency * (pl.col("crowd") + 2) / drawn
    slack += pl.when(pl.col("uncovered").is_not_null()).then(coarse).otherwise(0.0)
    breach = (pl.col("self_ns") - expected).abs() > slack
    _refuse(summed, iter([("has a self_ns that is not its latency less its children's", breach)]))


def _uncovered(linked: pl.DataFrame) -> pl.Series:
    """Return which part of spans that gather others no child covers; null for other spans."""
    parent = linked["parent_row"].cast(pl.Int64).fill_null(-1).to_numpy()
    gathers = pl.Series(gathering_spans(linked, parent))
    below = np.flatnonzero((parent >= 0) & linked["device"].is_null().to_numpy())
    start, end = (linked[name].to_numpy() for name in ("start_ns", "end_ns"))
    part = 1.0 - covered_part(parent[below], below, start, end)
    return pl.select(pl.when(gathers).then(pl.Series(part))).to_series()


def _refuse(spans: pl.DataFrame, breaches: Breaches) -> None:
    """Raise for the first breach that a span commits, naming the span."""
    for sentence, breach in breaches:
        culprit = spans.filter(breach).head(1)
        if culprit.height:
            span = culprit.row(0, named=True)
            raise TraceFormatError(
                f"span {span['path']!r} (id {span['span_id']}) {sentence}: "
                "the trace is damaged or was put together wrongly"
            )
