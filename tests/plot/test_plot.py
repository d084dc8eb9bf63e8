"""Plots as pages: in files and in the frames of notebooks, drawn by a real browser."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import samples
from drawn import browser

import xsp
from xsp.show.plot import PAIRS, SCRIPT
from xsp.show.plot.theme import PAPER

HOSTILE = "</script><script>fetch('http://example.org/a')</script><img src=x onerror=alert(1)>$$x$$"


@pytest.fixture(scope="module")
def plot() -> xsp.plot.Plot:
    return xsp.plot.layer_latency(samples.trace(samples.resnet()))


def test_a_plot_is_saved_as_one_page_that_loads_nothing(
    plot: xsp.plot.Plot, tmp_path: Path
) -> None:
    page = plot.save(tmp_path / "layers.html").read_text()
    assert "Which layers take the time?" in page
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)


def test_a_notebook_gets_a_frame_with_the_whole_page_in_it(plot: xsp.plot.Plot) -> None:
    frame = plot._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(page).startswith("<!DOCTYPE html>")
    assert "allow-same-origin" not in frame  # its scripts cannot reach the notebook


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_notebooks_frame_is_drawn_without_a_complaint(theme: str, tmp_path: Path) -> None:
    plot = xsp.plot.layer_latency(samples.trace(samples.resnet())).themed(theme)  # type: ignore[arg-type]
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><meta charset=utf-8>{plot._repr_html_()}")
    with browser() as (page, said):
        page.goto(notebook.as_uri())
        frame = page.frame_locator("iframe")
        frame.locator("canvas").first.wait_for()
        assert frame.locator("h1").inner_text() == "Which layers take the time?"
        color = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        inner = frame.locator("html").evaluate("html => html.scrollHeight")
        outer = page.locator("iframe").evaluate("iframe => iframe.clientHeight")
    hexed = "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3])
    assert hexed == getattr(PAPER, theme)
    assert inner <= outer  # nothing to scroll
    assert said == []


@pytest.mark.slow
def test_hostile_names_run_nothing_and_are_shown_as_they_are(tmp_path: Path) -> None:
    layers = [samples.layer(HOSTILE, HOSTILE, own_ns=9_000_000), samples.layer("b", "B")]
    trace = samples.trace(samples.pipeline("predict", *layers))
    path = xsp.plot.layer_latency(trace).save(tmp_path / "hostile.html")
    with browser() as (page, said):
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(path.as_uri())
        page.locator("canvas").first.wait_for()
        box = page.locator(".bk-Canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.6)
        page.get_by_text("onerror=alert(1)").first.wait_for()
    assert said == []


@pytest.mark.slow
def test_a_page_changes_the_theme_of_its_figures_by_script(
    plot: xsp.plot.Plot, tmp_path: Path
) -> None:
    path = plot.save(tmp_path / "layers.html")
    colors = """() => {
        const [figure] = Bokeh.documents[0].roots()[0].children;
        const bars = figure.renderers[0].data_source.data.color;
        return [...new Set([...bars, figure.left[0].axis_label_text_color,
            figure.left[0].major_label_text_color, figure.legend?.label_text_color])]
            .filter((color) => typeof color === "string").sort();
    }"""
    with browser() as (page, said):
        page.goto(path.as_uri())
        page.wait_for_function("Bokeh.documents.length && Bokeh.documents[0].is_idle")
        page.add_script_tag(content=SCRIPT)
        before = page.evaluate(colors)
        for theme in ("dark", "dark"):
            page.evaluate(
                "([theme, pairs]) => xspTheme(Bokeh.documents[0], theme, pairs)",
                [theme, dict(PAIRS)],
            )
        assert page.evaluate(colors) == sorted({PAIRS[color] for color in before})
        page.evaluate("(pairs) => xspTheme(Bokeh.documents[0], 'light', pairs)", dict(PAIRS))
        assert page.evaluate(colors) == before
    assert said == []
