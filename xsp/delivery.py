"""Counts the spans of an export, and finds the functions behind methods such as `Trace.export`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """The spans of an export, counted: sent = accepted + rejected + undelivered.

    Attributes:
        sent: Spans that were to be delivered.
        accepted: Spans that the destination took.
        rejected: Spans that the destination rejected: the number in OTLP's `partial_success`,
            and all spans of a request refused for its content or its size.
        destination: URL without credentials, file, or name of the exporter.
        trace_id: In hexadecimal; empty where the destination has no trace ids.
        message: What happened, in a sentence or more.
    """

    sent: int
    accepted: int
    rejected: int
    destination: str
    trace_id: str
    message: str = ""

    @property
    def undelivered(self) -> int:
        """Spans that the destination neither accepted nor rejected."""
        return self.sent - self.accepted - self.rejected


_functions: dict[str, Callable[..., Any]] = {}


def bind(name: str, function: Callable[..., Any]) -> None:
    """Bind a function to a name: `export` to that behind `Trace.export`.

    Exports, reports, analyses and pictures know traces, and no trace knows them: the package
    binds them.
    """
    _functions[name] = function


def bound(name: str) -> Callable[..., Any]:
    """Find the function that was bound to a name."""
    return _functions[name]
