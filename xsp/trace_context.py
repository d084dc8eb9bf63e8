"""Finds the origin of a measurement: its start, and the caller's OpenTelemetry span.

The origin is taken where a measurement starts, kept in the trace's metadata, and used when the
trace is exported. Baggage is the caller's own and is left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xsp.clock import Clock

# The flags that version 00 defines, sampled and random; all other bits are to be 0.
_FLAGS = 0x03


@dataclass(frozen=True, slots=True)
class Origin:
    """Begin of a measurement, and the OpenTelemetry span that it lies in.

    Attributes:
        unix_ns: Wall-clock time in ns.
        traceparent: The caller's span as W3C trace context, of version 00; None where the caller
            has no span.
        tracestate: Data of the caller's tracing systems (W3C), mostly empty.
    """

    unix_ns: int
    traceparent: str | None = None
    tracestate: str = ""


def origin(clock: Clock) -> Origin:
    """Return the time and the caller's active span, or else the span that the environment names.

    OpenTelemetry is asked for the active span only if the program has loaded it. Invalid values
    of `TRACEPARENT` and `TRACESTATE` are ignored, as the W3C asks.

    Args:
        clock: The clock of the measurement.
    """
    unix_ns = clock.now() + clock.wall_offset()
    traceparent, tracestate = _active() or _inherited(os.environ) or (None, "")
    return Origin(unix_ns, traceparent, tracestate)


def _active() -> tuple[str, str] | None:
    """Return `traceparent` and `tracestate` of the span that is active in this thread or task."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if not hasattr(api, "get_current_span"):  # not loaded, or another thread is about to
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return (
        _traceparent(context.trace_id, context.span_id, context.trace_flags),
        context.trace_state.to_header(),
    )


def _inherited(variables: Mapping[str, str]) -> tuple[str, str] | None:
    """Return `traceparent` and `tracestate` of the span that the process was started in."""
    context = _read(variables.get("TRACEPARENT", ""), variables.get("TRACESTATE", ""))
    if context is None:
        return None
    found = _traceparent(context.trace_id, context.span_id, context.trace_flags)
    return found, context.trace_state.to_header()


def parse(traceparent: str) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags of a W3C `traceparent`; None for an invalid one.

    >>> parse(f"00-{10:032x}-{11:016x}-01"), parse(f"00-{0:032x}-{11:016x}-01")
    ((10, 11, 1), None)
    """
    context = _read(traceparent, "")
    return None if context is None else (context.trace_id, context.span_id, context.trace_flags)


def _read(traceparent: str, tracestate: str) -> Any:
    """Return OpenTelemetry's span context of both headers; None if `traceparent` is invalid."""
    if not traceparent:
        return None
    # Imported only for a header that is there: OpenTelemetry takes longer to import than xsp.
    from opentelemetry.trace import get_current_span  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    headers = {"traceparent": traceparent, "tracestate": tracestate}
    span = get_current_span(TraceContextTextMapPropagator().extract(headers))
    context = span.get_span_context()
    return context if context.is_valid else None


def _traceparent(trace_id: int, span_id: int, flags: int) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{flags & _FLAGS:02x}"
