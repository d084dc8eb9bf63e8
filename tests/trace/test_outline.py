from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row

SAMPLES = [samples.resnet(), samples.transformer(), samples.wide(3_000), samples.hostile()]


def families(drawn: Outline) -> Iterator[tuple[Row, list[Row]]]:
    """Yield every row that has rows below it, with those right below it."""
    for place, row in enumerate(drawn.rows):
        if row.parent:
            below = []
            for other in drawn.rows[place + 1 :]:
                if other.depth <= row.depth:
                    break
                if other.depth == row.depth + 1:
                    below.append(other)
            yield row, below


@pytest.mark.parametrize("tree", SAMPLES)
@pytest.mark.parametrize("rows", [10, 30, 60, 300, None])
def test_rows_below_a_row_add_up_to_it(tree: samples.Node, rows: int | None) -> None:
    drawn = outline(samples.frame(tree), rows=rows)
    model = drawn.rows[0].latency_ns or 0.0
    for row, below in families(drawn):
        total = sum(child.latency_ns or 0.0 for child in below)
        assert total <= (row.latency_ns or 0.0) * (1 + 1e-9)
        # What is missing is the callers' self time, which has a row from 1 % on.
        called = "→" in row.name or "⋯" in row.name
        assert called or (row.latency_ns or 0.0) - total < 0.01 * model


def test_every_span_is_counted_once() -> None:
    ops = [samples.op(f"op{i % 3}", samples.op("inner")) for i in range(30)]
    drawn = outline(samples.frame(samples.pipeline("predict", *ops)), rows=None)
    chained = [2 if "→" in row.name else 1 for row in drawn.rows]
    shown = [row for row in drawn.rows if row.kind != "own"]
    assert sum(row.count * n for row, n in zip(shown, chained, strict=False)) == drawn.spans == 61


def test_folding_stops_where_another_sibling_stands_between() -> None:
    names = ["a", "a", "b", "a", "a", "a"]
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, names)))
    rows = [(row.name, row.count) for row in outline(spans).rows if row.kind == "op"]
    assert rows == [("a", 2), ("b", 1), ("a", 3)]


def test_a_sum_over_unknown_latencies_is_of_what_is_known() -> None:
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, "aa")))
    half = spans.with_columns(
        latency_ns=pl.when(pl.col("path") != "predict/a").then(pl.col("latency_ns"))
    )
    [row] = [row for row in outline(half).rows if row.name == "a"]
    assert row.latency_ns == 1_000


@given(st.integers(0, 400), st.integers(0, 3), st.integers(1, 120))
@settings(max_examples=20, deadline=None)
def test_a_list_of_any_length_is_cut_to_the_rows_allowed(
    length: int, slope: int, rows: int
) -> None:
    ops = [samples.op(f"op{i}", own_ns=1_000 + slope * i) for i in range(length)]
    spans = samples.frame(samples.pipeline("predict", *ops))
    drawn = outline(spans, rows=rows, smallest=0.0)
    assert len(drawn.rows) <= rows + 2
    assert len(drawn.rows) >= min(length, rows - 3)


def calls(times: int, *between: str) -> samples.Node:
    """Return a model called again and again, with operators after each call."""
    prefill = samples.layer("GPT", "GPT", samples.op("aten::addmm", own_ns=90_000))
    parts = [prefill, *map(samples.op, between)]
    for _ in range(times):
        block = samples.layer("attn", "Attention", samples.op("aten::mm", own_ns=9_000))
        parts += [samples.layer("GPT", "GPT", block), *map(samples.op, between)]
    return samples.pipeline("generate", *parts)


def test_a_pattern_that_recurs_is_folded_though_others_stand_between() -> None:
    drawn = outline(samples.frame(calls(19, "aten::argmax", "aten::cat")), smallest=0.0)
    top = [(row.name, row.count) for row in drawn.rows if row.depth == 1]
    assert top == [
        ("GPT", 1),
        ("aten::argmax", 20),
        ("aten::cat", 20),
        ("GPT", 19),
    ]
    assert sum(row.count for row in drawn.rows if row.name == "attn") == 19


def step(name: str, *below: samples.Node) -> samples.Node:
    return samples.layer(name, f"{name} step", *below, samples.op("aten::mm", own_ns=9_000))


def top(*below: samples.Node) -> list[tuple[str, int]]:
    drawn = outline(samples.frame(samples.pipeline("fit", *below)), smallest=0.0)
    return [(row.name, row.count) for row in drawn.rows if row.depth == 1 and row.kind != "own"]


def test_steps_fold_though_what_lies_between_them_is_never_the_same() -> None:
    parts = []
    for i in range(8):
        parts += [step("unet"), samples.op("mul"), *[samples.op("randn")] * (i < 7)]
        parts += [samples.op(f"extra{i}")] if i % 3 == 0 else []
    assert top(*parts) == [
        ("unet", 8),
        ("mul", 8),
        ("randn", 7),
        ("extra0", 1),
        ("extra3", 1),
        ("extra6", 1),
    ]


def test_the_first_step_that_differs_inside_is_shown_apart() -> None:
    parts = [samples.op("load")]
    for i in range(4):
        inner = () if i == 0 else (samples.op("accumulate"),)
        parts += [step("forward"), samples.op("loss"), step("backward", *inner)]
    parts += [step("optimizer"), samples.op("load")]
    assert top(*parts) == [
        ("load", 1),
        ("forward", 4),
        ("loss", 4),
        ("backward", 1),
        ("backward", 3),
        ("optimizer", 1),
        ("load", 1),
    ]


@given(
    st.lists(st.sampled_from("ABabc"), min_size=1, max_size=40),
    st.integers(0, 3),
)
@settings(max_examples=20, deadline=None)
def test_loops_lose_no_span_and_mix_no_names(names: list[str], split: int) -> None:
    below = [step(n) if n.isupper() else samples.op(n) for n in names]
    inner = samples.layer("inner", "Inner", *below[:split])
    spans = samples.frame(samples.pipeline("fit", inner, *below))
    rows = [row for row in outline(spans, rows=None, smallest=0.0).rows if row.depth == 1]
    shown = [row for row in rows if row.kind in ("layer", "op") and row.name != "inner"]
    assert sum(row.count for row in shown) == len(names)
    assert all(row.count <= names.count(row.name) for row in shown)


@given(
    st.lists(st.sampled_from("abc"), max_size=4),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=6),
    st.integers(0, 12),
    st.integers(1, 60),
)
@settings(max_examples=20, deadline=None)
def test_patterns_lose_no_span(
    before: list[str], pattern: list[str], times: int, rows: int
) -> None:
    names = [*before, *pattern * times]
    spans = samples.frame(samples.pipeline("predict", *map(samples.op, names)))
    for smallest in (0.0, 0.01):
        drawn = outline(spans, rows=rows, smallest=smallest)
        shown = [row for row in drawn.rows if row.depth and row.kind != "own"]
        assert sum(row.count for row in shown) == (len(names) if shown else 0)
        assert not shown or sum(row.latency_ns or 0 for row in shown) == 1_000 * len(names)
        for row in shown:
            assert row.kind != "op" or row.count <= names.count(row.name)


def named(name: str, *children: samples.Node, own_ns: int) -> samples.Node:
    """A part of a program of whose self time five functions are known."""
    own = {
        "self_functions": [f"f{number}" for number in range(5)],
        "self_lines": [f"load.py:{number}" for number in range(5)],
        "self_shares": [0.2] * 5,
        "self_samples": 100,
    }
    return replace(samples.pipeline(name, *children, own_ns=own_ns), attributes=own)


@pytest.mark.parametrize("rows", [4, 6, 9, 12, None])
def test_functions_of_self_time_hide_no_span(rows: int | None) -> None:
    load, step = named("load", own_ns=90_000), samples.pipeline("step", own_ns=90_000)
    tree = named("block", named("iteration", load, step, own_ns=90_000), own_ns=90_000)
    drawn = outline(samples.frame(tree), rows=rows)
    assert {"block", "iteration", "load", "step"} <= {row.name for row in drawn.rows}
    if rows is None:
        assert sum(row.name.startswith("f") for row in drawn.rows) == 3 * 5


def launched(number: int, device_ns: int, host_ns: int = 10) -> samples.Node:
    """An operator of its own name that launches a kernel."""
    work: dict[str, object] = {"device": 0, "stream": 7, "device_ns": float(device_ns)}
    kernel = samples.Node("kernel", f"kernel{number}", device_ns, columns=work)
    launch = samples.Node("launch", "cudaLaunchKernel", host_ns)
    mine = samples.op(f"aten::op{number}", launch, kernel, own_ns=host_ns)
    mine.columns["device_ns"] = float(device_ns)
    return mine


def waits(*inside: samples.Node, own_ns: int) -> samples.Node:
    """A step that mostly waits; its devices worked for as long as all inside kept them busy."""
    step = samples.pipeline("step", *inside, own_ns=own_ns)
    busy = sum(child.columns.get("device_ns") or 0.0 for child in inside)
    step.columns["device_ns"] = busy or None
    return step


def test_work_of_a_device_is_shown_however_long_the_host_waits() -> None:
    step = waits(*(launched(number, 1_000) for number in range(10)), own_ns=10**9)
    drawn = outline(samples.frame(step), smallest=0.01)
    assert {f"aten::op{number}" for number in range(10)} <= {row.name for row in drawn.rows}
    assert "kernel3" in {row.name for row in drawn.rows}
    little = waits(launched(0, 10**6), launched(1, 100), launched(2, 100), own_ns=10**9)
    names = {row.name for row in outline(samples.frame(little), smallest=0.01).rows}
    assert "aten::op0" in names
    assert "aten::op1" not in names


@pytest.mark.parametrize("rows", [20, 60, 200])
@pytest.mark.parametrize("on_device", [True, False])
def test_small_spans_fill_the_rows_asked_for(rows: int, on_device: bool) -> None:
    inside = (
        launched(number, 10_000 - 10 * number)
        if on_device
        else samples.op(f"op{number}", own_ns=10_000 - 10 * number)
        for number in range(500)
    )
    drawn = outline(samples.frame(waits(*inside, own_ns=10**9)), rows=rows)
    assert 0.8 * rows <= len(drawn.rows) <= rows
    shown = [row.latency_ns or 0.0 for row in drawn.rows if row.kind == "op"]
    assert shown == sorted(shown, reverse=True)  # the largest, and in their order
    assert len(shown) >= rows // 4


def test_equal_small_spans_fill_the_rows_too() -> None:
    step = waits(*(samples.op(f"op{number}", own_ns=100) for number in range(300)), own_ns=10**7)
    drawn = outline(samples.frame(step), rows=60)
    assert 50 <= len(drawn.rows) <= 60
    assert drawn.rows[-2].name.endswith("more ops")  # as small as those that are shown


def test_rows_that_a_share_leaves_out_stay_out() -> None:
    step = waits(*(samples.op(f"op{n}", own_ns=100 * (n + 1)) for n in range(40)), own_ns=0)
    for rows in (60, None):
        drawn = outline(samples.frame(step), rows=rows, smallest=0.03)
        named = [row for row in drawn.rows if row.kind == "op"]
        assert [row.name for row in named] == [f"op{n}" for n in range(24, 40)]
        assert not drawn.more


def test_a_chain_hides_no_work_of_a_device() -> None:
    def graph(device_ns: int) -> pl.DataFrame:
        copies = samples.op("aten::copy_", own_ns=9_000)
        step = samples.op("execute", launched(0, device_ns), copies, own_ns=0)
        step.columns["device_ns"] = float(device_ns)
        other = launched(1, 1_000_000)
        return samples.frame(waits(step, other, own_ns=0))

    assert "execute → aten::copy_" not in {row.name for row in outline(graph(800_000)).rows}
    assert "aten::op0" in {row.name for row in outline(graph(800_000)).rows}
    chained = outline(graph(5_000), smallest=0.01)
    assert "execute → aten::copy_" in {row.name for row in chained.rows}


@pytest.mark.parametrize("tree", SAMPLES)
@pytest.mark.parametrize("rows", [1, 2, 10, 30, 60, 200])
def test_more_is_promised_where_more_rows_show_more(tree: samples.Node, rows: int) -> None:
    spans = samples.frame(tree)
    drawn, larger = outline(spans, rows=rows), outline(spans, rows=max(200, 5 * rows))
    assert drawn.more == (len(larger.rows) > len(drawn.rows))


def test_small_siblings_of_one_name_stay_a_sum_while_others_need_rows() -> None:
    inside = [
        samples.op(name, own_ns=100 + number)
        for number in range(40)
        for name in ("aten::slice", f"op{number}")
    ]
    step = samples.frame(waits(*inside, own_ns=10**6))
    names = [row.name for row in outline(step, rows=46).rows]
    assert {f"op{number}" for number in range(1, 40)} <= set(names)
    assert "… aten::slice" in names
    assert "aten::slice" not in names
    assert [row.name for row in outline(step, rows=100).rows].count("aten::slice") == 40
