"""Reports in a real browser: clicked, searched, sorted, filtered, zoomed, and full of traps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from page_browser import Opened, launched, opened
from samples import conv, hostile, layer, op, pipeline, resnet, trace

import xsp
from xsp.analyses import estimate_of
from xsp.text import duration
from xsp.trace import Trace

PATH = "predict/ResNet/layer1/0/conv2"
# The figure of a view among those of BokehJS.
FIGURE = "Object.values(Bokeh.index).map((view) => view.model).find((one) => one.name === '{}')"
# The bar covers the top of the page.
IN_SIGHT = (
    "[document.querySelector('#icicle').getBoundingClientRect()].every((box) =>"
    " box.top >= 40 && box.bottom <= innerHeight)"
)
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
    problems = [{"code": "<!--", "message": "--><img src=x onerror=alert(1)>"}]
    made = Trace(names.spans, {**names.metadata, "problems": problems})
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
        assert "<img src=x onerror=alert(1)>" in report.text(".problems")
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
    assert shown_range(report, "icicle") == (0, 1)


@pytest.mark.slow
def test_buttons_zoom_the_timeline(report: Opened) -> None:
    before = shown_range(report, "timeline")
    report.page.click('[data-view="timeline"] [aria-label="Zoom in"]')
    after = shown_range(report, "timeline")
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 2)
    report.page.click('[data-view="timeline"] [aria-label="Show all of it"]')
    assert shown_range(report, "timeline") == before


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
def test_the_switch_changes_the_colours_of_page_and_boxes(report: Opened) -> None:
    light = report.page.evaluate(f"() => {BOXES.format('icicle')}.fill[1]")
    report.page.click("#theme")
    assert report.page.get_attribute("html", "data-theme") == "dark"
    report.wait(f"{BOXES.format('icicle')}.fill[1] !== '{light}'")


@pytest.mark.slow
def test_the_page_is_dark_where_the_system_is(resnet_page: Path, browser: Any) -> None:
    with opened(browser, resnet_page, color_scheme="dark") as report:
        assert report.page.get_attribute("html", "data-theme") == "dark"


@pytest.mark.slow
def test_what_is_printed_is_the_first_screen_and_the_tables(report: Opened) -> None:
    report.page.emulate_media(media="print")
    assert report.page.is_visible("h1")
    assert report.page.is_visible('[data-table="layer-latency"] tbody tr')
    assert not report.page.is_visible("#icicle")
    assert not report.page.is_visible("#search")


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


@pytest.mark.slow
def test_the_panel_is_about_the_trace_that_is_shown(tmp_path: Path, browser: Any) -> None:
    both = [trace(resnet(), name="before"), small()]
    with opened(browser, xsp.report(both, tmp_path / "two.html")) as report:
        row_of(report, PATH).click()
        assert report.selected() == "conv2 Conv2d"
        report.page.select_option("#traces", "1")
        report.wait("document.querySelector('[data-trace=\"0\"]').hidden")
        shown = small()
        root = shown.span("predict")
        assert report.selected() == "predict"
        assert duration(root.latency_ns or 0) in report.text("#selected table >> nth=0")
        inside = report.page.locator("#selected .inside .link")
        assert inside.all_inner_texts() == ["Net"]
        assert report.page.locator("#crumbs").inner_text() == "predict"
        report.page.locator('[data-table="layer-latency"] tr.spans .link:visible').last.click()
        assert report.selected() == "first Conv2d"
        report.page.select_option("#traces", "0")
        report.wait("!document.querySelector('[data-trace=\"0\"]').hidden")
        assert report.selected() == "conv2 Conv2d"
        assert "chosen" in row_of(report, PATH).get_attribute("class")
        report.page.select_option("#traces", "1")
        report.wait("document.querySelector('[data-trace=\"0\"]').hidden")
        assert report.selected() == "first Conv2d"
        report.page.click('nav a[href="#provenance"]')
        assert report.page.locator("#provenance summary:visible").count() == 1
        assert (report.said, report.asked) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_search_scrolls_to_what_it_found_and_goes_on(
    resnet_page: Path, browser: Any, motion: str
) -> None:
    with opened(browser, resnet_page, reduced_motion=motion) as report:
        report.page.keyboard.press("/")
        report.page.keyboard.type("downsample")
        assert report.page.evaluate("scrollY") == 0
        report.page.keyboard.press("Enter")
        if motion == "reduce":
            assert report.page.evaluate(IN_SIGHT)
        report.wait(IN_SIGHT)
        assert report.page.evaluate("document.activeElement.id") == "search"
        report.page.keyboard.press("Enter")
        assert report.text("#found") == "2 of 4"


@pytest.mark.slow
@pytest.mark.parametrize("end", [0.03, 0.19, 0.999, 3.0])
def test_the_panel_writes_intervals_as_tables_do(tmp_path: Path, browser: Any, end: float) -> None:
    made = small()
    latency = pl.col("latency_ns")
    spans = made.spans.with_columns(
        latency_low_ns=(latency * (1 - end)).clip(0), latency_high_ns=latency * (1 + end)
    )
    root = spans.row(0, named=True)
    said = estimate_of("latency_ns", *(root[f"latency_{one}ns"] for one in ("", "low_", "high_")))
    changed = Trace(spans, made.metadata)
    with opened(browser, xsp.report(changed, tmp_path / "one.html")) as report:
        told = report.page.locator("#selected table tr", has_text="latency").first
        assert told.locator("td").last.inner_text() == said


def test_a_printed_page_has_the_plots_that_nobody_scrolled_to(report: Opened) -> None:
    missing = ".answer .plot:not([hidden]):empty"
    report.wait(
        f"[...document.querySelectorAll('{missing}')].every((one) => one.offsetParent === null)"
    )
    report.page.emulate_media(media="print")
    assert report.page.locator('[data-table="layer-latency"] .plot canvas').count() > 0
