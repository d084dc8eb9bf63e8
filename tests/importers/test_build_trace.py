"""One trace of what another tool recorded: what it shows, and what it does not claim."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from recorded import device, host, install, program, rows, step_rows, steps, write
from strategies import Forest, forests, unhurried

import xsp
from xsp.errors import TraceFormatError
from xsp.importers import Recording, trace_of
from xsp.reading.importers.file_step import _disjoint
from xsp.trace import Trace


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "recorded:Toy")


def codes(trace: Trace) -> list[str]:
    return [warning.code for warning in trace.warnings]


def message(trace: Trace, code: str) -> str:
    (found,) = [warning.message for warning in trace.warnings if warning.code == code]
    return found


def field(trace: Trace, name: str) -> pl.Series:
    return trace.spans["attributes"].struct.field(name)


def test_steps_are_evaluations_of_one_tree() -> None:
    trace = trace_of(program(5), "net")
    trace.check()
    assert trace.spans["path"].to_list() == [
        "net",
        "net/fc",
        "net/fc/aten::addmm",
        "net/fc/aten::addmm/cudaLaunchKernel",
        "net/fc/aten::addmm/gemm",
    ]
    assert trace.spans["runs"].to_list() == [5] * 5
    assert trace.spans["latency_ns"].to_list() == [100_000, 90_000, 50_000, 5_000, 30_000]
    assert trace.metadata["imported"]["steps"] == tuple(f"ProfilerStep#{n}" for n in range(5))
    assert field(trace, "step")[0] == "ProfilerStep#2"  # the one that is shown


def test_the_first_line_says_who_recorded_it_and_that_overhead_stays() -> None:
    first = trace_of(program(5), "net").tree(width=100).split("\n\n")[0]
    said = " ".join(first.split())
    assert said.startswith(
        "net · 100 µs over 5 steps recorded by Toy Profiler 1.2; its overhead is"
    )
    assert "included, except in times on devices" in said
    assert "of work, 100.0 % under a layer, 100.0 % under an operator" in said
    assert "overhead removed" not in said


def test_documented_metadata_is_that_of_an_imported_trace() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    section = page.split("\n## Metadata\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    renamed = {"warnings": "warnings", "passes": "passes"}
    found = {renamed.get(key, key) for key in trace_of(program(1, unix_ns=1), "net").metadata}
    assert found == {*documented, "imported"} - {"plan", "settings", "made_of"}


def test_a_slow_first_step_with_spans_of_its_own_is_not_the_one_shown() -> None:
    cold = [
        *step_rows(0, 90, scale=9),
        host("op", "aten::empty", 910_000, 950_000),
    ]
    rest = [row for number in range(4) for row in step_rows(1_000_000 + number * 100_000, number)]
    spans = [(0, 1_000_000)] + [
        (1_000_000 + n * 100_000, 1_100_000 + n * 100_000) for n in range(4)
    ]
    trace = trace_of(Recording("Toy 1", rows(*cold, *rest), steps(*spans)), "net")
    trace.check()
    assert "aten::empty" not in trace.spans["name"]
    assert trace.root.latency_ns == 100_000
    assert "came first and took 1.00 ms, others 100 µs" in message(trace, "steps-left-out")


def test_what_lies_outside_of_all_steps_is_counted() -> None:
    late = [host("op", "aten::copy_", 500_000, 510_000), device("copy", 520_000, 550_000)]
    recording = program(3)
    recording = replace(recording, rows=pl.concat([recording.rows, rows(*late)]))
    trace = trace_of(recording, "net")
    said = message(trace, "outside")
    assert "2 spans lie outside of the steps" in said
    assert "1 kernel or copies of 30.0 µs (25.0 % of the device's work)" in said
    whole = trace_of(recording, "net", steps=False)
    assert "outside" not in codes(whole)
    assert {"copy", "aten::copy_"} <= set(whole.spans["name"])


def test_steps_that_overlap_are_cut_and_those_within_others_left_out() -> None:
    recording = program(2)
    roots = steps((100_000, 200_000), (0, 120_000), (5_000, 9_000), names=["b", "a", "inner"])
    trace = trace_of(replace(recording, roots=roots), "net")
    trace.check()
    said = message(trace, "steps-overlap")
    assert "some of 3 steps overlap" in said
    assert "1 step without length, or inside another" in said
    assert "1 step end where the next one begins" in said
    assert trace.metadata["imported"]["steps"] == ("a", "b")
    assert trace.spans["runs"][0] == 2


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=8))
def test_steps_are_one_after_the_other_whatever_a_file_says(spans: list[tuple[int, int]]) -> None:
    apart = _disjoint(steps(*[(start, start + length) for start, length in spans]))[0]
    times = apart.select("start_ns", "end_ns").rows()
    assert all(start < end for start, end in times)
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
    covered = {at for start, end in times for at in range(start, end)}
    assert covered == {at for start, long in spans for at in range(start, start + long)}


def test_a_recording_of_nothing_is_refused() -> None:
    with pytest.raises(TraceFormatError, match="Toy 1 recorded no spans"):
        trace_of(Recording("Toy 1", rows()), "net")


def test_what_a_recording_says_of_itself_is_kept() -> None:
    facts = {"versions": {"torch": 2}, "devices": ["H100"], "cpu": None}
    recording = program(1, name="bert", unix_ns=1_000, host="node7", environment=facts)
    recording = replace(recording, warnings=(xsp.TraceWarning("damaged", "2 events lost"),))
    trace = trace_of(recording, "file")
    assert trace.name == "bert"
    assert trace.metadata["environment"]["host"] == "node7"
    assert trace.metadata["environment"]["versions"] == {"torch": "2"}
    assert trace.metadata["began_unix_ns"] == 1_000
    assert trace.warnings == (xsp.TraceWarning("damaged", "2 events lost"),)


def test_an_imported_trace_is_saved_loaded_and_exported(tmp_path: Path) -> None:
    trace = trace_of(program(5, unix_ns=10**18), "net")
    loaded = xsp.load(trace.save(tmp_path / "net.xsp"))
    assert str(loaded) == str(trace)
    assert loaded.metadata == trace.metadata
    done = trace.export(tmp_path / "net.otlp.json")
    assert done.accepted == 5
    assert "overhead-left" not in (tmp_path / "net.otlp.json").read_text()


@pytest.mark.usefixtures("toy")
def test_an_own_trace_among_recordings_is_refused(tmp_path: Path) -> None:
    own = samples.trace(samples.pipeline("predict")).save(tmp_path / "own.xsp")
    foreign = write(tmp_path / "a.toy", program(1))
    with pytest.raises(TraceFormatError, match=r"A trace of xsp cannot be joined .*own\.xsp"):
        xsp.read(foreign, own)


@unhurried
@given(forests())
def test_random_recordings_make_well_formed_traces(forest: Forest) -> None:
    recording = Recording("Toy 1", forest.rows, forest.roots)
    trace_of(recording, "net").check()
    whole = trace_of(recording, "net", steps=False)
    whole.check()
    assert len(whole) == 1 + forest.rows.height + forest.roots.height
