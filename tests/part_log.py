"""Parts of a program as a log is told of them, for tests of what tells."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from xsp.clock import SystemClock
from xsp_levels.framework.torch.program.loop import loop

# Name, begin, end (ns), what is known besides, and the thread.
Said = tuple[str, int, int, Mapping[str, Any], int]


class PartLog:
    """Notes parts as a program's log does."""

    def __init__(self) -> None:
        self.said = list[Said]()
        self.known = list[tuple[str, Mapping[str, Any]]]()

    def name(self, name: str, attributes: Mapping[str, Any] | None = None) -> int:
        self.known.append((name, attributes or {}))
        return len(self.known)

    def begin_part(self, number: int) -> tuple[int, int]:
        return number, SystemClock.now()

    def end_part(self, begun: tuple[int, int], error: BaseException | None, name: int = 0) -> None:
        number, start_ns = begun
        told, attributes = self.known[(name or number) - 1]
        attributes = self.known[number - 1][1] if name else attributes
        if error is not None:
            attributes = {**attributes, "error": type(error).__name__}
        self.said.append((told, start_ns, SystemClock.now(), attributes, threading.get_ident()))


@contextmanager
def marking() -> Iterator[list[Said]]:
    log = PartLog()
    loop().watch(log)
    try:
        yield log.said
    finally:
        loop().watch(None)
