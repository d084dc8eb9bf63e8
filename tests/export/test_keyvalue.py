from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from pictures import TEXT, VALUES, any_value

from xsp.export import keyvalue


def expected(key: str, value: Any) -> bytes:
    """What protobuf itself writes for a message whose field 1 is this attribute."""
    if value is None:
        return b""
    written: bytes = Resource(
        attributes=[KeyValue(key=key, value=any_value(value))]
    ).SerializeToString()
    return written


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@settings(deadline=None)
@given(data=st.data(), key=TEXT.filter(bool) | st.just("k" * 200))
def test_column_is_what_protobuf_writes(dtype: Any, data: st.DataObject, key: str) -> None:
    values = data.draw(st.lists(st.none() | VALUES[dtype], min_size=1, max_size=12))
    column = keyvalue.column(1, key, pl.Series(values, dtype=dtype))
    assert column == [expected(key, value) for value in values]


@settings(deadline=None)
@given(st.one_of(TEXT, st.booleans(), VALUES[pl.Int64], st.floats(), st.lists(TEXT)))
@example(2**63 - 1)
@example(-(2**63))
def test_single_attribute_is_what_protobuf_writes(value: Any) -> None:
    assert keyvalue.attribute(1, "key", value) == expected("key", value)


def test_values_that_are_equal_but_not_the_same_stay_apart() -> None:
    numbers = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]
    column = keyvalue.column(1, "key", pl.Series(numbers))
    assert column == [expected("key", number) for number in numbers]
    assert len(set(column)) == len(numbers)


def test_megabyte_of_text_with_zero_bytes_arrives_whole() -> None:
    text = "a\0é" * 300_000
    assert keyvalue.column(1, "key", pl.Series([text])) == [expected("key", text)]
