from __future__ import annotations

import polars as pl
import pytest
from samples import op, pipeline, resnet, trace

from xsp.analyses import ALL, layer_latency
from xsp.show.page.place import Places
from xsp.show.page.table import SHOWN, Answer, answers, most_important, table_of, tabulated
from xsp.trace import Trace


@pytest.fixture(scope="module")
def model() -> Trace:
    return trace(resnet())


def test_every_analysis_that_the_trace_can_answer_has_a_table(model: Trace) -> None:
    names = [answer.analysis.name for answer in answers([model])]
    assert "layer-latency" in names
    assert names == [one.name for one in ALL if one.name in names]
    bare = trace(pipeline("predict", op("aten::add")))
    assert "layer-latency" not in [answer.analysis.name for answer in answers([bare])]


def test_of_several_traces_only_analyses_of_several_are_asked(model: Trace) -> None:
    assert all(answer.analysis.several for answer in answers([model, model]))


def test_cells_have_units_intervals_and_lead_to_spans(model: Trace) -> None:
    table = table_of(Answer(layer_latency, layer_latency(model)), Places(model))
    headings = [column.heading for column in table.columns]
    assert {"latency", "own", "share %"} <= set(headings)
    assert "latency low" not in headings
    assert table.paper == "A3"
    assert table.area == "layer"
    assert table.columns[table.link].name == "layer"
    row = [texts[headings.index("type")] for texts in table.texts].index("MaxPool2d")
    assert "± " in table.texts[row][headings.index("latency")]
    assert model.spans["path"][table.spans[row]] == "predict/ResNet/maxpool"
    assert len(table.shown) == SHOWN < table.height


def test_large_tables_keep_the_rows_that_weigh_most_in_their_order() -> None:
    frame = pl.DataFrame({"name": list("abcd"), "own_ns": [3.0, None, 9.0, 5.0]})
    assert most_important(frame, 2)["name"].to_list() == ["c", "d"]
    assert most_important(frame, 9).equals(frame)
    assert most_important(frame.select("name"), 2)["name"].to_list() == ["a", "b"]


def test_what_is_not_known_sorts_as_nothing_and_is_no_zero() -> None:
    frame = pl.DataFrame({"own_ns": [1.0, None, float("nan")], "name": ["a", None, "c"]})
    table = tabulated("made", "Which?", frame, {"own_ns": "Own.", "name": "Name."})
    assert table.values == [[1.0, None, None], []]
    assert [row[0] for row in table.texts] == ["1.00 ns", "—", "—"]
