from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xsp.export.otlp import wire

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 64).map(lambda bits: max(2**bits - 1, 0))


def read(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded))


@settings(deadline=None)
@given(NUMBERS)
@example(2**64 - 1)
def test_varint_is_as_long_as_it_must_be_and_says_where_it_ends(number: int) -> None:
    encoded = wire.varint(number)
    assert read(encoded) == number
    assert len(encoded) == max(-(-number.bit_length() // 7), 1)
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1))
def test_column_of_varints_is_what_one_by_one_gives(numbers: list[int]) -> None:
    column = np.array(numbers, np.uint64)
    sizes = wire.varint_sizes(column)
    assert sizes.tolist() == [len(wire.varint(number)) for number in numbers]
    for size in set(sizes.tolist()):
        same = column[sizes == size]
        expected = [wire.varint(number) for number in same.tolist()]
        assert wire.rows(len(same), wire.varints(same, size)) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.binary(max_size=300))))
def test_fields_come_back_as_they_were_written(fields: list[tuple[int, bytes]]) -> None:
    message = b"".join(wire.field(number, content) for number, content in fields)
    assert list(wire.fields(message)) == fields


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_message_cut_short_is_refused(content: bytes, data: st.DataObject) -> None:
    message = wire.field(2, content)
    cut = data.draw(st.integers(1, len(message) - 1))
    with pytest.raises(ValueError, match="ends"):
        list(wire.fields(message[:cut]))


def test_fields_without_a_length_are_numbers() -> None:
    fixed = wire.tag(2, wire.FIXED64) + b"\x01" + bytes(7) + wire.tag(3, wire.FIXED32) + b"\2\0\0\0"
    message = wire.tag(1, wire.VARINT) + wire.varint(300) + fixed
    assert list(wire.fields(message)) == [(1, 300), (2, 1), (3, 2)]


def test_kind_of_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="of kind 7"):
        list(wire.fields(b"\xff\x01\x00"))


def test_zeros_are_no_message() -> None:
    with pytest.raises(ValueError, match="the number 0"):
        list(wire.fields(bytes(2)))


def test_text_that_is_not_unicode_is_written_as_an_escape() -> None:
    assert wire.utf8("caf\u00e9 \udcff") == b"caf\xc3\xa9 \\udcff"


def test_rows_keep_zero_bytes_at_their_ends() -> None:
    numbers = np.array([1, 256], np.int64)
    assert wire.rows(2, b"\0", wire.fixed(numbers, "<u2")) == [b"\0\x01\0", b"\0\0\x01"]
