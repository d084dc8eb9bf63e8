from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Node, layer, op, pipeline

from xsp.show.export.reduction import EXTRA, Reduced, reduce
from xsp.trace import integrity
from xsp.trace.integrity import SPAN_SCHEMA

NAMES = st.sampled_from(["a", "b", "k", "l"])
OWN = st.integers(0, 10_000)


def ops(below: st.SearchStrategy[Node]) -> st.SearchStrategy[list[Node]]:
    return st.lists(below.filter(lambda node: node.kind == "op"), max_size=4)


TREES = st.recursive(
    st.builds(lambda name, own: op(name, own_ns=own), NAMES, OWN),
    lambda below: st.one_of(
        st.builds(lambda name, own, kids: op(name, *kids, own_ns=own), NAMES, OWN, ops(below)),
        st.builds(
            lambda name, module, own, kids: layer(name, module, *kids, own_ns=own),
            NAMES,
            st.sampled_from(["Linear", "Block"]),
            OWN,
            st.lists(below, max_size=5),
        ),
    ),
    max_leaves=40,
)
EVALUATIONS = st.lists(TREES, min_size=1, max_size=4).map(
    lambda trees: pipeline("predict", *(pipeline(f"step{i}", t) for i, t in enumerate(trees)))
)


def on_lanes(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans of which those named `l` ran on a second thread, and `k` on a device."""
    there, second = pl.col("name") == "k", pl.col("name") == "l"
    thread = pl.when(there).then(None).when(second).then(2).otherwise(1)
    return spans.with_columns(
        thread.cast(pl.Int64).alias("thread"),
        pl.when(there).then(0).cast(pl.Int32).alias("device"),
        pl.when(there).then(7).cast(pl.Int64).alias("stream"),
    )


def with_attribute(spans: pl.DataFrame, name: str, values: list[Any]) -> pl.DataFrame:
    dtype = spans["attributes"].struct.field(name).dtype
    field = pl.Series(name, values, dtype=dtype)
    return spans.with_columns(pl.col("attributes").struct.with_fields(field))


def totals(spans: pl.DataFrame) -> dict[str, tuple[float, ...]]:
    sums = spans.group_by("kind").agg(
        pl.sum("latency_ns", "self_ns", "overhead_ns", "latency_low_ns", "latency_high_ns")
    )
    return {kind: tuple(values) for kind, *values in sums.iter_rows()}


def accounted(reduced: Reduced) -> int:
    counts = reduced.spans.select(
        pl.col("rolled_count").fill_null(1).sum(), pl.col("hidden_spans").fill_null(0).sum()
    )
    return sum(counts.row(0))


def rows(reduced: Reduced, *columns: str) -> list[tuple[Any, ...]]:
    return reduced.spans.select(*columns).rows()


def test_trace_within_the_budget_is_left_as_it_is() -> None:
    spans = samples.frame(samples.resnet())
    for most in (None, spans.height, 10**6):
        reduced = reduce(spans, most)
        assert reduced.spans.drop(*EXTRA).equals(spans)
        assert reduced.spans.schema == pl.Schema({**spans.schema, **EXTRA})
        assert reduced.spans.select(*EXTRA).null_count().row(0) == (spans.height,) * 4
        assert (reduced.total, reduced.cut_kinds, reduced.rolled) == (spans.height, (), 0)


@pytest.mark.parametrize("most", [0, -3])
def test_budget_without_room_for_the_root_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match="ask for 1 span or more"):
        reduce(samples.frame(op("a")), most)


def test_small_siblings_of_one_name_become_one() -> None:
    small = [
        op("a", own_ns=1_000),
        op("b", own_ns=500),
        op("a", own_ns=3_000),
        op("a", own_ns=2_000),
    ]
    spans = samples.frame(pipeline("predict", layer("fc", "Linear", *small, own_ns=10**6)))
    reduced = reduce(spans, 4)
    assert rows(
        reduced, "name", "latency_ns", "rolled_count", "rolled_min_ns", "rolled_max_ns"
    ) == [
        ("predict", 1_008_500.0, None, None, None),
        ("fc", 1_006_500.0, None, None, None),
        ("a", 6_000.0, 3, 1_000.0, 3_000.0),
        ("b", 500.0, None, None, None),
    ]
    assert rows(reduced, "start_ns", "end_ns")[2:] == [(0, 6_000), (6_000, 6_500)]
    assert rows(reduced, "measured_start_ns", "measured_end_ns")[2] == (0, 13_000)
    assert rows(reduced, "path", "parent_id", "overhead_ns")[2] == ("predict/fc/a", 2, 600.0)
    assert (reduced.total, reduced.rolled, reduced.cut_kinds) == (6, 3, ())


def test_what_hangs_in_rolled_up_spans_is_rolled_up_in_them() -> None:
    blocks = [layer(str(i), "Block", op("mul"), op("add", op("copy")), op("mul")) for i in range(3)]
    spans = samples.frame(pipeline("predict", *blocks, own_ns=10**7))
    reduced = reduce(spans, 6)
    assert rows(reduced, "name", "rolled_count", "latency_ns", "start_ns") == [
        ("predict", None, 10_018_000.0, 0),
        ("Block", 3, 18_000.0, 0),
        ("mul", 6, 6_000.0, 0),
        ("add", 3, 6_000.0, 6_000),
        ("copy", 3, 3_000.0, 6_000),
    ]
    assert (reduced.total, reduced.rolled) == (16, 15)


def test_attributes_are_those_that_all_members_share() -> None:
    small = [op("a"), op("a"), op("b"), op("b")]
    spans = samples.frame(pipeline("predict", *small, own_ns=10**7))
    spans = with_attribute(spans, "input_shapes", [None, [[2, 3], []], [[2, 3], []], [[4]], [[5]]])
    spans = with_attribute(spans, "scaled_ns", [None, 2.0, 3.0, None, None])
    spans = with_attribute(spans, "exact", [True, False, False, True, True])
    reasons = [None, ["few_samples"], ["includes_overhead", "few_samples"], None, None]
    spans = with_attribute(spans, "inexact", reasons)
    spans = spans.with_columns(correlation_id=pl.Series([None, 1, 2, 3, 3]))
    reduced = reduce(spans, 3)
    fields = reduced.spans["attributes"].struct.unnest()
    assert fields["input_shapes"].to_list() == [None, [[2, 3], []], None]
    assert fields["scaled_ns"].to_list() == [None, 5.0, None]
    assert fields["exact"].to_list() == [True, False, True]
    assert fields["inexact"].to_list() == [None, ["includes_overhead", "few_samples"], None]
    assert reduced.spans["correlation_id"].to_list() == [None, None, 3]
    assert reduced.spans["attributes"].dtype == spans["attributes"].dtype


@pytest.mark.slow
@given(EVALUATIONS, st.integers(1, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_tree_fits_and_accounts_for_every_span(tree: Node, most: int, lanes: bool) -> None:
    spans = samples.frame(tree)
    spans = on_lanes(spans) if lanes else spans
    reduced = reduce(spans, most)
    assert reduced.spans.height <= most
    assert accounted(reduced) == reduced.total == spans.height
    assert reduced.rolled == reduced.spans["rolled_count"].sum()
    assert set(reduced.spans["kind"][1:]) | set(reduced.cut_kinds) == set(spans["kind"][1:])
    assert reduced.spans.head(1).select(*SPAN_SCHEMA).equals(spans.head(1).select(*SPAN_SCHEMA))


@pytest.mark.slow
@given(EVALUATIONS, st.integers(1, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_sums_of_every_kind_left_are_those_of_the_full_tree(
    tree: Node, most: int, lanes: bool
) -> None:
    spans = samples.frame(tree)
    spans = on_lanes(spans) if lanes else spans
    reduced = reduce(spans, most)
    full, left = totals(spans[1:]), totals(reduced.spans[1:])
    assert left.keys() == full.keys() - set(reduced.cut_kinds)
    for kind, sums in left.items():
        assert sums == pytest.approx(full[kind], rel=1e-12)


@pytest.mark.slow
@given(EVALUATIONS, st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_the_reduced_tree_holds_what_a_trace_holds(tree: Node, most: int) -> None:
    reduced = reduce(samples.frame(tree), most)
    spans = reduced.spans.drop(*EXTRA)
    if reduced.cut_kinds:
        # A span's self time is less than what its latency leaves where its children are cut.
        inside = spans.group_by("parent_id").agg(below=pl.sum("latency_ns"))
        below = spans.join(
            inside, left_on="span_id", right_on="parent_id", how="left", maintain_order="left"
        )["below"]
        spans = spans.with_columns(self_ns=pl.col("latency_ns") - below.fill_null(0.0))
    integrity.check(spans)
    assert_apart(spans)


@given(EVALUATIONS, st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_lanes_nest_on_their_own(tree: Node, most: int) -> None:
    spans = reduce(on_lanes(samples.frame(tree)), most).spans
    assert_apart(spans)
    parents = spans.select(parent_id="span_id", first="start_ns", last="end_ns")
    inside = spans.filter(pl.col("device").is_null()).join(parents, on="parent_id")
    assert (inside["start_ns"] >= inside["first"]).all()
    assert (inside["end_ns"] <= inside["last"]).all()


def assert_apart(spans: pl.DataFrame) -> None:
    lane = ["parent_id", "thread", "device", "stream"]
    before = spans.select(pl.col("end_ns").shift(1).over(lane)).to_series()
    assert (spans["start_ns"] >= before).fill_null(value=True).all()


@given(EVALUATIONS, st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_what_fits_is_reduced_no_further(tree: Node, most: int) -> None:
    once = reduce(samples.frame(tree), most).spans
    assert reduce(once.drop(*EXTRA), most).spans.drop(*EXTRA).equals(once.drop(*EXTRA))
    assert reduce(samples.frame(tree), most).spans.equals(once)


def many(copies: int) -> pl.DataFrame:
    """Return a trace with so many transformers side by side in time."""
    one = samples.frame(samples.transformer())
    rest, length = one.slice(1), int(one["end_ns"][0])
    number = np.repeat(np.arange(copies), rest.height)
    below = pl.concat([rest] * copies).with_columns(
        pl.Series("number", number), shift=pl.Series(number * length)
    )
    ids = (pl.col("number") * one.height).cast(pl.UInt64)
    top = pl.col("parent_id") == 1
    below = below.with_columns(
        pl.col("span_id") + ids,
        pl.when(top)
        .then(pl.lit(1, pl.UInt64))
        .otherwise(pl.col("parent_id") + ids)
        .alias("parent_id"),
        pl.format("{}~{}", "path", "number").alias("path"),
        *(pl.col(name) + pl.col("shift") for name in ("start_ns", "end_ns")),
    )
    root = one.head(1).with_columns(
        pl.col("end_ns") * copies, pl.col("latency_ns", "latency_high_ns") * copies
    )
    return pl.concat([root, below.select(one.columns)])


def test_two_hundred_thousand_spans_are_all_accounted_for() -> None:
    spans = many(1_200)
    assert spans.height > 200_000
    reduced = reduce(spans, 2_000)
    assert reduced.spans.height <= 2_000
    assert accounted(reduced) == spans.height
