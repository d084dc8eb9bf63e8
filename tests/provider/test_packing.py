from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import ProviderError, TraceFormatError
from xsp.level import Kind
from xsp.provider.contract import Records
from xsp.provider.packing import pack, unpack


@dataclass(frozen=True)
class Point:
    x: int
    more: Any = ()


TYPES = (Point, Kind, Records)

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.sampled_from(Kind),
)
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.tuples(st.integers(), st.text())), inner),
        st.frozensets(st.one_of(st.integers(), st.sampled_from(Kind))),
        st.builds(Point, st.integers(), inner),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Compare types as well: True is 1, and a Kind its value."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple)):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return not isinstance(one, Point) or same(one.more, other.more)


@given(values)
def test_what_is_packed_is_unpacked_unchanged(value: Any) -> None:
    assert same(unpack(pack(value, TYPES), TYPES), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.array([], np.int64),
        np.array([1.5, np.nan]),
        np.array([True, False]),
        np.arange(10)[::2],
    ],
)
def test_arrays_keep_type_and_shape(array: np.ndarray) -> None:
    found = unpack(pack({"a": (array, array)}, ()), ())["a"]
    for each in found:
        assert each.dtype == array.dtype
        np.testing.assert_array_equal(each, array)


def test_equal_sets_make_equal_bytes() -> None:
    one, other = frozenset((0, 8)), frozenset((8, 0))
    assert list(one) != list(other)  # they are walked in the order they were made in
    assert pack(one, ()) == pack(other, ())


def test_numbers_of_numpy_become_plain() -> None:
    assert same(unpack(pack([np.int32(3), np.float64(0.5)], ()), ()), [3, 0.5])


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1}, Point(1), Kind.OP])
def test_what_cannot_be_kept_is_refused(value: Any) -> None:
    with pytest.raises(ProviderError, match="cannot be kept"):
        pack((value,), ())


def test_only_named_types_are_made() -> None:
    packed = pack(Point(1), TYPES)
    with pytest.raises(TraceFormatError, match="Point"):
        unpack(packed, (Kind,))


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_what_is_cut_is_refused(cut: int) -> None:
    packed = pack({"a": np.arange(3), "b": b"text"}, ())
    with pytest.raises(TraceFormatError, match="record again"):
        unpack(packed[:cut], ())


def test_a_made_up_type_of_array_is_refused() -> None:
    packed = pack(np.arange(3), ())
    with pytest.raises(TraceFormatError):
        unpack(packed.replace(b'"<i8"', b'"|O8"'), ())
