from __future__ import annotations

import re
import unicodedata

import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp import delivery
from xsp.errors import AnalysisError
from xsp.trace.document import Trace
from xsp.trace.row import Row
from xsp.trace.text import _cells_wide, _name, text


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def drawn(tree: samples.Node, *, width: int = 100, rows: int | None = 60) -> list[str]:
    """Return the lines of the table alone."""
    lines = samples.trace(tree).tree(width=width, rows=rows).splitlines()
    rest = lines[lines.index("") + 2 :]  # below the head of the table
    return rest[: rest.index("")] if "" in rest else rest


def summed(spans: pl.DataFrame) -> float:
    return float(spans.select(pl.col("latency_ns").sum()).item())


def wide(line: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line)


def small() -> Trace:
    tree = samples.pipeline(
        "predict",
        samples.layer(
            "Net",
            "Net",
            samples.layer("fc1", "Linear", samples.op("aten::linear", own_ns=41_234)),
            samples.layer("act", "ReLU", samples.op("aten::relu", own_ns=1_500)),
            samples.op("aten::add", own_ns=500),
        ),
    )
    return samples.trace(tree, name="Net")


def test_small_tree_looks_like_this() -> None:
    assert small().tree(width=100, rows=None).splitlines() == [
        "Net · 51.2 µs (± 1 %) · overhead removed (30 runs)",
        "",
        "   time    %  what",
        "51.2 µs  100  predict",
        "49.2 µs   96  ├─ Net",
        "43.2 µs   84  │  ├─ fc1  Linear  ◀ slowest layer",
        "41.2 µs   80  │  │  ├─ aten::linear",
        "2.00 µs    4  │  │  └─ self time",
        "3.50 µs    7  │  ├─ act  ReLU",
        "1.50 µs    3  │  │  ├─ aten::relu",
        "2.00 µs    4  │  │  └─ self time",
        " 500 ns    1  │  ├─ aten::add",
        "2.00 µs    4  │  └─ self time",
        "2.00 µs    4  └─ self time",
    ]


def test_errors_and_overhead_have_columns_where_they_are_asked_for() -> None:
    assert small().tree(width=100, errors=True, overhead=True).splitlines() == [
        "Net  51.2 ± 0.51 µs · overhead removed: model, layers, operators (30 runs)",
        "",
        "           time      %  overhead  what",
        "51.2 ± 0.51  µs  100.0   5.12 µs  predict",
        "49.2 ± 0.49  µs   96.1   4.92 µs  └─ Net",
        "43.2 ± 0.43  µs   84.4   4.32 µs     ├─ fc1  Linear  ◀ slowest layer",
        "41.2 ± 0.41  µs   80.5   4.12 µs     │  └─ aten::linear",
        "3.50 ± 0.035 µs    6.8    350 ns     ├─ act  ReLU",
        "1.50 ± 0.015 µs    2.9    150 ns     │  └─ aten::relu",
        " 500 ± 5.0   ns    1.0   50.0 ns     └─ aten::add",
    ]


def test_first_line_says_name_latency_and_that_overhead_is_removed() -> None:
    first = str(samples.trace(samples.resnet(), name="ResNet")).splitlines()[0]
    assert first == "ResNet · 39.0 ms (± 1 %) · overhead removed (30 runs)"


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["few_samples"], "in fewer than 5 runs: 2 of 125 layers"),
        (
            ["warm_up_only", "few_samples"],
            "from first steps alone: 2 of 125 layers · in fewer than 5 runs: 2",
        ),
        (["unstable"], "missing in some runs: 2 of 125 layers"),
        (["inferred"], "made from the spans inside: 2 of 125 layers"),
    ],
)
def test_first_line_says_what_else_is_not_exact_and_that_it_is_without_overhead(
    reasons: list[str], said: str
) -> None:
    tree = samples.transformer()
    for child in tree.children[0].children[1].children[:2]:
        child.attributes |= samples.inexact(*reasons)
    first = samples.trace(tree).tree(width=1_000, errors=True).splitlines()[0]
    assert "overhead removed: model, layers, operators" in first
    assert said in first
    assert "still with overhead" not in first


def test_rows_that_are_not_exact_are_marked_and_the_marks_that_occur_explained() -> None:
    back = samples.layer("fc", "Linear", phase="backward", **samples.inexact("inferred"))
    leaf = samples.layer("act", "ReLU", **samples.inexact("includes_overhead", "few_samples"))
    tree = samples.pipeline("step", samples.layer("fc", "Linear"), leaf, back, own_ns=0)
    lines = samples.trace(tree).tree(width=100, errors=True).splitlines()
    table = lines.index("") + 1
    assert lines[table:] == [
        "              time      %  what",
        "6.00 ± 0.060 µs     100.0  step",
        "2.00 ± 0.020 µs      33.3  ├─ fc  Linear",
        "2.00 ± 0.020 µs +?   33.3  ├─ act  ReLU",
        "2.00 ± 0.020 µs =    33.3  └─ fc  Linear backward",
        "",
        "+ still with overhead · ? in fewer than 5 runs · = made from the spans inside",
    ]
    assert "?" not in samples.trace(tree).tree(width=100)


def program(*reasons: str, own_ns: int = 4_000) -> samples.Node:
    """Return a block of 6 µs in a step, of which a layer has 4, and self time besides.

    The layer is not exact for some reasons, its step and the block for these and for few runs.
    """
    layer = samples.layer("net", "Net", own_ns=4_000, **samples.inexact(*reasons))
    step = samples.pipeline("Net", layer, own_ns=2_000)
    around = samples.inexact(*reasons, "few_samples") | {"program_part": True}
    step.attributes |= around
    tree = samples.pipeline("block", step, own_ns=own_ns)
    tree.attributes |= around
    return tree


def first_lines(tree: samples.Node, group: str = "Net") -> list[str]:
    lines = samples.trace(tree, groups=[{"name": group}]).tree(width=90, errors=True).splitlines()
    return lines[: lines.index("")]


def test_first_lines_of_a_program_say_how_much_of_its_time_is_exact() -> None:
    assert first_lines(program("includes_overhead", "unstable")) == [
        "block  10.0 ± 0.10 µs · overhead removed: all but 60.0 % of the time (30 runs)",
        "  in fewer than 5 runs: 20.0 % of the time · missing in some runs: 60.0 % of the time",
    ]


def test_first_line_names_levels_that_are_missing() -> None:
    levels = {"model": "measured", "library": "no provider here"}
    lines = samples.trace(samples.wide(3), levels=levels).tree(width=120).splitlines()
    assert lines[1] == "not measured: library"


def test_warnings_come_before_the_tree_and_keep_to_the_width() -> None:
    warnings = [{"code": "unmatched", "message": "one\nspan " + "came and went " * 30}]
    lines = samples.trace(samples.resnet(), warnings=warnings).tree(width=80).splitlines()
    assert lines[1].startswith("⚠ unmatched: one\\nspan came")
    assert max(map(len, lines)) <= 80


def test_equal_blocks_are_folded_with_their_number_sum_and_mean() -> None:
    lines = drawn(samples.transformer(12))
    [block] = [line for line in lines if " Block " in line]
    assert re.search(r"0 … 11  Block  12 \u00d7 \d[\d.]* .s", block)
    assert sum(" attn  Attention" in line for line in lines) == 1


def test_span_that_raised_says_what() -> None:
    failed = samples.Node("region", "load", 5_000, attributes={"error": "ValueError"})
    assert any("load  raised ValueError" in line for line in drawn(samples.pipeline("all", failed)))


def test_chain_of_operators_is_one_row() -> None:
    lines = drawn(samples.pipeline("predict", samples.conv("conv1", 900_000)))
    assert any("aten::conv2d ⋯ mkldnn_convolution" in line for line in lines)
    assert not any("aten::_convolution" in line for line in lines)


def test_hidden_spans_are_counted_and_summed() -> None:
    trace = samples.trace(samples.resnet())
    shown = [line for line in str(trace).splitlines() if "3 small layers, 1 small op" in line]
    assert len(shown) == 1
    hidden = trace.spans.filter(
        pl.col("path").str.contains(r"^predict/ResNet/(bn1|relu|avgpool|aten::flatten)$")
    )
    assert shown[0].split()[0] == f"{summed(hidden) / 1e3:.3g}"


def test_thousands_of_small_operators_are_collected_by_name() -> None:
    lines = drawn(samples.wide(5_000))
    assert len(lines) == 6
    assert sum("1,250 \u00d7" in line for line in lines) == 4


@pytest.mark.parametrize("rows", [5, 20, 60, 200])
def test_rows_are_limited(rows: int) -> None:
    lines = drawn(samples.resnet(), rows=rows)
    assert len(lines) <= max(rows, 16)
    assert len(lines) > rows // 3 or rows > 100


def test_a_cut_tree_says_so_below() -> None:
    printed = " ".join(str(samples.trace(samples.resnet())).split())
    assert re.search(r"trace.tree\(rows=200\) more of this tree \(\d+ rows for 728 spans", printed)
    assert "trace.tree(rows=1000)" in text(samples.frame(samples.resnet()), {}, rows=200)


@pytest.mark.parametrize("width", [40, 72, 80, 100, 140])
@pytest.mark.parametrize(
    "tree", [samples.resnet(), samples.transformer(), samples.wide(3_000), samples.hostile()]
)
def test_no_line_is_wider_than_asked(tree: samples.Node, width: int) -> None:
    printed = samples.trace(tree).tree(width=width)
    assert max(map(wide, printed.splitlines())) <= width


def test_names_move_no_cursor_and_break_no_line() -> None:
    printed = str(samples.trace(samples.hostile(), name="evil\x1b[2J\nname"))
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert "two\\nlines\\tand a tab" in printed
    assert "\\x1b[31mred" in printed
    assert "(no name)" in printed


@pytest.mark.parametrize(("depth", "cells"), [(3, 3), (20, 2), (30, 1)])
def test_deep_trees_are_drawn_narrower_so_that_every_level_is_seen(depth: int, cells: int) -> None:
    node = samples.layer("bottom", "Leaf", own_ns=10**6)
    for level in range(depth, 0, -1):
        node = samples.layer(f"level{level}", "Wrapper", node, own_ns=0)
    lines = drawn(samples.pipeline("predict", node), rows=None)
    starts = [line.index("level") for line in lines if "Wrapper" in line]
    start = lines[0].index("predict")
    assert starts == [start + max(cells, 2) + cells * level for level in range(depth)]


def test_missing_latencies_are_a_dash_and_no_zero() -> None:
    spans = samples.frame(samples.wide(2))
    nothing = [pl.lit(None, dtype=pl.Float64).alias(n) for n in spans.columns if "latency" in n]
    lines = text(spans.with_columns(nothing), {}).splitlines()
    assert lines[0].startswith("trace · —")
    assert any(re.search(r"^ *— .*Cell", line) for line in lines)


def test_trace_without_spans_still_has_its_first_line() -> None:
    empty = Trace(samples.frame(samples.wide(1)).clear(), {"name": "Nothing"})
    assert str(empty) == "Nothing  no spans"


def test_orphaned_ids_are_shown_under_the_root() -> None:
    spans = samples.frame(samples.wide(2)).with_columns(
        parent_id=pl.when(pl.col("kind") == "op").then(99).otherwise("parent_id").cast(pl.UInt64)
    )
    assert "aten::mul" in text(spans, {})


def test_users_attributes_of_our_names_but_other_types_do_no_harm() -> None:
    spans = samples.frame(samples.wide(2)).with_columns(
        attributes=pl.struct(
            module_class=pl.lit(3), exact=pl.lit("yes"), phase=pl.lit([1]), error=pl.lit(True)
        )
    )
    assert "Cell" in text(spans, {})


BLOCKS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(BLOCKS, st.integers(1, 80))
@settings(max_examples=15, deadline=None)
def test_shares_of_the_roots_children_add_up_whatever_is_folded(
    blocks: list[int], rows: int
) -> None:
    parts = [
        samples.layer(str(i), "Block", *(samples.op("aten::mm", own_ns=50_000),) * size, own_ns=0)
        for i, size in enumerate(blocks)
    ]
    lines = drawn(samples.pipeline("predict", *parts, own_ns=0), rows=rows)
    shares = [float(line.split()[2]) for line in lines if re.search(r"\d  [├└]", line)]
    if shares:
        assert sum(shares) == pytest.approx(100, abs=0.5 * len(shares))


@given(
    st.text(max_size=40),
    st.text("│├└─ ", max_size=60),
    st.integers(-50, 60),
)
def test_a_name_ends_and_fits_into_any_room(label: str, branch: str, room: int) -> None:
    row = Row(1, True, False, "op", label, "", 1, 1.0, None, None, None)
    assert _cells_wide(_name(row, branch, room)) <= max(room, 3)


@pytest.mark.parametrize("width", [1, 72, 140])
def test_absurd_numbers_neither_hang_nor_fill_the_line(width: int) -> None:
    spans = samples.frame(samples.transformer()).with_columns(
        latency_ns=pl.lit(1e300), latency_high_ns=pl.lit(1e301), overhead_ns=pl.lit(-1e300)
    )
    assert max(map(wide, text(spans, {}, width=width).splitlines())) <= 140


def test_three_warnings_stand_above_a_tree_the_gravest_first_and_the_rest_is_counted() -> None:
    codes = ["residual", "left-out", "prediction", "dropped", "page-faults"]
    warnings = [{"code": code, "message": f"it was {code}"} for code in codes]
    trace = samples.trace(samples.wide(3), warnings=warnings)
    lines = trace.tree().splitlines()
    shown = [line.split(":")[0] for line in lines if line.startswith("⚠")]
    assert shown == ["⚠ dropped", "⚠ prediction", "⚠ left-out"]
    assert "  2 more warnings: trace.tree(warnings=True)" in lines
    every = trace.tree(warnings=True)
    assert every.count("⚠") == len(codes)


def test_rough_times_are_said_once_above_the_tree() -> None:
    rough = samples.frame(samples.wide(3), margin=0.6)
    lines = text(rough, {"warnings": [{"code": "wide-interval", "message": "wide"}]}).splitlines()
    assert [line for line in lines if line.startswith("⚠")] == [
        "⚠ noisy: times are rough (about ± 60 %); see xsp doctor"
    ]
    assert "± " not in "\n".join(lines[lines.index("") :])


def test_modules_of_one_name_are_shown_by_their_paths() -> None:
    below = []
    for n in range(3):
        below.append(samples.layer("conv1", "Conv2d", module_path=f"block.{n}.conv1", own_ns=9_000))
        below.append(samples.layer(f"between{n}", f"Other{n}", own_ns=9_000))
    lines = drawn(samples.pipeline("predict", samples.layer("Net", "Net", *below)))
    named = [line.split("─ ")[1].split()[0] for line in lines if "Conv2d" in line]
    assert named == [f"block.{n}.conv1" for n in range(3)]


def test_what_is_small_is_judged_without_first_calls() -> None:
    first = samples.pipeline("first call of Net", own_ns=10**9)
    layers = [samples.layer(str(n), f"Layer{n}", own_ns=9_000 + n) for n in range(40)]
    lines = drawn(samples.pipeline("block", first, samples.pipeline("Net", *layers)), rows=60)
    assert sum("Layer" in line for line in lines) == len(layers)


def test_a_trace_without_advice_has_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Trace) -> list[tuple[str, str]]:
        raise AnalysisError("no")

    trace = samples.trace(samples.wide(3))
    monkeypatch.setitem(delivery._functions, "look_next", fails)
    assert "Look next" not in str(trace)
    found = [("Do less.", "xsp show FILE")]
    monkeypatch.setitem(delivery._functions, "look_next", lambda _: found)
    assert str(trace).endswith("Look next:\n  Do less.\n    xsp show FILE")
