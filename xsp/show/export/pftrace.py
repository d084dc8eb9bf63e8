"""Writes a trace in Perfetto's own format, a sequence of protobuf's `TracePacket`.

Spans of the host are slices on the tracks of `timeline`. Kernels, copies and sets are render
stages of a GPU, whose page in Perfetto's UI reads grid, block and resources; a launch names the
stages that it started. Field numbers are those of `protos/perfetto/trace` in google/perfetto.

A message is made of pieces, one list of bytes for each attribute: numbers of a column are written
with as many bytes as the largest needs, so that numpy writes them all at once.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import IO, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp import __version__
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.matching import ON_DEVICE
from xsp.show.export import label
from xsp.show.export.picture import began_unix_ns, launches
from xsp.show.export.reduction import Reduced
from xsp.show.export.timeline import (
    Track,
    device_name,
    held_memory,
    monitored,
    nested,
    order,
    track_name,
    tracks,
)
from xsp.trace import attribute_column, headline, parent_rows, warning_lines

_EVENTS = 1 << 16  # that are written at once
_PROCESS, _MEMORY, _FIRST = 1, 2, 3  # numbers of tracks
_MONITORED = 1 << 32  # the first one's of a monitor, behind those of threads
_BOOT, _WALL = 6, 1  # clocks: that of the times here, and the time of day
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CLEARED, _NEEDS = 1, 2  # flags of a packet: interned texts begin anew, or are needed
_SEQUENCE = b"\x50\x01"  # of packets, of which there is one
_STAGES = {Kind.KERNEL: ("Kernel", 2), Kind.MEMCPY: ("Memcpy", 0), Kind.MEMSET: ("Memset", 0)}
_QUEUE = 16  # the first number of a stream among the specifications, behind those of stages
_UNITS = {"ns": 1, "count": 2, "bytes": 3}
_FULL_NAME = f"{label.PREFIX}xsp.full_name"
_SIZES = (f"{label.PREFIX}xsp.grid", f"{label.PREFIX}xsp.block")
# What the page of kernels in Perfetto's UI calls attributes.
_TERMS = {
    "xsp.registers": "registers_per_thread",
    "xsp.static_shared_bytes": "shared_mem_static",
    "xsp.dynamic_shared_bytes": "shared_mem_dynamic",
    "xsp.occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
}

Bytes = NDArray[np.uint8]


def varint(number: int) -> bytes:
    r"""Return a number as protobuf writes it.

    >>> varint(300)
    b'\xac\x02'
    """
    number &= (1 << 64) - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def message(number: int, *parts: bytes) -> bytes:
    """Return a field of bytes: a message of the parts, or a text."""
    whole = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(whole)) + whole


def _text(number: int, text: object) -> bytes:
    return message(number, str(text).encode("utf-8", "replace"))


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _varints(values: NDArray[Any]) -> Bytes:
    """Return a row of bytes for each number, all of the length that the largest needs."""
    numbers = np.ascontiguousarray(values).astype(np.int64).view(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    rows = (numbers[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    rows[:, :-1] |= 0x80
    return rows


def _rows(*parts: bytes | Bytes) -> list[bytes]:
    """Return the bytes of each row: the parts one after the other, of which bytes are in all."""
    height = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (height, len(part)))
        if isinstance(part, bytes)
        else part
        for part in parts
    ]
    whole = np.ascontiguousarray(np.concatenate(columns, axis=1))
    found: list[bytes] = whole.view(f"V{whole.shape[1]}").ravel().tolist()
    return found


def _packets(times: NDArray[np.int64], number: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Return the packets with a message each, which is their field of that number."""
    sizes = _varints(np.fromiter(map(len, bodies), np.int64, len(bodies)))
    head = _rows(
        b"\x40", _varints(times), _SEQUENCE + _number(13, _NEEDS) + varint(number << 3 | 2), sizes
    )
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies)) + len(head[0])
    starts = _rows(b"\x0a", _varints(lengths))
    return [b"".join(parts) for parts in zip(starts, head, bodies, strict=True)]


@dataclass(slots=True)
class _Texts:
    """Texts that packets name by numbers: those of one field of `InternedData`."""

    number: int
    numbers: dict[str, int] = field(default_factory=dict)
    fresh: list[bytes] = field(default_factory=list)

    def of(self, texts: pl.Series) -> NDArray[np.int64]:
        """Return the number of each text, 0 for null."""
        known = texts.drop_nulls().unique(maintain_order=True).to_list()
        found = {text: self.one(text) for text in known}
        return texts.replace_strict(found, default=0, return_dtype=pl.Int64).to_numpy()

    def one(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self.numbers:
            self.numbers[text] = len(self.numbers) + 1
            # Of a kernel the second name is the one that a compiler does not mangle.
            name = 3 if self.number == _KERNELS else 2
            parts = _number(1, self.numbers[text]), _text(name, text)
            self.fresh.append(message(self.number, *parts))
        return self.numbers[text]


_CATEGORIES, _NAMES, _KEYS, _VALUES, _KERNELS, _TERM_NAMES = 1, 2, 3, 29, 1000, 1001


@dataclass(frozen=True, slots=True)
class _Form:
    """Field numbers of an attribute: the field that it is, and those of its value by type."""

    whole: int
    integer: int
    natural: int
    real: int
    flag: int
    text: int


_ANNOTATION, _ARGUMENT = _Form(4, 4, 3, 5, 2, 17), _Form(3, 3, 4, 5, 3, 7)


def write_pftrace(
    reduced: Reduced,
    metadata: Mapping[str, Any],
    file: IO[bytes],
    utilization: pl.DataFrame | None = None,
) -> None:
    """Write a trace in Perfetto's own format.

    - Slices are the spans, with their attributes as debug annotations.
    - GPU render stages are kernels, copies and sets, with their attributes as arguments.
    - Counters are memory, and power, utilization and memory of each device that monitors read.
    - Warnings of the trace are an instant event of the process.

    Times are whole nanoseconds from the root's start, on the timeline without overhead.

    Args:
        reduced: The spans, cut to a budget or whole.
        metadata: The trace's metadata.
        file: Written to packet by packet.
        utilization: Table of the analysis `utilization-timeline`; None: nothing was read.

    Raises:
        OSError: The file could not be written.
    """
    _Writer(reduced, metadata, file).write(utilization)


def write_packed(
    reduced: Reduced,
    metadata: Mapping[str, Any],
    file: IO[bytes],
    utilization: pl.DataFrame | None = None,
) -> None:
    """Write a trace in Perfetto's own format, compressed by gzip."""
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed:
        write_pftrace(reduced, metadata, cast("IO[bytes]", packed), utilization)


class _Writer:
    def __init__(self, reduced: Reduced, metadata: Mapping[str, Any], file: IO[bytes]) -> None:
        self._reduced, self._metadata, self._file = reduced, metadata, file
        self._environment = metadata.get("environment") or {}
        self._spans = reduced.spans.with_row_index("row")
        self._model = label.whole(reduced.spans)
        self._subject = str(metadata.get("name") or "")
        first: Any = self._spans["start_ns"].min()
        self._origin_ns = min(0, first or 0)
        self._texts = {
            number: _Texts(number)
            for number in (_CATEGORIES, _NAMES, _KEYS, _VALUES, _KERNELS, _TERM_NAMES)
        }

    def write(self, utilization: pl.DataFrame | None) -> None:
        is_stage = ON_DEVICE & pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES])
        stages = self._spans.filter(is_stage)
        slices = self._spans.filter(~is_stage)
        found, of_row = tracks(slices)
        self._begin(found, stages)
        self._stages(stages)
        self._slices(slices, np.array(of_row, np.int64), stages)
        if held := held_memory(self._reduced.spans):
            times, values = np.array(held, np.int64).T
            self.counter(_MEMORY, "memory", "bytes", times, values)
        if utilization is not None:
            for number, (track, what, at, read) in enumerate(monitored(utilization)):
                self.counter(_MONITORED + number, track, what.rpartition("_")[2],
                             at.to_numpy(), read.to_numpy())  # fmt: skip
        self._warnings()

    def _begin(self, found: Sequence[Track], stages: pl.DataFrame) -> None:
        """Write the clock, what the trace is, its tracks, and the queues of GPUs."""
        clocks = ((_BOOT, 0), (_WALL, began_unix_ns(self._metadata) + self._origin_ns))
        snapshot = [message(1, _number(1, clock), _number(2, at)) for clock, at in clocks]
        about: dict[str, Any] = {
            "xsp.format": 1,
            "xsp.spans": self._spans.height,  # fewer are in a file whose end is missing
            "xsp.version": self._metadata.get("xsp_version") or __version__,
            "xsp.name": self._subject,
            "xsp.created": self._metadata.get("created"),
            "xsp.headline": headline(self._reduced.spans, {**self._metadata, "groups": ()}),
            "xsp.span_budget": self._reduced.left_out,
            "xsp.host": self._environment.get("host"),
        }
        facts = [
            message(1, _text(1, key), _text(3, value)) for key, value in about.items() if value
        ]
        pid = self._environment.get("pid") or 1
        queues = stages.select("device", "stream").unique(maintain_order=True).rows()
        self._queues = {queue: at for at, queue in enumerate(queues, _QUEUE)}
        interned = [
            message(24, _number(1, at), _text(2, name), _number(4, category))
            for at, (name, category) in enumerate(_STAGES.values(), 1)
        ]
        interned += [
            message(24, _number(1, at), _text(2, track_name(Track(device, stream, 0))))
            for (device, stream), at in self._queues.items()
        ]
        interned.append(message(23, _number(1, 1), _number(2, pid)))
        self._packet(message(6, *snapshot))
        self._packet(_number(13, _CLEARED), message(12, *interned))
        self._packet(message(126, *facts))
        name = device_name(None, self._environment)
        self._packet(
            message(60, _number(1, _PROCESS), message(3, _number(1, pid), _text(6, name)),
                    _number(11, 3), _number(20, 1))
        )  # fmt: skip
        self._tracks(found, pid)

    def _tracks(self, found: Sequence[Track], pid: int) -> None:
        """Write a track for each thread, and one for what else a device or stream did."""
        devices = sorted({track.device for track in found if track.device is not None})
        above = {device: _FIRST + len(found) + at for at, device in enumerate(devices)}
        for device, uuid in above.items():
            name = device_name(device, self._environment)
            self._packet(message(60, _number(1, uuid), _text(2, name), _number(5, _PROCESS)))
        for rank, at in enumerate(order(found)):
            track, uuid = found[at], _FIRST + at
            name = track_name(track)
            if track.device is None:
                # Numbers of Python's threads are larger than those of Linux, of which a viewer
                # takes 32 bits; the span has its own as an attribute.
                thread = _number(1, pid), _number(2, at + 1 + pid), _text(5, name)
                own = message(4, *thread), _number(5, _PROCESS)
            else:
                own = _text(2, name), _number(5, above[track.device])
            self._packet(message(60, _number(1, uuid), *own, _number(12, rank)))

    def _slices(self, slices: pl.DataFrame, track: NDArray[np.int64], stages: pl.DataFrame) -> None:
        """Write begins and ends of slices in the order of their times."""
        events = nested(slices, parent_rows(slices), track)
        extra = self._links(stages)
        uuids, times = _FIRST + track[events.row], events.time_ns - self._origin_ns
        for first in range(0, len(events.row), _EVENTS):
            part = slice(first, first + _EVENTS)
            begins = events.begins[part]
            packets = np.empty(len(begins), object)
            rows = events.row[part][begins]
            if len(rows):
                bodies = self._bodies(slices[rows], uuids[part][begins], extra)
                packets[begins] = _packets(times[part][begins], 11, bodies)
            if not begins.all():
                ends = _rows(_number(9, _SLICE_END) + b"\x58", _varints(uuids[part][~begins]))
                packets[~begins] = _packets(times[part][~begins], 11, ends)
            self._intern()
            self._file.write(b"".join(packets.tolist()))

    def _bodies(
        self, spans: pl.DataFrame, uuids: NDArray[np.int64], extra: Mapping[int, bytes]
    ) -> list[bytes]:
        """Return the message `TrackEvent` of each slice's begin."""
        kinds = self._texts[_CATEGORIES].of(spans["kind"].cast(pl.String))
        names = self._texts[_NAMES].of(label.names(spans, self._subject))
        head = _rows(
            _number(9, _SLICE_BEGIN) + b"\x58", _varints(uuids), b"\x18", _varints(kinds),
            b"\x50", _varints(names),
        )  # fmt: skip
        links = [extra.get(row, b"") for row in spans["row"].to_list()]
        columns = self._columns(spans)
        return list(map(b"".join, zip(head, links, *self._attributes(columns, _ANNOTATION),
                                      strict=True)))  # fmt: skip

    def _links(self, stages: pl.DataFrame) -> dict[int, bytes]:
        """Make the numbers that tie a launch to its kernel or copy, for the rows of both."""
        is_stage = set(stages["row"].to_list())
        started: dict[int, list[int]] = {}
        found: dict[int, bytes] = {}
        for flow, (launch, execution) in enumerate(launches(self._reduced.spans).iter_rows(), 1):
            if execution in is_stage:
                started.setdefault(launch, []).append(execution + 1)
            else:
                number = flow.to_bytes(8, "little")
                found[launch] = found.get(launch, b"") + varint(47 << 3 | 1) + number
                found[execution] = varint(48 << 3 | 1) + number
        for launch, ids in started.items():
            found[launch] = found.get(launch, b"") + message(3000, *(_number(1, id) for id in ids))
        return found

    def _stages(self, stages: pl.DataFrame) -> None:
        """Write kernels, copies and sets, with their arguments where Perfetto's page reads them."""
        kinds = {kind.value: at for at, kind in enumerate(_STAGES, 1)}
        for part in stages.sort("start_ns", maintain_order=True).iter_slices(_EVENTS):
            columns = self._columns(part)
            full = columns.get_column(_FULL_NAME, default=pl.Series([None] * part.height))
            kernels = self._texts[_KERNELS].of(full.cast(pl.String))
            kernel = _rows(varint(19 << 3), _varints(kernels))
            queues = [self._queues[queue] for queue in part.select("device", "stream").iter_rows()]
            stage = part["kind"].replace_strict(kinds, return_dtype=pl.Int64).to_numpy()
            head = _rows(
                b"\x08", _varints(part["row"].to_numpy() + 1),
                b"\x10", _varints(np.maximum(0, (part["end_ns"] - part["start_ns"]).to_numpy())),
                _number(5, 1) + b"\x58", _varints(part["device"].to_numpy()),
                b"\x68", _varints(np.array(queues)),
                b"\x70", _varints(stage),
                varint(20 << 3), _varints(self._texts[_NAMES].of(label.names(part, self._subject))),
            )  # fmt: skip
            sizes = [_size(part, number, name) for number, name in ((1, "grid"), (2, "block"))]
            columns = columns.drop(_FULL_NAME, *_SIZES, strict=False)
            inner = map(b"".join, zip(*sizes, *self._attributes(columns, _ARGUMENT), strict=True))
            bodies = [
                b"".join((start, which if known else b"", message(21, launch)))
                for start, which, known, launch in zip(head, kernel, kernels, inner, strict=True)
            ]
            self._intern()
            times = part["start_ns"].to_numpy() - self._origin_ns
            self._file.write(b"".join(_packets(times, 53, bodies)))

    def _columns(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the attributes of spans, with their ids and those of their parents."""
        ids = spans.select(
            pl.col("span_id", "parent_id").cast(pl.UInt64).name.prefix(f"{label.PREFIX}xsp.")
        )
        return label.attributes(spans, self._model, readable=False).with_columns(ids)

    def _attributes(self, columns: pl.DataFrame, form: _Form) -> Iterator[list[bytes]]:
        """Yield the pieces of each attribute, of no bytes in spans without it."""
        for values in columns:
            if values.null_count() == len(values):
                continue
            key = values.name.removeprefix(label.PREFIX)
            if form is _ANNOTATION:
                name = _number(1, self._texts[_KEYS].one(key))
            else:
                name = _number(1, self._texts[_TERM_NAMES].one(_TERMS.get(key, key)))
            pieces = self._pieces(values, form, name)
            for row in values.is_null().arg_true().to_list():
                pieces[row] = b""
            yield pieces

    def _pieces(self, values: pl.Series, form: _Form, name: bytes) -> list[bytes]:
        if isinstance(values.dtype, pl.List):
            if form is _ARGUMENT:
                values = values.cast(pl.List(pl.String)).list.join(", ")
            else:
                return [
                    message(4, name, *(message(12, _text(6, item)) for item in items or ()))
                    for items in values.to_list()
                ]
        if values.dtype == pl.String:
            number, value = varint(form.text << 3), _varints(self._texts[_VALUES].of(values))
        elif values.dtype == pl.Float64:
            reals = values.fill_null(0.0).to_numpy().astype("<f8")
            number, value = varint(form.real << 3 | 1), reals.view(np.uint8).reshape(-1, 8)
        else:
            fields = {pl.Boolean: form.flag, pl.UInt64: form.natural}
            number = varint(fields.get(type(values.dtype), form.integer) << 3)
            value = _varints(values.fill_null(strategy="zero").to_numpy())
        size = len(name) + len(number) + value.shape[1]
        return _rows(varint(form.whole << 3 | 2) + varint(size) + name + number, value)

    def counter(
        self,
        uuid: int,
        name: str,
        unit: str,
        times_ns: NDArray[np.int64],
        values: NDArray[Any],
    ) -> None:
        """Write a counter of the process: a track, and its values.

        Args:
            uuid: Number of the track.
            name: Name of the track.
            unit: Unit of the values.
            times_ns: Time of each value from the root's start, in ns.
            values: Integers, or floats.
        """
        known = _number(3, _UNITS[unit]) if unit in _UNITS else _text(6, unit)
        self._packet(
            message(60, _number(1, uuid), _text(2, name), _number(5, _PROCESS), message(8, known))
        )
        if values.dtype.kind == "f":
            reals = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)
            value: tuple[bytes | Bytes, ...] = (varint(44 << 3 | 1), reals)
        else:
            value = (varint(30 << 3), _varints(values))
        bodies = _rows(_number(9, _COUNTER) + _number(11, uuid), *value)
        self._file.write(b"".join(_packets(times_ns - self._origin_ns, 11, bodies)))

    def _warnings(self) -> None:
        if said := warning_lines(self._metadata):
            lines = [message(12, _text(6, line)) for line in said]
            mark = (
                _number(9, _INSTANT), _number(11, _PROCESS), _text(22, "warning"),
                _text(23, f"warnings: {len(said)}"), message(4, _text(10, "warnings"), *lines),
            )  # fmt: skip
            self._packet(_number(8, -self._origin_ns), message(11, *mark))

    def _intern(self) -> None:
        """Write the texts that packets to come are the first to name."""
        fresh = list(chain.from_iterable(texts.fresh for texts in self._texts.values()))
        if fresh:
            self._packet(message(12, *fresh), _number(13, _NEEDS))
        for texts in self._texts.values():
            texts.fresh.clear()

    def _packet(self, *parts: bytes) -> None:
        self._file.write(message(1, _SEQUENCE, *parts))


def _size(spans: pl.DataFrame, number: int, name: str) -> list[bytes]:
    """Return the message with the size of each kernel's grid or block."""
    sizes = attribute_column(spans, name, pl.List(pl.Int64))
    known = {
        size: message(number, *(_number(axis, value) for axis, value in enumerate(size, 1)))
        for size in set(map(tuple, sizes.drop_nulls().to_list()))
    }
    return [b"" if size is None else known[tuple(size)] for size in sizes.to_list()]
