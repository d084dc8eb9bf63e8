"""Reads the fields of a message in protobuf's wire format, one after the other.

A field is a number (which of the message's fields it is) with a value: a number, 4 or 8 bytes, or
bytes of a stated length. The format says neither what a field is called, nor whether bytes are
text or another message; that is for the caller to know.
"""

from __future__ import annotations

from collections.abc import Iterator

NUMBER, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types
_FIXED = {EIGHT: 8, FOUR: 4}  # bytes by wire type
_MOST_BITS = 64


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    r"""Yield number and value of each field of a message.

    The value of a field of 4 or 8 bytes is the number that they are, the lowest byte first.

    Raises:
        ValueError: The bytes end within a field, or are no message. Fields before have been
            yielded.

    >>> [(number, value) for number, value in fields(b"\x08\x96\x01")]
    [(1, 150)]
    """
    view = memoryview(data)
    for number, wire, value, size in walk(view, 0, len(view)):
        yield number, view[value : value + size] if wire == BYTES else value


def walk(data: bytes | memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, value and length of each field of the message at a place.

    The value of a field of bytes is where they begin; the length of all others is 0.

    Raises:
        ValueError: The message ends within a field, or is none.
    """
    at = begin
    while at < end:
        # Mostly tag and length are a byte each, and there are millions of fields.
        tag, at = (data[at], at + 1) if data[at] < 0x80 else varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == BYTES:
            short = at < end and data[at] < 0x80
            size, at = (data[at], at + 1) if short else varint(data, at, end)
            if at + size > end:
                raise ValueError(f"field {number} ends behind the end")
            yield number, wire, at, size
            at += size
        elif wire == NUMBER:
            value, at = varint(data, at, end)
            yield number, wire, value, 0
        elif wire in _FIXED:
            size = _FIXED[wire]
            if at + size > end:
                raise ValueError(f"field {number} ends behind the end")
            yield number, wire, int.from_bytes(data[at : at + size], "little"), 0
            at += size
        else:
            raise ValueError(f"there is no wire type {wire}")


def varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends.

    Raises:
        ValueError: It ends behind the end, or is larger than 64 bits.
    """
    number = shift = 0
    while shift < _MOST_BITS + 6:
        if at >= end:
            raise ValueError("the bytes end within a number")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number & (1 << _MOST_BITS) - 1, at
    raise ValueError("a number of more than 64 bits")


def signed(number: int) -> int:
    """Return the number with a sign that 64 bits stand for.

    >>> signed(2**64 - 1)
    -1
    """
    return number - (1 << _MOST_BITS) if number >> (_MOST_BITS - 1) else number
