"""What holds for every analysis: its name, its documentation, its errors, its command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from samples import layer, op, pipeline, trace

import xsp
from xsp import analyses
from xsp.analyses import ALL, Analysis, layer_latency

PAGE = Path(__file__).parents[2] / "docs" / "analyses.md"
SECTION = re.compile(
    r"^### (?P<name>[a-z0-9-]+)(?: \((?P<paper>A\d+)\))?\n(?P<text>.*?)(?=^##|\Z)", re.M | re.S
)


def test_the_documentation_has_each_analysis_with_its_question() -> None:
    sections = {match["name"]: match for match in SECTION.finditer(PAGE.read_text())}
    assert sorted(sections) == sorted(analysis.name for analysis in ALL)
    for analysis in ALL:
        section = sections[analysis.name]
        assert section["paper"] == analysis.paper, analysis.name
        assert american(analysis.question) in section["text"], analysis.name
        assert f"```{{generated}} analysis {analysis.name}\n" in section["text"]


def american(text: str) -> str:
    return text.replace("optimizer", "optimizer")


def test_all_lists_every_public_analysis() -> None:
    public = [getattr(analyses, name) for name in analyses.__all__]
    assert {id(found) for found in public if isinstance(found, Analysis)} == {id(a) for a in ALL}
    assert len({analysis.name for analysis in ALL}) == len(ALL)


@pytest.mark.parametrize("analysis", ALL, ids=lambda analysis: analysis.name)
def test_each_analysis_documents_itself(analysis: Analysis[Any]) -> None:
    assert analysis.question.endswith("?")
    assert all(meaning.endswith(".") for meaning in analysis.columns.values())
    assert "Args:" in (analysis.__doc__ or "")


def test_a_trace_that_lacks_what_an_analysis_needs_is_refused_with_what_to_do() -> None:
    adder = trace(pipeline("predict", op("aten::add")), name="adder")
    with pytest.raises(xsp.AnalysisError, match="adder has no layers: measure with levels=2"):
        layer_latency(adder)


def test_self_times_of_layers_sum_to_the_time_of_the_outermost() -> None:
    inner = layer("conv", "Conv2d", op("aten::conv2d", own_ns=5_000), own_ns=1_000)
    marked = pipeline("stage", layer("relu", "ReLU", own_ns=500), own_ns=200)
    root = pipeline("predict", layer("net", "Net", inner, marked, own_ns=300))
    table = layer_latency(trace(root))
    assert table["type"].to_list() == ["Net", "Conv2d", "ReLU"]
    assert table["own_ns"].to_list() == [500.0, 6_000.0, 500.0]
    assert table["index"].dtype == pl.Int64


@pytest.mark.parametrize("path", ["vit.xsp", Path("vit.xsp")], ids=["text", "path"])
@pytest.mark.parametrize(
    "function", [layer_latency, analyses.model_information], ids=["one", "several"]
)
def test_a_path_in_place_of_a_trace_is_told_what_loads_it(function: Any, path: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a Trace, got a path\. Use xsp\.load\('vit\.xsp'\)"):
        function(path)
