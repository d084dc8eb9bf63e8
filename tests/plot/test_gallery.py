"""Pictures of analyses: each draws the table of its analysis, whatever trace that is of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import samples
from bokeh.document import Document
from device_samples import call, timeline, work
from drawn import source

import xsp
from xsp.analyses import ALL, Analysis
from xsp.plot import Plot, comparison, picture_of
from xsp.trace import Trace

TRACES = Path(os.environ.get("XSP_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
PICTURED = [analysis for analysis in ALL if picture_of(analysis) and not analysis.several]


def hostile() -> Trace:
    return samples.trace(samples.hostile())


def resnet() -> Trace:
    return samples.trace(samples.resnet())


def devices_alone() -> Trace:
    return timeline(100, work(10, 30), work(40, 60), thread=None)


def waiting_for_a_stream() -> Trace:
    calls = [call(0, 2, 1), call(2, 4, 2), call(4, 6, 3)]
    other = work(20, 70, 2, stream=8)
    return timeline(200, *calls, work(10, 30, 1), other, work(75, 90, 3))


@pytest.fixture(scope="module")
def recorded() -> Trace:
    path = TRACES / "kineto" / "h100-bert-small.json.gz"
    if not path.exists():
        pytest.skip(f"needs the recordings of other tools: there is no {path} (XSP_TRACES)")
    return xsp.read(path)


def drawn(analysis: Analysis[Any], trace: Trace) -> Plot:
    picture = picture_of(analysis)
    assert picture is not None
    plot = picture(trace)
    Document().add_root(plot.figure)  # refuses sources whose columns differ in length
    return plot


@pytest.mark.parametrize("make", [resnet, hostile, devices_alone, waiting_for_a_stream])
@pytest.mark.parametrize("analysis", PICTURED, ids=lambda analysis: analysis.name)
def test_each_picture_draws_what_its_analysis_says(
    analysis: Analysis[Any], make: Callable[[], Trace]
) -> None:
    trace = make()
    if unmet := analysis.unmet(trace):
        with pytest.raises(xsp.AnalysisError, match=unmet.split(":")[0]):
            drawn(analysis, trace)
        return
    assert drawn(analysis, trace).title == analysis.question


@pytest.mark.parametrize("analysis", PICTURED, ids=lambda analysis: analysis.name)
def test_each_picture_draws_a_recording_of_a_device(
    analysis: Analysis[Any], recorded: Trace
) -> None:
    if analysis.unmet(recorded) is None:
        assert drawn(analysis, recorded).title == analysis.question


def test_idle_times_for_other_streams_are_drawn_beside_the_names_of_streams() -> None:
    idle = pl.DataFrame({
        "rank": pl.Series([None] * 3, dtype=pl.Int64),
        "device": [0] * 3,
        "stream": [None, 7, 7],
        "cause": ["stream", "stream", "host"],
        "idle_ns": [500, 200, 300],
    })  # fmt: skip
    bars = source(xsp.plot.device_idle.of(idle).figure, "place")
    assert len(bars["place"]) == 2
    assert bars["end_1"][1] / bars["end_2"][1] == pytest.approx(0.6)


def test_a_table_without_rows_says_so() -> None:
    table = xsp.analyses.layer_latency(resnet()).clear()
    plot = xsp.plot.layer_latency.of(table)
    assert "no rows" in source(plot.figure, "text")["text"][0]


def test_a_comparison_of_equals_draws_nothing() -> None:
    plot = comparison(pl.DataFrame({"ratio": []}))
    assert "no rows" in source(plot.figure, "text")["text"][0]


def test_bokeh_is_loaded_when_a_picture_is_asked_for_and_its_lack_says_what_to_do() -> None:
    script = (
        "import sys, xsp.plot\n"
        "assert 'bokeh' not in sys.modules\n"
        "xsp.plot.KINDS\n"
        "sys.modules['bokeh'] = None\n"
        "xsp.plot.layer_latency\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: plots need Bokeh")
    assert "pip install 'xsp[report]'" in last


def test_a_name_that_is_none_is_refused_as_everywhere() -> None:
    with pytest.raises(AttributeError, match="no attribute 'layer_latencies'"):
        _ = xsp.plot.layer_latencies  # type: ignore[attr-defined]
