"""Formats are found from content; importers that are out of order are named, and alone."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from recorded import install, program, write

import xsp
from xsp.errors import TraceFormatError

OWN = ("kineto", "nsys", "ncu", "onnxruntime", "xplane", "rocprofv3", "rpd", "ctf")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return write(tmp_path / "a.toy", program(2))


def refused(path: Path) -> str:
    with pytest.raises(TraceFormatError) as caught:
        xsp.read(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: nothing was recorded"),
        (b"hello\n", r"is text that begins with 'hello\n'"),
        (b' {"points": 12}', "is JSON that begins with '{\"points\": 12}'"),
        (b"\x7fELF\0\0\0", "is binary, of unknown format"),
        (b"\x1b[2J", r"is text that begins with '\x1b[2J'"),
        # Without a time: test runners that work side by side have to agree on the test's name.
        (b"\x28\xb5\x2f\xfd packed", "is compressed by zstd; unpack it with `zstd -d`"),
        (gzip.compress(b"hello", mtime=0), "is text that begins with 'hello'"),
        (b"\x1f\x8b\x08\0 no gzip at all", "is damaged from its beginning on"),
    ],
)
def test_what_a_file_is_instead_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert f"{path} {said}" in refused(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [("a.nsys-rep", "nsys export --type sqlite a.nsys-rep"), ("b.qdrep", "sqlite b.qdrep")],
)
def test_a_report_that_its_vendor_alone_reads_says_how_to_export_it(
    tmp_path: Path, name: str, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"QDS\0\1")
    assert said in refused(path)


def test_an_unknown_format_names_the_formats_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing to see")
    said = refused(path)
    assert "its own traces" in said
    assert [name for name in OWN if name not in said] == []


@pytest.mark.parametrize("packed", [False, True])
def test_a_database_of_another_program_is_named_by_its_tables(
    tmp_path: Path, *, packed: bool
) -> None:
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE bookmarks (title)")
        database.execute("CREATE TABLE history (title)")
        database.commit()
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert "is an SQLite database with the tables bookmarks, history" in refused(path)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no_such_module:Importer", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("recorded:Missing", "AttributeError"),
        ("recorded:Asking", "RuntimeError: no idea"),
        ("recorded:write", "TypeError"),
    ],
)
def test_a_broken_importer_is_named_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, foreign: Path, broken: str, said: str
) -> None:
    install(monkeypatch, broken, "recorded:Toy")
    trace = xsp.read(foreign)
    trace.check()
    (warning,) = trace.warnings
    assert warning.code == "importer"
    assert broken in warning.message
    assert said in warning.message
    foreign.write_text("something else")
    assert broken in refused(foreign)


def test_an_importer_that_knows_what_is_wrong_says_it_itself(
    monkeypatch: pytest.MonkeyPatch, foreign: Path
) -> None:
    install(monkeypatch, "recorded:Refusing")
    assert refused(foreign) == f"{foreign}: its version is unknown"
