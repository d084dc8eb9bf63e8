"""Writes the events of a CTF stream: their bytes, in packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import IO, Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from xsp.text import printable

_MAGIC = 0xC1FC1FC1
_MOST_EVENTS = 8_192  # of a packet: some hundred KiB, as those of LTTng
# An event has the lower 32 bits of its time; a reader adds 2^32 where they become less.
_WRAP_NS = 1 << 32

# What names of xsp are made with.
_ASCII = str.maketrans({"\u00d7": "x", "\u2026": "...", "\u2192": "->"})

_PACKET = np.dtype(
    [
        ("magic", "<u4"),
        ("uuid", "V16"),
        ("stream_id", "<u4"),
        ("timestamp_begin", "<u8"),
        ("timestamp_end", "<u8"),
        ("content_bits", "<u8"),
        ("packet_bits", "<u8"),
        ("events_discarded", "<u8"),
    ]
)
_HEAD = np.dtype([("id", "<u2"), ("timestamp", "<u4"), ("tid", "<i4")])

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a stream, in the order of their times.

    Attributes:
        time_ns: Time of each event, 0 or more, from the clock's 0.
        number: Which event it is, by its place in the metadata.
        tid: Number of its thread.
        thread: Place of the thread's name among `names`.
        names: Name of each thread, encoded by `string`.
        fields: Bytes of the event's own fields.
        cpu: Number of the processor of all of them; None where none is told.
    """

    time_ns: Integers
    number: Integers
    tid: Integers
    thread: Integers
    names: Sequence[bytes]
    fields: Sequence[bytes]
    cpu: int | None = None

    def joined(self, other: Events) -> Events:
        """Return these and other events, in no order."""
        time_ns, number, tid = (
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("time_ns", "number", "tid")
        )
        thread = np.concatenate([self.thread, other.thread + len(self.names)])
        fields = [*self.fields, *other.fields]
        return Events(time_ns, number, tid, thread, [*self.names, *other.names], fields)

    def at(self, places: Integers) -> Events:
        """Return the events at some places."""
        return replace(
            self, time_ns=self.time_ns[places], number=self.number[places], tid=self.tid[places],
            thread=self.thread[places], fields=[self.fields[place] for place in places.tolist()],
        )  # fmt: skip

    def on(self, cpus: Integers) -> Iterator[Events]:
        """Yield the events of each processor.

        Args:
            cpus: Number of the processor of each event.
        """
        for cpu in np.unique(cpus).tolist():
            yield replace(self.at(np.flatnonzero(cpus == cpu)), cpu=cpu)


def string(text: str) -> bytes:
    r"""Return text as CTF's data holds it: ASCII that ends with a zero.

    Trace Compass takes each byte for a character, and ends an analysis at a control character,
    as bytes of UTF-8 may be. So all else becomes an escape. No text is empty: for an empty one
    babeltrace2 2.0 prints the one before.

    >>> string("2 × a\0b\u03bb"), string("")
    (b'2 x a\\x00b\\u03bb\x00', b'(no name)\x00')
    """
    plain = printable(text.translate(_ASCII)) or "(no name)"
    return plain.encode("ascii", "backslashreplace") + b"\0"


def records(dtype: np.dtype[Any], **columns: Any) -> list[bytes]:
    """Return the bytes of each row of some columns."""
    rows = np.empty(len(next(iter(columns.values()))), dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows.view(f"V{dtype.itemsize}").tolist()


def write_stream(events: Events, uuid: UUID, file: IO[bytes]) -> None:
    """Write events as packets.

    Args:
        events: The events.
        uuid: Number of the trace.
        file: Written to packet by packet.

    Raises:
        OSError: The file could not be written.
    """
    names = np.array([*events.names, None], object)[:-1]  # of objects, whatever their lengths
    for begin, end in _packets(events.time_ns):
        part = slice(begin, end)
        times = events.time_ns[part]
        stamps = times % _WRAP_NS
        heads = records(_HEAD, id=events.number[part], timestamp=stamps, tid=events.tid[part])
        parts: list[bytes] = [b""] * (3 * len(heads))
        parts[0::3] = heads
        parts[1::3] = names[events.thread[part]].tolist()
        parts[2::3] = events.fields[part]
        body = b"".join(parts)
        cpu = b"" if events.cpu is None else events.cpu.to_bytes(4, "little")
        bits = 8 * (_PACKET.itemsize + len(cpu) + len(body))
        head = (_MAGIC, uuid.bytes, 0, times[0], times[-1], bits, bits, 0)
        file.write(np.array([head], _PACKET).tobytes() + cpu)
        file.write(body)


def _packets(time_ns: Integers) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each packet; one ends before a pause in which time would wrap.

    >>> list(_packets(np.array([5, 6, 2**33, 2**33 + 1])))
    [(0, 2), (2, 4)]
    """
    pauses = np.flatnonzero(np.diff(time_ns) >= _WRAP_NS) + 1
    bounds = [0, *pauses.tolist(), len(time_ns)]
    for begin, end in pairwise(bounds):
        for first in range(begin, end, _MOST_EVENTS):
            yield first, min(first + _MOST_EVENTS, end)
