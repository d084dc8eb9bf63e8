from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from chrome import (
    MAIN,
    OTHER,
    codes,
    kernel,
    launch,
    op,
    read,
    recording,
    trace,
    tree,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source
from xsp.reading.importers.kineto import Kineto


def many(count: int) -> list[dict[str, Any]]:
    """Return operators that each launch a kernel."""
    return [
        each
        for n in range(count)
        for each in (op(f"op{n}", 100 * n, 50), launch(n, 100 * n + 1), kernel(n, 100 * n + 60, 9))
    ]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("part", [0.3, 0.5, 0.77, 0.95])
def test_of_a_file_that_ends_in_the_middle_all_whole_events_are_read(
    tmp_path: Path, part: float
) -> None:
    text = written(tmp_path / "trace.json", many(50)).read_text()
    kept = text[: int(len(text) * part)]
    found = read(write(tmp_path / "cut.json", kept))
    assert found.rows.height == kept.count("\n    }")
    assert "cut-short" in codes(found)
    assert "damaged" not in codes(found)


def test_of_a_packed_file_that_ends_in_the_middle_what_can_be_unpacked_is_read(
    tmp_path: Path,
) -> None:
    events = [op(f"op{n}-{random.Random(n).random()}", 100 * n, 50) for n in range(20_000)]
    whole = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    found = read(path)
    assert 5_000 < found.rows.height < 15_000
    assert "cut-short" in codes(found)


def test_events_without_a_sound_time_are_left_out_and_counted(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [op("good", 0, 5), op("odd", 7, 3)]})
    for damage in ('"dur": NaN', '"dur": -1', '"dur": null', '"dur": "x"', '"dur": [1]'):
        found = read(write(tmp_path / "trace.json", text.replace('"dur": 3', damage)))
        assert tree(found) == ["good"], damage
        assert "1 event could not be read" in codes(found)["damaged"], damage


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_finite_spoil_nothing_else(tmp_path: Path, number: str) -> None:
    events = [op("first", 0, 5), kernel(1, 6, 2, bandwidth="THIS"), op("last", 9, 5)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).replace('"THIS"', number)
    found = read(write(tmp_path / "trace.json", text))
    assert sorted(found.rows["name"]) == ["first", "gemm", "last"]
    assert not codes(found)


@pytest.mark.parametrize(
    "name",
    [
        r'"C:\dir\x"',
        '"a\tb"',
        '"a\nb"',
        '"\\ud800"',
        '"quote " inside"',
        '"brackets }, { ] }"',
        "7",
    ],
)
def test_an_event_with_a_name_that_json_does_not_allow_spoils_no_other(
    tmp_path: Path, name: str
) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [*many(3), op("THIS", 500, 5), *many(0)]})
    found = read(write(tmp_path / "trace.json", text.replace('"THIS"', name)))
    known = found.rows.height + ("1 event" in codes(found).get("damaged", ""))
    assert known == 10
    assert not {"cut-short", "not-understood"} & codes(found).keys()


def test_damage_in_the_middle_costs_only_the_events_that_are_damaged(tmp_path: Path) -> None:
    text = written(tmp_path / "trace.json", many(40)).read_text()
    at = text.index('"op20"')
    found = read(write(tmp_path / "trace.json", text[:at] + "###" + text[at + 30 :]))
    assert found.rows.height >= 117
    assert "could not be read" in codes(found)["damaged"]


def test_names_however_hostile_are_names(tmp_path: Path) -> None:
    names = [
        "",
        " ",
        "\x1b[2J",
        "a/b",
        "a#2",
        "x" * 100_000,
        "<script>",
        "\u202e",
        "\x00",
        "nn.Mod",
    ]
    found = recording(tmp_path, [op(name, 10 * at, 5) for at, name in enumerate(names)])
    assert found.rows["name"].to_list() == names
    assert str(trace(found))


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**65) | st.floats(0, 1e6) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_KEYS = ("External id", "Input Dims", "Input type", "correlation", "device", "stream", "grid")
_EVENTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "ph": st.sampled_from(["X", "i", "s", "f", "M", "C"]) | _VALUES,
            "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "python_function"])
            | _VALUES,
            "name": st.sampled_from(["nn.Module: A_0", "[memory]", "ProfilerStep#3"]) | _VALUES,
            "ts": st.integers(0, 99) | _VALUES,
            "dur": st.integers(0, 20) | _VALUES,
            "pid": st.integers(0, 2) | _VALUES,
            "tid": st.integers(0, 2) | _VALUES,
            "args": st.dictionaries(st.sampled_from(_KEYS), _VALUES) | _VALUES,
        },
    ),
    max_size=12,
)


@settings(max_examples=20, deadline=None)
@given(events=_EVENTS, cut=st.floats(0.2, 1))
def test_whatever_a_file_holds_a_trace_is_made_of_it_or_an_error_says_why(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], cut: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    path.write_text(text[: int(len(text) * cut)])
    try:
        contents = Kineto().read(Source(path))
        for found in contents:
            assert isinstance(found, Recording)
            trace(found)
    except TraceFormatError:
        pass


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_operators_nested_at_random_are_found_so_again_from_whole_microseconds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    events: list[dict[str, Any]] = []
    expected: dict[int, int] = {}

    def nest(start: int, end: int, parent: int, depth: int) -> None:
        at = start
        while end - at > 3000 and depth < 5 and data.draw(st.booleans()):
            begin = data.draw(st.integers(at + 1, end - 2000))
            until = data.draw(st.integers(begin + 1500, end - 1))
            number = len(events) + 1
            expected[number] = parent
            events.append(
                op(
                    str(number),
                    begin // 1000,
                    (until - begin) // 1000,
                    tid=(MAIN, OTHER)[parent % 2] if not parent else MAIN,
                    **{"External id": number},
                )
            )
            nest(begin, until, number, depth + 1)
            at = until

    nest(0, 60_000, 0, 0)
    if not events:
        return
    path = written(tmp_path_factory.getbasetemp() / "nested.json", events)
    paths = tree(read(path))
    found = {int(path.split("/")[-1]): int((["0", *path.split("/")])[-2]) for path in paths}
    assert found == expected


@pytest.mark.parametrize("field", [b"Input Dims", b"grid"])
def test_a_byte_that_is_no_text_in_an_argument_loses_no_more_than_the_argument(
    tmp_path: Path, field: bytes
) -> None:
    args = {"Input Dims": [[2, 3]], "Input type": ["x"]}
    events = [op("aten::mm", 0, 9, **args), kernel(1, 5, 1, grid=["x"])]
    path = written(tmp_path / "trace.json", events)
    content = path.read_bytes()
    at = content.index(b'"x"', content.index(field))
    path.write_bytes(content[: at + 1] + b"\xff" + content[at + 2 :])
    assert read(path).rows["name"].to_list() == ["aten::mm", "gemm"]


def refusal(path: Path) -> str:
    with pytest.raises(TraceFormatError) as refused:
        read(path)
    return str(refused.value)


def test_of_a_file_of_another_program_is_said_whose_it_may_be(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "ExecuteThunks", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    assert ".xplane.pb" in refusal(written(tmp_path / "trace.json", events))
