"""Protobuf's wire format: single values or whole columns in, bytes out; fields of messages back.

A message is a sequence of fields, and a field is a tag (field number and wire type), then the
value: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Bytes: TypeAlias = NDArray[np.uint8]

# A varint of n bytes holds numbers below 2^(7 n).
_LIMITS = np.array([1 << bits for bits in range(7, 64, 7)], dtype=np.uint64)
_MOST_GROUPS = 10
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    r"""Return a number from 0 to 2^64 - 1 in groups of seven bits, the lowest first.

    >>> varint(1), varint(300)
    (b'\x01', b'\xac\x02')
    """
    if number < 0x80:
        return _ONE_BYTE[number]
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def tag(number: int, kind: int) -> bytes:
    """Return the tag of a field: its number and its wire type, `kind`."""
    return varint(number << 3 | kind)


def field(number: int, content: bytes) -> bytes:
    r"""Return a field that holds bytes, text or a message.

    >>> field(5, b"add")
    b'*\x03add'
    """
    return varint(number << 3 | LENGTH) + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """Return a field that holds text, or nothing where the text is empty.

    Text from Python may hold surrogates, for bytes of its source that were not UTF-8. A
    receiver refuses a whole request for one such field, so surrogates become escapes.
    """
    return field(number, utf8(value)) if value else b""


def utf8(value: str) -> bytes:
    """Return text as UTF-8, with an escape for each surrogate."""
    return value.encode("utf-8", "backslashreplace")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: bytes where the field has a length, else unsigned.

    Raises:
        ValueError: The bytes are no message, or end within a field.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("a field has the number 0, which there is not")
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if kind != LENGTH and kind not in _WIDTHS:
            raise ValueError(f"field {number} is of kind {kind}, which there is not")
        size, at = _read_varint(message, at) if kind == LENGTH else (_WIDTHS[kind], at)
        if at + size > len(message):
            raise ValueError(f"field {number} of {size} bytes ends after its message")
        inside = message[at : at + size]
        yield number, inside if kind == LENGTH else int.from_bytes(inside, "little")
        at += size


def content(found: Mapping[int, int | bytes], number: int) -> bytes:
    """Return the bytes of a field with a length; empty where the message lacks the field."""
    value = found.get(number)
    return value if isinstance(value, bytes) else b""


def unsigned(found: Mapping[int, int | bytes], number: int) -> int:
    """Return the unsigned number of a field, 0 where the message lacks the field."""
    value = found.get(number)
    return value if isinstance(value, int) else 0


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it.

    Raises:
        ValueError: The number does not end within ten bytes, the most that a varint has.
    """
    number = 0
    for place, byte in enumerate(message[at : at + _MOST_GROUPS]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError(f"no number that begins at byte {at} ends there")


def varint_sizes(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many bytes each number takes as a varint: 1 to 10."""
    return np.searchsorted(_LIMITS, numbers, side="right") + 1


def varints(numbers: NDArray[np.uint64], size: int) -> Bytes:
    """Return numbers that all take `size` bytes as varints, in shape (numbers, size)."""
    groups: NDArray[np.uint64] = numbers[:, np.newaxis] >> (
        np.arange(size, dtype=np.uint64) * np.uint64(7)
    )
    groups &= np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    return groups.astype(np.uint8)


def fixed(numbers: NDArray[Any], dtype: str = "<i8") -> Bytes:
    """Return numbers as their bytes, in shape (numbers, bytes of the dtype)."""
    table = np.ascontiguousarray(numbers, dtype=dtype).view(np.uint8)
    return table.reshape(len(numbers), np.dtype(dtype).itemsize)


def rows(count: int, *parts: bytes | Bytes) -> list[bytes]:
    """Return the bytes of each row: its parts side by side; parts of type `bytes` repeat.

    Args:
        count: Number of rows.
        parts: Bytes, or arrays of shape (count, bytes of the part).

    >>> rows(2, b"n=", np.array([[65], [66]], np.uint8))
    [b'n=A', b'n=B']
    """
    table = np.hstack([_repeated(p, count) if isinstance(p, bytes) else p for p in parts])
    data, width = table.tobytes(), table.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]


def _repeated(part: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
