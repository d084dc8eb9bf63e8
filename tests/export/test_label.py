from __future__ import annotations

import json
import math

import msgspec
import polars as pl
import pytest
from hypothesis import given
from sketch import TEXTS, some

from xsp.export.label import finite, joined, json_of, known


class Word(msgspec.Struct, rename="camel"):
    in_words: str


@some
@given(TEXTS)
def test_texts_come_back_from_json_as_they_were(text: str) -> None:
    assert json.loads(json_of([text])) == [text]


def test_half_a_surrogate_pair_does_not_spoil_the_file() -> None:
    assert json.loads(json_of("a\ud800b\udcff")) == "a?b?"
    assert json.loads(json_of([Word("a\ud800")])) == [{"inWords": "a?"}]


@pytest.mark.parametrize("value", [0.1, -0.0, 1e308, 5e-324, 2.0**63])
def test_numbers_keep_every_digit(value: float) -> None:
    assert repr(json.loads(json_of(finite(value)))) == repr(value)


def test_what_is_no_number_is_a_string() -> None:
    assert [finite(value) for value in (math.nan, math.inf, -math.inf)] == [
        "NaN",
        "Infinity",
        "-Infinity",
    ]


def test_a_span_has_the_attributes_that_are_not_null() -> None:
    assert known(["a", "b", "c"], [1, None, ""]) == {"a": 1, "c": ""}


def test_a_shape_that_is_not_known_is_a_question_mark_beside_the_others() -> None:
    shapes = pl.Series([[[2, 3], None, []], [], None], dtype=pl.List(pl.List(pl.Int64)))
    assert joined(shapes).to_list() == ["2x3, ?, -", "", None]
    assert joined(pl.Series([["float32", None]])).to_list() == ["float32, ?"]
