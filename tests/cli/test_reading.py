"""`xsp import`, and other tools' files where a trace is taken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import xsp
from xsp.importers import Contents, Recording, Source
from xsp.provider import span_rows
from xsp.reading.importers import format as formats
from xsp.show.cli import app as cli
from xsp.show.cli import exit_code

Said = pytest.CaptureFixture[str]


class Lines:
    """Reads steps of 10 µs: a line that says how many."""

    name = "lines"
    tool = "a tool of the tests"

    def recognizes(self, source: Source) -> bool:
        return source.head.startswith(b"steps ")

    def read(self, source: Source) -> Contents:
        with source.open() as file:
            count = int(file.read().split()[1])
        starts = [number * 10_000 for number in range(count)]
        columns = {"start_ns": starts, "end_ns": [start + 10_000 for start in starts]}
        roots = span_rows({"kind": "region", "name": [f"#{n}" for n in range(count)], **columns})
        rows = span_rows({"kind": "op", "name": "aten::add", "thread": 1, **columns})
        return (Recording("Lines 2.0", rows, roots, rank=source.path.stat().st_size % 10),)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("lines", f"{__name__}:Lines", formats.GROUP)
    monkeypatch.setattr(formats, "entry_points", lambda group: (point,))
    monkeypatch.chdir(tmp_path)
    Path("net.trace.json").write_text("steps 6")
    Path("net2.trace.json").write_text("steps 006")
    yield
    monkeypatch.undo()


def test_a_recording_is_never_overwritten(capsys: Said) -> None:
    code = cli.run(["import", "net.trace.json", "-o", "./net.trace.json"])
    assert code == exit_code.USAGE
    assert "would replace an input file" in capsys.readouterr().err
    assert Path("net.trace.json").read_text() == "steps 6"


def test_import_shows_the_columns_that_show_shows(capsys: Said) -> None:
    def tree(*words: str) -> str:
        assert cli.run([*words]) == exit_code.OK
        return capsys.readouterr().out.partition("Look next")[0]

    columns = ("--errors", "--overhead", "--warnings")
    assert tree("import", "net.trace.json", *columns) == tree("show", "net.trace.json", *columns)
    assert tree("show", "net.trace.json", *columns) != tree("show", "net.trace.json")


@pytest.mark.parametrize("command", ["import", "show", "export"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("words", "is text that begins with 'words', which xsp does not read"),
        ("steps none", "the importer lines failed (ValueError"),
        ("steps 0", "Lines 2.0 recorded no spans"),
    ],
)
def test_a_file_that_cannot_be_read_is_said(
    capsys: Said, command: str, content: str, said: str
) -> None:
    Path("bad").write_text(content)
    assert cli.run([command, "bad"]) == exit_code.NOT_MEASURED
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert not Path("bad.xsp").exists()


@pytest.mark.parametrize("command", ["import", "show", "export"])
def test_a_folder_without_a_recording_is_said(capsys: Said, command: str) -> None:
    Path("runs").mkdir()
    assert cli.run([command, "runs"]) == exit_code.NOT_MEASURED
    assert "runs is a folder without a recording" in capsys.readouterr().err


def test_a_large_file_has_a_bar_on_a_terminal(
    capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.run(["show", "net.trace.json"]) == exit_code.OK
    assert "reading" not in capsys.readouterr().err
    Path("large").write_text("steps 6" + " " * 40_000_000)
    assert cli.run(["show", "large"]) == exit_code.OK
    assert "reading" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["net.xsp", "mine"])
def test_a_trace_of_xsp_is_not_imported_a_second_time(name: str, capsys: Said) -> None:
    assert cli.run(["import", "net.trace.json", "-o", name]) == exit_code.OK
    assert cli.run(["import", name]) == exit_code.USAGE
    assert (
        f"{name} is a trace of xsp already. Print it with: xsp show {name}"
        in capsys.readouterr().err
    )
    assert not Path(f"{name}.xsp").exists()
    assert cli.run(["import", name, "-o", "other.xsp"]) == exit_code.OK
    assert xsp.load("other.xsp").spans.equals(xsp.load(name).spans)
