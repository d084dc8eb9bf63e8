from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from samples import op, pipeline, resnet, trace

from xsp.cli import app as cli
from xsp.cli import terminal

Said = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(trace(resnet(), name="resnet").save(tmp_path / "resnet.xsp"))


def test_without_a_name_it_says_what_can_be_asked(file: str, tmp_path: Path, capsys: Said) -> None:
    assert cli.run(["analyze", file]) == 0
    assert "Which layers take the time?" in capsys.readouterr().out
    bare = trace(pipeline("predict", op("aten::add")), name="bare").save(tmp_path / "bare.xsp")
    assert cli.run(["analyze", str(bare)]) == 0
    assert "the trace bare has no layers: measure with levels=2" in capsys.readouterr().out


def test_a_table_is_printed_with_units_sorted_and_cut(file: str, capsys: Said) -> None:
    assert cli.run(["analyze", file, "layer-latency", "--sort", "own_ns", "--rows", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["index", "layer", "type", "calls"]
    *rows, blank, unknown = rows
    assert len(rows) == 2
    assert all("ms ± 1 %" in row or "µs ± 1 %" in row for row in rows)
    assert (blank, unknown) == ("", "no values here: group, phase, device, serialised")


def test_a_table_that_is_too_wide_has_no_paths_or_has_its_columns_as_lines(
    file: str, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    assert cli.run(["analyze", file, "layer-latency", "--rows", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert "path" not in head
    assert all(len(row) <= 80 for row in rows)
    monkeypatch.setattr(terminal, "width", lambda: 30)
    assert cli.run(["analyze", file, "model-information"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "resnet"]
    assert lines[1].split()[0] == "latency"


def test_a_table_is_printed_and_saved_whole_in_other_formats(
    file: str, tmp_path: Path, capsys: Said
) -> None:
    saved = {}
    for suffix, read in (
        (".csv", pl.read_csv),
        (".json", pl.read_json),
        (".parquet", pl.read_parquet),
    ):
        to = tmp_path / f"layers{suffix}"
        assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 0
        saved[suffix] = read(to)
    assert saved[".csv"].shape == saved[".parquet"].shape == saved[".json"].shape
    assert saved[".csv"]["own_ns"].sum() == saved[".parquet"]["own_ns"].sum()
    assert cli.run(["analyze", file, "A3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["index"] == 1
    assert cli.run(["analyze", file, "A3", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("index,group,phase,layer")


def test_the_picture_of_a_table_is_saved(
    file: str, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "layers.html"
    assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 0
    assert "Which layers take the time?" in to.read_text()
    monkeypatch.setattr("xsp.plot.picture_of", lambda analysis: None)
    assert cli.run(["analyze", file, "A3", "-o", str(to)]) == 2
    assert "layer-latency has no picture" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["layer-latncy"], "did you mean layer-latency"),
        (["layer-latency", "--sort", "speed"], "there is no column speed"),
        (["layer-latency", "-o", "layers.txt"], "has to end in .csv, .json, .parquet or .html"),
        (["missing.xsp", "layer-latency"], "there is no file missing.xsp"),
    ],
)
def test_wrong_use_says_what_to_do(
    file: str, arguments: list[str], said: str, capsys: Said
) -> None:
    assert cli.run(["analyze", file, *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
