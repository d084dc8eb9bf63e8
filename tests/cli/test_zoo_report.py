"""`xsp zoo report` writes a page, a summary or one table of a folder of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from zoo_frames import frame, row

from xsp.show.cli.app import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    rows = [row("a", batch, latency_ns=5e6 * batch) for batch in (1, 8)]
    rows.append(row("b", status="failed", reason="no such model"))
    frame(*rows).write_parquet(tmp_path / "results" / "results.parquet")
    return tmp_path / "results"


def test_a_page_is_written_and_a_summary_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["zoo", "report", str(folder)]) == 0
    page = (folder.parent / "results.html").read_text(encoding="utf-8")
    assert "<h1>results</h1>" in page
    said = capsys.readouterr()
    assert "2 models, 2 measurements, 1 without numbers" in said.out
    assert "1 failed: no such model (b)" in said.out
    assert said.err.startswith("the report is results.html")


def test_a_table_is_printed_for_people_and_for_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["zoo", "report", str(folder), "--table", "throughput"]) == 0
    assert "5.00 ms" in capsys.readouterr().out
    assert run(["zoo", "report", str(folder), "--table", "throughput", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["latency_ns"] for one in found] == [5e6, 4e7]
    assert run(["zoo", "report", str(folder), "--table", "failures", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "failed,no such model,1,1,b"
    assert not (folder.parent / "results.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv"], "--csv needs a table. Add --table models."),
        (["--table", "models", "-o", "page.html"], "Leave out -o and --open"),
        (["--table", "modles"], "'modles' is not one of"),
        (["-o", "results/results.parquet/"], "Choose another name"),
    ],
    ids=["form", "output", "typo", "itself"],
)
def test_arguments_that_do_not_fit_are_refused(
    folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["zoo", "report", str(folder / "results.parquet"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_results_is_no_zoo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["zoo", "report", str(tmp_path)]) == 3
    assert "holds no results of a zoo" in capsys.readouterr().err
