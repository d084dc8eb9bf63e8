"""Progress: the wish for a bar in, a function that takes the fraction done out.

The bar is drawn on standard error, where a person can see it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called after each visit with the fraction done, from 0 to 1; may raise `Enough`.
Progress = Callable[[float], None]


class Enough(Exception):  # noqa: N818  # not an error: it says what it is raised for
    """Raise this in a progress function to end a measurement early.

    The trace is then made of the visits complete so far.

    Example:
        A measurement that ends when a file appears::

            def stop_on_request(fraction: float) -> None:
                if Path("stop").exists():
                    raise xsp.Enough

            trace = xsp.measure(model, x, progress=stop_on_request)
    """


@contextmanager
def progress_bar(wanted: bool | Progress | None, title: str) -> Iterator[Progress]:
    """Yield the progress function that a measurement calls.

    Args:
        wanted: Whether to draw a bar: True, False, or None for "if standard error is a
            terminal"; or a progress function of the caller's, which is yielded as it is.
        title: The words beside the bar.
    """
    if callable(wanted):
        yield wanted
    elif wanted or (wanted is None and _is_terminal()):
        # rich is loaded only where a bar is drawn.
        yield from _bar(title)
    else:
        yield lambda fraction: None


@contextmanager
def waiting(wanted: bool | Progress | None, title: str) -> Iterator[None]:
    """Say on a terminal what is done meanwhile, where it is not known how much of it is left.

    Args:
        wanted: As for `progress_bar`; a function of the caller's is not called.
        title: What is done.
    """
    with progress_bar(False if callable(wanted) else wanted, title) as report:
        report(0.0)
        yield


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

        def report(fraction: float) -> None:
            bar.update(task, completed=fraction)
            bar.refresh()

        yield report
