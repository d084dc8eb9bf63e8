"""Reports in a real browser: clicked, searched, sorted, filtered, zoomed, and full of traps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_browser import Opened, launched, opened
from samples import conv, hostile, layer, op, pipeline, resnet, trace

import xsp
from xsp.show.cli.demo import TRACE as DEMO
from xsp.trace import Trace

PATH = "predict/ResNet/layer1/0/conv2"
# The figure of a view among those of BokehJS.
FIGURE = "Object.values(Bokeh.index).map((view) => view.model).find((one) => one.name === '{}')"
BOXES = FIGURE + ".renderers[0].data_source.data"


@pytest.fixture
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def resnet_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return xsp.report(trace(resnet(), name="ResNet"), tmp_path_factory.mktemp("page") / "a.html")


@pytest.fixture
def report(browser: Any, resnet_page: Path) -> Iterator[Opened]:
    with opened(browser, resnet_page) as shown:
        yield shown
        assert (shown.said, shown.asked) == ([], [])


def small() -> Trace:
    return trace(pipeline("predict", layer("Net", "Net", conv("first", 50_000), op("aten::add"))))


def row_of(report: Opened, path: str) -> Any:
    return report.page.locator(f'[data-table="layer-latency"] tr:has-text("{path}")').first


def shown_range(report: Opened, view: str) -> tuple[float, float]:
    """Return which part of a view is shown, in the units of its axis."""
    range_of = FIGURE.format(view) + ".x_range"
    start, end = report.page.evaluate(f"() => [{range_of}.start, {range_of}.end]")
    return start, end


@pytest.mark.slow
def test_a_report_opens_without_a_network_and_without_errors(tmp_path: Path, browser: Any) -> None:
    with opened(browser, xsp.report(small(), tmp_path / "small.html")) as report:
        assert report.text("h1") == "predict"
        assert report.selected() == "predict"
        for view in ("icicle", "timeline"):
            report.wait(f"{BOXES.format(view)}.left.length > 5")
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
def test_hostile_names_run_no_script_and_show_as_they_are(tmp_path: Path, browser: Any) -> None:
    names = trace(hostile(), name="</title><script>alert(1)</script>")
    warnings = [{"code": "<!--", "message": "--><img src=x onerror=alert(1)>"}]
    made = Trace(names.spans, {**names.metadata, "warnings": warnings})
    with opened(browser, xsp.report(made, tmp_path / "hostile.html")) as report:
        dialogs: list[str] = []
        report.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        for text in ("alert", "bold", "層", "xxx"):
            report.page.fill("#search", text)
            report.page.press("#search", "Enter")
            report.page.wait_for_timeout(150)
            report.page.hover("#icicle")
        report.page.locator('[data-table="layer-latency"] tr.spans').last.click()
        assert report.text("h1") == "</title><script>alert(1)</script>"
        assert "<img src=x onerror=alert(1)>" in report.text(".warnings")
        assert report.page.locator("img").count() == 0
        assert report.page.locator("b:text-is('bold')").count() == 0
        assert dialogs == []
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
def test_the_browser_refuses_a_script_that_is_not_the_pages_own(
    resnet_page: Path, browser: Any
) -> None:
    with opened(browser, resnet_page) as report:
        report.page.evaluate(
            "() => { const s = document.createElement('script'); s.text = 'window.ran = 1';"
            " document.body.append(s) }"
        )
        assert report.page.evaluate("() => window.ran") is None
        assert any("Content Security Policy" in line for line in report.said)


@pytest.mark.slow
def test_a_click_on_a_row_selects_the_layer_everywhere(report: Opened) -> None:
    row_of(report, PATH).click()
    assert report.selected() == "conv2 Conv2d"
    assert "layer1" in report.text("#crumbs")
    assert "chosen" in row_of(report, PATH).get_attribute("class")
    for view in ("icicle", "timeline"):
        marks = f"{FIGURE.format(view)}.renderers[2].data_source.data"
        left, right = report.page.evaluate(f"() => [{marks}.left[0], {marks}.right[0]]")
        assert 0 < left < right
    report.wait("document.querySelector('#selected').innerText.includes('module class')")


@pytest.mark.slow
def test_a_click_on_a_box_selects_and_a_double_click_zooms(report: Opened) -> None:
    report.page.locator("#icicle").scroll_into_view_if_needed()
    bounds = report.page.locator("#icicle").bounding_box()
    # On the third line lie the stem and the stages.
    place = (bounds["x"] + bounds["width"] * 0.5, bounds["y"] + 20 * 2 + 10)
    report.page.mouse.click(*place)
    report.wait("document.querySelector('#selected h3').innerText.startsWith('layer')")
    stage = report.selected()
    assert shown_range(report, "icicle") == (0, 1)
    report.page.mouse.dblclick(*place)
    report.wait(f"{FIGURE.format('icicle')}.x_range.start > 0")
    assert report.selected() == stage
    assert report.page.locator('[data-table="layer-latency"] tr.chosen').count() == 1


@pytest.mark.slow
def test_search_finds_steps_through_what_it_found_and_dims_the_rest(report: Opened) -> None:
    report.page.keyboard.press("/")
    report.page.keyboard.type("downsample")
    report.wait("document.querySelector('#found').innerText === '4 found'")
    report.page.keyboard.press("Enter")
    assert report.text("#found") == "1 of 4"
    assert report.selected() == "downsample Sequential"
    report.wait(f"new Set({BOXES.format('icicle')}.alpha).size === 2")
    report.page.keyboard.press("Escape")
    report.wait(f"new Set({BOXES.format('icicle')}.alpha).size === 1")
    assert report.text("#found") == ""


@pytest.mark.slow
def test_tables_sort_by_value_filter_and_show_all(report: Opened) -> None:
    table = report.page.locator('[data-table="layer-latency"]')
    rows = table.locator("tbody tr:not(.extra)")
    own = table.locator("th button", has_text="own").first
    assert rows.count() == 50
    own.click()
    assert table.locator("th[aria-sort=descending]").inner_text().strip() == "own"
    largest = rows.first.inner_text()
    assert "conv" in largest
    own.click()
    assert rows.first.inner_text() != largest
    table.locator(".filter").fill("batchnorm2d")
    assert rows.count() == 50
    assert all("BatchNorm2d" in row for row in rows.all_inner_texts())
    assert table.locator(".count").inner_text().startswith("53 of ")
    table.locator(".filter").fill("")
    table.locator(".all").click()
    assert rows.count() == int(table.locator(".count").inner_text().split()[0])


@pytest.mark.slow
def test_the_switch_changes_the_colors_of_page_and_boxes(report: Opened) -> None:
    light = report.page.evaluate(f"() => {BOXES.format('icicle')}.fill[1]")
    report.page.click("#theme")
    assert report.page.get_attribute("html", "data-theme") == "dark"
    report.wait(f"{BOXES.format('icicle')}.fill[1] !== '{light}'")


@pytest.mark.slow
def test_several_traces_stand_side_by_side_and_one_is_looked_at(
    tmp_path: Path, browser: Any
) -> None:
    both = [trace(resnet(), name="before"), small()]
    with opened(browser, xsp.report(both, tmp_path / "two.html")) as report:
        assert report.text("h1") == "before"
        assert report.page.locator("#comparison table.plain tbody tr").count() == 2
        report.page.click('[data-open="1"]')
        report.wait("document.querySelector('h1').closest('section').hidden")
        assert report.page.locator("h1:visible").inner_text() == "predict"
        report.page.locator('[data-table="layer-latency"] tr.spans:visible').last.click()
        assert report.selected() == "first Conv2d"
        assert (report.said, report.asked) == ([], [])


NAMELESS = """() => [...document.querySelectorAll("a, button, input, select")]
  .filter((each) => each.offsetParent && !(each.innerText || each.ariaLabel || each.title ||
    each.labels?.length)).map((each) => each.outerHTML)"""
# Targets less than 24 CSS pixels high: WCAG 2.2, success criterion 2.5.8.
SMALL = """() => [...document.querySelectorAll(".contents a, #panel button, .bar a, .bar button")]
  .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 24)
  .map((each) => each.outerHTML)"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1366])
def test_links_and_buttons_have_names_and_room_and_nothing_is_cut(
    tmp_path: Path, browser: Any, width: int
) -> None:
    page = xsp.report(xsp.load(DEMO), tmp_path / "demo.html")
    with opened(browser, page, viewport={"width": width, "height": 768}) as report:
        report.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        report.wait("document.querySelector('#panel .inside button')")
        assert report.page.evaluate(NAMELESS) == []
        assert report.page.evaluate(SMALL) == []
        assert report.page.evaluate("document.documentElement.scrollWidth") <= width
