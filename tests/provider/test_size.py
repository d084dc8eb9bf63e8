"""Rows that are more than memory holds."""

from __future__ import annotations

import pytest

from xsp.level import Kind
from xsp.provider import span_rows
from xsp.provider.size import within_memory

KINDS = ["region"] + ["layer"] * 3 + ["op"] * 4 + ["call"] * 2


@pytest.mark.parametrize(
    ("most", "left_out"),
    [
        (10, {}),
        (9, {Kind.CALL: 2}),
        (8, {Kind.CALL: 2}),
        (7, {Kind.OP: 4, Kind.CALL: 2}),
        (1, {Kind.OP: 4, Kind.CALL: 2}),
    ],
)
def test_the_deepest_kinds_are_left_out_but_never_layers(
    most: int, left_out: dict[Kind, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xsp.provider.size.MOST_SPANS", most)
    size = 2 * len(KINDS)
    columns = {"kind": KINDS * 2, "name": ["a"] * size, "start_ns": [0] * size}
    rows = span_rows(columns | {"end_ns": [1] * size, "thread": [1] * size})
    kept, found = within_memory(rows, 2)
    assert found == left_out
    gone = {kind.value for kind in left_out}
    assert kept["kind"].to_list() == [kind for kind in KINDS * 2 if kind not in gone]
