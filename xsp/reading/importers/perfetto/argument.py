"""Reads the arguments of events: debug annotations, and those of a GPU's render stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from msgspec.json import encode

from xsp.protobuf import BYTES, EIGHT, NO_FIELDS, NUMBER, Fields, Ints, fields, scan, signed
from xsp.reading.importers.perfetto.packet import Packets, column

_PART = 1 << 20  # arguments whose names are looked at at once
_DEEP = 32  # values in values in values ...: deeper ones are left out


@dataclass(frozen=True)
class Form:
    """Field numbers of an argument: those of its name, and of its value by type.

    Attributes:
        names: Field of interned data with the names.
        iid: Field with the number of an interned name.
        name: Field with a name.
        numbers: Fields with whole numbers.
        real: Field with a float.
        texts: Fields with texts.
        interned: Field with the number of an interned text.
        nested: Whether values may hold others.
    """

    names: int
    iid: int
    name: int
    numbers: tuple[int, ...]
    real: int
    texts: tuple[int, ...]
    interned: int
    nested: bool


ANNOTATION = Form(3, 1, 10, (2, 3, 4, 7), 5, (6, 9), 17, nested=True)
ARGUMENT = Form(1001, 1, 2, (3, 4), 5, (6,), 7, nested=False)
EXTRA = Form(0, 0, 1, (), 0, (2,), 0, nested=False)
_VALUES = 29  # field of interned data with the texts of arguments


class Arguments:
    """The arguments of so many events, by name."""

    def __init__(
        self,
        packets: Packets,
        found: Fields,
        packet: Ints,
        count: int,
        form: Form,
        wanted: set[str],
    ) -> None:
        """Find the arguments with wanted names.

        Args:
            packets: The packets of the file.
            found: An argument each; `message` is the number of its event.
            packet: Packet of each event.
            count: How many events there are.
            form: Field numbers of the arguments.
            wanted: The names.
        """
        self._packets, self._form, self._count = packets, form, count
        parts = [self._named(found.at(part), packet, wanted) for part in _parts(len(found.value))]
        places = [own for own, _ in parts]
        names = pl.Series([], dtype=pl.String) if not parts else pl.concat(x for _, x in parts)
        self._places = Fields.joined(places) if places else found
        self._generation = packets.generation[packet[self._places.message]]
        inner = packets.scanned(self._places.numbered(), "arguments")
        total = len(self._places.value)
        known = pl.DataFrame({"name": names, "row": np.arange(total)})
        self._rows: Mapping[str, Ints] = {
            str(name): part["row"].to_numpy() for (name,), part in known.group_by("name")
        }
        self._value_of: dict[int, Any] = {}
        self._kind = np.zeros(total, np.int64)
        self._value = np.zeros(total, np.int64)
        for number, wire in (*((each, NUMBER) for each in form.numbers), (form.real, EIGHT),
                             (form.interned, NUMBER)):  # fmt: skip
            own = inner.of(number, wire)
            if number:
                self._kind[own.message], self._value[own.message] = number, own.value
        self._size = np.zeros(total, np.int64)  # of a text, which begins at its value
        own = inner.of(form.texts[0], BYTES)
        self._kind[own.message], self._value[own.message] = form.texts[0], own.value
        self._size[own.message] = own.size

    def _named(self, found: Fields, packet: Ints, wanted: set[str]) -> tuple[Fields, pl.Series]:
        """Return the arguments that have wanted names, and these."""
        packets, form, total = self._packets, self._form, len(found.value)
        generation = packets.generation[packet[found.message]]
        steps, unnamed = [NO_FIELDS], total
        damaged = np.zeros(total, np.bool_)
        for step in scan(packets.data, found.value, found.value + found.size, damaged):
            steps += [step.of(form.name, BYTES), step.of(form.iid, NUMBER)]
            unnamed -= sum(len(each.value) for each in steps[-2:])
            if unnamed <= 0:  # mostly the name is the first field of all
                break
        first = Fields.joined(steps)
        names = pl.Series(packets.texts(first, form.name, total), dtype=pl.String)
        if form.iid:
            named, missing = packets.named(form.names, generation, column(first, form.iid, total))
            if missing:
                packets.left["names of arguments that the file does not hold"] += missing
            names = named if names.null_count() == total else names.fill_null(named)
        kept = names.is_in(list(wanted)).fill_null(value=False)
        return found.at(kept.to_numpy()), names.filter(kept)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def has(self, name: str) -> Any:
        """Mark the events that have an argument of a name, in an array."""
        result = np.zeros(self._count, np.bool_)
        if name in self._rows:
            result[self._places.message[self._rows[name]]] = True
        return result

    def integers(self, name: str) -> pl.Series:
        """Return the whole numbers of an argument, null in events without it."""
        numbers, known = np.zeros(self._count, np.int64), np.zeros(self._count, np.bool_)
        rows = self._rows.get(name, np.zeros(0, np.int64))
        kind, value, event = self._kind[rows], self._value[rows], self._places.message[rows]
        whole = np.isin(kind, self._form.numbers)
        numbers[event[whole]], known[event[whole]] = value[whole], True
        real = (kind == self._form.real) & (kind != 0)
        floats = value[real].view(np.float64)
        fits = np.isfinite(floats) & (np.abs(floats) < 2**62)
        numbers[event[real][fits]], known[event[real][fits]] = floats[fits].astype(np.int64), True
        rest = ~whole & ~real
        content = self._packets.content
        places = zip(*(x[rest].tolist() for x in (event, value, self._size[rows])), strict=True)
        for at, begin, size in places:
            text = content[begin : begin + size]
            if 0 < size < 19 and text.removeprefix(b"-").isdigit():
                numbers[at], known[at] = int(text), True
        return pl.Series(numbers).set(pl.Series(~known), None)

    def values(self, name: str) -> list[Any]:
        """Return the values of an argument, None in events without it."""
        result: list[Any] = [None] * self._count
        rows = self._rows.get(name, np.zeros(0, np.int64))
        for row, event in zip(rows.tolist(), self._places.message[rows].tolist(), strict=True):
            result[event] = self._read(row)
        return result

    def json(self, name: str) -> list[bytes | None]:
        """Return the values of an argument as JSON; a text is JSON already."""
        known: dict[tuple[bytes, int], bytes] = {}
        result: list[bytes | None] = [None] * self._count
        rows = self._rows.get(name, np.zeros(0, np.int64))
        content, places = self._packets.content, self._places
        columns = (rows, places.message[rows], places.value[rows], places.size[rows])
        generations = self._generation[rows].tolist()
        for row, event, begin, size, generation in zip(
            *(each.tolist() for each in columns), generations, strict=True
        ):
            key = content[begin : begin + size], generation
            if key not in known:
                value = self._read(row)
                known[key] = value.encode() if isinstance(value, str) else encode(value)
            result[event] = known[key]
        return result

    def _read(self, row: int) -> Any:
        begin = int(self._places.value[row])
        raw = self._packets.content[begin : begin + int(self._places.size[row])]
        return self._decoded(raw, int(self._generation[row]), _DEEP)

    def _decoded(self, raw: bytes | memoryview, generation: int, deep: int) -> Any:
        """Return the value in an argument; a list, a mapping, a number or a text."""
        form, items, entries = self._form, list[Any](), dict[str, Any]()
        result: Any = None
        try:
            for number, value in fields(raw):
                if isinstance(value, int):
                    if number == form.interned:
                        result = self._interned(generation, value, _VALUES)
                    elif number == form.real:
                        result = float(np.array([value], np.uint64).view(np.float64)[0])
                    elif number in form.numbers:
                        result = signed(value)
                elif number in form.texts:
                    result = bytes(value).decode("utf-8", "replace")
                elif form.nested and number == 12 and deep:
                    items.append(self._decoded(value, generation, deep - 1))
                elif form.nested and number == 11 and deep:
                    entries[self._key(value, generation)] = self._decoded(
                        value, generation, deep - 1
                    )
        except ValueError:
            return None
        # What has no value at all is a list or mapping of nothing.
        return items or entries or ([] if result is None and form.nested else result)

    def _key(self, raw: memoryview, generation: int) -> str:
        told = dict(self._packets.message(raw, "arguments"))
        name, iid = told.get(self._form.name), told.get(self._form.iid)
        if name is not None and not isinstance(name, int):
            return bytes(name).decode("utf-8", "replace")
        return str(
            self._interned(generation, iid, self._form.names) if isinstance(iid, int) else ""
        )

    def _interned(self, generation: int, iid: int, kind: int) -> str | None:
        if kind not in self._value_of:
            known = self._packets.interned.get(kind)
            rows = () if known is None else known.select("generation", "iid", "text").iter_rows()
            self._value_of[kind] = {(own, number): text for own, number, text in rows}
        found: str | None = self._value_of[kind].get((generation, signed(iid)))
        return found


def _parts(count: int) -> Iterator[Ints]:
    """Yield the places of so many arguments, of which there are millions, in pieces."""
    for first in range(0, count, _PART):
        yield np.arange(first, min(first + _PART, count))
