from __future__ import annotations

import datetime
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
@given(st.one_of(TEXT, st.booleans(), st.integers(-(2**63), 2**70), st.floats(), st.lists(TEXT)))
@example(2**63)
@example(-(2**63))
def test_single_attribute_is_what_protobuf_writes(value: Any) -> None:
    assert keyvalue.attribute(1, "key", value) == expected("key", value)


def test_number_below_what_an_integer_holds_is_written_as_text() -> None:
    assert keyvalue.attribute(1, "key", -(2**63) - 1) == expected("key", str(-(2**63) - 1))


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (pl.Series([7, None], dtype=pl.Int8), [7, None]),
        (pl.Series([0.5, None], dtype=pl.Float32), [0.5, None]),
        (pl.Series(["a", None], dtype=pl.Categorical), ["a", None]),
        (pl.Series([[1, 2], None], dtype=pl.List(pl.Int64)), ["[1, 2]", None]),
        (pl.Series([b"\xff", None], dtype=pl.Binary), ["b'\\xff'", None]),
        (pl.Series([datetime.date(2026, 1, 2)], dtype=pl.Date), ["2026-01-02"]),
        (pl.Series([{"a": 1}], dtype=pl.Struct({"a": pl.Int64})), ["{'a': 1}"]),
    ],
    ids=lambda case: str(case.dtype) if isinstance(case, pl.Series) else "",
)
def test_other_types_become_the_nearest_or_text(values: pl.Series, written: list[Any]) -> None:
    assert keyvalue.column(1, "key", values) == [expected("key", value) for value in written]


def test_values_that_are_equal_but_not_the_same_stay_apart() -> None:
    numbers = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]
    column = keyvalue.column(1, "key", pl.Series(numbers))
    assert column == [expected("key", number) for number in numbers]
    assert len(set(column)) == len(numbers)


def test_megabyte_of_text_with_zero_bytes_arrives_whole() -> None:
    text = "a\0é" * 300_000
    assert keyvalue.column(1, "key", pl.Series([text])) == [expected("key", text)]
