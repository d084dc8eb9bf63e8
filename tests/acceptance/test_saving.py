"""Promises of docs/trace.md about files: one Parquet file that holds the trace whole."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from small import answer, measured

import xsp


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return measured()


def test_a_loaded_trace_is_the_saved_one(trace: xsp.Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "net.xsp")
    loaded = xsp.load(path)
    assert loaded.spans.equals(trace.spans)
    assert loaded.typical_runs.equals(trace.typical_runs)
    assert dict(loaded.metadata) == dict(trace.metadata)
    assert str(loaded) == str(trace)


def test_others_read_the_file_without_xsp(trace: xsp.Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "net.xsp")
    assert pl.read_parquet(path)["path"].to_list() == trace.spans["path"].to_list()
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'xsp[pandas]'")
    with path.open("rb") as file:  # pyarrow leaves to the collector when it closes a path's
        assert pandas.read_parquet(file)["path"].tolist() == trace.spans["path"].to_list()


def test_an_older_file_is_replaced_and_the_folder_holds_nothing_else(
    trace: xsp.Trace, tmp_path: Path
) -> None:
    measured(levels=1, runs=2).save(tmp_path / "net.xsp")
    trace.save(tmp_path / "net.xsp")
    assert xsp.load(tmp_path / "net.xsp").spans.height == trace.spans.height
    assert [path.name for path in tmp_path.iterdir()] == ["net.xsp"]


@pytest.mark.parametrize("how", ["profile", "measure"])
def test_names_that_are_no_unicode_have_question_marks(tmp_path: Path, how: str) -> None:
    def work() -> None:
        with xsp.span("half \ud800", said="\udc80"):
            pass

    if how == "measure":
        trace = xsp.measure(work, levels=1, runs=3, progress=False)
    else:
        with xsp.profile(levels=1, name="\ud800", monitor=False) as prof:
            work()
        trace = prof.trace
    loaded = xsp.load(trace.save(tmp_path / "a.xsp"))
    [row] = loaded.spans.filter(name="half ?").iter_rows(named=True)
    assert "?" in row["attributes"].values()
    assert "half ?" in loaded.tree()


def test_a_folder_that_is_missing_is_told(trace: xsp.Trace, tmp_path: Path) -> None:
    with pytest.raises(xsp.ExportError, match="missing"):
        trace.save(tmp_path / "missing" / "net.xsp")


@pytest.mark.parametrize("damage", ["cut", "text", "flipped"])
def test_a_damaged_file_is_refused_with_its_name(
    trace: xsp.Trace, tmp_path: Path, damage: str
) -> None:
    path = trace.save(tmp_path / "net.xsp")
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    path.write_bytes({"cut": content[:-100], "text": b"no trace", "flipped": flipped}[damage])
    with pytest.raises(xsp.TraceFormatError, match=r"net\.xsp"):
        xsp.load(path)


def test_show_prints_a_saved_trace_again(
    trace: xsp.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace.save(tmp_path / "net.xsp")
    shown = answer(tmp_path, "show", "net.xsp")
    assert shown.returncode == 0
    monkeypatch.chdir(tmp_path)
    assert shown.stdout.splitlines() == xsp.load("net.xsp").tree(width=120).splitlines()


def test_show_has_all_as_json(trace: xsp.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "net.xsp")
    said = json.loads(answer(tmp_path, "show", "net.xsp", "--json").stdout)
    assert [span["path"] for span in said["spans"]] == trace.spans["path"].to_list()


def test_a_file_that_is_not_there_is_an_error_of_one_line(tmp_path: Path) -> None:
    shown = answer(tmp_path, "show", "nothing.xsp")
    assert shown.returncode in (2, 3)
    assert "nothing.xsp" in shown.stderr
    assert "Traceback" not in shown.stderr
