"""For tests of levels and of xsp: a clock and providers that do as they are told, and replays.

`only_providers` and `added_providers` put a provider into a measurement without an entry point.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.measuring.call import load
from xsp.provider import EmptySpan, Provider, Records, Request, SpanRows, no_rows, span_rows
from xsp.record.session import registered
from xsp.trace import Trace

__all__ = [
    "FakeClock",
    "FakeProvider",
    "ReplayProvider",
    "added_providers",
    "only_providers",
    "replay",
    "rows",
]


class FakeClock:
    """A clock that stands still until it is moved.

    Args:
        start_ns: Its first time.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self.time_ns = start_ns
        self.now: Callable[[], int] = lambda: self.time_ns

    def advance(self, ns: int) -> None:
        """Let `ns` nanoseconds pass."""
        self.time_ns += ns

    def wall_offset(self) -> int:
        """Return 0: the fake wall clock shows the same time."""
        return 0


class FakeProvider:
    """A provider whose spans are made by the code under test, at a known cost.

    The code calls `provider.span(...)` where a real library would be observed. While the
    provider is armed for the span's kind, the span is recorded, and the fake clock advances by
    `cost_ns`: half before the span and half after it; and by `inside_ns` inside the span.

    Args:
        clock: The clock that recording advances.
        kinds: Kinds of span that the provider emits.
        level: The provider's level; by default the level of the outermost of `kinds`.
        cost_ns: Cost of recording one span, outside of the span.
        inside_ns: Cost of recording one span between the span's two ends.
        name: The provider's name.
    """

    def __init__(
        self,
        clock: FakeClock,
        kinds: Iterable[Kind] = (Kind.LAYER,),
        *,
        level: Level | None = None,
        cost_ns: int = 0,
        inside_ns: int = 0,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.kinds = frozenset(kinds)
        self.level = level or min(kind.level for kind in self.kinds)
        self.reason: str | None = None
        self._clock = clock
        self._cost_ns = cost_ns
        self._inside_ns = inside_ns
        self._request: Request | None = None
        self._records: list[tuple[str, str, int, int]] = []

    def unavailable(self) -> str | None:
        """Return `self.reason`."""
        return self.reason

    def start(self, clock: Clock, request: Request) -> None:
        """Arm."""
        self._request, self._records = request, []

    def stop(self) -> Records:
        """Disarm."""
        self._request = None
        return Records(tuple(self._records))

    def spans(self, records: Records) -> SpanRows:
        """Return one row per span."""
        names = ("kind", "name", "start_ns", "end_ns")
        columns = dict(zip(names, zip(*records.data, strict=True), strict=False))
        return span_rows({**columns, "thread": threading.get_ident()}) if columns else no_rows()

    def empty_span(self, kind: Kind) -> EmptySpan | None:
        """Return an empty span of one of the provider's kinds; None if it costs nothing inside."""
        if not self._inside_ns or kind not in self.kinds:
            return None

        def make() -> None:
            with self.span("empty", kind):
                pass

        return EmptySpan("empty", make, bare=None)

    @contextmanager
    def span(self, name: str, kind: Kind = Kind.LAYER) -> Iterator[None]:
        """Mark the time in which a real library would work."""
        recorded = self._request is not None and kind in self._request.kinds & self.kinds
        if recorded:
            self._clock.advance(self._cost_ns // 2)
        start_ns = self._clock.now()
        try:
            yield
        finally:
            if recorded:
                self._clock.advance(self._inside_ns)
                self._records.append((kind.value, name, start_ns, self._clock.now()))
                self._clock.advance(self._cost_ns - self._cost_ns // 2)


class ReplayProvider:
    """A provider that turns records made earlier into rows, by the code of a real provider.

    Args:
        original: The provider whose `spans` interprets the records.
        played: The records that each `stop` returns, one after the other; the last for ever.
    """

    def __init__(self, original: Any, played: Iterable[Records]) -> None:
        self.name = f"{original.name}-replay"
        self.level: Level = original.level
        self.kinds: frozenset[Kind] = original.kinds
        self._original = original
        self._played = list(played)
        if not self._played:
            raise ValueError("there is nothing to play: give at least one Records")

    def unavailable(self) -> str | None:
        """Return None: records need no device."""
        return None

    def start(self, clock: Clock, request: Request) -> None:
        """Do nothing; the records are there already."""

    def stop(self) -> Records:
        """Return the next records."""
        return self._played.pop(0) if len(self._played) > 1 else self._played[0]

    def spans(self, records: Records) -> SpanRows:
        """Return the rows that the original provider makes of the records."""
        return self._original.spans(records)


def added_providers(*providers: Provider) -> AbstractContextManager[None]:
    """Register providers beside the installed ones for the duration of a `with` block.

    A provider that has the name of an installed one takes its place meanwhile.

    Raises:
        ProviderError: A provider breaks the contract.
    """
    return registered(providers, alone=False)


def only_providers(*providers: Provider) -> AbstractContextManager[None]:
    """Register these providers, and no others, for the duration of a `with` block.

    Raises:
        ProviderError: A provider breaks the contract.
    """
    return registered(providers, alone=True)


def replay(path: str | Path, providers: Iterable[Provider] | None = None) -> Trace:
    """Return the trace of a recording (`xsp record`), made as after every measurement.

    Args:
        path: The file.
        providers: Providers that interpret the records; by default all installed providers.

    Raises:
        TraceFormatError: The file is no recording or is damaged, or a provider is missing here.
    """
    return load(path, providers).trace()


def rows(*lines: str, thread: int = 1) -> SpanRows:
    """Return rows written by hand: `"op aten::add 10 25"`, times in ns.

    >>> rows("layer conv1 0 100", "op aten::convolution 10 90")["name"].to_list()
    ['conv1', 'aten::convolution']

    Raises:
        ValueError: A line is not kind, name, start and end.
    """
    fields = [line.split() for line in lines]
    if any(len(field) != 4 for field in fields):
        raise ValueError("each line is `kind name start end`, with single words and whole ns")
    kinds, names, starts, ends = zip(*fields, strict=True) if fields else ((), (), (), ())
    return span_rows(
        {
            "kind": kinds,
            "name": names,
            "start_ns": [int(start) for start in starts],
            "end_ns": [int(end) for end in ends],
            "thread": thread,
        }
    )
