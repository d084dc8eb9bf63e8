"""Decodes the values of stats: by name, or as columns with a value for each event.

A stat is an attribute of a plane, of a kind of event or of an event: a number that says which
stat it is, and a value, which is a number, text, bytes, or a reference to a text of the plane.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.protobuf import BYTES, EIGHT, NUMBER, Fields, Ints, scan, signed, walk

_WHICH = 1  # number of the field that says which stat it is
_DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE = 2, 3, 4, 5, 6, 7
_WIRES = {
    _DOUBLE: EIGHT,
    _UNSIGNED: NUMBER,
    _SIGNED: NUMBER,
    _TEXT: BYTES,
    _BYTES: BYTES,
    _REFERENCE: NUMBER,
}
_FAR = 1 << 62  # floating-point numbers beyond are no counts of anything
_BITS = 1 << 64


def text(value: bytes | memoryview) -> str:
    """Return text that may be no UTF-8."""
    return str(value, "utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Found:
    """Values of one stat of several events.

    Attributes:
        event: Index of the event that has each value.
        sort: Number of the field that the value was in.
        value: The value's 64 bits, or where its bytes begin.
        size: How many bytes it has, where it is bytes.
    """

    event: Ints
    sort: Ints
    value: Ints
    size: Ints

    @classmethod
    def joined(cls, parts: Iterable[Found]) -> Found:
        """Return the values of several in one."""
        known = [(each.event, each.sort, each.value, each.size) for each in parts]
        none = (np.zeros(0, np.int64),) * 4
        return cls(*(np.concatenate(each) for each in zip(none, *known, strict=True)))


@dataclass(frozen=True, slots=True)
class Stats:
    """Names and types of a plane's stats.

    Attributes:
        data: The bytes of the file.
        names: The names of stats by their numbers, among them the texts that values refer to.
    """

    data: memoryview
    names: Mapping[int, str]

    def values(self, places: Iterable[tuple[int, int]]) -> dict[str, Any]:
        """Return the values of stats by their names; stats that are damaged are left out.

        Args:
            places: Where each stat begins and ends.
        """
        found = {}
        for begin, end in places:
            try:
                known = {number: rest for number, *rest in walk(self.data, begin, end)}
            except ValueError:
                continue
            which = known.pop(_WHICH, [NUMBER, 0, 0])[1]
            for number, (wire, value, size) in known.items():
                if _WIRES.get(number) == wire:
                    found[self.names.get(which, "")] = self._value(number, value, size)
        return found

    def column(self, found: Found, count: int, dtype: Any) -> pl.Series:
        """Return a column with a value for each of so many events, null where there is none.

        Args:
            found: The values.
            count: How many events there are.
            dtype: Int64, Float64, String or Binary. A value that is none of that type is made
                one where that is exact (the text `"12"`), and is null where not.
        """
        if dtype == pl.Int64 and np.isin(found.sort, (_UNSIGNED, _SIGNED)).all():
            values = pl.Series(found.value, dtype=dtype)
        elif dtype == pl.Float64 and (found.sort == _DOUBLE).all():
            values = pl.Series(found.value.view(np.float64), dtype=dtype)
        elif dtype == pl.String and (found.sort == _REFERENCE).all():
            numbers = pl.Series(found.value, dtype=pl.Int64)
            values = numbers.replace_strict(self.names, default="", return_dtype=pl.String)
        else:
            convert = _CONVERSIONS[dtype]
            columns = (found.sort.tolist(), found.value.tolist(), found.size.tolist())
            converted = [convert(self._value(*each)) for each in zip(*columns, strict=True)]
            values = pl.Series(converted, dtype=dtype)
        places = np.full(count, len(values), np.int64)
        places[found.event] = np.arange(len(values))
        return values.append(pl.Series([None], dtype=dtype)).gather(places)

    def _value(self, sort: int, value: int, size: int) -> Any:
        """Return a value; what a number of 64 bits means, its field says."""
        if sort == _REFERENCE:
            return self.names.get(value, "")
        if sort in (_TEXT, _BYTES):
            given = self.data[value : value + size]
            return text(given) if sort == _TEXT else bytes(given)
        value %= _BITS
        if sort == _DOUBLE:
            return struct.unpack("<d", value.to_bytes(8, "little"))[0]
        return signed(value) if sort == _SIGNED else value


def found_stats(
    data: npt.NDArray[np.uint8], stats: Fields, wanted: Mapping[int, str]
) -> Iterator[tuple[str, Found]]:
    """Yield the values of the stats that are wanted, with the stat's name.

    Args:
        data: The bytes of the file, padded.
        stats: The fields that hold stats; `message` is the index of the event.
        wanted: Names of stats by their numbers.
    """
    count = len(stats.value)
    which, sort, value, size = (np.zeros(count, np.int64) for _ in range(4))
    damaged = np.zeros(count, bool)
    for fields in scan(data, stats.value, stats.value + stats.size, damaged):
        of = fields.of(_WHICH, NUMBER)
        which[of.message] = of.value
        for number, wire in _WIRES.items():
            of = fields.of(number, wire)
            sort[of.message], value[of.message], size[of.message] = number, of.value, of.size
    sound = ~damaged & (sort > 0)
    for number, name in wanted.items():
        at = np.flatnonzero((which == number) & sound)
        yield name, Found(stats.message[at], sort[at], value[at], size[at])


def _integer(value: Any) -> int | None:
    """Return a number of 64 bits, with a sign; None if the value is none."""
    if isinstance(value, float):
        return int(value) if abs(value) < _FAR else None
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None
    if isinstance(value, bytes):
        return None
    return signed(int(value))


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _texts(value: Any) -> str:
    return text(value) if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


_CONVERSIONS = {pl.Int64: _integer, pl.Float64: _real, pl.String: _texts, pl.Binary: _bytes}
