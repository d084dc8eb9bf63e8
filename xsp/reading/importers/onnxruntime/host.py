"""Makes rows of the session's own work, and of calls of a device's runtime."""

from __future__ import annotations

from collections.abc import Sequence

from xsp.level import Kind
from xsp.onnxruntime_profile import Event, rows_of
from xsp.provider import SpanRows

_EXECUTE = "::Execute"  # ends names of events that are the execution of a graph


def session(events: Sequence[Event]) -> tuple[SpanRows, SpanRows]:
    """Return rows of what the session did besides its nodes."""
    executions = [event for event in events if event.name.endswith(_EXECUTE)]
    others = [event for event in events if not event.name.endswith(_EXECUTE)]
    return rows_of(Kind.OP, executions), rows_of(Kind.REGION, others)


def calls(events: Sequence[Event]) -> SpanRows:
    """Return rows of calls of the device's runtime."""
    return rows_of(Kind.LAUNCH, [event for event in events if event.category == "Api"])
