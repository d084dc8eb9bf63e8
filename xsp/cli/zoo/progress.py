"""Progress of `xsp zoo run`: what a run tells in, a bar on a terminal or plain lines out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xsp.cli import terminal
from xsp.cli.sweep.progress import drawn_bar, plain

if TYPE_CHECKING:
    from xsp.sweep import Point
    from xsp.zoo import Row, Task


@contextmanager
def watching() -> Iterator[Lines]:
    """Yield what is told of a run, and shows it on standard error."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield Lines()
        return
    with drawn_bar() as bar:
        yield _Drawn(bar)


class Lines:
    """Says a line for each measurement that has a result."""

    def __init__(self) -> None:
        self._points = self._done = self._failed = 0
        self._left_s = 0.0

    def planned(self, points: int, kept: int, left_s: float) -> None:
        """Say how many measurements there are, and how long they take."""
        from xsp.text import clock_time, counted  # noqa: PLC0415

        self._points, self._done, self._left_s = points, kept, left_s
        said = counted(points, "measurement")
        if kept:
            said += f", {kept} complete from before"
        self._say(said if kept == points else f"{said}; about {clock_time(left_s)}")

    def began(self, task: Task, point: Point, again: str) -> None:
        """Say why a point is measured again."""
        if again:
            self._say(f"{title(task, point)}: measured again, for {again}")

    def state(self, task: Task, point: Point, state: str) -> None:
        """Say that another measurement has to end first; of other states nothing: lines stay."""
        from xsp.zoo import WAITING  # noqa: PLC0415

        if state == WAITING:
            self._say(f"{title(task, point)}: {state}")

    def ended(self, task: Task, point: Point, row: Row, left_s: float) -> None:
        """Say what became of a point, and how far the run is."""
        from xsp.zoo import has_failed  # noqa: PLC0415

        self._done += 1
        self._failed += has_failed(row)
        self._left_s = left_s
        self._say(f"[{self._far()}] {title(task, point)}: {outcome(row)}")

    def stopped(self, points: int, why: str) -> None:
        """Say how many points are left out."""
        self._say(f"{points} left out, for {why}")

    def _far(self) -> str:
        from xsp.text import clock_time  # noqa: PLC0415

        failed = f", {self._failed} failed" if self._failed else ""
        left = f", {clock_time(self._left_s)} left" if self._done < self._points else ""
        return f"{self._done}/{self._points}{failed}{left}"

    def _say(self, text: str) -> None:
        terminal.say(text)


class _Drawn(Lines):
    """Draws a bar of the whole run, with the model under way, below the lines."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def planned(self, points: int, kept: int, left_s: float) -> None:
        super().planned(points, kept, left_s)
        self._bar.update(self._task, total=points, completed=kept)

    def state(self, task: Task, point: Point, state: str) -> None:
        said = f"{self._far()}; {title(task, point)}: {state}"
        self._bar.update(self._task, description=plain(said), completed=self._done)
        self._bar.refresh()

    def _say(self, text: str) -> None:
        self._bar.console.print(plain(text), highlight=False)


def title(task: Task, point: Point) -> str:
    """Return the model and the settings of a point, in words."""
    return f"{task.model}, {point}"


def outcome(row: Row) -> str:
    """Return what became of a point, in a line."""
    from xsp.analyses import text_of  # noqa: PLC0415
    from xsp.text import duration  # noqa: PLC0415

    if row["status"] != "measured":
        return f"{row['status']}: {(row['reason'] or '').partition(chr(10))[0]}"
    rate = row.get("throughput_per_s")
    said = "" if rate is None else f", {text_of('throughput_per_s', rate)}"
    return duration(row["latency_ns"]) + said
