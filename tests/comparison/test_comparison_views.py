from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from samples import hostile, layer, op, pipeline, resnet, trace

import xsp
from xsp.answer.comparison import parse_condition
from xsp.trace import Trace

ENVIRONMENT = {
    "pid": 1, "host": "one", "host_id": "a" * 32, "cpu": "A", "versions": {"torch": "2.4.0"},
    "threads": {"operators": 2}, "gpus": [{"name": "H100", "driver": "560"}],
}  # fmt: skip


def changed() -> Trace:
    """Return the model elsewhere, with a head of another type and a new layer."""
    other = ENVIRONMENT | {
        "pid": 2, "host_id": "b" * 32, "versions": {"torch": "2.5.0", "numpy": "2"},
        "threads": {"operators": 8}, "gpus": [],
    }  # fmt: skip
    root = resnet()
    root.children[0].children.append(layer("head", "Head", own_ns=9_000_000))
    return trace(root, environment=other, intervals="across 3 processes", plan={"runs": 5})


@pytest.fixture
def found() -> xsp.Comparison:
    before = trace(resnet(), environment=ENVIRONMENT, intervals="across 3 processes")
    return xsp.compare(before, changed(), names=("before", "after"))


def test_a_terminal_shows_settings_first_then_the_whole_then_what_costs(
    found: xsp.Comparison,
) -> None:
    text = str(found)
    parts = ["measured differently", "before", "layers compared", "own", "not the same any more"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert "added    ResNet/head (Head)" in text
    assert found.text(rows=3).count("ResNet/") <= 3 + 1
    assert all(len(line) <= 140 for line in found.text(width=100).splitlines())


def test_what_differs_in_where_it_was_measured_is_told_and_nothing_else(
    found: xsp.Comparison,
) -> None:
    told = {row[0]: row[1:] for row in found.settings.iter_rows()}
    assert told["torch"] == ("2.4.0", "2.5.0")
    assert told["numpy"] == (None, "2")
    assert told["threads: operators"] == ("2", "8")
    assert told["devices"] == ("H100 560", "—")
    assert told["machine"] == ("one (aaaaaaaa)", "one (bbbbbbbb)")
    assert not told.keys() & {"pid", "cpu", "host", "host_id", "intervals"}


def test_markdown_has_headline_tables_changes_and_a_fold(found: xsp.Comparison) -> None:
    lines = found.markdown(rows=2).splitlines()
    assert lines[0].startswith("**before ")
    assert "| `ResNet/head` |" in "\n".join(lines)
    assert "- added: `ResNet/head (Head)`" in lines
    assert "<details><summary>Measured differently</summary>" in lines


def test_a_notebook_shows_html_without_scripts_whatever_names_there_are(
    found: xsp.Comparison,
) -> None:
    assert "<table>" in found._repr_html_()
    bad = xsp.compare(trace(hostile()), trace(pipeline("predict", *hostile().children[:-2])))
    shown = bad._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in str(bad)
    assert "\x1b" not in bad.markdown()
    assert "<script" not in bad.markdown().replace("`", "")[:0]


def test_several_traces_are_compared_with_the_first() -> None:
    traces = [trace(resnet()) for _ in range(3)]
    found = xsp.compare(*traces)
    assert found.names == ("predict (1)", "predict (2)", "predict (3)")
    assert found.table["trace"].unique(maintain_order=True).to_list() == list(found.names[1:])
    assert found.summary.height == 2
    assert str(found).count("layers compared") == 2


def test_a_comparison_cannot_be_changed(found: xsp.Comparison) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.kind = xsp.Kind.OP  # type: ignore[misc]


@pytest.mark.parametrize(
    ("count", "more", "said"),
    [
        (1, {}, "two traces or more"),
        (2, {"names": ("a",)}, "1 names for 2 traces"),
        (2, {"kind": "layers"}, "no kind 'layers' to compare by"),
    ],
)
def test_wrong_arguments_are_refused(count: int, more: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        xsp.compare(*[trace(resnet())] * count, **more)  # type: ignore[arg-type]


def test_markdown_says_how_many_rows_it_leaves_out(found: xsp.Comparison) -> None:
    inside = found.table.height - 1
    assert f"… {inside - 2:,} more (`--rows`, or the table of `--csv`)" in found.markdown(rows=2)
    assert "more (" not in found.markdown(rows=inside)


def loop(calls: int, fc_ns: int, act_ns: int) -> Trace:
    """Return the trace of a loop that calls two layers so often, each for so long."""
    layers = [
        layer(name, module, own_ns=calls * own_ns, calls=calls)
        for name, module, own_ns in (("fc", "Linear", fc_ns), ("act", "ReLU", act_ns))
    ]
    return trace(pipeline("fit", *layers), intervals="across 3 processes")


def test_what_is_called_more_often_is_slower_only_if_one_call_is() -> None:
    more = xsp.compare(loop(300, 10_000, 5_000), loop(600, 10_000, 6_000), names=("a", "b"))
    rows = {row["path_a"].rpartition("/")[2]: row for row in more.table.iter_rows(named=True)}
    fc, act = rows["fc"], rows["act"]
    assert (fc["calls_a"], fc["calls_b"]) == (300, 600)
    assert (fc["difference_ns"], fc["ratio"], fc["verdict"]) == (3e6, 1.0, "not significant")
    assert (act["difference_ns"], act["verdict"]) == (2.1e6, "slower")
    assert act["ratio"] == pytest.approx(1.2)
    assert "300 → 600" in more.text()
    assert "300 → 600" in more.markdown()
    assert any("of one call" in note for note in more.notes)


def test_loops_of_one_length_are_compared_without_a_word_on_calls() -> None:
    same = xsp.compare(loop(300, 10_000, 5_000), loop(300, 10_000, 6_000), names=("a", "b"))
    assert not any("call" in note for note in same.notes)
    assert "per call" not in same.text()
    assert "→ 300" not in same.markdown()


def test_paths_are_shown_as_they_are_and_backward_spans_with_their_phase() -> None:
    def made(own_ns: int) -> Trace:
        names = (r"a\/b", r"\#\# c \#\#")  # as paths have `a/b` and `## c ##`
        steps = [layer(name, "Linear", own_ns=own_ns) for name in names]
        back = layer("fc", "Linear", own_ns=own_ns, phase="backward")
        return trace(pipeline("fit", *steps, back), intervals="across 3 processes")

    found = xsp.compare(made(100_000), made(200_000))
    shown = found.text(width=100).splitlines()
    for name in ("a/b", "## c ##", "fc (backward)"):
        assert any(line.endswith(f"slower   {name}") for line in shown), name
    for name in ("a/b", "## c ##"):
        (outcome,) = parse_condition(f"layer:{name} > 5%").outcomes(found)
        assert outcome.holds


def test_the_weights_of_an_embedding_are_no_batch() -> None:
    embedding = op("aten::embedding")
    embedding.attributes = {"input_shapes": [[151_936, 64], [2, 8]]}
    model = trace(pipeline("predict", layer("Net", "Net", embedding)))
    found = xsp.compare(model, model)
    assert "throughput_per_s" not in found.summary["quantity"].to_list()
    assert "inputs" not in found.settings["setting"].to_list()
    told = layer("Net", "Net", embedding, input_shapes=[[2, 8]])
    known = xsp.compare(trace(pipeline("predict", told)), trace(pipeline("predict", told)))
    throughput = known.summary.filter(pl.col("quantity") == "throughput_per_s")
    assert throughput["a"].to_list() == [pytest.approx(2e9 / known.summary["a"][0])]
