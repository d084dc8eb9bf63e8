from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from xsp.errors import MeasurementError, TraceFormatError
from xsp.level import Kind
from xsp.matching.run import Run, ladder
from xsp.reading.runs.build import build_trace
from xsp.reading.runs.process_runs import ProcessRuns
from xsp.record.session.settings import settings_of
from xsp.testing import rows
from xsp.trace.document import load
from xsp.trace.heading import headline
from xsp.trace_context import Origin
from xsp.warning import TraceWarning

CALLER = Origin(1_795_165_457_754_960_938, f"00-{1:032x}-{2:016x}-01", "vendor=1")
PAGE = Path(__file__).parents[2] / "docs" / "trace.md"

BARE, REGION, LAYER = ladder({Kind.REGION, Kind.LAYER})


def tree(scale: int = 1) -> pl.DataFrame:
    frame = rows(f"region predict 0 {100 * scale}", f"layer conv1 {10 * scale} {60 * scale}")
    return frame.with_columns(parent=pl.Series([-1, 0], dtype=pl.Int64))


def some() -> ProcessRuns:
    return ProcessRuns(
        runs=(
            Run(BARE, 100, round=0),
            Run(REGION, 100, tree()[:1], round=0),
            Run(LAYER, 100, tree(), round=1, began_ns=7, page_faults=2.5),
            Run(replace(LAYER, detail=True), 900, tree(9), round=1),
        ),
        warnings=(TraceWarning("provider", "the buffer was full"),),
        subject="Net",
        levels={"model": "measured", "framework": "measured", "library": "not installed"},
    )


def test_what_is_saved_is_loaded_unchanged(tmp_path: Path) -> None:
    some().save(tmp_path / "runs")
    loaded = ProcessRuns.load(tmp_path / "runs")
    assert (loaded.warnings, loaded.subject, loaded.levels) == (
        some().warnings,
        some().subject,
        some().levels,
    )
    for run, original in zip(loaded.runs, some().runs, strict=True):
        assert replace(run, rows=None) == replace(original, rows=None)
        assert (run.rows is None) == (original.rows is None)
        if run.rows is not None and original.rows is not None:
            assert run.rows.equals(original.rows)


@pytest.mark.parametrize("damage", ["no folder", "no facts", "cut rows"])
def test_runs_that_are_not_whole_are_refused(tmp_path: Path, damage: str) -> None:
    if damage != "no folder":
        some().save(tmp_path)
    if damage == "no facts":
        (tmp_path / "runs.json").write_text("{")
    if damage == "cut rows":
        path = tmp_path / "rows.parquet"
        path.write_bytes(path.read_bytes()[:-20])
    where = tmp_path / "nowhere" if damage == "no folder" else tmp_path
    with pytest.raises(TraceFormatError, match="no complete runs"):
        ProcessRuns.load(where)


def test_rows_that_polars_panics_over_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(path: Path) -> pl.DataFrame:  # as over some damaged footers
        raise pl.exceptions.PanicException("not yet implemented")

    some().save(tmp_path)
    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(TraceFormatError, match="no complete runs: not yet implemented"):
        ProcessRuns.load(tmp_path)


def test_the_trace_names_its_warnings_and_levels() -> None:
    trace = build_trace([some()], settings_of(3))
    trace.check()
    assert trace.name == "Net"
    assert {warning.code for warning in trace.warnings} >= {"provider", "level-left-out"}
    assert trace.metadata["levels"]["library"] == "not installed"


def test_runs_of_several_processes_make_one_trace() -> None:
    trace = build_trace([some(), some()], settings_of(2))
    assert {pass_["pass"]: pass_["runs"] for pass_ in trace.metadata["passes"]}["layer"] == 2


def test_without_a_run_there_is_no_trace() -> None:
    empty = ProcessRuns((), (), "Net", {})
    with pytest.raises(MeasurementError, match="not a single complete step"):
        build_trace([empty], settings_of(2))


@pytest.mark.parametrize("origin", [None, CALLER, Origin(7)])
def test_the_origin_is_kept_until_the_trace_has_it(tmp_path: Path, origin: Origin | None) -> None:
    replace(some(), origin=origin).save(tmp_path)
    loaded = ProcessRuns.load(tmp_path)
    assert loaded.origin == origin
    metadata = build_trace([loaded], settings_of(2)).metadata
    names = ("began_unix_ns", "traceparent", "tracestate")
    found = {name: metadata[name] for name in names if name in metadata}
    assert found == (
        {name: getattr(origin, name.removeprefix("began_")) for name in names} if origin else {}
    )


def test_the_first_processs_origin_is_the_traces() -> None:
    both = [replace(some(), origin=CALLER), replace(some(), origin=Origin(7))]
    assert build_trace(both, settings_of(2)).metadata["began_unix_ns"] == CALLER.unix_ns


def test_the_runs_reach_the_trace_and_its_file(tmp_path: Path) -> None:
    some().save(tmp_path / "runs")
    trace = build_trace([ProcessRuns.load(tmp_path / "runs")], settings_of(2))
    assert trace.typical_runs["name"].to_list() == ["predict", "predict", "conv1"]
    assert load(trace.save(tmp_path / "a.xsp")).typical_runs.equals(trace.typical_runs)


def test_documented_metadata_is_that_of_a_trace() -> None:
    section = PAGE.read_text().split("\n## Metadata\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    trace = build_trace([replace(some(), origin=CALLER)], settings_of(2))
    documented.remove("settings")  # only of what the command line measures
    documented.remove("made_of")  # only where a framework calls no layers
    renamed = {"warnings": "warnings", "passes": "passes"}
    assert documented == [renamed.get(key, key) for key in trace.metadata]


def synchronous(scale: int = 3) -> ProcessRuns:
    """Make the runs of a synchronous process, in which everything takes longer."""
    passes = (Run(BARE, 100 * scale), Run(REGION, 100 * scale, tree(scale)[:1]))
    layers = tuple(Run(LAYER, 100 * scale, tree(scale), round=n) for n in range(3))
    return replace(some(), runs=(*passes, *layers), warnings=(TraceWarning("provider", "its own"),))


def test_a_synchronous_measurement_gives_latencies_of_its_own_and_no_other_number() -> None:
    alone, both = (
        build_trace([some()], settings_of(2)),
        build_trace([some()], settings_of(2), synchronous()),
    )
    both.check()
    assert both.spans.drop("attributes").equals(alone.spans.drop("attributes"))
    assert both.spans.unnest("attributes")["synchronous_ns"].to_list() == [300, 150]
    own = TraceWarning("provider", "in the synchronous pass: its own")
    assert set(both.warnings) == {*alone.warnings, own}
    assert both.typical_runs.equals(alone.typical_runs)
    assert both.metadata["passes"][:-1] == alone.metadata["passes"]
    last = dict(both.metadata["passes"][-1])
    assert (last.pop("pass"), last.pop("runs")) == ("synchronous", 1)
    assert last.pop("latency_ns") == 300
    assert set(last.values()) == {None}
    assert last.keys() < both.metadata["passes"][0].keys()


def test_a_span_that_is_not_there_and_a_launch_have_no_synchronous_latency() -> None:
    passes = ladder({Kind.REGION, Kind.LAYER, Kind.LAUNCH})
    launched = rows("region predict 0 100", "layer conv1 10 60", "launch go 20 30")
    launched = launched.with_columns(parent=pl.Series([-1, 0, 1], dtype=pl.Int64))
    other = launched.with_columns(name=pl.col("name").replace("conv1", "conv2"))

    def collected(frame: pl.DataFrame) -> ProcessRuns:
        heights = (None, 1, 2, 3)  # of what each pass records
        runs = (
            Run(pass_, 100, None if height is None else frame[:height])
            for pass_, height in zip(passes, heights, strict=True)
        )
        return replace(some(), runs=tuple(runs))

    same = build_trace([collected(launched)], settings_of(2), collected(launched))
    assert same.spans.unnest("attributes")["synchronous_ns"].is_null().to_list() == [0, 0, 1]
    changed = build_trace([collected(launched)], settings_of(2), collected(other))
    assert changed.spans.unnest("attributes")["synchronous_ns"].is_null().to_list() == [0, 1, 1]


def test_the_heading_says_what_the_model_takes_synchronous() -> None:
    trace = build_trace([some()], settings_of(2), synchronous())
    assert " · with one thread: 300 ns" in headline(trace.spans, trace.metadata)
    working = trace.spans.with_columns(device_ns=pl.lit(5.0))
    assert " · with each kernel waited for: 300 ns" in headline(working, trace.metadata)
    plain = build_trace([some()], settings_of(2))
    assert "with one thread" not in headline(plain.spans, plain.metadata)


@pytest.mark.parametrize("facts", ["{}", "[]", '{"runs": [{}]}', '{"runs": 3}'])
def test_runs_with_other_facts_are_refused(tmp_path: Path, facts: str) -> None:
    some().save(tmp_path)
    (tmp_path / "runs.json").write_text(facts)
    with pytest.raises(TraceFormatError, match="no complete runs"):
        ProcessRuns.load(tmp_path)
