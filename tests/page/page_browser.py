"""A real browser for the tests of reports: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
NONE = "there is no chromium: install Debian's package chromium"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
READY_MS = 30_000


@dataclass
class Opened:
    """An open report, and what the browser said of it.

    Attributes:
        page: Playwright's page.
        said: Errors in the console, and exceptions that nobody caught.
        asked: What the page asked of any network or disk, but for itself.
    """

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def selected(self) -> str:
        return self.text("#selected h3")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.page.wait_for_function(f"() => {condition}", timeout=READY_MS)


@contextmanager
def launched() -> Iterator[Any]:
    """Start a browser; skip the test where there is none."""
    if CHROMIUM is None:
        pytest.skip(NONE)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, **settings: Any) -> Iterator[Opened]:
    """Open a report in a browser."""
    shown = {"viewport": {"width": 1366, "height": 768}} | settings
    report = Opened(browser.new_page(**shown))
    report.page.on("console", lambda line: _note(report, line))
    report.page.on("pageerror", lambda error: report.said.append(str(error)))
    report.page.on("request", lambda request: _ask(report, request.url, path))
    report.page.goto(path.as_uri())
    report.page.wait_for_selector("html[data-ready=yes]", timeout=READY_MS)
    yield report
    report.page.close()


def _note(report: Opened, line: Any) -> None:
    if line.type == "error":
        report.said.append(line.text)


def _ask(report: Opened, url: str, path: Path) -> None:
    if url.partition("#")[0] != path.as_uri() and not url.startswith(("data:", "blob:")):
        report.asked.append(url)
