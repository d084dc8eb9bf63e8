"""Reads google.rpc.Status, in which OTLP servers say why not and when again.

The package with its classes is not needed for two fields:
https://github.com/googleapis/googleapis/blob/master/google/rpc/status.proto and
error_details.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xsp.export.wire import read_varint

_RETRY_INFO = "google.rpc.RetryInfo"
_FIXED_WIDTHS = {1: 8, 5: 4}
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
    """Return what an encoded status says; nothing if it is not one."""
    message, retry_s = b"", None
    try:
        for number, value in _fields(data):
            if number == 2 and isinstance(value, bytes):
                message = value
            elif number == 3 and isinstance(value, bytes):
                found = _retry_s(dict(_fields(value)))
                retry_s = found if found is not None else retry_s
    except ValueError:
        return Status()
    return Status(message.decode(errors="replace"), retry_s)


def _retry_s(detail: dict[int, int | bytes]) -> float | None:
    """Return the delay in a detail (type_url 1, value 2) that is a RetryInfo."""
    kind, content = detail.get(1), detail.get(2, b"")
    if not isinstance(kind, bytes) or not isinstance(content, bytes):
        return None
    if kind.rpartition(b"/")[2].decode(errors="replace") != _RETRY_INFO:
        return None
    delay = dict(_fields(content)).get(1, b"")
    duration = dict(_fields(delay)) if isinstance(delay, bytes) else {}
    seconds, nanoseconds = duration.get(1, 0), duration.get(2, 0)
    if isinstance(seconds, bytes) or isinstance(nanoseconds, bytes) or seconds > _LONGEST_S:
        return None  # a negative number is a huge one here
    return seconds + nanoseconds / 1e9


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message, whatever their kinds."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield number, value
            continue
        size, at = read_varint(data, at) if kind == 2 else (_FIXED_WIDTHS.get(kind, 0), at)
        if not (size or kind == 2) or at + size > len(data):
            raise ValueError("not a message")
        yield number, data[at : at + size]
        at += size
