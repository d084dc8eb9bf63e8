"""The page on a zoo: what it says, and in a real browser sorted, searched, and tied together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from page_browser import Opened, launched, opened
from zoo_frames import frame, row

from xsp.answer.analyses import estimate_of, text_of
from xsp.errors import ExportError
from xsp.show.page import zoo_report
from xsp.show.page.zoo import page_of_zoo

MS = 1e6
TRAP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
MODELS = "article[data-grid=models]"


def measured(number: int, batch: int, **said: Any) -> dict[str, Any]:
    latency = (40 - number) * batch**0.9 * MS
    usual = {
        "family": "even" if number % 2 == 0 else "odd",
        "accuracy_pct": 60.0 + number,
        "latency_ns": latency,
        "latency_low_ns": 0.9 * latency,
        "latency_high_ns": 1.1 * latency,
        "parameter_bytes": 1_000_000 * (number + 1),
        "flops": 10**9 * batch,
        "flops_per_byte": 2.0 + number,
        "flops_per_s": 1e10 * (number + 1),
        "bound": "memory",
        "time.convolution_pct": 70.0,
    }
    return row(f"model_{number}", batch, **{**usual, **said})


@pytest.fixture(scope="module")
def results() -> pl.DataFrame:
    rows = [measured(number, batch) for number in range(30) for batch in (1, 8)]
    rows += [row("lost", status="time-out", reason="it took longer than 600 s")]
    rows += [row(TRAP, status="failed", reason=TRAP)]
    return frame(*rows)


@pytest.fixture(scope="module")
def page(results: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo_report(results, tmp_path_factory.mktemp("zoo") / "zoo.html", name="thirty")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def report(browser: Any, page: Path) -> Iterator[Opened]:
    with opened(browser, page) as shown:
        yield shown
        assert (shown.said, shown.asked) == ([], [])


def cells(report: Opened, column: int) -> list[str]:
    """Read a column of the drawn rows of the table of models."""
    found = report.page.locator(f"{MODELS} tbody tr:not(.space) td:nth-child({column})")
    return [str(text) for text in found.all_inner_texts()]


def column_of(report: Opened, heading: str) -> int:
    heads = report.page.locator(f"{MODELS} thead th").all_inner_texts()
    return next(at for at, text in enumerate(heads, 1) if text.strip() == heading)


@pytest.fixture
def models(report: Opened) -> Iterator[Opened]:
    """Yield the report; its table of models shows all rows again afterwards."""
    yield report
    report.page.fill(f"{MODELS} .filter", "")
    report.page.keyboard.press("Escape")


def test_the_page_says_what_was_measured_and_what_failed(report: Opened) -> None:
    assert report.text("h1") == "thirty"
    assert report.text(".measured").startswith("32 models · on crane · Xeon 8488C, 2 cores")
    assert "it took longer than 600 s" in report.text("#failures")


def test_names_run_no_script_and_show_as_they_are(report: Opened) -> None:
    assert TRAP in report.text("#failures")
    assert report.page.locator("img").count() == 0


def test_a_click_on_a_heading_sorts_by_value(models: Opened) -> None:
    latency = column_of(models, "online latency")
    head = f"{MODELS} thead th:nth-child({latency}) button"
    models.page.click(head)
    assert cells(models, 1)[:2] == ["model_0", "model_1"]  # the slowest
    models.page.click(head)
    assert cells(models, 1)[:2] == ["model_29", "model_28"]


def test_cells_say_the_same_as_everywhere_else(models: Opened) -> None:
    models.page.fill(f"{MODELS} .filter", "model_7")
    said = {name: cells(models, column_of(models, name)) for name in ("online latency", "flops")}
    assert said["online latency"] == [estimate_of("latency_ns", 33 * MS, 29.7 * MS, 36.3 * MS)]
    assert said["flops"] == [text_of("flops", 8e9)]
    assert cells(models, column_of(models, "parameter")) == [text_of("parameter_bytes", 8_000_000)]


def test_a_chosen_model_is_marked_in_all_tables_and_pictures(models: Opened) -> None:
    models.page.locator("#picture-accuracy").scroll_into_view_if_needed()
    models.wait("Object.values(Bokeh.index).length >= 4")
    models.page.fill(f"{MODELS} .filter", "model_7")
    models.page.click(f"{MODELS} tbody tr:not(.space) button")
    assert models.page.locator("article[data-grid=batch] tr.chosen td").first.inner_text() == (
        "model_7"
    )
    selected = (
        "Object.values(Bokeh.index).flatMap((view) => [...view.model.references()])"
        ".filter((one) => one.type === 'ColumnDataSource' && one.data.entry)"
        ".flatMap((one) => one.selected.indices.map((at) => one.data.entry[at]))"
    )
    marked = models.page.evaluate(f"() => {selected}")
    assert set(marked) == {7}
    assert len(marked) >= 3  # accuracy, roofline and throughput
    models.page.keyboard.press("Escape")
    assert models.page.evaluate(f"() => {selected}") == []


def test_the_page_has_a_dark_theme(models: Opened) -> None:
    models.page.click("#theme")
    dark = models.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    models.page.click("#theme")
    assert dark == "rgb(20, 23, 28)"


def test_of_thousands_of_rows_those_are_drawn_that_can_be_seen(
    browser: Any, tmp_path: Path
) -> None:
    many = pl.concat([frame(measured(1, 1))] * 4_000)
    names = pl.Series("model", [f"m{n:04}" for n in range(4_000)])
    path = zoo_report(many.with_columns(names, target=names), tmp_path / "many.html", name="many")
    with opened(browser, path) as report:
        assert len(cells(report, 1)) < 60
        report.page.evaluate(f"() => document.querySelector('{MODELS} .rows').scrollTo(0, 1e9)")
        report.page.wait_for_function(
            f"() => document.querySelector('{MODELS} tbody').innerText.includes('m3999')"
        )
        assert len(cells(report, 1)) < 60


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "There are no results yet"),
        ([row("a", status="failed", reason="no such model")], "no such model"),
        ([row("a", latency_ns=1e6)], "1 model · on crane"),
    ],
    ids=["empty", "failed", "one"],
)
def test_there_is_a_page_of_little_or_nothing(rows: list[dict[str, Any]], said: str) -> None:
    assert said in page_of_zoo(frame(*rows), "few_samples")


@pytest.mark.parametrize("missing", ["bokeh", "jinja2"])
def test_without_what_draws_it_the_page_is_refused(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExportError, match=r"pip install 'xsp\[report\]'"):
        zoo_report(frame(), tmp_path / "zoo.html", name="none")
