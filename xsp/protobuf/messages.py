"""Scans the fields of many messages at once: the first of each, then the second, and so on.

A file holds millions of small messages of a few fields each. Read in step, the fields of all
messages are arrays, and Python does as much work for a million messages as for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xsp.protobuf.wire import BYTES, EIGHT, FOUR, NUMBER, walk

Ints = npt.NDArray[np.int64]

PADDING = 16  # bytes behind the end of the data: a number at the end is read without a check
_FEW = 16  # messages: fewer are read one by one, for one may have a million fields


@dataclass(frozen=True, slots=True)
class Fields:
    """Some fields of some messages; those of one message in their order.

    Attributes:
        message: Index of the message of each field.
        number: Number of each field.
        wire: Wire type of each field.
        value: The number that each field holds (its 64 bits, with a sign); of bytes where they
            begin.
        size: How many bytes the value has, where it is bytes.
    """

    message: Ints
    number: Ints
    wire: Ints
    value: Ints
    size: Ints

    def of(self, number: int, wire: int) -> Fields:
        """Return the fields that have a number and a wire type."""
        return self.at(np.flatnonzero((self.number == number) & (self.wire == wire)))

    def at(self, which: npt.NDArray[Any]) -> Fields:
        """Return some of the fields: those at the places, or where an array is true."""
        return Fields(*(column[which] for column in _columns(self)))

    def numbered(self) -> Fields:
        """Return the fields as messages of their own, each the number of its place."""
        return Fields(np.arange(len(self.value)), *_columns(self)[1:])

    @classmethod
    def joined(cls, parts: Iterable[Fields]) -> Fields:
        """Return the fields of several in one, in their order."""
        columns = zip(*(_columns(each) for each in parts), strict=True)
        return cls(*(np.concatenate(each) for each in columns))


NO_FIELDS = Fields(*(np.zeros(0, np.int64),) * 5)


def _columns(fields: Fields) -> tuple[Ints, ...]:
    return fields.message, fields.number, fields.wire, fields.value, fields.size


def scan(
    data: npt.NDArray[np.uint8], begin: Ints, end: Ints, damaged: npt.NDArray[np.bool_]
) -> Iterator[Fields]:
    """Yield the fields of n messages, step by step.

    Args:
        data: The bytes, and `PADDING` behind them.
        begin: Where each message begins.
        end: Where each message ends.
        damaged: Set to true for messages that are none from some place on.
    """
    active, at = np.flatnonzero(begin < end), begin[begin < end]
    while active.size > _FEW:
        found, at, sound = _next(data, active, at, end[active])
        damaged[active[~sound]] = True
        yield found
        going = sound & (at < end[active])
        active, at = active[going], at[going]
    if active.size:
        yield _rest(data, active, at, end, damaged)


def _next(
    data: npt.NDArray[np.uint8], active: Ints, at: Ints, end: Ints
) -> tuple[Fields, Ints, npt.NDArray[np.bool_]]:
    """Return the fields at some places, where they end, and which are sound."""
    tag, at, sound = _varints(data, at)
    wire, value, size = tag & 7, np.zeros_like(at), np.zeros_like(at)
    counted = (wire == NUMBER) | (wire == BYTES)
    rows = np.flatnonzero(counted & (at < end))
    value[rows], after, whole = _varints(data, at[rows])
    sound[rows] &= whole
    sound &= (wire == EIGHT) | (wire == FOUR) | (counted & (at < end))
    at[rows] = after
    rows = np.flatnonzero(wire == BYTES)
    size[rows], value[rows] = value[rows], at[rows]
    sound &= (size >= 0) & (size <= end - at)
    for kind, length in ((EIGHT, 8), (FOUR, 4)):
        rows = np.flatnonzero((wire == kind) & (at + length <= end))
        sound &= (wire != kind) | (at + length <= end)
        value[rows], size[rows] = _fixed(data, at[rows], length), length
    after = at + np.where(sound, size, 0)
    sound &= after <= end
    size[(wire == EIGHT) | (wire == FOUR)] = 0
    found = Fields(active[sound], tag[sound] >> 3, wire[sound], value[sound], size[sound])
    return found, after, sound


def _varints(data: npt.NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return the numbers at some places, where they end, and which have no more than 64 bits."""
    byte = data[at]
    value, after = (byte & 0x7F).astype(np.uint64), at + 1
    rows, shift = np.flatnonzero(byte & 0x80), 7
    while rows.size and shift < 70:
        byte = data[after[rows]]
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[rows] += 1
        rows, shift = rows[byte >= 0x80], shift + 7
    sound = np.ones(len(at), bool)
    sound[rows] = False
    return value.view(np.int64), after, sound


def _fixed(data: npt.NDArray[np.uint8], at: Ints, length: int) -> Ints:
    """Return the numbers of some bytes at some places, the lowest byte first."""
    value = np.zeros(len(at), np.uint64)
    for byte in range(length):
        value |= data[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return value.view(np.int64)


def _rest(
    data: npt.NDArray[np.uint8],
    active: Ints,
    at: Ints,
    end: Ints,
    damaged: npt.NDArray[np.bool_],
) -> Fields:
    """Return all fields of a few messages from some places on."""
    view, found = data.data, list[tuple[int, int, int, int, int]]()
    for message, place in zip(active.tolist(), at.tolist(), strict=True):
        try:
            found.extend((message, *field) for field in walk(view, place, int(end[message])))
        except ValueError:
            damaged[message] = True
    columns = np.array(found, np.uint64).reshape(-1, 5).T.view(np.int64)
    return Fields(*columns)
