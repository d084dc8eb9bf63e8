"""Reads figures, and draws them in a real browser: Debian's chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bokeh.models import ColumnDataSource, GlyphRenderer, HoverTool

CHROMIUM = shutil.which("chromium")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def source(figure: Any, column: str) -> dict[str, Any]:
    """Return the columns of the first source of a figure that has a column."""
    sources = figure.select({"type": ColumnDataSource})
    return next(dict(one.data) for one in sources if column in one.data)


def marks(figure: Any) -> list[GlyphRenderer]:
    return [one for one in figure.renderers if isinstance(one, GlyphRenderer)]


def told(figure: Any) -> dict[str, str]:
    """Read the names and values that appear when the pointer rests on the first mark."""
    hover = figure.select_one({"type": HoverTool})
    data = hover.renderers[0].data_source.data
    return {said: data[field[2:-1]][0] for said, field in hover.tooltips}


@contextmanager
def browser() -> Iterator[tuple[Any, list[str]]]:
    """Yield a page of a browser, and what goes wrong or leaves it; skip where there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install Debian's package chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    said: list[str] = []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        page = running.new_page(viewport={"width": 900, "height": 600})
        page.on("console", lambda line: _note(said, line))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: _ask(said, request.url))
        yield page, said
        running.close()


def _note(said: list[str], line: Any) -> None:
    if line.type in ("warning", "error"):
        said.append(f"{line.type}: {line.text}")


def _ask(said: list[str], url: str) -> None:
    if not url.startswith(("data:", "blob:", "about:", "file:")):
        said.append(f"asked for {url}")
