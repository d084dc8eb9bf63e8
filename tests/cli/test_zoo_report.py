"""`xsp zoo report`: a folder of results in, a page, a summary or one table out."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from zoo_frames import frame, row

from xsp.cli.app import run


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


def test_the_page_is_called_as_the_zoo(folder: Path) -> None:
    file = folder / "results.parquet"
    pl.read_parquet(file).with_columns(zoo=pl.lit("vision")).write_parquet(file)
    assert run(["zoo", "report", str(folder)]) == 0
    assert "<h1>vision</h1>" in (folder.parent / "results.html").read_text(encoding="utf-8")


def test_the_table_of_a_folder_is_read_as_the_folder(folder: Path) -> None:
    assert run(["zoo", "report", str(folder / "results.parquet"), "-o", "zoo.html"]) == 0
    assert "<h1>results</h1>" in (folder.parent / "zoo.html").read_text(encoding="utf-8")


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
        (["--csv"], "--csv is of a table: say which, as --table models"),
        (["--table", "models", "-o", "page.html"], "leave out -o and --open"),
        (["--table", "modles"], "'modles' is not one of"),
        (["-o", "results/results.parquet/"], "choose another -o"),
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


def test_every_table_has_a_name_on_the_command_line() -> None:
    from xsp.cli.zoo.report import report  # noqa: PLC0415
    from xsp.zoo import TABLES  # noqa: PLC0415

    (option,) = (one for one in report.params if one.name == "name")
    assert list(getattr(option.type, "choices", ())) == list(TABLES)
