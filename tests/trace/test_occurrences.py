"""Rows of a trace that sums up occurrences, and of spans that ran at once on several threads."""

from __future__ import annotations

import polars as pl
import pytest
import samples
from samples import Node, layer, op, pipeline

from xsp.trace.coverage import elsewhere_ns, united_ns
from xsp.trace.folding import parent_rows
from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row
from xsp.trace.text import text


def block(*below: Node, own_ns: int = 200_000) -> Node:
    root = pipeline("block", *below, own_ns=own_ns)
    root.attributes["whole_block"] = True
    return root


def several(node: Node, calls: int, **more: object) -> Node:
    """Return a span that stands for several occurrences."""
    node.attributes |= {"calls": calls} | more
    return node


def row(drawn: Outline, name: str) -> Row:
    return next(each for each in drawn.rows if each.name == name)


DECODE = several(
    layer("decode", "GPT", several(op("mm", own_ns=390_000), 39), own_ns=390_000), calls=39
)


def test_rows_count_the_occurrences_that_spans_stand_for() -> None:
    drawn = outline(samples.frame(block(layer("prefill", "GPT"), DECODE)))
    decode = row(drawn, "decode")
    assert (decode.count, decode.spans) == (39, 1)
    assert decode.each() == "39 \u00d7 20.0 µs"
    assert row(drawn, "mm").each() == "39 \u00d7 10.0 µs"
    assert row(drawn, "prefill").each() == ""


def test_spans_that_fold_add_their_occurrences_up() -> None:
    twice = [several(op("mm"), 3), several(op("mm"), 4)]
    drawn = outline(samples.frame(block(*twice)))
    assert (row(drawn, "mm").count, row(drawn, "mm").spans) == (7, 2)
    assert row(drawn, "mm").mean_ns == pytest.approx(2_000 / 7)


def test_hidden_rows_and_the_footer_tell_spans_from_occurrences() -> None:
    small = [several(op(f"op{i}", own_ns=10), 100) for i in range(20)]
    large = [op(f"large{i}", own_ns=10**6) for i in range(60)]
    spans = samples.frame(block(*small, *large))
    drawn = outline(spans, rows=70)
    [rest] = [each for each in drawn.rows if each.kind == "rest"]
    assert rest.name == "… 2,000 more ops"
    assert drawn.cut
    assert "81 spans (of 2,061 calls) in" in text(spans, {"name": "block"}, rows=70)


def test_what_lies_in_a_block_beside_its_models_is_outside_models() -> None:
    drawn = outline(samples.frame(block(DECODE)))
    assert [each.name for each in drawn.rows if each.kind == "own"] == [
        "own time",
        "outside models",
    ]
    assert drawn.rows[-1].name == "outside models"


def test_a_row_of_occurrences_that_ran_at_once_has_the_share_of_a_clock() -> None:
    served = several(layer("predict", "GPT", own_ns=400_000), 50, busy_ns=100_000.0)
    spans = samples.frame(block(served, own_ns=0))
    spans = spans.with_columns(
        latency_ns=pl.when(pl.col("name") == "block").then(110_000.0).otherwise("latency_ns")
    )
    drawn = row(outline(spans), "predict")
    assert drawn.detail == "GPT 4 at once"
    assert drawn.part() == "90.9 %"


def test_how_many_ran_at_once_is_said_once_and_holds_for_own_time() -> None:
    inner = several(layer("fc", "Linear", own_ns=200_000), 50, busy_ns=50_000.0)
    served = several(layer("predict", "GPT", inner, own_ns=200_000), 50, busy_ns=100_000.0)
    spans = samples.frame(block(served, own_ns=0))
    spans = spans.with_columns(
        latency_ns=pl.when(pl.col("name") == "block").then(100_000.0).otherwise("latency_ns")
    )
    drawn = outline(spans)
    assert (row(drawn, "predict").detail, row(drawn, "fc").detail) == ("GPT 4 at once", "Linear")
    assert (row(drawn, "fc").part(), row(drawn, "own time").part()) == ("50.0 %", "50.0 %")


def side_by_side(starts: list[int], *, length: int = 1_000, root: int = 4_000) -> pl.DataFrame:
    """Return calls on threads of their own, below a root on another one that waits for them."""
    spans = samples.frame(pipeline("serve", *(pipeline("predict", own_ns=length) for _ in starts)))
    begin = pl.Series([0, *starts])
    end = pl.Series([root, *(start + length for start in starts)])
    latency = (end - begin).cast(pl.Float64)
    return spans.with_columns(
        start_ns=begin,
        end_ns=end,
        latency_ns=latency,
        latency_low_ns=latency * 0.99,
        latency_high_ns=latency * 1.01,
        self_ns=latency,
        thread=pl.Series(range(1, len(starts) + 2)),
    )


def test_calls_of_several_threads_are_shares_of_one_clock() -> None:
    drawn = outline(side_by_side([0, 0, 500, 500]))
    served = row(drawn, "predict")
    assert (served.latency_ns, served.count) == (4_000, 4)
    assert served.part() == "37.5 %"
    assert served.detail == "2.7 at once"
    assert row(drawn, "own time").part() == "62.5 %"


def test_a_call_on_another_thread_says_so() -> None:
    drawn = outline(side_by_side([1_000]))
    assert row(drawn, "predict").detail == "on another thread"
    assert row(drawn, "own time").latency_ns == 3_000


def test_one_after_the_other_on_several_threads_is_not_at_once() -> None:
    served = row(outline(side_by_side([0, 1_000, 2_000])), "predict")
    assert served.part() == "75.0 %"
    assert "at once" not in served.detail


def test_times_that_overlap_count_once_for_each_group() -> None:
    spans = side_by_side([0, 500, 2_000])
    assert united_ns(spans, parent_rows(spans) + 1).tolist() == [4_000, 2_500]
    assert elsewhere_ns(spans, parent_rows(spans)).tolist() == [2_500, 0, 0, 0]


def test_what_the_parents_thread_does_meanwhile_is_no_time_of_others() -> None:
    spans = side_by_side([0, 500]).with_columns(thread=pl.Series([1, 1, 2]))
    assert elsewhere_ns(spans, parent_rows(spans)).tolist() == [500, 0, 0]


def test_own_time_is_unchanged_where_all_runs_on_one_thread() -> None:
    spans = samples.frame(samples.resnet())
    assert not elsewhere_ns(spans, parent_rows(spans)).any()


def test_a_recomputation_that_was_stopped_reads_like_no_failure() -> None:
    early = layer("a", "Sequential", error="_StopRecomputationError")
    drawn = outline(samples.frame(pipeline("step", early)))
    assert row(drawn, "a").detail == "Sequential recomputed as far as needed"


def known_to(spans: pl.DataFrame, name: str, low: float, high: float) -> pl.DataFrame:
    """Return spans of which one has another interval."""
    one = pl.col("name") == name
    return spans.with_columns(
        latency_low_ns=pl.when(one).then(low).otherwise("latency_low_ns"),
        latency_high_ns=pl.when(one).then(high).otherwise("latency_high_ns"),
    )


def test_a_latency_that_is_not_known_shows_its_bound_everywhere() -> None:
    spans = samples.frame(pipeline("predict", op("add", own_ns=102), own_ns=100_000))
    noisy = known_to(spans, "add", 0.0, 4_968.0)
    [line] = [line for line in text(noisy, {}).splitlines() if "add" in line]
    assert line.split()[2:] == ["<", "5", "µs", "<", "5", "%", "≈", "0"]


def test_what_runs_inside_takes_no_longer_than_what_is_around_it_may() -> None:
    inner = layer("conv", "Conv2d", op("add", own_ns=20_000), own_ns=0)
    spans = samples.frame(pipeline("predict", inner, own_ns=100_000))
    noisy = known_to(known_to(spans, "conv", 0.0, 85_000.0), "add", 0.0, 900_000.0)
    drawn = outline(noisy)
    assert row(drawn, "add").most_ns == row(drawn, "conv").most_ns == 85_000
    assert row(drawn, "add").part() == row(drawn, "conv").part() == "< 71 %"
    beside = noisy.with_columns(thread=pl.Series([1, 1, 2]))
    assert row(outline(beside), "add").most_ns == 900_000


def test_a_share_that_cannot_be_is_not_shown() -> None:
    spans = samples.frame(pipeline("predict", op("add", own_ns=1_000), own_ns=0))
    for factor, said in ((3.48, "?"), (1.02, "≈ 100 %")):
        latency = 1_000 * factor
        longer = known_to(spans, "add", latency - 50, latency + 50).with_columns(
            latency_ns=pl.when(pl.col("name") == "add").then(latency).otherwise("latency_ns")
        )
        assert row(outline(longer), "add").part() == said


def test_errors_of_the_whole_machine_leave_shares_known() -> None:
    spans = samples.frame(pipeline("predict", op("mm", own_ns=900), own_ns=100), margin=1.5)
    drawn = outline(spans.with_columns(latency_low_ns=pl.lit(0.0)))
    assert [each.part() for each in drawn.rows] == ["100.0 %", "90.0 %", "10.0 %"]
    assert text(spans, {"name": "predict"}).startswith("predict  ≈ 1 µs")
