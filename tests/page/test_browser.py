"""Reports in a real browser: clicked, searched, sorted, filtered, zoomed, and full of traps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, opened
from samples import conv, hostile, layer, op, pipeline, resnet, trace

import xsp
from xsp.trace import Trace

PATH = "predict/ResNet/layer1/0/conv2"


def small() -> Trace:
    return trace(pipeline("predict", layer("Net", "Net", conv("first", 50_000), op("aten::add"))))


@pytest.fixture(scope="module")
def resnet_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return xsp.report(trace(resnet(), name="ResNet"), tmp_path_factory.mktemp("page") / "a.html")


@pytest.fixture
def report(resnet_page: Path) -> Iterator[Opened]:
    with opened(resnet_page) as shown:
        yield shown
        assert (shown.said, shown.asked) == ([], [])


def row_named(report: Opened, path: str) -> Any:
    return report.page.locator(f'[data-table="layer-latency"] tr:has-text("{path}")').first


def shown_range(report: Opened, view: str) -> list[float]:
    """Return which part of a view is shown, as fractions of all of it."""
    return list(
        report.page.evaluate(
            "name => { for (const view of Object.values(Bokeh.index)) {"
            " const m = view.model; if (m.name === name) return [m.x_range.start, m.x_range.end]"
            " } }",
            view,
        )
    )


def boxes(report: Opened, view: str) -> int:
    return int(
        report.page.evaluate(
            "name => { for (const view of Object.values(Bokeh.index)) if (view.model.name === name)"
            " return view.model.renderers[0].data_source.data.left.length }",
            view,
        )
    )


def test_a_report_opens_without_a_network_and_without_errors(tmp_path: Path) -> None:
    with opened(xsp.report(small(), tmp_path / "small.html")) as report:
        assert report.text("h1") == "predict"
        assert report.selected() == "predict"
        assert boxes(report, "icicle") > 5
        assert boxes(report, "timeline") > 5
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
def test_hostile_names_run_no_script_and_show_as_they_are(tmp_path: Path) -> None:
    names = trace(hostile(), name="</title><script>alert(1)</script>")
    problems = [{"code": "<!--", "message": "--><img src=x onerror=alert(1)>"}]
    made = Trace(names.spans, {**names.metadata, "problems": problems})
    path = xsp.report(made, tmp_path / "hostile.html")
    with opened(path) as report:
        dialogs: list[str] = []
        report.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        for text in ("alert", "bold", "層", "xxx"):
            report.page.fill("#search", text)
            report.page.press("#search", "Enter")
            report.page.wait_for_timeout(150)
        report.page.locator("tr.spans").first.click()
        assert report.text("h1") == "</title><script>alert(1)</script>"
        assert "<img src=x onerror=alert(1)>" in report.text(".problems")
        assert report.page.locator("img").count() == 0
        assert report.page.locator("b:text-is('bold')").count() == 0
        assert dialogs == []
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
def test_the_browser_refuses_a_script_that_is_not_the_pages_own(resnet_page: Path) -> None:
    with opened(resnet_page) as report:
        report.page.evaluate(
            "() => { const s = document.createElement('script'); s.text = 'window.ran = 1';"
            " document.body.append(s) }"
        )
        assert report.page.evaluate("() => window.ran") is None
        assert any("Content Security Policy" in line for line in report.said)


@pytest.mark.slow
def test_a_click_on_a_row_selects_the_layer_everywhere(report: Opened) -> None:
    row_named(report, PATH).click()
    assert report.selected() == "conv2 Conv2d"
    assert "layer1" in report.text("#crumbs")
    assert "chosen" in row_named(report, PATH).get_attribute("class")
    assert "module path" in report.text("#selected") or "module class" in report.text("#selected")


@pytest.mark.slow
def test_a_click_on_a_box_selects_and_a_second_one_zooms(report: Opened) -> None:
    bounds = report.page.locator("#icicle").bounding_box()
    line = bounds["y"] + 20 * 2 + 10  # the third line: the stem and the stages
    report.page.mouse.click(bounds["x"] + bounds["width"] * 0.5, line)
    stage = report.selected()
    assert stage.startswith("layer")
    assert shown_range(report, "icicle") == [0, 1]
    report.page.mouse.dblclick(bounds["x"] + bounds["width"] * 0.5, line)
    report.page.wait_for_timeout(300)
    start, end = shown_range(report, "icicle")
    assert 0 < start < end < 1
    assert report.selected() == stage
    assert report.page.locator("tr.chosen").count() == 1


@pytest.mark.slow
def test_search_finds_steps_through_what_it_found_and_dims_the_rest(report: Opened) -> None:
    report.page.keyboard.press("/")
    report.page.keyboard.type("downsample")
    report.page.wait_for_timeout(300)
    assert report.text("#found") == "4 found"
    report.page.keyboard.press("Enter")
    assert report.text("#found") == "1 of 4"
    assert report.selected() == "downsample Sequential"
    alphas = report.page.evaluate(
        "() => Array.from(new Set(Object.values(Bokeh.index)[0].model.renderers[0]"
        ".data_source.data.alpha))"
    )
    assert sorted(alphas) == [0.18, 1]
    report.page.keyboard.press("Escape")
    report.page.wait_for_timeout(100)
    assert report.text("#found") == ""


@pytest.mark.slow
def test_keys_move_the_selection_zoom_and_reset(report: Opened) -> None:
    report.page.focus("#icicle")
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp"):
        report.page.keyboard.press(key)
        seen.append(report.selected())
    assert seen == [
        *("ResNet", "conv1 Conv2d", "bn1 BatchNorm2d", "relu ReLU"),
        *("bn1 BatchNorm2d", "ResNet"),
    ]
    report.page.keyboard.press("ArrowDown")
    report.page.keyboard.press("Enter")
    assert shown_range(report, "icicle")[1] < 0.2
    report.page.keyboard.press("Escape")
    assert shown_range(report, "icicle") == [0, 1]


@pytest.mark.slow
def test_tables_sort_by_value_filter_and_show_all(report: Opened) -> None:
    table = report.page.locator('[data-table="layer-latency"]')
    rows = table.locator("tbody tr")
    assert rows.count() == 50
    table.locator("th button", has_text="own").click()
    assert table.locator("th[aria-sort=descending]").inner_text().strip() == "own"
    largest = rows.first.inner_text()
    assert "conv" in largest
    table.locator("th button", has_text="own").click()
    assert rows.first.inner_text() != largest
    table.locator(".filter").fill("batchnorm2d")
    assert 0 < rows.count() <= 53
    assert all("BatchNorm2d" in row for row in rows.all_inner_texts())
    assert "53 of" in table.locator(".count").inner_text()
    table.locator(".filter").fill("")
    table.locator(".all").click()
    assert rows.count() == int(table.locator(".count").inner_text().split()[0])


@pytest.mark.slow
def test_the_switch_changes_the_colours_of_page_and_boxes(report: Opened) -> None:
    fill = "() => Object.values(Bokeh.index)[0].model.renderers[0].data_source.data.fill[1]"
    light = report.page.evaluate(fill)
    report.page.click("#theme")
    report.page.wait_for_timeout(200)
    assert report.page.get_attribute("html", "data-theme") == "dark"
    assert report.page.evaluate(fill) != light


@pytest.mark.slow
def test_the_page_is_dark_where_the_system_is(resnet_page: Path) -> None:
    with opened(resnet_page, color_scheme="dark") as report:
        assert report.page.get_attribute("html", "data-theme") == "dark"


@pytest.mark.slow
def test_what_is_printed_is_the_first_screen_and_the_tables(report: Opened) -> None:
    report.page.emulate_media(media="print")
    assert report.page.is_visible("h1")
    assert report.page.is_visible('[data-table="layer-latency"] tbody tr')
    assert not report.page.is_visible("#icicle")
    assert not report.page.is_visible("#search")


@pytest.mark.slow
def test_several_traces_stand_side_by_side_and_one_is_looked_at(tmp_path: Path) -> None:
    both = [trace(resnet(), name="before"), small()]
    with opened(xsp.report(both, tmp_path / "two.html")) as report:
        assert report.text("h1") == "before"
        assert report.page.locator("#comparison tbody tr").count() == 2
        report.page.click('[data-open="1"]')
        report.page.wait_for_timeout(300)
        assert report.page.locator("h1:visible").inner_text() == "predict"
        report.page.locator("tr.spans:visible").last.click()
        assert report.selected() == "first Conv2d"
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
def test_numbers_in_the_panel_read_as_everywhere(report: Opened) -> None:
    row_named(report, PATH).click()
    span = trace(resnet()).span(PATH)
    assert span.latency_ns is not None
    said = report.page.locator("#selected table").first.inner_text()
    assert f"{span.latency_ns / 1e3:.0f} µs ±" in said
