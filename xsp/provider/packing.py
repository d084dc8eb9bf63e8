"""Packs a provider's records into msgpack bytes, and reads such bytes without running code.

A provider says of what type the data of its records is (`record_type`). Reading makes values of
that type and no others, and raises an error where the bytes hold anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from xsp.errors import ProviderError, TraceFormatError
from xsp.provider.contract import Packable, Provider, Records

T = TypeVar("T")
_DAMAGE = (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError)


class _Packed(msgspec.Struct, Generic[T], omit_defaults=True):
    """Records, with the type of their data."""

    data: T
    dropped: int
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # name of the warnings in recordings of format 4


class _Array(msgspec.Struct, array_like=True):
    """An array of numbers: element type as in `numpy.dtype.str`, sizes, content."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    content: bytes


def pack(provider: Provider, records: Records) -> bytes:
    """Return records as bytes; equal records make equal bytes in every process.

    Args:
        provider: The provider that recorded (`Packable`).
        records: The provider's records.

    Raises:
        ProviderError: The provider has no `record_type`, or the records are not of that type.
    """
    if not isinstance(provider, Packable):
        raise ProviderError("it does not say of what type they are (record_type)")
    plain = getattr(provider, "plain", None)
    kept = records if plain is None else plain(records)
    try:
        packed = _Packed(_in_order(kept.data), kept.dropped, kept.warnings, kept.notes)
        content = msgspec.msgpack.encode(packed, enc_hook=_described)
        _read(
            content, provider.record_type
        )  # records that cannot be read back are not worth keeping
    except (*_DAMAGE, OverflowError) as error:
        raise ProviderError(f"they are not what its record_type says: {error}") from error
    return content


def unpack(provider: Provider, content: bytes) -> Records:
    """Return the records that `pack` turned into bytes.

    Raises:
        TraceFormatError: The bytes are damaged, or hold no records of the `record_type`.
    """
    if not isinstance(provider, Packable):
        raise TraceFormatError(f"{provider.name} does not say of what type its records are")
    try:
        return _read(content, provider.record_type)
    except _DAMAGE as error:
        raise TraceFormatError(
            f"these records cannot be read ({type(error).__name__}: {error}): they are damaged, or "
            "of another version of xsp; record again"
        ) from error


def _read(content: bytes, record_type: Any) -> Records:
    kind: Any = _Packed[record_type]
    packed = msgspec.msgpack.decode(content, type=kind, dec_hook=_array)
    return Records(packed.data, packed.dropped, (*packed.warnings, *packed.problems), packed.notes)


def _in_order(value: Any) -> Any:
    """Return a value with the members of sets sorted: their own order differs by process."""
    if isinstance(value, (set, frozenset)):
        return sorted((_in_order(each) for each in value), key=repr)
    if isinstance(value, (tuple, list)):
        return [_in_order(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _in_order(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _in_order(getattr(value, field.name)) for field in fields(value)}
    return value


def _described(value: Any) -> Any:
    """Return a value that msgpack can hold in the place of a number or array of NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__module__}.{type(value).__name__} cannot be kept")
    _check_numbers(value.dtype)
    return _Array(value.dtype.str, value.shape, value.tobytes())


def _array(kind: Any, described: Any) -> Any:
    """Return the array that `_described` described, of a type such as `NDArray[np.int64]`."""
    if get_origin(kind) is not np.ndarray:
        raise TypeError(f"{kind} is no type that records can be of")
    array = msgspec.convert(described, _Array)
    dtype = np.dtype(array.dtype)
    _check_numbers(dtype)
    (wanted,) = get_args(get_args(kind)[1])
    if wanted is not Any and not issubclass(dtype.type, wanted):
        raise ValueError(f"expected an array of {wanted.__name__}, got {dtype}")
    return np.frombuffer(array.content, dtype).reshape(array.shape)


def _check_numbers(dtype: Any) -> None:
    if dtype.kind not in "biufc":
        raise ValueError(f"an array of {dtype} cannot be kept: numbers alone can")
