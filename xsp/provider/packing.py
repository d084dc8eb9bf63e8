"""Packs what providers keep: plain values in, bytes out, and back. Nothing in them is run.

A file of records says what they consist of, and reading it makes nothing but that:
numbers, texts, bytes, arrays, collections of these, and the dataclasses and
enumerations that the reader names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from xsp.errors import ProviderError, TraceFormatError

_LENGTH = struct.Struct("<Q")  # of the JSON; arrays and bytes follow it
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "list": list, "frozenset": frozenset}


def pack(value: Any, types: Sequence[type]) -> bytes:
    """Return a value as bytes; a frozenset's are the same in every process.

    Args:
        value: None, a truth value, number, text, bytes, numpy array of numbers, tuple, list,
            frozenset, dict, or one of `types`, which hold such values themselves.
        types: Dataclasses and enumerations, known by their names.

    >>> unpack(pack((1, b"two", {"three": [3.0]}), ()), ())
    (1, b'two', {'three': [3.0]})

    Raises:
        ProviderError: It holds anything else.
    """
    packer = _Packer(types)
    said = json.dumps(packer.described(value), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(said)), said, *packer.blobs])


def unpack(content: bytes, types: Sequence[type]) -> Any:
    """Return the value that `pack` made bytes of.

    Args:
        content: The bytes.
        types: Those that it was packed with; more do no harm.

    Raises:
        TraceFormatError: They are damaged, or hold types that are not among `types`.
    """
    try:
        (length,) = _LENGTH.unpack_from(content)
        at = _LENGTH.size
        reader = _Reader(
            {kind.__name__: kind for kind in types}, memoryview(content)[at + length :]
        )
        return reader.value(json.loads(content[at : at + length]))
    except (ValueError, TypeError, KeyError, IndexError, struct.error) as error:
        raise TraceFormatError(
            f"these records cannot be read ({type(error).__name__}: {error}): they are damaged, or "
            "of another version of xsp; record again"
        ) from error


class _Packer:
    """Describes values for JSON, and gathers what JSON cannot hold."""

    def __init__(self, types: Sequence[type]) -> None:
        self.blobs: list[bytes] = []
        self._types = tuple(types)
        self._at = 0

    def described(self, value: Any) -> Any:
        """Return a value as what JSON can hold: objects in it say what they stand for."""
        if type(value) in self._types:
            return self._of_type(value)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, bytes):
            return {"bytes": self._kept(value)}
        if isinstance(value, np.ndarray):
            return self._array(value)
        return self._collection(value)

    def _of_type(self, value: Any) -> Any:
        name = type(value).__name__
        if isinstance(value, Enum):
            return {name: value.value}
        held = {field.name: self.described(getattr(value, field.name)) for field in fields(value)}
        return {name: held}

    def _collection(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            pairs = [[self.described(key), self.described(held)] for key, held in value.items()]
            return {"dict": pairs}
        for name, kind in _COLLECTIONS.items():
            if isinstance(value, kind):
                ordered = sorted(value, key=repr) if kind is frozenset else value
                return {name: [self.described(held) for held in ordered]}
        raise ProviderError(
            f"records that hold a {type(value).__module__}.{type(value).__name__} cannot be kept: "
            "a provider's pack must make plain values of them first"
        )

    def _array(self, value: Any) -> Any:
        if value.dtype.hasobject or value.dtype.names:
            raise ProviderError(f"an array of {value.dtype} cannot be kept: numbers alone can")
        content = np.ascontiguousarray(value).tobytes()
        return {"array": [value.dtype.str, list(value.shape), self._kept(content)]}

    def _kept(self, content: bytes) -> list[int]:
        place = [self._at, len(content)]
        self.blobs.append(content)
        self._at += len(content)
        return place


class _Reader:
    """Makes values of what JSON held, and of the bytes behind it."""

    def __init__(self, types: Mapping[str, type], blobs: memoryview) -> None:
        self._types = types
        self._blobs = blobs

    def value(self, said: Any) -> Any:
        """Return the value that was described so."""
        if not isinstance(said, dict):
            return said
        ((name, held),) = said.items()
        if name in _COLLECTIONS:
            return _COLLECTIONS[name](self.value(each) for each in held)
        if name == "dict":
            return {self.value(key): self.value(each) for key, each in held}
        if name == "bytes":
            return bytes(self._kept(held))
        if name == "array":
            dtype, shape, place = held
            return np.frombuffer(self._kept(place), np.dtype(dtype)).reshape(shape)
        return self._of_type(self._types[name], held)

    def _of_type(self, kind: type, held: Any) -> Any:
        if is_dataclass(kind):
            return kind(**{field: self.value(each) for field, each in held.items()})
        return kind(held)

    def _kept(self, place: Sequence[int]) -> memoryview:
        at, length = place
        if at < 0 or length < 0 or at + length > len(self._blobs):
            raise ValueError("they end early")
        return self._blobs[at : at + length]
