"""A level for xsp: calls of Python's zlib, with the bytes that went in and came out."""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, no_rows, span_rows

FUNCTIONS = ("compress", "decompress")
FIELDS = 6  # function, start, end, thread, bytes in, bytes out


class Zlib:
    """Observes `zlib.compress` and `zlib.decompress`."""

    name = "zlib"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})

    def __init__(self) -> None:
        self._kept = array("q")
        self._originals: dict[str, Callable[..., bytes]] = {}

    def unavailable(self) -> str | None:
        """Return None: zlib is a part of Python."""
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Put a recorder in the place of each function."""
        self._kept = array("q")
        if Kind.CALL not in request.kinds:
            return
        for number, name in enumerate(FUNCTIONS):
            self._originals[name] = getattr(zlib, name)
            setattr(zlib, name, self._recorder(number, self._originals[name], clock.now))

    def stop(self) -> Records:
        """Put the functions back, and hand over what was recorded."""
        while self._originals:
            setattr(zlib, *self._originals.popitem())
        return Records(self._kept)

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call. Pure."""
        if not len(records.data):
            return no_rows()
        number, start, end, thread, given, made = np.asarray(records.data).reshape(-1, FIELDS).T
        return span_rows(
            {
                "kind": Kind.CALL.value,
                "name": [FUNCTIONS[one] for one in number],
                "start_ns": start,
                "end_ns": end,
                "thread": thread,
                "attr.library": f"zlib {zlib.ZLIB_RUNTIME_VERSION}",
                "attr.given_bytes": given,
                "attr.made_bytes": made,
            }
        )

    def _recorder(
        self, number: int, original: Callable[..., bytes], now: Callable[[], int]
    ) -> Callable[..., bytes]:
        keep, thread = self._kept.extend, threading.get_ident

        def record(data: Any, /, *args: Any, **kwargs: Any) -> bytes:
            begin = now()  # the last thing before, and the first thing after
            made = original(data, *args, **kwargs)
            end = now()
            keep((number, begin, end, thread(), memoryview(data).nbytes, len(made)))
            return made

        return record
