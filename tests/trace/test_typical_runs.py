from __future__ import annotations

import base64
import io
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from simulate import Machine, Noise, resnet, transformer
from toy import Toy, ToyModel

import xsp
from xsp.errors import TraceFormatError
from xsp.evaluation.run import Run, Rung, ladder
from xsp.level import Kind
from xsp.merge.assembly import Merged, merge
from xsp.provider.row import span_rows
from xsp.testing import FakeClock, only_providers
from xsp.trace import document
from xsp.trace.document import Trace, load
from xsp.trace.file import pack_runs, unpack_runs
from xsp.trace.integrity import RUN_SCHEMA

BUSY = Noise(jitter=0.05, span_jitter=0.01)
PAGE = Path(__file__).parents[2] / "docs" / "trace.md"

STRINGS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pl.String: STRINGS,
    pl.Int64: st.integers(-(2**63), 2**63 - 1),
    pl.UInt64: st.integers(0, 2**64 - 1),
    pl.Int32: st.integers(-(2**31), 2**31 - 1),
}
ROWS = st.lists(
    st.fixed_dictionaries({n: st.none() | VALUES[t] for n, t in RUN_SCHEMA.items()}), max_size=30
)


def measured(noise: Noise = BUSY, rounds: int = 9, seed: int = 3) -> tuple[list[Run], Merged]:
    runs, _ = Machine(transformer(blocks=2), noise, seed).measure(rounds)
    return runs, merge(runs)


def parts(runs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(key[0]): frame for key, frame in runs.partition_by("rung", as_dict=True).items()}


@pytest.fixture
def trace() -> Trace:
    _, merged = measured()
    return Trace(merged.spans, {"name": "Net"}, merged.typical_runs)


# Which runs, and what of them


def test_every_rung_with_spans_has_one_run_outermost_first() -> None:
    runs, merged = measured()
    assert merged.typical_runs.schema == RUN_SCHEMA
    assert merged.typical_runs["rung"].unique(maintain_order=True).to_list() == [
        "pipeline",
        "layer",
        "op",
    ]
    for rung, rows in parts(merged.typical_runs).items():
        (latency,) = rows["run_latency_ns"].unique()
        assert latency in [run.latency_ns for run in runs if run.rung.name == rung]
        assert rows["parent_id"].null_count() == 1


@pytest.mark.parametrize("statistic", ["trimmed", "median", "mean", "min"])
def test_the_run_is_the_one_nearest_to_what_the_rung_says(statistic: str) -> None:
    runs, _ = Machine(transformer(blocks=1), BUSY, 5).measure(11)
    merged = merge(runs, statistic=statistic)
    said = dict(zip(merged.rungs["rung"], merged.rungs["latency_ns"], strict=True))
    for rung, rows in parts(merged.typical_runs).items():
        apart = [abs(run.latency_ns - said[rung]) for run in runs if run.rung.name == rung]
        assert abs(rows["run_latency_ns"][0] - said[rung]) == pytest.approx(min(apart), abs=1e-3)


def test_its_spans_are_as_they_were_measured_overhead_and_all() -> None:
    runs, merged = measured()
    for rung, rows in parts(merged.typical_runs).items():
        latency = rows["run_latency_ns"][0]
        (run,) = [run for run in runs if run.rung.name == rung and run.latency_ns == latency]
        assert run.rows is not None
        start = run.rows["start_ns"][0]
        assert rows["start_ns"].to_list() == (run.rows["start_ns"] - start).to_list()
        assert rows["end_ns"].to_list() == (run.rows["end_ns"] - start).to_list()
        assert rows["name"].to_list() == run.rows["name"].to_list()
        assert rows["thread"].to_list() == run.rows["thread"].to_list()
        assert rows["end_ns"][0] == latency
    deepest = parts(merged.typical_runs)["op"]["run_latency_ns"][0]
    assert deepest > merged.spans["latency_ns"][0] * 1.1


def test_a_merged_span_and_that_of_a_run_share_their_id() -> None:
    merged = measured()[1]
    known = merged.spans.select("span_id", "kind", "level", "name", "path")
    for rung, rows in parts(merged.typical_runs).items():
        kinds = [kind.value for kind in Kind if kind.order <= Kind(rung).order]
        assert rows["span_id"].n_unique() == rows.height
        assert set(rows["span_id"]) == set(known.filter(pl.col("kind").is_in(kinds))["span_id"])
        assert_frame_equal(
            rows.select(known.columns),
            rows.select("span_id").join(known, on="span_id", how="left", maintain_order="left"),
        )


def test_parents_come_before_their_children_and_hold_them() -> None:
    for rows in parts(measured()[1].typical_runs).values():
        place = {span: at for at, span in enumerate(rows["span_id"])}
        start, end = rows["start_ns"], rows["end_ns"]
        for at, parent in enumerate(rows["parent_id"]):
            if at:
                above = place[parent]
                assert above < at
                assert start[above] <= start[at] <= end[at] <= end[above]


def hand_run(rung: Rung, latency: int, *layers: str) -> Run:
    kinds = ["pipeline", *["layer"] * len(layers)]
    ends = [latency, *((at + 1) * 10 for at in range(len(layers)))]
    columns = {
        "kind": kinds,
        "name": ["predict", *layers],
        "start_ns": [5, *(5 + at * 10 for at in range(len(layers)))],
        "end_ns": [5 + end for end in ends],
        "thread": 1,
    }
    parent = pl.Series([-1, *[0] * len(layers)], dtype=pl.Int64)
    return Run(rung, latency, span_rows(columns).with_columns(parent=parent))


def test_a_run_that_lacks_what_others_have_does_not_stand_for_them() -> None:
    _, _, layer = ladder({Kind.PIPELINE, Kind.LAYER})
    runs = [hand_run(layer, ns, "a", "b") for ns in (100, 130)] + [hand_run(layer, 115, "a")]
    assert merge(runs, statistic="mean").typical_runs["name"].to_list() == ["predict", "a", "b"]


def test_of_as_many_runs_those_that_hold_more_stand_for_the_others() -> None:
    _, _, layer = ladder({Kind.PIPELINE, Kind.LAYER})
    runs = [hand_run(layer, 100), hand_run(layer, 130, "a", "b")]
    assert merge(runs, statistic="mean").typical_runs["name"].to_list() == ["predict", "a", "b"]


def test_bare_and_detail_runs_are_not_kept() -> None:
    bare, pipeline, layer = ladder({Kind.PIPELINE, Kind.LAYER})
    detail = hand_run(Rung(layer.kinds, detail=True), 500, "a")
    runs = [Run(bare, 90), hand_run(pipeline, 100), hand_run(layer, 110, "a"), detail]
    assert merge(runs).typical_runs["run_latency_ns"].to_list() == [100, 110, 110]


def test_runs_of_several_processes_are_compared_on_one_scale() -> None:
    machine = Machine(resnet(), Noise(jitter=0.001), seed=2)
    runs, _ = machine.measure(8, speeds=(1.0, 1.5, 1.2))
    merged = merge(runs)
    for rung, rows in parts(merged.typical_runs).items():
        own = sorted(run.latency_ns for run in runs if run.rung.name == rung)
        # As measured: not brought to the scale of the others.
        assert own[0] <= rows["run_latency_ns"][0] <= own[-1]
        assert rows["run_latency_ns"][0] == pytest.approx(np.median(own), rel=0.003)


@pytest.mark.parametrize("cost_ns", [0, 5_000])
def test_a_measured_model_keeps_its_runs(monkeypatch: pytest.MonkeyPatch, cost_ns: int) -> None:
    toy = Toy(FakeClock(), cost_ns=cost_ns)
    monkeypatch.setattr("xsp.session.recorder.SystemClock", lambda: toy.clock)
    with only_providers(toy), xsp.profile(levels=2, runs=3) as prof:
        model = ToyModel(toy)
        model()
    [trace] = prof.groups.values()
    spans = {rung: rows.height for rung, rows in parts(trace.typical_runs).items()}
    assert spans == {"pipeline": 1, "layer": 1 + 10, "op": 1 + 10 + 6}
    latency = {rung: rows["run_latency_ns"][0] for rung, rows in parts(trace.typical_runs).items()}
    assert latency == {
        "pipeline": model.latency_ns,
        "layer": model.latency_ns + 10 * cost_ns,
        "op": model.latency_ns + 16 * cost_ns,
    }
    assert trace.root.latency_ns == pytest.approx(model.latency_ns)


# As text


@given(ROWS)
@settings(deadline=None)
def test_whatever_the_rows_hold_comes_back_from_the_text(rows: list[dict[str, Any]]) -> None:
    frame = pl.DataFrame(rows, schema=RUN_SCHEMA)
    assert_frame_equal(unpack_runs(pack_runs(frame)), frame)


def test_no_rows_are_no_text() -> None:
    assert pack_runs(pl.DataFrame(schema=RUN_SCHEMA)) == ""
    assert_frame_equal(unpack_runs(""), pl.DataFrame(schema=RUN_SCHEMA))


def text_of(content: bytes) -> str:
    return f"{zlib.crc32(content):08x} {base64.b64encode(content).decode()}"


def damaged(kind: str) -> str:
    text = pack_runs(measured()[1].typical_runs)
    half = len(text) // 8 * 4
    other = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(other)
    return {
        "not base64": text[:half] + "?" + text[half:],
        "cut": text[:half],
        "no checksum": text[9:],
        "not Parquet": text_of(b"something else" * 9),
        "nothing": text_of(b""),
        "hole": text[:half] + "A" * 64 + text[half + 64 :],
        "other columns": text_of(other.getvalue()),
    }[kind]


DAMAGES = ["not base64", "cut", "no checksum", "not Parquet", "nothing", "hole", "other columns"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_text_is_refused(kind: str) -> None:
    with pytest.raises(TraceFormatError, match="runs"):
        unpack_runs(damaged(kind))


def test_damage_anywhere_is_noticed() -> None:
    text = pack_runs(measured()[1].typical_runs)
    for place in range(0, len(text), len(text) // 300):
        other = "A" if text[place] != "A" else "b"
        with pytest.raises(TraceFormatError, match="runs kept in this trace are damaged"):
            unpack_runs(text[:place] + other + text[place + 1 :])


# In a trace, and in its file


def test_a_trace_made_by_hand_has_no_runs() -> None:
    assert_frame_equal(
        samples.trace(samples.pipeline("predict")).typical_runs, pl.DataFrame(schema=RUN_SCHEMA)
    )


def test_runs_come_back_from_the_file(trace: Trace, tmp_path: Path) -> None:
    loaded = load(trace.save(tmp_path / "a.xsp"))
    assert_frame_equal(loaded.typical_runs, trace.typical_runs)
    assert loaded.typical_runs.height > 100
    again = load(loaded.as_measured().save(tmp_path / "b.xsp"))
    assert_frame_equal(again.typical_runs, trace.typical_runs)


def test_readers_of_the_table_see_only_the_merged_spans(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "a.xsp")
    assert_frame_equal(pl.read_parquet(path), trace.spans)
    assert load(path).metadata["format"] == 1


def test_the_documented_way_to_read_them_needs_no_xsp(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "resnet50.xsp")
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[-1]
    names: dict[str, Any] = {}
    exec(code.replace('"resnet50.xsp"', repr(str(path))), names)
    assert_frame_equal(names["runs"], trace.typical_runs)


def test_a_file_of_an_earlier_version_has_no_runs(trace: Trace, tmp_path: Path) -> None:
    trace.spans.write_parquet(tmp_path / "a.xsp", metadata={"xsp": '{"format": 1}'})
    assert_frame_equal(load(tmp_path / "a.xsp").typical_runs, pl.DataFrame(schema=RUN_SCHEMA))
    without = Trace(trace.spans, {}).save(tmp_path / "b.xsp")
    assert "xsp.runs" not in pl.read_parquet_metadata(without)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_runs_cost_the_runs_only(trace: Trace, tmp_path: Path, kind: str) -> None:
    texts = {"xsp": '{"format": 1, "name": "Net"}', "xsp.runs": damaged(kind)}
    trace.spans.write_parquet(tmp_path / "a.xsp", metadata=texts)
    loaded = load(tmp_path / "a.xsp")
    assert_frame_equal(loaded.spans, trace.spans)
    for _ in range(2):
        with pytest.raises(TraceFormatError, match="runs"):
            _ = loaded.typical_runs


def test_runs_are_read_when_they_are_asked_for(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace.save(tmp_path / "a.xsp")

    def unwanted(text: str) -> pl.DataFrame:
        raise AssertionError("nobody asked for the runs")

    with monkeypatch.context() as patch:
        patch.setattr(document, "unpack_runs", unwanted)
        loaded = load(path)
        loaded.as_measured().save(tmp_path / "b.xsp")
        assert loaded.tree()
    assert_frame_equal(loaded.typical_runs, trace.typical_runs)


def test_runs_cannot_be_changed(trace: Trace) -> None:
    given = trace.typical_runs
    other = Trace(trace.spans, {}, given)
    given.drop_in_place("name")
    other.typical_runs.drop_in_place("kind")
    assert other.typical_runs.columns == [*RUN_SCHEMA]
    with pytest.raises(AttributeError, match="cannot be changed"):
        other.typical_runs = given  # type: ignore[misc]


def test_runs_of_other_columns_are_refused(trace: Trace) -> None:
    for wrong in (
        trace.typical_runs.drop("path"),
        trace.typical_runs.select(reversed(trace.typical_runs.columns)),
        trace.typical_runs.with_columns(pl.col("start_ns").cast(pl.Float64)),
        trace.spans,
    ):
        with pytest.raises(TraceFormatError, match="the columns of runs are rung String"):
            Trace(trace.spans, {}, wrong)


def test_documented_columns_are_those_of_the_runs() -> None:
    section = PAGE.read_text().split("\n## Runs\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    documented = [tuple(cell.strip() for cell in line) for line in lines]
    assert [row[:2] for row in documented] == [
        (f"`{name}`", f"`{dtype}`") for name, dtype in RUN_SCHEMA.items()
    ]
    for name, _, unit, meaning in documented:
        assert meaning.endswith(".")
        assert unit == ("ns" if name.endswith("_ns`") else "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (pl.lit("evil").alias("rung"), "unknown rung"),
        (pl.lit(None, pl.String).alias("rung"), "unknown rung"),
        (pl.lit("evil").alias("kind"), "unknown kind"),
        (pl.col("span_id").alias("parent_id"), "not the root"),
    ],
)
def test_runs_that_are_no_trees_of_known_words_are_refused(change: pl.Expr, said: str) -> None:
    merged = measured()[1]
    text = pack_runs(merged.typical_runs.with_columns(change))
    with pytest.raises(TraceFormatError, match=said):
        _ = Trace(merged.spans, {"name": "Net"}, text).typical_runs
