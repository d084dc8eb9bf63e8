"""A progress bar on standard error, where a person can see it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Told how much is done, from 0 to 1. It may raise `Enough`.
Progress = Callable[[float], None]


class Enough(Exception):  # noqa: N818  # not an error: it says what it is raised for
    """Raised by a progress function to end the measurement with what there is."""


@contextmanager
def progress_bar(wanted: bool | Progress | None, title: str) -> Iterator[Progress]:
    """Yield what to tell the progress to.

    Args:
        wanted: True or False, None for "if standard error is a terminal", or a
            function of the caller's that is told instead.
        title: What is being done.
    """
    if callable(wanted):
        yield wanted
    elif wanted or (wanted is None and _is_terminal()):
        yield from _bar(title)
    else:
        yield lambda fraction: None


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Refreshed by hand between visits: a refreshing thread would disturb the model.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True
    ) as bar:
        task = bar.add_task(title, total=1.0)

        def tell(fraction: float) -> None:
            bar.update(task, completed=fraction)
            bar.refresh()

        yield tell
