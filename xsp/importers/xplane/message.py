"""Bytes of an XSpace in, its planes as messages of the `protobuf` package out.

The fields are those of xplane.proto in openxla/xla (`tsl/profiler/protobuf`). Text is taken as
bytes, for hostile files hold text that is no UTF-8, and protobuf refuses a whole message for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

_NUMBER, _NATURAL, _REAL, _BYTES, _MESSAGE = 3, 4, 1, 12, 11  # of FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # of FieldDescriptorProto.Label
_PLANE, _HOSTNAME = 1, 4  # numbers of fields of XSpace
_LENGTH_DELIMITED = 2  # a wire type
_FIXED = {1: 8, 5: 4}  # bytes by wire type

# For each message its fields: name, number, type, label, and message where the type is one.
_FIELDS: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "XPlane": (
        ("id", 1, _NUMBER, _ONE, ""),
        ("name", 2, _BYTES, _ONE, ""),
        ("lines", 3, _MESSAGE, _MANY, "XLine"),
        ("event_metadata", 4, _MESSAGE, _MANY, "EventEntry"),
        ("stat_metadata", 5, _MESSAGE, _MANY, "StatEntry"),
        ("stats", 6, _MESSAGE, _MANY, "XStat"),
    ),
    # Maps are lists of entries on the wire.
    "EventEntry": (
        ("key", 1, _NUMBER, _ONE, ""),
        ("value", 2, _MESSAGE, _ONE, "XEventMetadata"),
    ),
    "StatEntry": (
        ("key", 1, _NUMBER, _ONE, ""),
        ("value", 2, _MESSAGE, _ONE, "XStatMetadata"),
    ),
    "XLine": (
        ("id", 1, _NUMBER, _ONE, ""),
        ("name", 2, _BYTES, _ONE, ""),
        ("timestamp_ns", 3, _NUMBER, _ONE, ""),
        ("events", 4, _MESSAGE, _MANY, "XEvent"),
        ("display_name", 11, _BYTES, _ONE, ""),
    ),
    "XEvent": (
        ("metadata_id", 1, _NUMBER, _ONE, ""),
        ("offset_ps", 2, _NUMBER, _ONE, ""),
        ("duration_ps", 3, _NUMBER, _ONE, ""),
        ("stats", 4, _MESSAGE, _MANY, "XStat"),
        ("num_occurrences", 5, _NUMBER, _ONE, ""),
    ),
    "XStat": (
        ("metadata_id", 1, _NUMBER, _ONE, ""),
        ("double_value", 2, _REAL, _ONE, ""),
        ("uint64_value", 3, _NATURAL, _ONE, ""),
        ("int64_value", 4, _NUMBER, _ONE, ""),
        ("str_value", 5, _BYTES, _ONE, ""),
        ("bytes_value", 6, _BYTES, _ONE, ""),
        ("ref_value", 7, _NATURAL, _ONE, ""),
    ),
    "XEventMetadata": (
        ("id", 1, _NUMBER, _ONE, ""),
        ("name", 2, _BYTES, _ONE, ""),
        ("display_name", 4, _BYTES, _ONE, ""),
        ("stats", 5, _MESSAGE, _MANY, "XStat"),
    ),
    "XStatMetadata": (("id", 1, _NUMBER, _ONE, ""), ("name", 2, _BYTES, _ONE, "")),
}
_VALUES = ("double_value", "uint64_value", "int64_value", "str_value", "bytes_value", "ref_value")


@cache
def plane_class() -> Any:
    """Return the class of messages of type XPlane."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(name="xplane", package="xplane", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if of:
                made.type_name = f".xplane.{of}"
            if field in _VALUES:
                made.oneof_index = 0
        if name == "XStat":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xplane.XPlane"))


def is_damaged(error: Exception) -> bool:
    """Tell whether an exception is what protobuf raises for bytes that are no message."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    return isinstance(error, DecodeError)


def fields(data: bytes | memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the number and the bytes of each field of a message; None: not length-delimited.

    Raises:
        ValueError: The bytes end within a field, or are no message.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH_DELIMITED:
            length, at = _varint(view, at)
            if at + length > len(view):
                raise ValueError(f"field {number} ends behind the end")
            yield number, view[at : at + length]
            at += length
        elif wire == 0:
            _, at = _varint(view, at)
            yield number, None
        elif wire in _FIXED:
            at += _FIXED[wire]
            yield number, None
        else:
            raise ValueError(f"there is no wire type {wire}")


def plane_name(data: bytes) -> bytes | None:
    r"""Return the name of the first plane, if the bytes begin as an XSpace does; else None.

    Planes are the first field of an XSpace, and begin with their number and name; the bytes may
    end anywhere behind that name.

    >>> plane_name(b"\x0a\x0b\x12\x09/host:CPU"), plane_name(b"\x0a\x03abc")
    (b'/host:CPU', None)
    """
    view = memoryview(data)
    try:
        tag, at = _varint(view, 0)
        if tag != _PLANE << 3 | _LENGTH_DELIMITED:
            return None
        _, at = _varint(view, at)
        tag, at = _varint(view, at)
        if tag == 1 << 3:  # the plane's number, if it is not 0
            _, at = _varint(view, at)
            tag, at = _varint(view, at)
        if tag != 2 << 3 | _LENGTH_DELIMITED:
            return None
        length, at = _varint(view, at)
    except ValueError:
        return None
    return bytes(view[at : at + length]) if at + length <= len(view) else None


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    number = shift = 0
    while shift < 70:
        if at >= len(view):
            raise ValueError("the bytes end within a number")
        byte = view[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")
