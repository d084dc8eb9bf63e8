from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.clock import Clock
from xsp.errors import ProviderError, TraceFormatError
from xsp.level import Kind, Level
from xsp.provider.contract import Records, Request
from xsp.provider.packing import pack, unpack
from xsp.provider.row import SpanRows, no_rows


@dataclass(frozen=True)
class Call:
    name: str
    start_ns: int
    shapes: tuple[tuple[int, ...], ...] = ()
    algorithm: str | None = None


@dataclass(frozen=True)
class Made:
    calls: tuple[Call, ...] = ()
    lines: bytes = b""
    kinds: frozenset[Kind] = frozenset()
    names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    share: float = 0.0


@dataclass(frozen=True)
class Columns:
    exact: npt.NDArray[np.int64]
    table: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


class Recorder:
    """A provider that says of what type its records are, and does nothing else."""

    name = "recorder"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})

    def __init__(self, record_type: Any) -> None:
        self.record_type = record_type

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: Clock, request: Request) -> None:
        pass

    def stop(self) -> Records:
        return Records(None)

    def spans(self, records: Records) -> SpanRows:
        return no_rows()


MADE, COLUMNS = Recorder(Made), Recorder(Columns)

texts = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-(2**63), 2**63 - 1)
calls = st.builds(
    Call,
    texts,
    integers,
    st.lists(st.lists(integers, max_size=3).map(tuple), max_size=2).map(tuple),
    st.one_of(st.none(), texts),
)
made = st.builds(
    Made,
    st.lists(calls, max_size=5).map(tuple),
    st.binary(),
    st.frozensets(st.sampled_from(Kind)),
    st.dictionaries(st.tuples(texts, integers), texts, max_size=3),
    st.floats(allow_nan=False),
)


@given(made, st.integers(0, 9), st.lists(texts, max_size=2).map(tuple))
def test_what_is_packed_is_unpacked_unchanged(
    data: Made, dropped: int, warnings: tuple[str, ...]
) -> None:
    records = Records(data, dropped, warnings)
    assert unpack(MADE, pack(MADE, records)) == records


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.array([], np.int64),
        np.array([1.5, np.nan]),
        np.array([True, False]),
        np.arange(10)[::2],
        np.zeros((3, 0), np.float32),
    ],
)
def test_arrays_keep_type_and_shape(array: npt.NDArray[Any]) -> None:
    records = Records(Columns(np.arange(3), {"a": array}))
    found = unpack(COLUMNS, pack(COLUMNS, records)).data.table["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from test_packing import MADE, Kind, Made, Records, pack
kinds = frozenset(list(Kind)[::{step}])
sys.stdout.write(pack(MADE, Records(Made(kinds=kinds, names={{("b", 2): "x"}}))).hex())
"""


def test_equal_records_make_equal_bytes_in_every_process(request: pytest.FixtureRequest) -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(folder=str(request.path.parent), step=step)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed, step in (("1", "1"), ("2", "1"), ("3", "-1"))
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    "data",
    [
        object(),
        Made(lines="text"),  # type: ignore[arg-type]
        Made(calls=(Call("mm", 2**70),)),
        Made(calls=(Call("\ud800", 1),)),
        Made(names={("a", 1): object()}),  # type: ignore[dict-item]
    ],
)
def test_data_that_is_not_of_its_type_is_refused(data: Any) -> None:
    with pytest.raises(ProviderError, match="not what its record_type says"):
        pack(MADE, Records(data))


def test_only_the_type_that_was_named_is_made() -> None:
    content = pack(MADE, Records(Made(calls=(Call("mm", 1),))))
    with pytest.raises(TraceFormatError, match="record again"):
        unpack(COLUMNS, content)


@pytest.mark.parametrize("cut", [0, 1, 4, 20, -1])
def test_what_is_cut_is_refused(cut: int) -> None:
    content = pack(COLUMNS, Records(Columns(np.arange(3))))
    with pytest.raises(TraceFormatError, match="record again"):
        unpack(COLUMNS, content[:cut])


@pytest.mark.parametrize(
    ("dtype", "shape", "content"),
    [
        ("|O8", [1], b"12345678"),
        ("nonsense", [1], b"12345678"),
        ("<f8", [1], b"12345678"),  # not what the field is of
        ("<i8", [2], b"12345678"),
        ("<i8", [-1], b"12345678"),
        ("<i8", [1], b"1234567"),
        ("<i8", [1 << 62, 1 << 62], b""),
    ],
)
def test_hostile_arrays_are_refused(dtype: str, shape: list[int], content: bytes) -> None:
    data = {"exact": [dtype, shape, content], "table": {}}
    hostile = msgspec.msgpack.encode({"data": data, "dropped": 0, "warnings": []})
    with pytest.raises(TraceFormatError, match="record again"):
        unpack(COLUMNS, hostile)


def test_nesting_without_end_is_refused() -> None:
    anything = Recorder(Any)
    deep = b"\x83\xa4data" + b"\x91" * 200_000
    with pytest.raises(TraceFormatError, match="record again"):
        unpack(anything, deep)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for provider in (MADE, COLUMNS):
        try:
            unpack(provider, content)
        except TraceFormatError:
            continue
