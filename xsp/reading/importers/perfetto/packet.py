"""Splits a file into packets, finds texts that they name by numbers, and brings times to one clock.

A writer numbers its texts anew whenever it clears its state, so a number means something only
within a generation: the packets of one writer from one clearing to the next.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.errors import TraceFormatError
from xsp.protobuf import (
    BYTES,
    NO_FIELDS,
    NUMBER,
    PADDING,
    Fields,
    Ints,
    fields,
    scan,
    signed,
    varint,
)
from xsp.reading.importers.source import Source

# Numbers of fields of a packet.
FTRACE, SNAPSHOT, TIMESTAMP, WRITER, EVENT, INTERNED, FLAGS = 1, 6, 8, 10, 11, 12, 13
_CLEARED, _PACKED, STAGE, _CLOCK, _DEFAULTS, DESCRIPTOR, _ZSTD = 41, 50, 53, 58, 59, 60, 133
ATTRIBUTES = 126
_PACKET = 0x0A  # tag of a packet in the file
_BUILTIN = 64  # clocks from here on are those of a writer
_WALL, _BOOT = 1, 6
# Fields of a packet that hold a number; those of an XPlane file are texts, or have lower numbers.
_NUMBERS = frozenset({3, 8, 10, 13, 41, 42, 58, 79, 87})
_DENSE = 1 << 22  # up to here numbers of texts are looked up in an array
_LEAST = 5  # packets of other files have no field above

Bools = npt.NDArray[np.bool_]


def looks_like_packets(head: bytes) -> bool:
    r"""Tell whether bytes begin with packets, at least one of which is no message of another kind.

    >>> looks_like_packets(b"\n\x04\x40\x01\x50\x01"), looks_like_packets(b"\n\x02\x08\x01")
    (True, False)
    """
    at, sure = 0, False
    try:
        while at < len(head):
            if head[at] != _PACKET:
                return False
            size, begin = varint(head, at + 1, len(head))
            at = begin
            while at < min(begin + size, len(head)):
                tag, at = varint(head, at, len(head))
                number, wire = tag >> 3, tag & 7
                if not number or ((number in _NUMBERS) != (wire == NUMBER) and number < STAGE):
                    return False
                sure |= number > _LEAST
                value, after = varint(head, at, len(head)) if wire in (NUMBER, BYTES) else (0, at)
                at = after + (value if wire == BYTES else {1: 8, 5: 4}.get(wire, 0))
            if at < len(head) and at != begin + size:
                return False
    except ValueError:  # the head ends within a packet
        pass
    return sure


@dataclass
class Packets:
    """The packets of a file.

    Attributes:
        content: The bytes of the file, with padding behind them.
        fields: Fields of all packets; `message` is the number of the packet.
        count: How many packets there are.
        cut: Whether the file ends within a packet.
        bounds: Where each packet begins in the file, its tag included, and where it ends.
        left: What could not be read, counted by name.
    """

    content: bytes
    fields: Fields
    count: int
    cut: bool
    bounds: Ints
    left: Counter[str] = field(default_factory=Counter)

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes, as an array."""
        return np.frombuffer(self.content, np.uint8)

    def scanned(self, found: Fields, what: str) -> Fields:
        """Return the fields of messages; those of which damage is known are counted by name."""
        damaged = np.zeros(len(found.value), np.bool_)
        parts = list(scan(self.data, found.value, found.value + found.size, damaged))
        if damaged.any():
            self.left[f"damaged {what}"] += int(damaged.sum())
        # The first fields of all messages, then the second ones: the last of a number is last.
        return Fields.joined(parts) if parts else found.at(np.zeros(0, np.int64))

    def message(self, raw: bytes | memoryview, what: str) -> list[tuple[int, int | memoryview]]:
        """Return the fields of a message up to damage, which is counted by name."""
        found: list[tuple[int, int | memoryview]] = []
        try:
            found.extend(fields(raw))
        except ValueError:
            self.left[f"damaged {what}"] += 1
        return found

    def messages(self, found: Fields, what: str) -> Iterator[tuple[int, list[tuple[int, Any]]]]:
        """Yield the number and the fields of each message, in the order of the numbers."""
        places = in_order(found)
        each = zip(
            places.message.tolist(), places.value.tolist(), places.size.tolist(), strict=True
        )
        for number, begin, size in each:
            yield number, self.message(self.content[begin : begin + size], what)

    @cached_property
    def writer(self) -> Ints:
        """Number of the writer of each packet; 0 where none is told."""
        return column(self.fields, WRITER, self.count)

    @cached_property
    def generation(self) -> Ints:
        """Number of the generation of each packet, from 0; every writer has its own."""
        cleared = (column(self.fields, FLAGS, self.count) & 1) | column(
            self.fields, _CLEARED, self.count
        )
        if not self.count or self.writer.min() == self.writer.max():
            return np.cumsum(cleared)
        told = pl.DataFrame({"writer": self.writer, "cleared": cleared})
        since = told.select("writer", pl.col("cleared").cum_sum().over("writer").alias("since"))
        key = pl.col("writer") * (since["since"].max() or 0) + pl.col("writer") + pl.col("since")
        return since.select(key.rank("dense").cast(pl.Int64)).to_series().to_numpy() - 1

    @cached_property
    def defaults(self) -> tuple[dict[int, int], dict[int, int]]:
        """Clock, and track, of packets of a generation that tell none."""
        clocks, tracks = {}, {}
        for packet, told in self.messages(self.fields.of(_DEFAULTS, BYTES), "defaults"):
            generation = int(self.generation[packet])
            for number, value in told:
                if number == _CLOCK and isinstance(value, int):
                    clocks[generation] = signed(value)
                elif number == EVENT and not isinstance(value, int):
                    own = dict(self.message(value, "defaults")).get(11)
                    if isinstance(own, int):
                        tracks[generation] = signed(own)
        return clocks, tracks

    @cached_property
    def interned(self) -> dict[int, pl.DataFrame]:
        """Texts by the field that they are of: `generation`, `iid`, `text`, `other` and `number`.

        `text` is the second field and `other` the third, where they are texts; `number` is the
        fourth.
        """
        messages = in_order(self.fields.of(INTERNED, BYTES))
        packets, found = messages.message, self.scanned(messages.numbered(), "interned data")
        result = {}
        for kind in np.unique(found.number).tolist():
            entries = in_order(found.of(kind, BYTES))
            inner = self.scanned(entries.numbered(), "interned data")
            count = len(entries.value)
            texts = {
                name: self.texts(inner, number, count)
                for number, name in ((2, "text"), (3, "other"))
            }
            frame = pl.DataFrame(
                {
                    "generation": self.generation[packets[entries.message]],
                    "iid": column(inner, 1, count),
                    "number": column(inner, 4, count),
                    **{name: pl.Series(values, dtype=pl.String) for name, values in texts.items()},
                }
            )
            result[kind] = frame.unique(["generation", "iid"], keep="last", maintain_order=True)
        return result

    def texts(self, found: Fields, number: int, count: int) -> list[str | None]:
        """Return a text of each of so many messages, None where there is none."""
        result: list[str | None] = [None] * count
        own = found.of(number, BYTES)
        known: dict[bytes, str] = {}
        places = zip(own.message.tolist(), own.value.tolist(), own.size.tolist(), strict=True)
        for message, begin, size in places:
            raw = self.content[begin : begin + size]
            text = known.get(raw)
            if text is None:
                text = known[raw] = raw.decode("utf-8", "replace")
            result[message] = text
        return result

    def named(
        self, kind: int, generations: Ints, iids: Ints, take: str = "text"
    ) -> tuple[pl.Series, int]:
        """Return the interned text of each number, null for 0; and how many are not in the file.

        Args:
            kind: Field of `InternedData`.
            generations: Generation of each packet that names a text.
            iids: The numbers, 0 for none.
            take: Column of `interned`.
        """
        known = self.interned.get(kind)
        if known is None or not known.height:
            return pl.Series([None], dtype=pl.String).new_from_index(0, len(iids)), int(iids.any())
        highest, own = int(known["iid"].max()), known["iid"].to_numpy()  # type: ignore[arg-type]
        if known["generation"].n_unique() == 1 and own.min() > 0 and highest < _DENSE:
            place = np.full(highest + 2, known.height, np.int64)
            place[own] = np.arange(known.height)
            fits = (iids > 0) & (iids <= highest) & (generations == known["generation"][0])
            texts = known[take].extend_constant(None, 1)
            found = texts.gather(place[np.where(fits, iids, highest + 1)])
        else:
            asked = pl.DataFrame({"generation": generations, "iid": iids})
            found = asked.join(
                known.select("generation", "iid", take),
                on=["generation", "iid"], how="left", maintain_order="left",
            )[take]  # fmt: skip
        missing = found.is_null().to_numpy() if found.null_count() else np.zeros(0, np.bool_)
        return found, int((iids[missing] != 0).sum()) if len(missing) else 0

    @cached_property
    def times(self) -> Ints:
        """Time of each packet in ns on the clock of the trace."""
        result = column(self.fields, TIMESTAMP, self.count).copy()
        clock = column(self.fields, _CLOCK, self.count)
        usual = self.defaults[0]
        if usual:
            lookup = np.zeros(int(self.generation.max()) + 1, np.int64)
            lookup[list(usual)] = list(usual.values())
            clock = np.where(clock == 0, lookup[self.generation], clock)
        snapshots, main = self._snapshots
        for number in np.unique(clock[(clock > 0) & (clock != main)]).tolist():
            of_writer = number >= _BUILTIN
            mask = clock == number
            for writer in np.unique(self.writer[mask]).tolist() if of_writer else [None]:
                rows = np.flatnonzero(mask if writer is None else mask & (self.writer == writer))
                self._convert(
                    result, rows, snapshots.get((writer, number), []), steady=not of_writer
                )
        return result

    def _convert(
        self, times: Ints, rows: Ints, known: list[tuple[int, int, int, int, int]], *, steady: bool
    ) -> None:
        """Bring times of one clock to the main clock.

        Args:
            times: Times of all packets; those of `rows` are changed.
            rows: Packets with times of the clock.
            known: Snapshots: packet, time of the clock, unit in ns, whether times are differences,
                and time of the main clock.
            steady: Whether the first snapshot is enough, as clocks of the system run alike.
        """
        if not known:
            self.left["times of an unknown clock"] += len(rows)
            return
        packet, at, unit, differs, main = (
            np.array(each, np.int64) for each in zip(*known, strict=True)
        )
        last = np.searchsorted(packet, rows, "right") - 1
        last = np.zeros_like(last) if steady else np.maximum(last, 0)
        passed = times[rows] * unit[last]
        sums = np.cumsum(passed)
        first = np.searchsorted(last, last, "left")  # the first packet of the same snapshot
        before = np.where(first > 0, sums[first - 1], 0)
        own = np.where(differs[last] > 0, sums - before + at[last] * unit[last], passed)
        times[rows] = own - at[last] * unit[last] + main[last]

    @cached_property
    def _snapshots(
        self,
    ) -> tuple[dict[tuple[int | None, int], list[tuple[int, int, int, int, int]]], int]:
        """Return the snapshots of each clock, by writer, and the number of the main clock."""
        result: dict[tuple[int | None, int], list[tuple[int, int, int, int, int]]] = {}
        main, pending = _BOOT, []
        for packet, told in self.messages(self.fields.of(SNAPSHOT, BYTES), "snapshots of clocks"):
            clocks = {}
            for number, value in told:
                if number == 2 and isinstance(value, int):
                    main = value
                elif number == 1 and not isinstance(value, int):
                    clock = {key: each for key, each in self.message(value, "snapshots of clocks")
                             if isinstance(each, int)}  # fmt: skip
                    at, unit, differs = (signed(clock.get(key, 0)) for key in (2, 4, 3))
                    clocks[signed(clock.get(1, 0))] = at, unit or 1, differs
            pending.append((packet, clocks))
        for packet, clocks in pending:
            if main not in clocks:
                continue
            for number, (at, unit, differs) in clocks.items():
                key = (int(self.writer[packet]) if number >= _BUILTIN else None), number
                result.setdefault(key, []).append((packet, at, unit, differs, clocks[main][0]))
        return result, main

    @property
    def unix_ns(self) -> int | None:
        """Time of day at time 0 of the main clock, None if the file does not tell."""
        known = self._snapshots[0].get((None, _WALL))
        return known[0][1] - known[0][4] if known else None


def column(found: Fields, number: int, count: int) -> Ints:
    """Return the number that each of so many messages holds in a field, 0 where there is none."""
    result = np.zeros(count, np.int64)
    own = found.of(number, NUMBER)
    result[own.message] = own.value
    return result


def in_order(found: Fields) -> Fields:
    """Return fields in the order of their messages."""
    rises = np.all(found.message[1:] >= found.message[:-1])
    return found if rises else found.at(np.argsort(found.message, kind="stable"))


def read_packets(content: bytes, source: Source, *, cut: bool) -> Packets:
    """Return the packets of a file; what a packet holds compressed takes its place.

    Args:
        content: The file, as far as it can be unpacked.
        source: The file, for messages.
        cut: Whether the file ends too early.

    Raises:
        TraceFormatError: The file holds no packet, packets compressed by zstd, or more than there
            is memory for.
    """
    packets = _split(content, cut=cut)
    if len(packets.fields.of(_ZSTD, BYTES).value):
        raise TraceFormatError(
            f"{source.path} holds packets compressed by zstd, which xsp does not unpack. Write it "
            "again with `traceconv decompress_packets`."
        )
    packed = packets.fields.of(_PACKED, BYTES)
    if len(packed.value):
        whole, left = _unpacked(packets, source)
        packets = _split(whole, cut=packets.cut)
        packets.left += left
    return packets


def _split(content: bytes, *, cut: bool) -> Packets:
    starts, begins, ends = list[int](), list[int](), list[int]()
    at, end = 0, len(content)
    while at < end:
        start, tag = at, content[at]
        try:
            if tag == _PACKET:
                # Most packets are shorter than 16 KiB, and there are millions.
                size, begin = content[at + 1], at + 2
                if size > 0x7F:
                    more = content[at + 2]
                    size, begin = (size & 0x7F) | more << 7, at + 3
                    if more > 0x7F:
                        size, begin = varint(content, at + 1, end)
            else:  # a field of a later version, or the end of what is sound
                number, begin = varint(content, at, end)
                size, begin = varint(content, begin, end) if number & 7 == BYTES else (end, begin)
        except (ValueError, IndexError):
            cut = True
            break
        at = begin + size
        if at > end:
            cut = True
            break
        if tag == _PACKET:
            starts.append(start)
            begins.append(begin)
            ends.append(at)
    inner, bounds = np.array(begins, np.int64), np.array([starts, ends], np.int64)
    places = np.arange(len(begins))
    packets = Packets(content + bytes(PADDING), NO_FIELDS, len(begins), cut, bounds)
    whole = Fields(places, places, places, inner, bounds[1] - inner)
    packets.fields = packets.scanned(whole, "packets")
    return packets


def _unpacked(packets: Packets, source: Source) -> tuple[bytes, Counter[str]]:
    """Return the content of a file without compression, and what of it is damaged."""
    left = Counter(packets.left)
    packed = in_order(packets.fields.of(_PACKED, BYTES))
    places = zip(packed.value.tolist(), packed.size.tolist(), strict=True)
    compressed = dict(zip(packed.message.tolist(), places, strict=True))
    parts: list[bytes] = []
    room = most = source.room
    for packet, (start, end) in enumerate(packets.bounds.T.tolist()):
        if packet not in compressed:
            parts.append(packets.content[start:end])
            continue
        begin, size = compressed[packet]
        engine = zlib.decompressobj()
        try:
            parts.append(engine.decompress(packets.content[begin : begin + size], room))
        except zlib.error:
            left["damaged compressed packets"] += 1
            continue
        room -= len(parts[-1])
        if engine.unconsumed_tail or room < 1:
            raise source.too_large(most)
    return b"".join(parts), left
