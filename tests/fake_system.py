"""A provider of the system level that is told what the operating system does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import polars as pl

from xsp.level import Kind, Level
from xsp.provider import (
    ACCOUNT_SCHEMA,
    Accounts,
    Records,
    Request,
    SpanRows,
    Watched,
    no_rows,
    span_rows,
)


class FakeSystem:
    """Watches one thread from `start` to `stop`, and records what it is told meanwhile.

    Args:
        now: Returns the time in ns.
        exact: Whether it is known when things happened, not only how much.
        sources: What is watched.
    """

    name = "system"
    level = Level.SYSTEM
    kinds = frozenset({Kind.SYSCALL})

    def __init__(
        self, now: Callable[[], int], *, exact: bool = True, sources: Any = tuple(Watched)
    ) -> None:
        self.now, self.exact, self.sources = now, exact, sources
        self.began_ns: int | None = None
        self.visits = 0
        self.accounted: list[tuple[Any, ...]] = []
        self.called: list[tuple[Any, ...]] = []

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Any, request: Request) -> None:
        self.accounted, self.called = [], []
        self.visits += 1
        self.began_ns = self.now()

    def stop(self) -> Records:
        began, end = self.began_ns, self.now()
        for source in self.sources:
            self.account("watched", began or 0, end, source.value, 0.0)
        self.began_ns = None
        return Records((self.accounted, self.called))

    def spans(self, records: Records) -> SpanRows:
        called = records.data[1]
        if not called:
            return no_rows()
        name, start, end, thread, size, error, process = zip(*called, strict=True)
        return span_rows(
            {
                "kind": "syscall",
                "name": name,
                "start_ns": start,
                "end_ns": end,
                "thread": thread,
                "attr.bytes": pl.Series(size, dtype=pl.Int64),
                "attr.error": pl.Series(error, dtype=pl.String),
                "attr.process_name": pl.Series(process, dtype=pl.String),
            }
        )

    def accounts(self, records: Records) -> Accounts:
        return pl.DataFrame(records.data[0], schema=ACCOUNT_SCHEMA, orient="row")

    def account(self, what: str, begin: int, end: int, cause: str | None, amount: float) -> None:
        """Charge something to this thread, if it is watched."""
        if self.began_ns is not None:
            who = threading.get_ident(), "main"
            self.accounted.append((begin, end, *who, what, cause, amount, 0, self.exact))

    def call(
        self, name: str, begin: int, end: int, size: int | None = None, error: str | None = None
    ) -> None:
        """Record a system call of this thread, if it is watched."""
        if self.began_ns is not None:
            self.called.append((name, begin, end, threading.get_ident(), size, error, None))
