from __future__ import annotations

import polars as pl
import pytest

from xsp.errors import ProviderError
from xsp.level import Kind
from xsp.matching.tree_row import has_provenance, on_device, pass_orders
from xsp.provider.row import (
    PROVENANCE,
    ROW_SCHEMA,
    Provenance,
    checked,
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


@pytest.mark.parametrize(
    "columns",
    [
        {"kind": ["op"], "name": ["a"], "start_ns": [1]},
        {"kind": ["op"], "name": ["a"], "start_ns": [1], "end_ns": [2], "color": ["red"]},
        {"kind": ["nonsense"], "name": ["a"], "start_ns": [1], "end_ns": [2]},
        {"kind": ["op"], "name": ["a"], "start_ns": [1, 2], "end_ns": [2, 3, 4]},
        {"kind": ["op", "op"], "name": ["a", None], "start_ns": [1, 2], "end_ns": [3, 4]},
        {"kind": ["op", None], "name": ["a", "b"], "start_ns": [1, 2], "end_ns": [3, 4]},
    ],
)
def test_rows_that_break_the_schema_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(ProviderError, match="span rows"):
        span_rows(columns)


def test_what_span_rows_did_not_make_is_refused() -> None:
    with pytest.raises(ProviderError, match="a list is no frame"):
        checked([])  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=r"columns \['name'\] are missing"):
        checked(no_rows().drop("name"))


@pytest.mark.parametrize(
    ("provenance", "pass_"),
    [
        (Provenance.RECORDED, Kind.LAYER),
        (None, Kind.LAYER),
        (Provenance.MARKER, Kind.KERNEL),
        (Provenance.ENDED_BY_LAUNCH, Kind.LAUNCH),
        (Provenance.DERIVED, Kind.OP),
        (Provenance.REPLAYED, Kind.KERNEL),
    ],
)
def test_the_provenance_of_a_row_decides_the_pass_of_its_latency(
    provenance: Provenance | None, pass_: Kind
) -> None:
    row = span_rows({"kind": ["layer"], "name": "fc", "start_ns": 0, "end_ns": 1})
    row = row.with_columns(provenance=pl.lit(provenance, dtype=PROVENANCE))
    assert pass_orders(row).tolist() == [pass_.order]
    assert has_provenance(row, provenance or Provenance.RECORDED).all()


@pytest.mark.parametrize(
    ("thread", "device", "expected"), [(1, None, False), (None, 0, True), (1, 0, False)]
)
def test_a_row_is_on_a_device_where_it_names_one_and_no_thread(
    thread: int | None, device: int | None, expected: bool
) -> None:
    row = span_rows({"kind": ["op"], "name": "a", "start_ns": 0, "end_ns": 1, "device": device})
    assert on_device(row.with_columns(thread=pl.lit(thread, pl.Int64))).tolist() == [expected]
