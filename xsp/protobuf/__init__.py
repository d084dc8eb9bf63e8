"""Reads protobuf's wire format without a schema, one message or a million at once.

`wire` reads the fields of one message, one after the other; `messages` reads those of many
in step, as arrays.
"""

from __future__ import annotations

from xsp.protobuf.messages import NO_FIELDS, PADDING, Fields, Ints, scan
from xsp.protobuf.wire import BYTES, EIGHT, FOUR, NUMBER, fields, signed, varint, walk

__all__ = [
    "BYTES", "EIGHT", "FOUR", "NO_FIELDS", "NUMBER", "PADDING", "Fields", "Ints", "fields", "scan",
    "signed", "varint", "walk",
]  # fmt: skip
