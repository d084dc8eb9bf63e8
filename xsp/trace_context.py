"""The origin of a measurement: when it began, and inside whose OpenTelemetry span.

Taken where a measurement starts, kept in the trace's metadata, used when the trace is
exported. Baggage is the caller's own and is left alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xsp.clock import Clock

# The formats of https://www.w3.org/TR/trace-context-2: lower case only.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY = r"[a-z0-9][a-z0-9_\-*/@]{0,255}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"({_KEY})={_VALUE}")
_MOST_MEMBERS = 32
# Sampled and random: the flags that the format knows. All others are to be 0.
_FLAGS = 0x03
_BLANK = " \t"


@dataclass(frozen=True, slots=True)
class Origin:
    """When a measurement began, and inside whose span.

    Attributes:
        unix_ns: Wall-clock time in ns.
        traceparent: The caller's span as W3C trace context, of version 00; None where
            there is none.
        tracestate: What its tracing systems keep beside it, mostly empty.
    """

    unix_ns: int
    traceparent: str | None = None
    tracestate: str = ""


def origin(clock: Clock) -> Origin:
    """Return the time and the caller's active span, or else the one named in the environment.

    OpenTelemetry is asked only if the program has loaded it. What is not valid in
    `TRACEPARENT` or `TRACESTATE` is ignored, as the W3C asks.

    Args:
        clock: The clock of the measurement.
    """
    unix_ns = clock.now() + clock.wall_offset()
    traceparent, tracestate = _active() or _inherited(os.environ) or (None, "")
    return Origin(unix_ns, traceparent, tracestate)


def _active() -> tuple[str, str] | None:
    """Return the span that is active in this thread or task, None if there is none."""
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
    """Return the span that the process was started in, None if none or none that is valid."""
    found = parse(variables.get("TRACEPARENT", "").strip(_BLANK))
    if found is None:
        return None
    return _traceparent(*found), _tracestate(variables.get("TRACESTATE", ""))


def parse(traceparent: str) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags of a W3C `traceparent`; None where it is not valid.

    >>> parse(f"00-{10:032x}-{11:016x}-01"), parse(f"00-{0:032x}-{11:016x}-01")
    ((10, 11, 1), None)
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    # A later version may append fields; ff is none, and 00 has no more than these.
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id, flags = (int(found[part], 16) for part in (2, 3, 4))
    return (trace_id, span_id, flags) if trace_id and span_id else None


def _traceparent(trace_id: int, span_id: int, flags: int) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{flags & _FLAGS:02x}"


def _tracestate(text: str) -> str:
    """Return a valid `tracestate` as it is passed on; one that is not is dropped whole."""
    members = [member for part in text.split(",") if (member := part.strip(_BLANK))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    if len(keys) < len(members) or len(members) > _MOST_MEMBERS:  # one is malformed, or twice
        return ""
    return ",".join(members)
