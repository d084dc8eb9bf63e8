from __future__ import annotations

import polars as pl
import pytest

from xsp.errors import ProviderError
from xsp.provider.row import ROW_SCHEMA, concat_rows, no_rows, span_rows


def test_columns_that_were_not_given_are_null_and_scalars_are_spread() -> None:
    frame = span_rows(
        {
            "kind": ["op", "op"],
            "name": ["a", "b"],
            "start_ns": [1, 2],
            "end_ns": [3, 4],
            "thread": 7,
        }
    )
    assert frame.columns == list(ROW_SCHEMA)
    assert frame["thread"].to_list() == [7, 7]
    assert frame["device"].to_list() == [None, None]
    assert frame["rung"].to_list() == ["op", "op"]


def test_attributes_are_kept_beside_the_schema() -> None:
    frame = span_rows(
        {"kind": ["op"], "name": ["a"], "start_ns": [1], "end_ns": [2], "attr.shapes": [[[1, 2]]]}
    )
    assert frame["attr.shapes"].to_list() == [[[1, 2]]]


@pytest.mark.parametrize(
    "columns",
    [
        {"kind": ["op"], "name": ["a"], "start_ns": [1]},
        {"kind": ["op"], "name": ["a"], "start_ns": [1], "end_ns": [2], "colour": ["red"]},
        {"kind": ["nonsense"], "name": ["a"], "start_ns": [1], "end_ns": [2]},
        {"kind": ["op"], "name": ["a"], "start_ns": [1, 2], "end_ns": [2, 3, 4]},
        {"kind": ["op", "op"], "name": ["a", None], "start_ns": [1, 2], "end_ns": [3, 4]},
        {"kind": ["op", None], "name": ["a", "b"], "start_ns": [1, 2], "end_ns": [3, 4]},
    ],
)
def test_rows_that_break_the_schema_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(ProviderError, match="span rows"):
        span_rows(columns)


def test_frames_with_different_attributes_are_joined() -> None:
    base = {"kind": ["op"], "name": ["a"], "start_ns": [1], "end_ns": [2]}
    joined = concat_rows([span_rows(base), no_rows(), span_rows(base | {"attr.bytes": [5]})])
    assert joined["attr.bytes"].to_list() == [None, 5]
    assert concat_rows([]).schema == pl.Schema(ROW_SCHEMA)
