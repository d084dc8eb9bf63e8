"""Profiles the running program when a signal comes, and saves the trace to a file."""

from __future__ import annotations

import atexit
import os
import signal as signals
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from xsp.errors import guarded
from xsp.measuring.program import remote
from xsp.measuring.program.block import profile


def profile_on_signal(
    signal: int = signals.SIGUSR1,
    *,
    seconds: float = 30.0,
    folder: str | os.PathLike[str] = ".",
    **options: Any,
) -> None:
    """Install a signal handler that profiles this process for a while.

    Until the signal comes nothing is slower. xsp saves the trace to `xsp-PID-N.xsp` in `folder`,
    and says so on standard error. A second signal ends a profile early. xsp repeats no calls.

    Example:
        In the program::

            xsp.profile_on_signal(levels=2)

        and from outside::

            xsp attach PID

        or, with these options, `kill -USR1 PID`.

    Args:
        signal: Number of the signal, by default SIGUSR1; the new handler replaces its old one.
        seconds: Length of a profile in seconds, by default 30.
        folder: Folder of the traces, by default the working directory.
        options: Options of `xsp.profile`.

    Raises:
        ValueError: Called on another thread than the main one, or an option is out of range.
    """
    signal = options.pop("number", signal)  # its name in earlier versions
    profile(**options)  # refuses wrong options now, and not when the signal comes
    signals.signal(signal, _Handler(signal, seconds, Path(folder), options))
    remote.announce(signal)


class _Handler:
    """Handler of a signal: begins a profile, or ends the one under way."""

    def __init__(self, number: int, seconds: float, folder: Path, options: dict[str, Any]) -> None:
        self._number, self._seconds = number, seconds
        self._folder, self._options = folder, options
        self._profile: profile | None = None
        self._timer: threading.Timer | None = None
        self._made = 0
        self._asked: dict[str, Any] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        started = self._profile
        work = self._begin if started is None else partial(self._end, started)
        guarded(work, self._failed)  # the program goes on

    def _failed(self, error: Exception) -> None:
        remote.tell(self._asked, error)
        _say(f"not profiled: {error}")

    def _begin(self) -> None:
        program = Path(sys.argv[0]).name or "program"
        self._asked = remote.asked()
        levels = {"levels": self._asked["levels"]} if self._asked else {}
        started = profile(**{"repeat": False, "name": program, **self._options, **levels})
        started.__enter__()
        seconds = self._asked.get("seconds", self._seconds)
        self._profile = started
        self._timer = threading.Timer(seconds, os.kill, (os.getpid(), self._number))
        self._timer.daemon = True
        self._timer.start()
        atexit.register(self._leave)  # a program that ends meanwhile keeps its trace
        remote.tell(self._asked, remote.BEGUN)
        _say(f"profiling for {seconds:g} s")

    def _leave(self) -> None:
        if self._profile is not None:
            guarded(partial(self._end, self._profile), self._failed)

    def _end(self, ended: profile) -> None:
        self._profile = None
        atexit.unregister(self._leave)
        if self._timer is not None:
            self._timer.cancel()
        ended.__exit__(None, None, None)
        self._made += 1
        own = self._folder / f"xsp-{os.getpid()}-{self._made}.xsp"
        path = ended.trace.save(self._asked.get("output", own))
        remote.tell(self._asked, remote.SAVED)
        _say(f"saved to {path}; print it with: xsp show {path}")


def _say(sentence: str) -> None:
    print(f"xsp: {sentence}", file=sys.stderr, flush=True)  # noqa: T201  # nobody else is told
