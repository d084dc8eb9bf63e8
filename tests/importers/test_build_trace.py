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
from strategies import Forest, forests, scattered_rows, unhurried

import xsp
from xsp.errors import TraceFormatError
from xsp.importers import Recording, trace_of
from xsp.importers.build import name_of
from xsp.importers.evaluation import _disjoint
from xsp.problem import Problem
from xsp.provider import SpanRows, span_rows
from xsp.trace import Trace


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "recorded:Toy")


def codes(trace: Trace) -> list[str]:
    return [problem.code for problem in trace.problems]


def message(trace: Trace, code: str) -> str:
    (found,) = [problem.message for problem in trace.problems if problem.code == code]
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
    first = str(trace_of(program(5), "net")).split("\n\n")[0]
    said = " ".join(first.split())
    assert said.startswith("net 100 µs over 5 steps recorded by Toy Profiler 1.2, whose")
    assert "overhead is in it and cannot be removed; times on devices are their own" in said
    assert "of its work 100.0 % under a layer, 100.0 % under an operator" in said
    assert "without overhead" not in said


def test_nothing_of_the_host_is_exact_and_no_overhead_is_claimed() -> None:
    trace = trace_of(program(5), "net")
    assert field(trace, "exact").to_list() == [False] * 4 + [True]
    assert field(trace, "inexact").to_list() == [["carried"]] * 4 + [None]
    assert trace.spans["overhead_ns"].null_count() == 5
    assert "device_wait_ns" not in trace.root.attributes  # nobody looked for it
    assert [rung["overhead_ns"] for rung in trace.metadata["rungs"]] == [None]
    assert "plan" not in trace.metadata


def test_documented_metadata_is_that_of_an_imported_trace() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    section = page.split("\n## Metadata\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    found = {*trace_of(program(1, unix_ns=1), "net").metadata}
    assert found == {*documented, "imported"} - {"plan", "settings", "made_of"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_advice_on_measuring_and_columns_of_nothing_are_not_shown(count: int) -> None:
    trace = trace_of(program(count), "net")
    assert trace.problems == ()
    for view in (str(trace), trace._repr_html_()):
        assert "budget" not in view
        assert "fewer than" not in view
        assert "still with overhead" not in view
        assert "≈ 0" not in view
        assert ">overhead<" not in view


def test_a_recording_without_steps_is_one_evaluation() -> None:
    recording = replace(program(2), roots=rows())
    trace = trace_of(recording, "net")
    trace.check()
    root = trace.root
    assert (root.name, root.latency_ns, root.runs) == ("net", 190_000, 1)
    assert field(trace, "exact").to_list().count(True) == 0  # one evaluation makes nothing exact
    assert root.self_ns == 10_000  # the main thread is the root's


def test_steps_can_be_shown_as_spans_of_the_whole() -> None:
    trace = trace_of(program(3), "net", steps=False)
    trace.check()
    assert [span.name for span in trace.children(trace.root)] == [
        f"ProfilerStep#{number}" for number in range(3)
    ]
    assert trace.root.latency_ns == 300_000
    assert field(trace, "step").to_list()[1:3] == ["ProfilerStep#0", None]
    assert "marked span" not in str(trace)  # the profiler made the steps, not the user


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
    assert "1 span of other runs not in the run that is shown" in message(trace, "unmatched")


def test_what_lies_outside_of_all_steps_is_counted() -> None:
    late = [host("op", "aten::copy_", 500_000, 510_000), device("copy", 520_000, 550_000)]
    recording = program(3)
    recording = replace(recording, rows=pl.concat([recording.rows, rows(*late)]))
    trace = trace_of(recording, "net")
    said = message(trace, "outside")
    assert "outside of every step: 2 spans" in said
    assert "1 kernel, copies counted in, of 30.0 µs (25.0 % of the devices' work)" in said
    whole = trace_of(recording, "net", steps=False)
    assert "outside" not in codes(whole)
    assert {"copy", "aten::copy_"} <= set(whole.spans["name"])


def test_kernels_without_a_call_are_orphans_and_counted() -> None:
    alone = [device("gemm", 10, 20), device("relu", 30, 45)]
    trace = trace_of(Recording("Toy 1", rows(*alone)), "gpu")
    trace.check()
    assert "no launch was seen of 2 kernels" in message(trace, "no-launch")
    assert [span.parent_id for span in trace.children(trace.root)] == [trace.root.span_id] * 2
    assert trace.root.device_ns == 25


def test_operators_of_threads_without_a_layer_are_counted() -> None:
    other = host("op", "AddmmBackward0", 30_000, 40_000, thread=2)
    recording = program(1)
    trace = trace_of(replace(recording, rows=pl.concat([recording.rows, rows(other)])), "net")
    assert "outermost on other threads, such as autograd's: 1 span;" in message(trace, "orphans")


def test_steps_that_overlap_are_cut_and_those_within_others_left_out() -> None:
    recording = program(2)
    roots = steps((100_000, 200_000), (0, 120_000), (5_000, 9_000), names=["b", "a", "inner"])
    trace = trace_of(replace(recording, roots=roots), "net")
    trace.check()
    said = message(trace, "steps-overlap")
    assert "of 3 steps some overlap in time" in said
    assert "1 step without length, or within another, left out" in said
    assert "1 step cut where the next one begins" in said
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


def test_of_a_recording_of_nothing_it_is_said_what_is_missing() -> None:
    cut = Problem("cut-short", "the file ends in the middle")
    with pytest.raises(TraceFormatError, match="recorded no spans; the file ends in the middle"):
        trace_of(Recording("Toy 1", rows(), problems=(cut,)), "net")


def test_what_a_recording_says_of_itself_is_kept() -> None:
    facts = {"versions": {"torch": 2}, "devices": ["H100"], "cpu": None}
    recording = program(1, name="bert", unix_ns=1_000, host="node7", environment=facts)
    recording = replace(recording, problems=(xsp.Problem("damaged", "2 events lost"),))
    trace = trace_of(recording, "file")
    assert trace.name == "bert"
    assert trace.metadata["environment"]["host"] == "node7"
    assert trace.metadata["environment"]["versions"] == {"torch": "2"}
    assert trace.metadata["began_unix_ns"] == 1_000
    assert trace.problems == (xsp.Problem("damaged", "2 events lost"),)


@pytest.mark.parametrize("unix_ns", [-(10**18), 2**63])
def test_an_impossible_time_of_day_is_left_out(unix_ns: int) -> None:
    assert "began_unix_ns" not in trace_of(program(1, unix_ns=unix_ns), "net").metadata


def test_an_imported_trace_is_saved_loaded_and_exported(tmp_path: Path) -> None:
    trace = trace_of(program(5, unix_ns=10**18), "net")
    loaded = xsp.load(trace.save(tmp_path / "net.xsp"))
    assert str(loaded) == str(trace)
    assert loaded.metadata == trace.metadata
    done = trace.export(tmp_path / "net.otlp.json")
    assert done.accepted == 5
    assert "overhead-left" not in (tmp_path / "net.otlp.json").read_text()


def test_own_traces_are_read_by_the_same_door(tmp_path: Path) -> None:
    saved = samples.trace(samples.pipeline("predict")).save(tmp_path / "own.dat")
    assert xsp.read(saved).metadata == xsp.load(saved).metadata


@pytest.mark.usefixtures("toy")
def test_an_own_trace_among_recordings_is_refused(tmp_path: Path) -> None:
    own = samples.trace(samples.pipeline("predict")).save(tmp_path / "own.xsp")
    foreign = write(tmp_path / "a.toy", program(1))
    with pytest.raises(TraceFormatError, match=r"own\.xsp is a trace already"):
        xsp.read(foreign, own)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_whatever_their_names(tmp_path: Path, *, packed: bool) -> None:
    trace = xsp.read(write(tmp_path / "steps.txt.gz", program(5), packed=packed))
    trace.check()
    assert trace.name == "steps.txt"
    assert trace.metadata["imported"]["files"] == ("steps.txt.gz",)
    assert trace.spans["runs"][0] == 5


@pytest.mark.usefixtures("toy")
def test_progress_is_told_up_to_the_whole(tmp_path: Path) -> None:
    told: list[float] = []
    files = [write(tmp_path / f"{n}.toy", program(2, rank=n), packed=n > 0) for n in range(2)]
    xsp.read(*files, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.usefixtures("toy")
def test_a_file_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="nothing was recorded"):
        xsp.read(write(tmp_path / "a.toy"))


def test_no_file_is_a_wrong_argument() -> None:
    with pytest.raises(ValueError, match="which files"):
        xsp.read()


def test_names_lose_the_endings_of_formats() -> None:
    names = {
        "net.pt.trace.json.gz": "net",
        "report.sqlite": "report",
        "host.xplane.pb": "host",
        "a.b.csv": "a.b",
        ".json": ".json",
        "plain": "plain",
    }
    assert {name: name_of([Path("x") / name]) for name in names} == names
    assert name_of([Path("rank0.json.gz"), Path("rank12.json.gz")]) == "rank"
    assert name_of([Path("a.json"), Path("b.json")]) == "a"


@unhurried
@given(forests())
def test_random_recordings_make_well_formed_traces(forest: Forest) -> None:
    recording = Recording("Toy 1", forest.rows, forest.roots)
    trace_of(recording, "net").check()
    whole = trace_of(recording, "net", steps=False)
    whole.check()
    assert len(whole) == 1 + forest.rows.height + forest.roots.height


@unhurried
@given(scattered_rows())
def test_rows_that_overlap_as_they_please_make_well_formed_traces(rows: SpanRows) -> None:
    recording = Recording("Toy 1", rows, steps((0, 40), (40, 90), (60, 200)))
    trace_of(recording, "net").check()
    trace_of(recording, "net", steps=False).check()


def test_where_nothing_of_the_host_was_recorded_the_root_has_no_own_time() -> None:
    kernels = span_rows(
        {
            "kind": ["kernel", "memcpy"],
            "name": ["gemm", "memcpy DtoH"],
            "start_ns": [0, 70],
            "end_ns": [40, 90],
            "device": 0,
            "stream": 7,
        }
    )
    trace = trace_of(Recording("ncu", kernels), "alone")
    assert trace.root.self_ns is None
    assert trace.root.device_ns == 60
    assert "own time" not in trace.tree()
    trace.check()
