from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.show.page.packing import pack


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and arrays of a packed text, as script/unpack.js reads them."""
    inside = zlib.decompress(base64.b64decode(text))
    length = int.from_bytes(inside[:4], "little")
    header = json.loads(inside[4 : 4 + length])
    at = -(-(4 + length) // 8) * 8
    arrays = {}
    for name, kind, count in header.pop("arrays"):
        dtype = np.dtype(kind.removesuffix("Array").lower())
        arrays[name] = np.frombuffer(inside, dtype, count, at)
        at = -(-(at + dtype.itemsize * count) // 8) * 8
    return header, arrays


@given(st.text(), st.lists(st.integers(0, 255)), st.lists(st.floats(width=32)))
def test_what_is_packed_can_be_unpacked(name: str, small: list[int], floats: list[float]) -> None:
    arrays: dict[str, Any] = {
        "small": np.array(small, dtype=np.uint8),
        "floats": np.array(floats, dtype=np.float32),
        "rows": np.arange(len(small), dtype=np.int32),
    }
    header, found = unpacked(pack({"name": name}, arrays))
    assert header == {"name": name}
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array)


def test_no_name_inside_is_markup() -> None:
    assert "<" not in pack({"name": "</script>"}, {})


def test_a_type_that_the_script_lacks_is_refused() -> None:
    with pytest.raises(KeyError):
        pack({}, {"start": np.array([1], dtype=np.int64)})
