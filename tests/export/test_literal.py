from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from sketch import TEXTS, some

from xsp.export import literal


@some
@given(TEXTS)
def test_strings_come_back_as_they_were(text: str) -> None:
    written = literal.string(text)
    assert json.loads(written) == text
    assert written.isascii()
    assert written.isprintable()
    assert written.count('"') == 2


def test_half_a_surrogate_pair_does_not_spoil_the_file() -> None:
    assert json.loads(literal.string("a\ud800b\udcff")) == "a?b?"


def test_a_megabyte_of_text_is_written_whole() -> None:
    text = 'a"\n' * 350_000
    assert json.loads(literal.string(text)) == text


@pytest.mark.parametrize("value", [0.1, -0.0, 1e308, 5e-324, 2.0**63])
def test_numbers_keep_every_digit(value: float) -> None:
    assert repr(json.loads(literal.number(value))) == repr(value)


def test_what_is_no_number_is_a_string() -> None:
    values = [math.nan, math.inf, -math.inf]
    assert list(map(literal.number, values)) == ['"NaN"', '"Infinity"', '"-Infinity"']


def test_rows_have_the_attributes_that_are_not_null() -> None:
    spans = pl.DataFrame({"name": ["n", "m"], "attr.a": [1, None], "attr.b": ["x", "y"]})
    assert literal.attributes(spans, lambda key, value: f"{key}={value}") == [
        '"a"=1,"b"=x',
        '"b"=y',
    ]


def test_rows_without_attribute_columns_have_none() -> None:
    def never(key: str, value: Any) -> str:
        raise AssertionError

    assert literal.attributes(pl.DataFrame({"name": ["n", "m"]}), never) == ["", ""]
