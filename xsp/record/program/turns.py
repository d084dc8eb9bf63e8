"""Logs the turns of asyncio's event loops: when a thread works for which region.

A loop runs one callback after another, each in a context (`contextvars`). The region that is open
in that context is the one that the callback works for; between its turns it waits.

    AT request 10, REGION model 12, LEAVE 14, AT none 15      request worked from 10 to 15

Loops that are not Python's own, as uvloop's, call no method of asyncio's, and log no turns.
"""

from __future__ import annotations

import sys
from typing import Any

from xsp.record.program.log import Log
from xsp.tracer import REGION


class Turns:
    """Logs turns from `begin` to `end`, in a program that has imported asyncio.

    Args:
        log: The log of the program.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._original: Any = None
        self._placed: Any = None

    def begin(self) -> None:
        """Put the hook in place; loops that run already use it from their next callback on."""
        events: Any = sys.modules.get("asyncio.events")
        if self._placed is not None or not hasattr(events, "Handle"):
            return
        original, log = events.Handle._run, self._log

        def run(handle: Any) -> None:
            context = handle._context
            before = context.get(REGION)
            local = log.local
            if before is not None or local.begun_in:
                local.begun_in = False
                log.turn(local.log or log.begin_thread(), before)
            local.in_turn = True
            try:
                original(handle)
            finally:
                local.in_turn = False
                if before is not None or context.get(REGION) is not None:
                    log.turn(local.log or log.begin_thread(), None)

        self._original, self._placed = original, run
        events.Handle._run = run
        loop = events._get_running_loop()
        if loop is not None and isinstance(loop, sys.modules["asyncio.base_events"].BaseEventLoop):
            log.local.in_turn = log.local.begun_in = True
            loop.call_soon(_nothing)  # the next turn, with which this one has ended

    def end(self) -> None:
        """Take the hook out, unless another tool has put something else in its place."""
        handle: Any = getattr(sys.modules.get("asyncio.events"), "Handle", None)
        if self._placed is not None and handle._run is self._placed:
            handle._run = self._original
        self._original = self._placed = None


def _nothing() -> None:
    pass
