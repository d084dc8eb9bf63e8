from __future__ import annotations

import polars as pl
import pytest

from xsp.errors import ProviderError
from xsp.evaluation.tree_row import has_provenance, on_device, rung_orders
from xsp.level import Kind
from xsp.provider.row import (
    PROVENANCE,
    ROW_SCHEMA,
    Provenance,
    checked,
    concat_rows,
    no_rows,
    span_rows,
)


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
    assert frame["provenance"].to_list() == ["recorded", "recorded"]


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


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"start_ns": [1, None]}, "have an end_ns, but no start_ns"),
        ({"start_ns": [1, None], "end_ns": [3, None]}, "must say where to place them"),
        ({"start_ns": [1, None], "end_ns": [3, None], "duration_ns": 5}, "must say where"),
        ({"kind": "kernel", "end_ns": [3, None]}, "have a start_ns, but no end_ns"),
        ({"end_ns": [3, 1]}, "end before they begin"),
        (
            {
                "start_ns": [1, None],
                "end_ns": [3, None],
                "inside": "^mm$",
                "duration_ns": [None, -5],
            },
            "below 0",
        ),
    ],
)
def test_a_row_that_cannot_be_placed_is_refused_by_its_name(
    changed: dict[str, object], said: str
) -> None:
    good = {"kind": "op", "name": ["relu", "mm"], "start_ns": [1, 2], "end_ns": [3, 4]}
    with pytest.raises(ProviderError, match=f"1 of 2 rows .*mm, index 1.*{said}"):
        span_rows(good | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "call", "end_ns": [3, None]},
        {"start_ns": [1, None], "end_ns": [3, None], "inside": "^mm$", "duration_ns": [None, 0]},
        {"end_ns": [3, 2]},
    ],
)
def test_a_row_that_can_be_placed_is_taken(changed: dict[str, object]) -> None:
    good = {"kind": "op", "name": ["relu", "mm"], "start_ns": [1, 2], "end_ns": [3, 4]}
    assert span_rows(good | changed).height == 2


def test_what_span_rows_did_not_make_is_refused() -> None:
    with pytest.raises(ProviderError, match="a list is no frame"):
        checked([])  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=r"columns \['name'\] are missing"):
        checked(no_rows().drop("name"))


def test_frames_with_different_attributes_are_joined() -> None:
    base = {"kind": ["op"], "name": ["a"], "start_ns": [1], "end_ns": [2]}
    joined = concat_rows([span_rows(base), no_rows(), span_rows(base | {"attr.bytes": [5]})])
    assert joined["attr.bytes"].to_list() == [None, 5]
    assert concat_rows([]).schema == pl.Schema(ROW_SCHEMA)


@pytest.mark.parametrize(
    ("provenance", "rung"),
    [
        (Provenance.RECORDED, Kind.LAYER),
        (None, Kind.LAYER),
        (Provenance.MARKER, Kind.KERNEL),
        (Provenance.ENDED_BY_LAUNCH, Kind.LAUNCH),
        (Provenance.DERIVED, Kind.OP),
        (Provenance.REPLAYED, Kind.KERNEL),
    ],
)
def test_the_provenance_of_a_row_decides_the_rung_of_its_latency(
    provenance: Provenance | None, rung: Kind
) -> None:
    row = span_rows({"kind": ["layer"], "name": "fc", "start_ns": 0, "end_ns": 1})
    row = row.with_columns(provenance=pl.lit(provenance, dtype=PROVENANCE))
    assert rung_orders(row).tolist() == [rung.order]
    assert has_provenance(row, provenance or Provenance.RECORDED).all()


@pytest.mark.parametrize(
    ("thread", "device", "expected"), [(1, None, False), (None, 0, True), (1, 0, False)]
)
def test_a_row_is_on_a_device_where_it_names_one_and_no_thread(
    thread: int | None, device: int | None, expected: bool
) -> None:
    row = span_rows({"kind": ["op"], "name": "a", "start_ns": 0, "end_ns": 1, "device": device})
    assert on_device(row.with_columns(thread=pl.lit(thread, pl.Int64))).tolist() == [expected]
