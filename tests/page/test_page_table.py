from __future__ import annotations

import polars as pl
import pytest
from samples import conv, layer, op, pipeline, resnet, trace

from xsp.analyses import ALL, layer_latency
from xsp.page.place import Places
from xsp.page.table import SHOWN, Answer, answers, most_important, table_of, tabulated
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


def test_rows_that_are_about_many_spans_lead_to_the_longest() -> None:
    made = trace(pipeline("predict", conv("a", 5_000), conv("b", 9_000), layer("c", "C")))
    longest = Places(made).rows_of(pl.DataFrame({"operator": ["aten::conv2d", "aten::sort"]}))
    assert longest[1] == -1
    assert made.spans["path"][longest[0]] == "predict/b/aten::conv2d"
    assert Places(made).rows_of(pl.DataFrame({"cause": ["host"]})) == [-1]


def test_large_tables_keep_the_rows_that_weigh_most_in_their_order() -> None:
    frame = pl.DataFrame({"name": list("abcd"), "own_ns": [3.0, None, 9.0, 5.0]})
    assert most_important(frame, 2)["name"].to_list() == ["c", "d"]
    assert most_important(frame, 9).equals(frame)
    assert most_important(frame.select("name"), 2)["name"].to_list() == ["a", "b"]


def test_columns_without_any_value_are_named_and_not_shown() -> None:
    frame = pl.DataFrame({"name": ["a"], "device_ns": [None], "own_ns": [0.0]})
    meanings = {"name": "Name.", "device_ns": "Device.", "own_ns": "Own."}
    table = tabulated("made", "Which?", frame, meanings)
    assert [column.name for column in table.columns] == ["name", "own_ns"]
    assert (table.texts, table.unknown) == ([["a", "0 ns"]], ("device",))


def test_a_phase_that_is_the_same_in_every_row_is_named_and_not_shown() -> None:
    frame = pl.DataFrame({"name": ["a", "b"], "group": ["x", "x"], "phase": ["forward"] * 2})
    meanings = {"name": "Name.", "group": "Group.", "phase": "Phase."}
    table = tabulated("made", "Which?", frame, meanings)
    assert [column.name for column in table.columns] == ["name", "group"]
    assert (table.same, table.unknown) == ((("phase", "forward"),), ())
    both = frame.with_columns(phase=pl.Series(["forward", "backward"]))
    partly = frame.with_columns(phase=pl.Series(["forward", None]))
    for other in (both, partly):
        table = tabulated("made", "Which?", other, meanings)
        assert ([column.name for column in table.columns], table.same) == (list(meanings), ())


def test_what_is_not_known_sorts_as_nothing_and_is_no_zero() -> None:
    frame = pl.DataFrame({"own_ns": [1.0, None, float("nan")], "name": ["a", None, "c"]})
    table = tabulated("made", "Which?", frame, {"own_ns": "Own.", "name": "Name."})
    assert table.values == [[1.0, None, None], []]
    assert [row[0] for row in table.texts] == ["1.00 ns", "—", "—"]
