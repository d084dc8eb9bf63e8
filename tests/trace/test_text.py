from __future__ import annotations

import re
import unicodedata

import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.trace.document import Trace
from xsp.trace.heading import headline
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


def test_small_tree_looks_like_this() -> None:
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
    assert samples.trace(tree, name="Net").tree(width=100).splitlines() == [
        "Net  51.2 ± 0.51 µs · without overhead: model, layers, operators (30 runs)",
        "",
        "                               latency    share  overhead",
        "predict                51.2 ± 0.51  µs  100.0 %   5.12 µs",
        "├─ Net                 49.2 ± 0.49  µs   96.1 %   4.92 µs",
        "│  ├─ fc1 Linear       43.2 ± 0.43  µs   84.4 %   4.32 µs",
        "│  │  ├─ aten::linear  41.2 ± 0.41  µs   80.5 %   4.12 µs",
        "│  │  └─ own time      2.00         µs    3.9 %",
        "│  ├─ act ReLU         3.50 ± 0.035 µs    6.8 %    350 ns",
        "│  │  ├─ aten::relu    1.50 ± 0.015 µs    2.9 %    150 ns",
        "│  │  └─ own time      2.00         µs    3.9 %",
        "│  ├─ aten::add         500 ± 5.0   ns    1.0 %   50.0 ns",
        "│  └─ own time         2.00         µs    3.9 %",
        "└─ own time            2.00         µs    3.9 %",
    ]


def test_first_line_says_name_latency_and_what_is_without_overhead() -> None:
    first = str(samples.trace(samples.resnet(), name="ResNet")).splitlines()[0]
    assert first == "ResNet  39.0 ± 0.39 ms · without overhead: model, layers, operators (30 runs)"


def test_first_line_says_what_still_carries_overhead() -> None:
    tree = samples.transformer()
    for child in tree.children[0].children[1].children[:2]:
        child.attributes["exact"] = False
    first = " ".join(samples.trace(tree).tree(width=140).splitlines()[:2])
    assert "without overhead: model, operators" in first
    assert "still with overhead: 2 of 125 layers" in first


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["few"], "in fewer than 5 runs: 2 of 125 layers"),
        (
            ["cold", "few"],
            "from first evaluations alone: 2 of 125 layers · in fewer than 5 runs: 2",
        ),
        (["varies"], "missing in some runs: 2 of 125 layers"),
        (["derived"], "made from the spans inside: 2 of 125 layers"),
    ],
)
def test_first_line_says_what_else_is_not_exact_and_that_it_is_without_overhead(
    reasons: list[str], said: str
) -> None:
    tree = samples.transformer()
    for child in tree.children[0].children[1].children[:2]:
        child.attributes |= samples.inexact(*reasons)
    first = samples.trace(tree).tree(width=1_000).splitlines()[0]
    assert "without overhead: model, layers, operators" in first
    assert said in first
    assert "still with overhead" not in first


def test_first_line_says_of_part_of_the_pipeline_spans_that_they_are_made_of_others() -> None:
    tree = samples.pipeline("predict", samples.pipeline("reading"), samples.pipeline("decode"))
    tree.children[0].attributes |= samples.inexact("derived")
    first = samples.trace(tree).tree(width=1_000).splitlines()[0]
    assert "made from the spans inside: 1 of 3 pipeline spans" in first


def test_part_of_a_graph_beside_its_layers_is_told_of_with_the_layers() -> None:
    tree = samples.pipeline("predict", samples.pipeline("reading"), samples.layer("net", "Net"))
    for child in tree.children:
        child.attributes |= samples.inexact("derived")
    trace = samples.trace(tree)
    told = Trace(trace.spans, {**trace.metadata, "made_of": {"layer": "op"}}).tree(width=200)
    assert "made from the spans inside" in trace.tree(width=200)
    assert "made from the spans inside" not in told
    assert "layers are made of their operators" in told


def everywhere(node: samples.Node, **attributes: object) -> samples.Node:
    node.attributes |= attributes
    for child in node.children:
        everywhere(child, **attributes)
    return node


def test_what_holds_for_all_spans_is_said_of_all() -> None:
    tree = everywhere(samples.resnet(), **samples.inexact("few"))
    first = samples.trace(tree).tree(width=1_000).splitlines()[0]
    assert first.endswith("operators (30 runs) · in fewer than 5 runs: all")


def test_rows_that_are_not_exact_are_marked_and_the_marks_that_occur_explained() -> None:
    back = samples.layer("fc", "Linear", phase="backward", **samples.inexact("derived"))
    leaf = samples.layer("act", "ReLU", **samples.inexact("carried", "few"))
    tree = samples.pipeline("step", samples.layer("fc", "Linear"), leaf, back, own_ns=0)
    lines = samples.trace(tree).tree(width=100).splitlines()
    table = lines.index("") + 1
    assert lines[table:] == [
        "                               latency       share  overhead",
        "step                   6.00 ± 0.060 µs     100.0 %    600 ns",
        "├─ fc Linear           2.00 ± 0.020 µs      33.3 %    200 ns",
        "├─ act ReLU            2.00 ± 0.020 µs +?   33.3 %    200 ns",
        "└─ fc Linear backward  2.00 ± 0.020 µs =    33.3 %    200 ns",
        "",
        "+ still with overhead · ? in fewer than 5 runs · = made from the spans inside",
    ]


def test_a_file_of_an_earlier_version_marks_what_carries_overhead() -> None:
    tree = samples.pipeline("step", samples.layer("fc", "Linear", exact=False))
    spans = samples.frame(tree)
    kept = [name for name in spans["attributes"].struct.fields if name != "inexact"]
    old = spans.with_columns(attributes=pl.struct(pl.col("attributes").struct.field(kept)))
    lines = text(old, {}).splitlines()
    assert "still with overhead: layers" in lines[0]
    assert [line.split("µs")[1].split()[0] for line in lines[3:5]] == ["100.0", "+"]
    assert lines[-1] == "+ still with overhead"


def program(*reasons: str, own_ns: int = 4_000) -> samples.Node:
    """Return a block of 6 µs in a step, of which a layer has 4, and own time besides.

    The layer is not exact for some reasons, its step and the block for these and for few runs.
    """
    layer = samples.layer("net", "Net", own_ns=4_000, **samples.inexact(*reasons))
    step = samples.pipeline("Net", layer, own_ns=2_000)
    around = samples.inexact(*reasons, "few") | {"program_part": True}
    step.attributes |= around
    tree = samples.pipeline("block", step, own_ns=own_ns)
    tree.attributes |= around
    return tree


def first_lines(tree: samples.Node, group: str = "Net") -> list[str]:
    lines = samples.trace(tree, groups=[{"name": group}]).tree(width=90).splitlines()
    return lines[: lines.index("")]


def test_first_lines_of_a_program_say_how_much_of_its_time_is_exact() -> None:
    assert first_lines(program("carried", "varies")) == [
        "block  10.0 ± 0.10 µs · without overhead: all but 60.0 % of the time (30 runs)",
        "  in fewer than 5 runs: 20.0 % of the time · missing in some runs: 60.0 % of the time",
    ]


def test_time_around_evaluations_is_exact_though_the_block_is_not() -> None:
    first = " ".join(first_lines(program("few", own_ns=1_194_000)))
    assert "without overhead: model, layers (30 runs)" in first
    assert "in fewer than 5 runs: 0.5 % of the time" in first


def test_a_program_says_of_a_little_time_with_overhead_that_it_is_little() -> None:
    first = " ".join(first_lines(program("carried", own_ns=90_000_000)))
    assert "without overhead: all but <0.1 % of the time (30 runs)" in first


def test_a_program_counts_the_layers_that_are_made_of_others() -> None:
    tree = program()
    made = samples.layer("act", "ReLU", **samples.inexact("derived"))
    tree.children[0].children += [made, samples.layer("drop", "Dropout")]
    assert "made from the spans inside: 1 of 3 layers" in " ".join(first_lines(tree))


def test_a_file_from_before_parts_of_programs_were_marked_has_first_lines_too() -> None:
    tree = program("carried")
    for node in (tree, tree.children[0]):
        del node.attributes["program_part"]
    assert "all but 100.0 % of the time" in " ".join(first_lines(tree))


def test_headline_breaks_between_what_it_says() -> None:
    tree = samples.pipeline("predict", samples.layer("net", "Net"))
    levels = {"model": "measured", "library": "no provider here"}
    levels |= {f"level of a long name {number}": "no provider here" for number in range(4)}
    trace = samples.trace(tree, levels=levels, rungs=[{"rung": "serialised", "latency_ns": 5_000}])
    for width in (80, 90, 300):
        lines = trace.tree(width=width).splitlines()
        said = lines[: lines.index("")]
        assert all(len(line) <= width for line in said)
        words = " ".join(said).replace("·", "").split()
        assert words == headline(trace.spans, trace.metadata).replace("·", "").split()
        assert not any(line.endswith("·") for line in said)


def test_first_line_names_levels_that_are_missing() -> None:
    levels = {"model": "measured", "library": "no provider here"}
    lines = samples.trace(samples.wide(3), levels=levels).tree(width=120).splitlines()
    assert lines[0].endswith("not measured: library")


def test_nothing_is_claimed_to_be_without_overhead_that_does_not_say_so() -> None:
    tree = samples.wide(3)
    spans = samples.frame(tree).with_columns(attributes=pl.struct(other=pl.lit(1)))
    assert "without overhead" not in text(spans, {})


def test_problems_of_one_kind_that_several_groups_have_are_one_line() -> None:
    said = ("wide", "A: 14 %"), ("wide", "B: 18 %"), ("varies", "B: 1 run"), ("wide", "lost")
    problems = [{"code": code, "message": message} for code, message in said]
    groups = [{"name": "A"}, {"name": "B"}]
    trace = samples.trace(samples.resnet(), problems=problems, groups=groups)
    assert [line for line in trace.tree().splitlines() if line.startswith("!")] == [
        "! wide: A: 14 % (1 more of this kind in trace.problems)",
        "! varies: B: 1 run",
        "! wide: lost",
    ]
    assert len(trace.problems) == 4


def test_problems_come_before_the_tree_and_keep_to_the_width() -> None:
    problems = [{"code": "unmatched", "message": "one\nspan " + "came and went " * 30}]
    lines = samples.trace(samples.resnet(), problems=problems).tree(width=80).splitlines()
    assert lines[1].startswith("! unmatched: one\\nspan came")
    assert max(map(len, lines)) <= 80


def test_equal_blocks_are_folded_with_their_number_sum_and_mean() -> None:
    lines = drawn(samples.transformer(12))
    [block] = [line for line in lines if " Block " in line]
    assert "0 … 11 Block" in block
    assert re.search(r"12 \u00d7 +\d[\d.]* .s$", block)
    assert sum(" attn Attention " in line for line in lines) == 1


def test_rows_below_a_folded_block_are_sums_too() -> None:
    trace = samples.trace(samples.transformer(12))
    attention = summed(trace.spans.filter(pl.col("name") == "attn"))
    [line] = [line for line in str(trace).splitlines() if " attn Attention " in line]
    assert f"{attention / 1e6:.3g} ±" in line


def test_block_that_differs_is_not_folded_with_the_others() -> None:
    lines = drawn(samples.resnet())
    assert sum("0 Bottleneck" in line for line in lines) == 4
    assert sum("1 … 5 Bottleneck" in line for line in lines) == 1


def test_layers_of_one_class_but_other_size_are_not_folded() -> None:
    parts = [
        samples.layer(str(i), "Linear", samples.op("aten::linear"), parameter_bytes=size)
        for i, size in enumerate((400, 400, 90_000))
    ]
    lines = drawn(samples.pipeline("predict", *parts))
    assert any("0 … 1 Linear" in line for line in lines)
    assert any("2 Linear" in line for line in lines)


def test_backward_layers_say_so_and_stay_apart_from_forward_ones() -> None:
    parts = [samples.layer("fc", "Linear", phase=phase) for phase in ("forward", "backward")]
    lines = drawn(samples.pipeline("step", *parts))
    assert any("fc Linear backward" in line for line in lines)
    assert len(lines) == 4 or any("own time" in line for line in lines)


def test_span_that_raised_says_what() -> None:
    failed = samples.Node("pipeline", "load", 5_000, attributes={"error": "ValueError"})
    assert any("load raised ValueError" in line for line in drawn(samples.pipeline("all", failed)))


def test_chain_of_operators_is_one_row() -> None:
    lines = drawn(samples.pipeline("predict", samples.conv("conv1", 900_000)))
    assert any("aten::conv2d ⋯ mkldnn_convolution" in line for line in lines)
    assert not any("aten::_convolution" in line for line in lines)


def test_chain_goes_on_past_operators_too_small_to_show() -> None:
    work = samples.op("aten::_slow_conv", own_ns=10**9)
    tree = samples.op("aten::conv2d", samples.op("aten::_nnpack_available"), work)
    others = [samples.op(f"aten::other{i}", own_ns=10**7) for i in range(70)]
    lines = drawn(samples.pipeline("predict", tree, *others))
    assert any("aten::conv2d → _slow_conv" in line for line in lines)
    assert not any("nnpack" in line for line in lines)


def test_hidden_spans_are_counted_and_summed() -> None:
    trace = samples.trace(samples.resnet())
    shown = [line for line in str(trace).splitlines() if "… 3 more layers, 1 more op" in line]
    assert len(shown) == 1
    hidden = trace.spans.filter(
        pl.col("path").str.contains(r"^predict/ResNet/(bn1|relu|avgpool|aten::flatten)$")
    )
    assert f"{summed(hidden) / 1e3:.3g} ±" in shown[0]


def test_thousands_of_small_operators_are_collected_by_name() -> None:
    lines = drawn(samples.wide(5_000))
    assert len(lines) == 6
    assert sum("1,250 \u00d7" in line for line in lines) == 4


def test_tree_that_fits_is_shown_whole() -> None:
    tree = samples.pipeline(
        "predict", samples.op("big", own_ns=10**9), samples.op("tiny", own_ns=1), own_ns=0
    )
    trace = samples.trace(tree)
    assert any("tiny" in line for line in drawn(tree))
    assert "spans in" not in str(trace)


@pytest.mark.parametrize("rows", [5, 20, 60, 200])
def test_rows_are_limited(rows: int) -> None:
    lines = drawn(samples.resnet(), rows=rows)
    assert len(lines) <= max(rows, 16)
    assert len(lines) > rows // 3 or rows > 100


def test_a_cut_tree_says_so_below() -> None:
    printed = " ".join(str(samples.trace(samples.resnet())).split())
    assert re.search(r"728 spans in \d+ rows: repeats are folded", printed)


@pytest.mark.parametrize("width", [72, 80, 100, 140])
@pytest.mark.parametrize(
    "tree", [samples.resnet(), samples.transformer(), samples.wide(3_000), samples.hostile()]
)
def test_no_line_is_wider_than_asked(tree: samples.Node, width: int) -> None:
    printed = samples.trace(tree).tree(width=width)
    assert max(map(wide, printed.splitlines())) <= width


def test_numbers_stand_in_columns() -> None:
    lines = drawn(samples.resnet())
    assert len({line.index("±") for line in lines if "±" in line}) == 1
    assert len({line.rindex("%") for line in lines}) == 1


def test_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = samples.trace(samples.hostile())
    monkeypatch.setenv("COLUMNS", "120")
    broad = max(map(wide, str(trace).splitlines()))
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(wide, str(trace).splitlines())) <= 80 < broad <= 120


def test_names_move_no_cursor_and_break_no_line() -> None:
    printed = str(samples.trace(samples.hostile(), name="evil\x1b[2J\nname"))
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert "two\\nlines\\tand a tab" in printed
    assert "\\x1b[31mred" in printed
    assert "(no name)" in printed


@pytest.mark.parametrize(("depth", "cells"), [(3, 3), (12, 2), (20, 1)])
def test_deep_trees_are_drawn_narrower_so_that_every_level_is_seen(depth: int, cells: int) -> None:
    node = samples.layer("bottom", "Leaf", own_ns=10**6)
    for level in range(depth, 0, -1):
        node = samples.layer(f"level{level}", "Wrapper", node, own_ns=0)
    lines = drawn(samples.pipeline("predict", node), rows=None)
    starts = [line.index("level") for line in lines if "Wrapper" in line]
    assert starts == [max(cells, 2) + cells * level for level in range(depth)]


def test_very_deep_trees_keep_their_names_readable() -> None:
    node = samples.layer("bottom", "Leaf", own_ns=10**6)
    for depth in range(1_200):
        node = samples.layer(f"level{depth}", "Wrapper", node, own_ns=0)
    lines = drawn(samples.pipeline("predict", node), rows=None)
    assert any("bottom Leaf" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_missing_latencies_are_a_dash_and_no_zero() -> None:
    spans = samples.frame(samples.wide(2))
    nothing = [pl.lit(None, dtype=pl.Float64).alias(n) for n in spans.columns if "latency" in n]
    lines = text(spans.with_columns(nothing), {}).splitlines()
    assert lines[0].startswith("trace  —")
    assert any(re.search(r"Cell +—", line) for line in lines)


def test_one_run_has_no_interval() -> None:
    spans = samples.frame(samples.wide(2)).with_columns(
        latency_low_ns=pl.lit(None, dtype=pl.Float64),
        latency_high_ns=pl.lit(None, dtype=pl.Float64),
    )
    assert "±" not in text(spans, {})


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
@settings(max_examples=40, deadline=None)
def test_shares_of_the_roots_children_add_up_whatever_is_folded(
    blocks: list[int], rows: int
) -> None:
    parts = [
        samples.layer(str(i), "Block", *(samples.op("aten::mm", own_ns=50_000),) * size, own_ns=0)
        for i, size in enumerate(blocks)
    ]
    lines = drawn(samples.pipeline("predict", *parts, own_ns=0), rows=rows)
    shares = [
        float(re.search(r"([\d.]+) %", line)[1])  # type: ignore[index]
        for line in lines
        if re.match(r"[├└]", line)
    ]
    if shares:
        assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))


@given(
    st.text(max_size=40),
    st.text("│├└─ ", max_size=60),
    st.integers(-50, 60),
)
def test_a_name_ends_and_fits_into_any_room(label: str, branch: str, room: int) -> None:
    row = Row(1, True, False, "op", label, "", 1, 1.0, None, None, None)
    assert _cells_wide(_name(row, branch, room)) <= max(room, 3)


@pytest.mark.parametrize(
    ("room", "drawn"),
    [
        (40, "Sequential backward 1.1 at once inside"),
        (24, "Sequential backward 1.1…"),
        (12, "Seq…al back…"),
    ],
)
def test_what_is_said_of_a_name_is_cut_at_its_end(room: int, drawn: str) -> None:
    detail = "backward 1.1 at once inside"
    row = Row(1, True, False, "layer", "Sequential", detail, 1, 1.0, None, None, None)
    assert _name(row, "", room) == drawn


@pytest.mark.parametrize("width", [1, 72, 140])
def test_absurd_numbers_neither_hang_nor_fill_the_line(width: int) -> None:
    spans = samples.frame(samples.transformer()).with_columns(
        latency_ns=pl.lit(1e300), latency_high_ns=pl.lit(1e301), overhead_ns=pl.lit(-1e300)
    )
    assert max(map(wide, text(spans, {}, width=width).splitlines())) <= 140
