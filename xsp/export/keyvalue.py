"""OTLP attributes: values of any type, one by one or a column at a time, as KeyValue fields.

The messages are those of opentelemetry/proto/common/v1/common.proto: KeyValue (key 1,
value 2) and AnyValue (text 1, boolean 2, integer 3, double 4, array 5).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from xsp.export import wire

if TYPE_CHECKING:
    from xsp.export.picture import Value

_KEY, _VALUE = 1, 2
_TEXT, _ARRAY = 1, 5
_ITEM = 1
_BOOLEAN = wire.tag(2, wire.VARINT)
_INTEGER = wire.tag(3, wire.VARINT)
_DOUBLE = wire.tag(4, wire.FIXED64)


def any_value(value: Value) -> bytes:
    """Return an AnyValue message."""
    if isinstance(value, str):
        return wire.field(_TEXT, wire.utf8(value))
    if isinstance(value, bool):
        return _BOOLEAN + wire.varint(value)
    if isinstance(value, int):
        return _INTEGER + wire.varint(value % 2**64)
    if isinstance(value, float):
        return _DOUBLE + struct.pack("<d", value)
    return wire.field(_ARRAY, b"".join(wire.field(_ITEM, any_value(item)) for item in value))


def attribute(number: int, key: str, value: Value) -> bytes:
    """Return one attribute as field `number` of whatever bears it."""
    return _attribute(number, _key(key), value)


def column(number: int, key: str, values: pl.Series) -> list[bytes]:
    """Return one attribute for each row, empty where the value is null.

    Args:
        number: Field number of `attributes` in the message that bears it.
        key: Name of the attribute.
        values: Of a type that `plain` gives.
    """
    if values.null_count() == 0:
        return _encoder(values.dtype)(number, _key(key), values)
    present = _encoder(values.dtype)(number, _key(key), values.drop_nulls())
    encoded = [b""] * len(values)
    for row, one in zip(values.is_not_null().arg_true().to_list(), present, strict=True):
        encoded[row] = one
    return encoded


def _encoder(dtype: pl.DataType) -> Callable[[int, bytes, pl.Series], list[bytes]]:
    if dtype == pl.Int64:
        return _integers
    if dtype == pl.Float64:
        return _doubles
    if dtype == pl.Boolean:
        return _scalars
    if dtype == pl.List(pl.String):
        return _lists
    return _texts


def _integers(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode integers; those of one length in bytes together, as they share the lengths before."""
    numbers = values.to_numpy().view(np.uint64)
    sizes = wire.varint_sizes(numbers)
    encoded = [b""] * len(numbers)
    for size in np.unique(sizes).tolist():
        places = np.flatnonzero(sizes == size)
        before = _before(number, key, size + len(_INTEGER)) + _INTEGER
        same = wire.rows(len(places), before, wire.varints(numbers[places], size))
        for place, one in zip(places.tolist(), same, strict=True):
            encoded[place] = one
    return encoded


def _doubles(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    before = _before(number, key, 8 + len(_DOUBLE)) + _DOUBLE
    return wire.rows(len(values), before, wire.fixed(values.to_numpy(), "<f8"))


def _scalars(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    encode = functools.cache(functools.partial(_attribute, number, key))
    return list(map(encode, values.to_list()))


def _lists(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode lists, each that repeats once: polars takes long to make lists of Python's."""
    same = pl.DataFrame({"values": values}).with_row_index("row").group_by("values").agg("row")
    encoded = [b""] * len(values)
    for items, rows in same.rows():
        one = _attribute(number, key, items)
        for row in rows:
            encoded[row] = one
    return encoded


def _texts(number: int, key: bytes, values: pl.Series) -> list[bytes]:
    """Encode text, each that repeats once, and what stands before it once for each length."""

    @functools.cache
    def before(size: int) -> bytes:
        start = wire.tag(_TEXT, wire.LENGTH) + wire.varint(size)
        return _before(number, key, len(start) + size) + start

    @functools.cache
    def encode(text: str) -> bytes:
        encoded = wire.utf8(text)
        return before(len(encoded)) + encoded

    return list(map(encode, values.to_list()))


def _attribute(number: int, key: bytes, value: Value) -> bytes:
    return wire.field(number, key + wire.field(_VALUE, any_value(value)))


def _before(number: int, key: bytes, size: int) -> bytes:
    """Return what stands before the AnyValue of an attribute, if that has `size` bytes."""
    start = key + wire.tag(_VALUE, wire.LENGTH) + wire.varint(size)
    return wire.tag(number, wire.LENGTH) + wire.varint(len(start) + size) + start


def _key(key: str) -> bytes:
    return wire.field(_KEY, wire.utf8(key))
