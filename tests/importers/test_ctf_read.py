"""CTF folders: xsp's own, traces written by hand as LTTng's, and one of LTTng itself."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
import samples
import timelines
from babeltrace import ascii_of, needs_babeltrace
from ctf_folder import BEGAN, Event, write
from hypothesis import given
from hypothesis import strategies as st
from placed import codes
from timelines import typical_run

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source, trace_of
from xsp.reading.importers.ctf import CommonTraceFormat
from xsp.show.export import label
from xsp.trace.document import Trace

DATA = Path(__file__).parents[1] / "data" / "ctf"


def recording(folder: Path) -> Recording:
    source = Source(folder)
    assert CommonTraceFormat().recognizes(source)
    (found,) = CommonTraceFormat().read(source)
    assert isinstance(found, Recording)
    return found


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """Return kind, name, start, end and thread of all rows, in the order of time."""
    found = recording(folder).rows.sort("start_ns", "end_ns")
    times = [pl.col(name) - BEGAN for name in ("start_ns", "end_ns")]
    return found.select(pl.col("kind").cast(pl.String), "name", *times, "thread").rows()


def placed(trace: Trace) -> list[tuple[Any, ...]]:
    """Return parent, kind, name, device, stream and latency of each span, in any order."""
    spans = trace.spans
    names = label.names(spans.with_columns(rolled_count=None))
    frame = spans.with_columns(pl.Series("name", [ascii_of(name) for name in names]))
    above = frame.select(parent_id="span_id", above="name", began="start_ns")
    frame = frame.join(above, on="parent_id", how="left")
    frame = frame.with_columns(pl.col("latency_ns").fill_null(0.0))
    columns = ("above", "began", "kind", "name", "device", "stream", "start_ns", "latency_ns")
    return sorted(frame.select(columns).rows(), key=str)


@needs_babeltrace
@given(timelines.frames(), st.data())
def test_an_export_comes_back_as_the_same_tree(spans: pl.DataFrame, data: st.DataObject) -> None:
    texts = st.lists(st.text(max_size=9), min_size=spans.height, max_size=spans.height)
    names = pl.Series("name", data.draw(texts), dtype=pl.String)
    trace = Trace(spans.with_columns(names), {"name": "net", "warnings": []})
    end = int(spans["end_ns"][0])
    with TemporaryDirectory() as folder:
        trace.export(Path(folder) / "net.ctf")
        found = trace_of(recording(Path(folder) / "net.ctf"), "net")
    if end > 0:  # a step without length is none
        assert placed(found) == placed(trace)
    assert len(found) >= spans.height


@needs_babeltrace
def test_a_large_export_comes_back(tmp_path: Path) -> None:
    trace = samples.trace(samples.resnet(), began_unix_ns=BEGAN, environment={"host": "node7"})
    trace.export(tmp_path / "net.ctf")
    found = trace_of(recording(tmp_path / "net.ctf"), "file")
    assert placed(found) == placed(trace)
    assert found.metadata["began_unix_ns"] == BEGAN
    assert found.metadata["environment"]["host"] == "node7"
    assert not found.warnings
    assert "exported by xsp" in str(found)
    assert "overhead is included" not in str(found)


@needs_babeltrace
def test_a_latency_that_the_timeline_does_not_show_is_told(tmp_path: Path) -> None:
    spans = timelines.frame(timelines.row(1, None, 0, 9), timelines.row(2, 1, 2, 4, latency_ns=7.0))
    Trace(spans, {"name": "net", "warnings": []}).export(tmp_path / "net.ctf")
    assert list(codes(recording(tmp_path / "net.ctf"))) == ["redrawn"]


@needs_babeltrace
def test_system_calls_are_paired_on_each_thread(tmp_path: Path) -> None:
    one: list[Event] = [
        (10, "syscall_entry_read", 7, {"fd": 3}),
        (12, "syscall_entry_read", 8, {"fd": 3}),
        (20, "syscall_exit_read", 7, {"ret": -11}),
        (40, "syscall_entry_futex", 9, {}),
    ]
    other: list[Event] = [
        (5, "syscall_exit_poll", 7, {"ret": 0}),  # entered before the recording
        (15, "syscall_exit_read", 8, {"ret": 5}),  # on another processor than it was entered
        (16, "sched_waking", 8, {"tid": 9, "comm": "syscall_entry_read = {"}),
    ]
    folder = write(tmp_path / "kernel", one, other, domain="kernel", thread="tid")
    assert rows(folder) == [
        ("syscall", "read", 10, 20, 7),
        ("syscall", "read", 12, 15, 8),
        ("syscall", "futex", 40, 40, 9),
    ]
    said = {warning.code: warning.message for warning in recording(folder).warnings}
    assert set(said) == {"unended", "damaged", "marks-left-out"}
    assert "1 ends of system calls that began before" in said["damaged"]
    assert "1 sched_waking" in said["marks-left-out"]


@needs_babeltrace
def test_without_a_context_the_switches_tell_the_thread(tmp_path: Path) -> None:
    def switch(at: int, to: int) -> Event:
        return at, "sched_switch", 0, {"prev_tid": 0, "next_comm": "a = {", "next_tid": to}

    one: list[Event] = [
        (1, "syscall_entry_read", 0, {}),  # of whom is not known yet
        switch(2, 7),
        (3, "syscall_entry_poll", 0, {}),
        switch(5, 8),
        (6, "syscall_entry_poll", 0, {}),
        (7, "syscall_exit_poll", 0, {"ret": 0}),
    ]
    other: list[Event] = [switch(8, 7), (9, "syscall_exit_poll", 0, {"ret": 0})]
    folder = write(tmp_path / "kernel", one, other, domain="kernel", thread=None)
    assert rows(folder) == [("syscall", "poll", 3, 9, 7), ("syscall", "poll", 6, 7, 8)]
    assert any("--type=tid" in warning.message for warning in recording(folder).warnings)


@needs_babeltrace
def test_ranges_of_programs_are_regions_that_nest(tmp_path: Path) -> None:
    events: list[Event] = [
        (1, "app:batch_begin", 7, {"name": 'a "b"\n, name = "c"', "n": 1}),
        (2, "app:batch_begin", 7, {"name": "inner", "n": 2}),
        (3, "app:batch_begin", 8, {"name": "", "n": 3}),
        (4, "app:batch_end", 7, {}),
        (5, "app:batch_end", 8, {}),
        (6, "app:batch_end", 7, {}),
        (7, "app:queue_start", 7, {}),
        (8, "app:queue_stop", 7, {}),
        (9, "app:weekend", 7, {}),
        (9, "app:front_end", 7, {}),  # there is no beginning of such things
    ]
    folder = write(tmp_path / "ust", events)
    found = [row[1:] for row in rows(folder)]
    assert found[0] == ('a "b"\n, name = "c"', 1, 6, 7)
    assert found[1] == ("inner", 2, 4, 7)
    assert found[2][1:] == (3, 5, 8)
    assert found[3] == ("app:queue", 7, 8, 7)
    assert [warning.code for warning in recording(folder).warnings] == ["marks-left-out"]


@needs_babeltrace
def test_both_domains_of_a_session_are_one_recording(tmp_path: Path) -> None:
    write(tmp_path / "s" / "ust" / "uid" / "0", [(1, "a:x_begin", 7, {}), (9, "a:x_end", 7, {})])
    calls: list[Event] = [(3, "syscall_entry_read", 7, {}), (4, "syscall_exit_read", 7, {})]
    write(tmp_path / "s" / "kernel", calls, domain="kernel", thread="tid")
    found = recording(tmp_path / "s")
    assert (found.host, found.tool, found.unix_ns) == ("node7", "lttng", 0)
    trace = trace_of(found, "s")
    assert trace.spans["path"].to_list() == ["s", "s/a:x", "s/a:x/read"]


@needs_babeltrace
def test_system_calls_of_an_export_lie_in_its_spans(tmp_path: Path) -> None:
    thread = 140_110_148_254_592
    run = typical_run(
        ("region", "net", 0, 90, thread),
        ("layer", "fc", 10, 80, thread),
        ("syscall", "read", 20, 30, thread),
        ("syscall", "write", 85, 88, thread),
    )
    spans = timelines.frame(timelines.row(1, None, 0, 70))
    Trace(spans, {"name": "net", "warnings": []}, run).export(tmp_path / "net.ctf")
    trace = trace_of(recording(tmp_path / "net.ctf"), "file")
    paths = ["net", "net/fc", "net/fc/read", "net/write"]
    assert trace.spans["path"].to_list() == paths
    assert trace.spans["latency_ns"].to_list() == [90, 70, 10, 3]
    assert not trace.warnings


@needs_babeltrace
def test_a_trace_of_lttng_itself_is_read() -> None:
    """A C program whose function calls one twice, five times, under `liblttng-ust-cyg-profile`."""
    trace = trace_of(recording(DATA / "lttng-ust"), "cyg")
    spans = trace.spans
    depth = spans["path"].str.count_matches("/")
    assert depth.value_counts().sort("path").rows() == [(0, 1), (1, 1), (2, 5), (3, 10)]
    assert (spans["latency_ns"] > 100_000).all()  # each of them slept for 0.1 ms
    assert trace.metadata["imported"]["tool"] == "lttng-ust"
    assert "5 lttng_ust_tracef:event" in str(trace.metadata["warnings"])


@needs_babeltrace
def test_events_that_the_tracer_lost_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "ust", [(1, "a:x_begin", 7, {}), (9, "a:x_end", 7, {})], lost=12)
    assert any("lost" in warning.message for warning in recording(folder).warnings)


@needs_babeltrace
def test_what_has_no_thread_is_counted_with_the_remedy(tmp_path: Path) -> None:
    events: list[Event] = [(1, "a:x_begin", 0, {}), (9, "a:x_end", 0, {})]
    found = recording(write(tmp_path / "ust", events, thread=None))
    with pytest.raises(TraceFormatError, match=r"2 events of ranges on unknown threads.*vtid"):
        trace_of(found, "x")


@needs_babeltrace
@pytest.mark.parametrize("cut", [1, 2, 5, 60, 400, 1_000])
def test_a_packet_that_is_cut_short_is_an_error(tmp_path: Path, cut: int) -> None:
    samples.trace(samples.resnet()).export(tmp_path / "net.ctf")
    file = tmp_path / "net.ctf" / "ust" / "events"
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(TraceFormatError, match="babeltrace2 stopped in"):
        recording(tmp_path / "net.ctf")


@needs_babeltrace
def test_what_only_begins_is_no_range(tmp_path: Path) -> None:
    events: list[Event] = [
        (1, "a:x_begin", 7, {}),
        (2, "a:y_begin", 7, {}),
        (3, "a:y_end", 7, {}),
        (4, "a:y_begin", 7, {}),
    ]
    folder = write(tmp_path / "ust", events)
    assert [row[1:4] for row in rows(folder)] == [("a:y", 2, 3), ("a:y", 4, 4)]
    said = codes(recording(folder))
    assert said.keys() == {"unended", "marks-left-out"}
    assert "1 a:x_begin" in said["marks-left-out"]


@needs_babeltrace
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_any_damage_is_a_sentence_and_never_silent(at: int, byte: int) -> None:
    trace = samples.trace(samples.transformer(1))
    with TemporaryDirectory() as folder:
        trace.export(Path(folder) / "net.ctf")
        file = Path(folder) / "net.ctf" / "ust" / "events"
        data = bytearray(file.read_bytes())
        changed = data[at % len(data)] != byte
        data[at % len(data)] = byte
        file.write_bytes(data)
        try:
            found = recording(Path(folder) / "net.ctf")
            made = trace_of(found, "net")
        except TraceFormatError:
            return
    if len(made) < len(trace):
        assert found.warnings
    assert changed or placed(made) == placed(trace)


@needs_babeltrace
@pytest.mark.parametrize("cut", [3, 40, 700])
def test_metadata_that_is_cut_short_is_an_error(tmp_path: Path, cut: int) -> None:
    samples.trace(samples.resnet()).export(tmp_path / "net.ctf")
    file = tmp_path / "net.ctf" / "ust" / "metadata"
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(TraceFormatError, match="babeltrace2 stopped in"):
        recording(tmp_path / "net.ctf")


@needs_babeltrace
def test_a_folder_of_several_exports_is_no_trace(tmp_path: Path) -> None:
    for name in ("a.ctf", "b.ctf"):
        samples.trace(samples.resnet()).export(tmp_path / name)
    with pytest.raises(TraceFormatError, match=r"holds several exports of xsp.*Name one"):
        recording(tmp_path)


@needs_babeltrace
def test_a_trace_without_events_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="nothing was recorded in it"):
        recording(write(tmp_path / "ust", []))


def test_without_babeltrace2_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "ust", [(1, "a:x_begin", 7, {})])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceFormatError, match="apt install babeltrace2"):
        recording(folder)


def test_other_folders_and_files_are_not_taken_for_ctf(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("authors: many")
    (tmp_path / "a").mkdir()
    assert not CommonTraceFormat().recognizes(Source(tmp_path))
    assert not CommonTraceFormat().recognizes(Source(tmp_path / "metadata"))
    assert CommonTraceFormat().recognizes(Source(DATA / "lttng-ust" / "metadata"))
