from __future__ import annotations

from typing import Any

import pytest
from fake_cupti import FakeCupti
from fake_records import DTYPES, ActivityKind, record
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.table import FORMS, gather, layout, walk

KINDS = st.sampled_from(sorted(DTYPES))


def size_of(kind: int, at: int) -> int | None:
    return DTYPES[ActivityKind(kind)].itemsize if kind in list(DTYPES) else None


@given(st.lists(st.tuples(KINDS, st.integers(1, 2**32 - 1)), max_size=60))
def test_records_of_all_kinds_are_found_and_kept_apart(wanted: list[tuple[Any, int]]) -> None:
    marks = {"CONTEXT": "device_id", "DEVICE": "id", "MARKER": "id"}
    made = [
        record(kind, **{marks.get(kind.name, "correlation_id"): number}) for kind, number in wanted
    ]
    buffer = memoryview(b"".join(made))
    places, unread = walk(buffer, size_of)
    assert unread == 0
    how = layout(FakeCupti())
    for kind in DTYPES:
        numbers = [number for other, number in wanted if other == kind]
        if numbers:
            table = gather(buffer, places[kind], how.dtypes[kind], how.forms[kind])
            assert table[marks.get(kind.name, "correlation_id")].tolist() == numbers
        else:
            assert kind not in places


def test_forms_are_those_of_the_real_binding() -> None:
    cupti = pytest.importorskip("cupti.cupti", reason="needs cupti-python: make .venv/.cupti")
    how = layout(cupti)
    assert {form.table for form in how.forms.values()} == {form.table for form in FORMS}
    for kind, form in how.forms.items():
        fields = how.dtypes[kind].fields
        assert fields is not None
        assert set(form.fields) <= set(fields), form.table
        mine = DTYPES[ActivityKind(kind)]
        assert mine.fields is not None
        assert {name: fields[name][1] for name in mine.fields} == {
            name: place[1] for name, place in mine.fields.items()
        }
