"""Shows a person what xsp does, while it measures and afterwards.

`progress_bar` shows work whose fraction is known, `status_line` other work. On a terminal both
draw on standard error and clear what they drew, in a notebook they update one line of output, and
elsewhere, as in a log, they write a plain line every ten seconds at most.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Called after each visit with the fraction done, from 0 to 1; may raise `StopMeasurement`.
Progress = Callable[[float], None]

_QUIET_S = 1.0  # work that is done sooner needs no words in a log
_BETWEEN_S = 10.0  # two lines of a log
_REFRESH_S = 0.1  # a terminal


class StopMeasurement(Exception):  # noqa: N818  # not an error, as `StopIteration`
    """Raise this in a progress function to end a measurement early.

    The trace is then made of the visits complete so far.

    Example:
        A measurement that ends when a file appears::

            def stop_on_request(fraction: float) -> None:
                if Path("stop").exists():
                    raise xsp.StopMeasurement

            trace = xsp.measure(model, x, progress=stop_on_request)
    """


class Display:
    """Display of some work's progress; this one shows nothing.

    Called with the fraction done, from 0 to 1.

    Args:
        title: The work, in words.
    """

    def __init__(self, title: str) -> None:
        self.title, self.stage, self.fraction = title, "", 0.0
        self._shown_s = time.monotonic()

    def __call__(self, fraction: float) -> None:
        """Note how much is done, and show it if that is due."""
        self.fraction = fraction
        self.tick()

    def say(self, stage: str) -> None:
        """Show at once what happens now, such as "loading torch"."""
        self.stage = stage
        self._show()

    def tick(self) -> None:
        """Show what is known, if that is due."""

    def _show(self) -> None:
        """Show what is known."""

    def _is_due(self, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._shown_s + every_s:
            return False
        self._shown_s = now
        return True

    @property
    def _line(self) -> str:
        done = f"{self.fraction:.0%}" if 0 < self.fraction < 1 else ""
        return ": ".join(filter(None, (self.title, ", ".join(filter(None, (self.stage, done))))))


class _Told(Display):
    """Passes the fraction on to the caller's own function."""

    def __init__(self, title: str, function: Progress) -> None:
        super().__init__(title)
        self._function = function

    def __call__(self, fraction: float) -> None:
        self._function(fraction)


class _Log(Display):
    """Writes plain lines on standard error."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._shown_s -= _BETWEEN_S - _QUIET_S

    def say(self, stage: str) -> None:
        self.stage = stage
        self.tick()

    def tick(self) -> None:
        if self._is_due(_BETWEEN_S):
            _write(f"xsp: {self._line} …\n")


class _Notebook(Display):
    """Updates one line below the cell of a notebook."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        # IPython is loaded already.
        display = importlib.import_module("IPython.display").display
        self._handle: Any = display({"text/plain": f"{title} …"}, raw=True, display_id=True)

    def tick(self) -> None:
        if self._is_due(_QUIET_S):
            self._show()

    def _show(self) -> None:
        self._put(f"{self._line} …")

    def close(self) -> None:
        """Clear the line."""
        self._put("")

    def _put(self, words: str) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": words}, raw=True)


class _Terminal(Display):
    """Moves a bar of rich."""

    def __init__(self, title: str, bar: Any) -> None:
        super().__init__(title)
        self._bar, self._task = bar, bar.add_task(title, total=1.0)
        self._show()

    def tick(self) -> None:
        if self._is_due(_REFRESH_S):
            self._show()

    def _show(self) -> None:
        words = f"{self.title}: {self.stage}" if self.stage else self.title
        self._bar.update(self._task, completed=self.fraction, description=words)
        with suppress(OSError, ValueError):  # the terminal may be gone
            self._bar.refresh()


@contextmanager
def progress_bar(wanted: bool | Progress | None, title: str) -> Iterator[Display]:
    """Show how much of some work is done.

    Args:
        wanted: Whether to show it; None: as a bar on a terminal, else in a few lines. Or a
            function of the caller's, which is called with the fraction.
        title: The work, in words.
    """
    if callable(wanted):
        yield _Told(title, wanted)
    elif wanted is False:
        yield Display(title)
    elif _is_terminal():
        yield from _bar(title)
    elif _in_notebook():
        notebook = _Notebook(title)
        try:
            yield notebook
        finally:
            notebook.close()
    else:
        yield _Log(title)


@contextmanager
def status_line(wanted: bool | Progress | None, title: str) -> Iterator[None]:
    """Say what xsp does, if nobody knows how much of it is left.

    Args:
        wanted: As for `progress_bar`; a caller with a function for progress sees nothing.
        title: The work, in words.
    """
    if wanted is False or callable(wanted):
        yield
        return
    if _is_terminal():
        _write(f"{title} …")
        try:
            yield
        finally:
            _write("\r\x1b[2K")
        return
    # Nothing is measured meanwhile, which a thread could disturb.
    timer = threading.Timer(_QUIET_S, _write, [f"xsp: {title} …\n"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _write(words: str) -> None:
    """Write to standard error, if it is still there, in characters that it knows."""
    stream = sys.stderr
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "ascii"
    with suppress(OSError, ValueError, LookupError):
        stream.write(words.replace("…", "...").encode(encoding, "replace").decode(encoding))
        stream.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return type(found).__name__ == "ZMQInteractiveShell"


def _bar(title: str) -> Iterator[Display]:
    # rich is slow to import, and loaded only if a bar is drawn.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    # Refreshed by hand between visits: a refreshing thread would disturb the model.
    # What the model prints meanwhile goes where it would go without the bar, if that is elsewhere.
    with Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    ) as bar:
        yield _Terminal(title, bar)
