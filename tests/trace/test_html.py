from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest
import samples

from xsp.trace import html
from xsp.trace.document import Trace
from xsp.trace.row import Row

VOID = {"br", "hr", "img", "meta", "link", "input"}


class Reader(HTMLParser):
    """Reads a fragment, and insists that every tag is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.deepest = 0
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in VOID
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attrs
        self.deepest = max(self.deepest, self.open.count("details"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def read(tree: samples.Node) -> Reader:
    return Reader(samples.trace(tree)._repr_html_())


@pytest.mark.parametrize(
    "tree", [samples.resnet(), samples.transformer(), samples.wide(3_000), samples.hostile()]
)
def test_every_tag_is_closed_in_its_place(tree: samples.Node) -> None:
    assert read(tree).tags[0] == "div"


def test_nothing_is_executed_and_nothing_fetched() -> None:
    page = read(samples.hostile())
    assert set(page.tags) <= {"div", "style", "p", "span", "details", "summary"}
    assert {name for name, _ in page.attributes} <= {"class", "style", "title", "open"}
    style = re.search(r"<style>(.*?)</style>", samples.trace(samples.wide(1))._repr_html_(), re.S)
    assert style
    assert not re.search(r"url\(|@import|http", style[1])


def test_names_arrive_as_text() -> None:
    words = read(samples.hostile()).words
    assert "</details></div><script>alert(1)</script>" in words
    assert 'quoted "name" & <b>bold</b>' in words


def test_names_cannot_leave_their_attribute() -> None:
    page = read(samples.pipeline('"><img src=x onerror=alert(1)>', samples.op("' onclick='x")))
    titles = [value or "" for name, value in page.attributes if name == "title"]
    assert titles[0].startswith('"><img src=x onerror=alert(1)>\n')
    assert any(title.startswith("' onclick='x\n") for title in titles)


def test_a_row_tells_path_and_attributes_of_its_span() -> None:
    shapes: dict[str, Any] = {"input_shapes": [[1, 3, 224, 224], [2]], "parameter_bytes": 4_096}
    page = read(samples.pipeline("predict", samples.layer("conv1", "Conv2d", **shapes)))
    titles = [value or "" for name, value in page.attributes if name == "title"]
    assert titles[1].splitlines() == [
        "conv1",
        "predict/conv1",
        "input_shapes: 1\u00d73\u00d7224\u00d7224, 2",
        "parameter_bytes: 4,096",
    ]


def test_whatever_a_row_holds_cannot_leave_its_place() -> None:
    evil = 'op"><img src=x onerror="alert(1)'
    row = Row(0, True, False, evil, evil, evil, 1, 1.0, 0.1, 0.0, 1.0, 1.0)
    drawn = html._row(row, ("latency", "share"))
    assert "<img" not in drawn
    assert Reader(str(drawn)).attributes[0] == ("class", f"row {evil} leaf")


def test_problems_and_name_are_escaped() -> None:
    problems = [{"code": "<i>", "message": "<script>x</script>"}]
    page = samples.trace(samples.wide(1), name="<b>", problems=problems)._repr_html_()
    assert "<script" not in page
    assert "&lt;b&gt;" in page


def test_branches_nest_as_the_spans_do() -> None:
    page = read(samples.resnet())
    assert page.deepest >= 5
    assert page.tags.count("details") == page.tags.count("summary")


def test_the_first_levels_are_open_and_deeper_ones_closed() -> None:
    page = samples.trace(samples.resnet())._repr_html_()
    assert 0 < page.count("<details open>") < page.count("<details>")


def test_numbers_are_those_of_the_text_tree() -> None:
    words = read(samples.resnet()).words
    assert "39.0 ± 0.39 ms" in words
    assert "100.0 %" in words
    assert any(re.fullmatch(r"5 \u00d7 2\.01 ms", word) for word in words)


def test_rows_that_are_not_exact_are_marked_and_the_marks_that_occur_explained() -> None:
    leaf = samples.layer("act", "ReLU", **samples.inexact("carried", "few"))
    page = read(samples.pipeline("step", leaf))
    assert page.words.count("+?") == 1
    assert page.words[-1] == "+ still with overhead · ? in fewer than 5 runs"


def test_where_all_is_exact_there_are_no_marks_and_no_legend() -> None:
    page = read(samples.resnet())
    assert ("class", "n marks") not in page.attributes
    assert not any("still with overhead" in word for word in page.words)


def test_very_deep_trees_are_drawn_without_recursion() -> None:
    node = samples.layer("bottom", "Leaf")
    for depth in range(800):
        node = samples.layer(f"level{depth}", "Wrapper", node, own_ns=10)
    assert read(samples.pipeline("predict", node)).deepest > 700


def test_thousands_of_spans_are_cut_and_said_to_be() -> None:
    tree = samples.pipeline(
        "predict",
        *(samples.op(f"op{i}", samples.op("inner"), own_ns=9_000 + i) for i in range(5_000)),
    )
    page = read(tree)
    assert page.tags.count("span") < 12_000
    assert any("10,001 spans in" in word for word in page.words)


def test_trace_without_spans_or_latencies_is_drawn() -> None:
    spans = samples.frame(samples.wide(2))
    Reader(Trace(spans.clear(), {})._repr_html_())
    nothing = [pl.lit(None, dtype=pl.Float64).alias(n) for n in spans.columns if "latency" in n]
    assert "—" in Reader(Trace(spans.with_columns(nothing), {})._repr_html_()).words
