from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cupti import FakeCupti
from fake_records import DTYPES, ActivityKind, record
from hypothesis import given
from hypothesis import strategies as st

from xsp_levels.kernel.cupti.table import FORMS, gather, join, layout, walk

KINDS = st.sampled_from(sorted(DTYPES))


def size_of(kind: int, at: int) -> int | None:
    return DTYPES[ActivityKind(kind)].itemsize if kind in list(DTYPES) else None


def test_every_kind_has_a_form_and_a_data_type() -> None:
    found = layout(FakeCupti())
    assert {form.table for form in found.forms.values()} == {form.table for form in FORMS}
    assert found.dtypes[ActivityKind.MEMORY2] == DTYPES[ActivityKind.MEMORY2]


def test_a_kind_that_the_binding_lacks_is_left_out() -> None:
    class Older(FakeCupti):
        activity_kernel11_dtype: Any = None

        def __dir__(self) -> list[str]:
            return [name for name in super().__dir__() if "kernel" not in name]

    assert ActivityKind.CONCURRENT_KERNEL not in layout(Older()).forms


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


def test_a_record_longer_than_its_data_type_is_stepped_over_whole() -> None:
    longer = record(ActivityKind.RUNTIME, correlation_id=1) + bytes(8)
    buffer = memoryview(longer + record(ActivityKind.RUNTIME, correlation_id=2) + bytes(8))
    places, unread = walk(buffer, lambda kind, at: 48)
    assert (places, unread) == ({ActivityKind.RUNTIME: [0, 48]}, 0)


def test_a_record_that_cupti_steps_over_does_not_set_the_length_of_its_kind() -> None:
    """As CUPTI would say of a record that it leaves out: the next one is two records on."""
    kind, size = ActivityKind.RUNTIME, DTYPES[ActivityKind.RUNTIME].itemsize
    made = b"".join(record(kind, correlation_id=number) for number in range(6))
    places, unread = walk(memoryview(made), lambda kind, at: 2 * size if at == 0 else size)
    assert (places, unread) == ({kind: [0, *range(2 * size, 6 * size, size)]}, 0)


def test_the_walk_ends_where_a_length_is_not_known() -> None:
    known = record(ActivityKind.RUNTIME)
    buffer = memoryview(known + b"\xff" * 24 + known)
    assert walk(buffer, size_of) == ({ActivityKind.RUNTIME: [0]}, 24 + len(known))


@pytest.mark.parametrize("size", [0, 2, 5])
def test_a_length_that_cannot_be_is_not_believed(size: int) -> None:
    assert walk(memoryview(record(ActivityKind.RUNTIME)), lambda kind, at: size)[1] == 40


def test_a_last_record_shorter_than_the_data_type_has_zeros_where_it_ends() -> None:
    how = layout(FakeCupti())
    kind = ActivityKind.RUNTIME
    buffer = memoryview(record(kind, thread_id=5, correlation_id=9)[:32])
    table = gather(buffer, [0], how.dtypes[kind], how.forms[kind])
    assert (table["thread_id"][0], table["correlation_id"][0]) == (5, 0)


def test_a_field_that_the_binding_lacks_is_zero() -> None:
    dtype = np.dtype({"names": ["kind"], "formats": ["i4"], "offsets": [0], "itemsize": 40})
    how = layout(FakeCupti())
    form = how.forms[ActivityKind.RUNTIME]
    table = gather(memoryview(record(ActivityKind.RUNTIME)), [0], dtype, form)
    assert table["cbid"].tolist() == [0]


def test_of_several_versions_of_a_data_type_the_latest_is_taken() -> None:
    class Newer(FakeCupti):
        activity_kernel9_dtype = np.dtype({"names": ["kind"], "formats": ["i4"], "itemsize": 208})
        activity_kernel10_dtype = np.dtype({"names": ["kind"], "formats": ["i4"], "itemsize": 216})

    assert layout(Newer()).dtypes[ActivityKind.CONCURRENT_KERNEL].itemsize == 224


def test_tables_are_joined_in_order() -> None:
    joined = join([{"a": np.array([1, 2])}, {"a": np.array([3])}])
    assert joined["a"].tolist() == [1, 2, 3]


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
