"""Reads google.rpc.Status, in which OTLP servers say why not and when again.

The package with its classes is not needed for two fields:
https://github.com/googleapis/googleapis/blob/master/google/rpc/status.proto and
error_details.proto.
"""

from __future__ import annotations

from dataclasses import dataclass

from xsp.export import wire

_RETRY_INFO = b"google.rpc.RetryInfo"
# What google.protobuf.Duration can hold: ten thousand years.
_LONGEST_S = 315_576_000_000


@dataclass(frozen=True, slots=True)
class Status:
    """An error as a server describes it.

    Attributes:
        message: Its words.
        retry_s: Seconds after which the request may be repeated; None: not said.
    """

    message: str = ""
    retry_s: float | None = None


def parse(data: bytes) -> Status:
    """Return what an encoded status (message 2, details 3) says; nothing if it is not one."""
    try:
        found = list(wire.fields(data))
        details = (value for number, value in found if number == 3 and isinstance(value, bytes))
        delays = [delay for detail in details if (delay := _retry_s(detail)) is not None]
    except ValueError:
        return Status()
    message = wire.content(dict(found), 2).decode(errors="replace")
    return Status(message, delays[-1] if delays else None)


def _retry_s(detail: bytes) -> float | None:
    """Return the delay in a detail (type_url 1, value 2) that is a RetryInfo."""
    known = dict(wire.fields(detail))
    if wire.content(known, 1).rpartition(b"/")[2] != _RETRY_INFO:
        return None
    info = dict(wire.fields(wire.content(known, 2)))
    delay = dict(wire.fields(wire.content(info, 1)))
    seconds, nanoseconds = wire.unsigned(delay, 1), wire.unsigned(delay, 2)
    return None if seconds > _LONGEST_S else seconds + nanoseconds / 1e9
