"""Progress: the wish for a bar in, a function that takes the fraction done out.

The bar is drawn on standard error, where a person can see it, and so is a line that says what is
done where no fraction is known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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
def status_line(wanted: bool | Progress | None, title: str) -> Iterator[None]:
    """Say on a terminal what is done meanwhile, where it is not known how much of it is left.

    Args:
        wanted: As for `progress_bar`; who has a function of his own for progress draws himself.
        title: What is done.
    """
    drawn = wanted is not False and not callable(wanted) and _is_terminal()
    if drawn:
        _write(f"{title} …")
    try:
        yield
    finally:
        if drawn:
            _write("\r\x1b[2K")


def _write(words: str) -> None:
    """Write to the terminal, if it is still there."""
    with suppress(OSError, ValueError):
        sys.stderr.write(words)
        sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Refreshed by hand between visits: a refreshing thread would disturb the model.
    # What the model prints meanwhile goes where it would go without the bar, if that is elsewhere.
    with Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(title, total=1.0)

        def report(fraction: float) -> None:
            bar.update(task, completed=fraction)
            bar.refresh()

        yield report
