"""XPlane files, written message by message by the protobuf package.

The fields are those of xplane.proto in openxla/xla (`tsl/profiler/protobuf`). Text is taken as
bytes, for hostile files hold text that is no UTF-8.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

US = 1_000_000  # picoseconds
_NUMBER, _NATURAL, _REAL, _BYTES, _MESSAGE = 3, 4, 1, 12, 11  # of FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # of FieldDescriptorProto.Label

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


class Plane:
    """A plane that is put together event by event; times are in µs."""

    def __init__(self, name: str, **stats: Any) -> None:
        self.message = plane_class()(name=name.encode())
        self._numbers: dict[str, dict[str, int]] = {"event": {}, "stat": {}}
        for stat, value in stats.items():
            self._add_stat(self.message, stat, value)

    def line(self, number: int, name: str, *, at_ns: int = 1000) -> Any:
        """Add a line."""
        return self.message.lines.add(id=number, name=name.encode(), timestamp_ns=at_ns)

    def event(self, line: Any, name: str, start: float, end: float, /, **stats: Any) -> Any:
        """Add an event to a line."""
        made = line.events.add(
            metadata_id=self._number("event", name),
            offset_ps=round(start * US),
            duration_ps=round((end - start) * US),
        )
        for stat, value in stats.items():
            self._add_stat(made, stat, value)
        return made

    def bytes(self) -> bytes:
        """Return the plane as a field of an XSpace."""
        return field(1, self.message.SerializeToString())

    def _add_stat(self, of: Any, name: str, value: Any) -> None:
        number = self._number("stat", name)
        if isinstance(value, str):
            # As the profiler does: texts that come often are the names of stats.
            of.stats.add(metadata_id=number, ref_value=self._number("stat", value))
        else:
            of.stats.add(metadata_id=number, int64_value=value)

    def _number(self, sort: str, name: str) -> int:
        known = self._numbers[sort]
        if name not in known:
            known[name] = len(known) + 1
            entry = getattr(self.message, f"{sort}_metadata").add(key=known[name])
            entry.value.name = name.encode()
        return known[name]


def field(number: int, payload: bytes) -> bytes:
    """Return a length-delimited field."""
    length, size = b"", len(payload)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload
