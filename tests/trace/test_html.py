from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import samples

from xsp.trace import html
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
        "time: 2.00 ± 0.020 µs",
        "overhead removed: 200 ns",
    ]


def test_whatever_a_row_holds_cannot_leave_its_place() -> None:
    evil = 'op"><img src=x onerror="alert(1)'
    row = Row(0, True, False, evil, evil, evil, 1, 1.0, 0.1, 0.0, 1.0, 1.0)
    drawn = html._row(row, ("time", "share"))
    assert "<img" not in drawn
    assert Reader(str(drawn)).attributes[0] == ("class", f"row {evil} leaf")


def test_numbers_are_those_of_the_text_tree() -> None:
    words = read(samples.resnet()).words
    assert "39.0 ms" in words
    assert "100" in words
    assert any("5 \u00d7 2.01 ms" in word for word in words)


def test_thousands_of_spans_are_cut_and_said_to_be() -> None:
    tree = samples.pipeline(
        "predict",
        *(samples.op(f"op{i}", samples.op("inner"), own_ns=9_000 + i) for i in range(5_000)),
    )
    page = read(tree)
    assert page.tags.count("span") < 12_000
    assert any("for 10,001 spans" in word for word in page.words)
