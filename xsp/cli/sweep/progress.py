"""Progress of `xsp sweep`: what a sweep tells in, a bar on a terminal or plain lines out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xsp.cli import terminal

if TYPE_CHECKING:
    from xsp.sweep import Grid, Point, Result


def plan_line(grid: Grid, path: Path, expected_s: float) -> str:
    """Return how many points there are, where they go, and how long they take."""
    from xsp.text import clock_time, counted  # noqa: PLC0415

    points = counted(len(grid.points), "point")
    most = "up to " if grid.doubling else ""
    return f"{most}{points}, {most}about {clock_time(expected_s)}, to {path}"


@contextmanager
def watching(grid: Grid, path: Path, expected_s: float) -> Iterator[Watcher]:
    """Yield what is told of a sweep, and shows it on standard error."""
    terminal.say(plan_line(grid, path, expected_s))
    if sys.stderr is None or not sys.stderr.isatty():
        yield Watcher(len(grid.points), doubling=grid.doubling)
        return
    with drawn_bar() as bar:
        yield _Drawn(len(grid.points), bar, doubling=grid.doubling)


class Watcher:
    """Says a line for each point that has a result.

    Args:
        points: How many points there are, at most.
        doubling: Whether there may be fewer.
    """

    def __init__(self, points: int, *, doubling: bool) -> None:
        self._points = points
        self._most = "at most " if doubling else "about "
        self._number = 0

    def began(self, point: Point, again: str, left_s: float) -> None:
        """Say why a point is measured again, and how long the rest takes."""
        from xsp.text import clock_time  # noqa: PLC0415

        if again:
            self._say(f"{point}: measured again, for {again}")
        self._show(f"{point} ({self._most}{clock_time(left_s)} left)")

    def progress(self, fraction: float) -> None:
        """Say nothing: lines stay."""

    def ended(self, point: Point, result: Result, *, kept: bool) -> None:
        """Say what became of a point."""
        self._number += 1
        before = " (complete before)" if kept else ""
        self._say(f"[{self._number}/{self._points}] {point}: {_outcome(result)}{before}")

    def stopped(self, points: Sequence[Point], why: str) -> None:
        """Say which points are left out."""
        last = f" to {points[-1]}" if len(points) > 1 else ""
        self._say(f"{points[0]}{last}: left out, for {why}")
        self._points -= len(points)

    def _show(self, text: str) -> None:
        terminal.say(f"measuring {text}")

    def _say(self, text: str) -> None:
        terminal.say(text)


class _Drawn(Watcher):
    """Draws a bar for the point under way below the lines."""

    def __init__(self, points: int, bar: Any, *, doubling: bool) -> None:
        super().__init__(points, doubling=doubling)
        self._bar = bar
        self._task = bar.add_task("", total=1.0)

    def progress(self, fraction: float) -> None:
        self._bar.update(self._task, completed=fraction)
        self._bar.refresh()

    def _show(self, text: str) -> None:
        self._bar.update(self._task, description=plain(text), completed=0.0)
        self._bar.refresh()

    def _say(self, text: str) -> None:
        self._bar.console.print(plain(text), highlight=False)


@contextmanager
def drawn_bar() -> Iterator[Any]:
    """Yield a bar on standard error, which whoever has it refreshes."""
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # Refreshed by hand: a refreshing thread would disturb what is measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        yield bar


def plain(text: str) -> str:
    """Return text in which rich finds no markup, and the terminal no control characters."""
    from rich.markup import escape  # noqa: PLC0415

    from xsp.text import printable  # noqa: PLC0415

    return escape(printable(text))


def _outcome(result: Result) -> str:
    from xsp.text import duration  # noqa: PLC0415

    if result.reason is not None:
        return f"{result.status}: {result.reason.splitlines()[0]}"
    latency, rate = (result.measured.get(name) for name in ("latency_ns", "throughput_per_s"))
    said = duration(latency)
    return said if rate is None else f"{said}, {rate:,.4g}/s"
