"""Promises of docs/analyses.md: questions to a trace, each answered by a table."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import polars as pl
import pytest
from small import answer, measured

import xsp
from xsp import analyses

PAGE = Path(__file__).parents[2] / "docs" / "analyses.md"


@pytest.fixture(scope="module")
def trace() -> xsp.Trace:
    return measured()


@pytest.fixture
def folder(trace: xsp.Trace, tmp_path: Path) -> Path:
    trace.save(tmp_path / "net.xsp")
    return tmp_path


@pytest.mark.parametrize("analysis", analyses.ALL, ids=lambda analysis: analysis.name)
def test_each_question_has_its_documented_table_or_says_what_is_missing(
    trace: xsp.Trace, analysis: analyses.Analysis[[xsp.Trace]]
) -> None:
    assert analysis.question.endswith("?")
    page = PAGE.read_text(encoding="utf-8")
    _, section, *_ = re.split(rf"\n### {analysis.name}(?: \(A\d+\))?\n", page)
    section = section.partition("\n### ")[0]
    assert analysis.question.replace("optimizer", "optimizer") in section
    assert f"```{{generated}} analysis {analysis.name}\n" in section  # its columns
    if why := analysis.unmet(trace):
        with pytest.raises(xsp.AnalysisError, match=re.escape(why)):
            analysis(trace)
        assert re.search("measure with|read", why)  # the remedy
    else:
        assert analysis(trace).columns == list(analysis.columns)


def test_layers_have_their_latencies(trace: xsp.Trace) -> None:
    table = analyses.layer_latency(trace)
    layers = trace.spans.filter(kind="layer")
    assert set(table["path"]) <= set(layers["path"])
    assert {"predict/Sequential/0", "predict/Sequential/1", "predict/Sequential/2"} <= set(
        table["path"]
    )
    latency = dict(layers.select("path", "latency_ns").rows())
    for path, found in table.select("path", "latency_ns").rows():
        assert found == pytest.approx(latency[path])


def test_operators_are_counted_by_name(trace: xsp.Trace) -> None:
    table = analyses.operator_latency(trace)
    counts = dict(table.select("operator", "calls").rows())
    names = trace.spans.filter(kind="op")["name"].to_list()
    assert counts["aten::addmm"] == names.count("aten::addmm") == 2


def test_layer_types_are_counted(trace: xsp.Trace) -> None:
    table = analyses.layer_type_distribution(trace)
    assert dict(table.select("type", "count").rows())["Linear"] == 2


def test_a_path_in_place_of_a_trace_is_told_how_it_is_loaded(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"xsp\.load\("):
        analyses.layer_latency(str(folder / "net.xsp"))  # type: ignore[arg-type]


def test_analyze_lists_what_can_be_asked(folder: Path) -> None:
    said = answer(folder, "analyze", "net.xsp")
    assert said.returncode == 0
    assert "layer-latency" in said.stdout
    assert "kernel-by-name" in said.stdout


@pytest.mark.parametrize("form", ["csv", "json"])
def test_an_answer_is_printed_whole(trace: xsp.Trace, folder: Path, form: str) -> None:
    said = answer(folder, "analyze", "net.xsp", "layer-latency", f"--{form}")
    assert said.returncode == 0, said.stderr
    expected = analyses.layer_latency(trace)["path"].to_list()
    if form == "csv":
        assert pl.read_csv(io.StringIO(said.stdout))["path"].to_list() == expected
    else:
        found = json.loads(said.stdout)
        rows = found if isinstance(found, list) else found["rows"]
        assert [row["path"] for row in rows] == expected


@pytest.mark.parametrize("ending", ["csv", "parquet", "html"])
def test_an_answer_is_saved(folder: Path, ending: str) -> None:
    done = answer(folder, "analyze", "net.xsp", "layer-latency", "-o", f"layers.{ending}")
    assert done.returncode == 0, done.stderr
    content = (folder / f"layers.{ending}").read_bytes()
    assert content.startswith(b"PAR1") if ending == "parquet" else b"Sequential" in content


def test_an_unknown_question_names_the_nearest(folder: Path) -> None:
    done = answer(folder, "analyze", "net.xsp", "layer-latenzy")
    assert done.returncode == 2
    assert "layer-latency" in done.stderr


def test_a_question_that_the_trace_cannot_answer_says_what_it_needs(folder: Path) -> None:
    done = answer(folder, "analyze", "net.xsp", "device-time")
    assert done.returncode == 3
    assert "measure with levels=4 on a GPU" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
