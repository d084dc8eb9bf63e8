"""CTF folders, read back by babeltrace2: every span begins and ends once, at its own times."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
import samples
import timelines
from babeltrace import Event, ascii_of, events, needs_babeltrace
from hypothesis import given
from hypothesis import strategies as st
from timelines import typical_run

from xsp.errors import ExportError
from xsp.show.export import label
from xsp.trace.document import Trace

BEGAN = 1_700_000_000_123_456_789
HOSTILE = ['"', "\\", "\n", "a\0b", "\ud800", '", x = {', "};", "*/", "\u202e", "é" * 9_000, "%s{}"]


def trace_of(spans: pl.DataFrame, **metadata: Any) -> Trace:
    return Trace(spans, {"name": "net", "warnings": [], "began_unix_ns": BEGAN} | metadata)


def nested(found: list[Event]) -> dict[int, tuple[Event, Event]]:
    """Return begin and end of each span; on each thread they nest, as viewers demand."""
    pairs, stacks = {}, defaultdict[str, list[Event]](list)
    for event in found:
        if event.name == "xsp:begin":
            stacks[event.thread].append(event)
        else:
            assert event.name == "xsp:end"
            begin = stacks[event.thread].pop()
            assert begin.number("span") == event.number("span")
            assert begin.tid == event.tid
            pairs[event.number("span")] = (begin, event)
    assert not any(stacks.values())
    return pairs


def check(trace: Trace, folder: Path) -> list[Event]:
    """Verify that a folder has every span of a trace, with its times, names and parents."""
    found = events(folder)
    times = [event.time_ns for event in found]
    assert times == sorted(times)
    pairs = nested(found)
    spans = trace.spans
    assert sorted(pairs) == list(range(spans.height))
    ids = spans["span_id"].to_list()
    names = label.names(spans.with_columns(rolled_count=None))
    for number, (span, name) in enumerate(zip(spans.iter_rows(named=True), names, strict=True)):
        begin, end = pairs[number]
        assert begin.time_ns == BEGAN + span["start_ns"]
        assert end.time_ns == BEGAN + span["end_ns"]
        assert begin.label == ascii_of(name)
        assert begin.kind == span["kind"]
        assert begin.number("latency_ns") == span["latency_ns"]
        parent = span["parent_id"]
        assert begin.number("parent") == (2**32 - 1 if parent is None else ids.index(parent))
        assert (begin.tid < 0) == (span["device"] is not None)
    return found


@needs_babeltrace
@given(timelines.frames(), st.data())
def test_any_timeline_is_read_back(spans: pl.DataFrame, data: st.DataObject) -> None:
    names = st.sampled_from([text for text in HOSTILE if text != "\ud800"]) | st.text(max_size=9)
    drawn = data.draw(st.lists(names, min_size=spans.height, max_size=spans.height))
    trace = trace_of(spans.with_columns(name=pl.Series(drawn, dtype=pl.String)))
    with TemporaryDirectory() as folder:
        done = trace.export(Path(folder) / "net.ctf")
        assert done.sent == done.accepted == spans.height
        check(trace, Path(folder) / "net.ctf")


@needs_babeltrace
def test_pauses_in_which_the_clock_of_events_wraps_are_exact(tmp_path: Path) -> None:
    at = [0, 2**32 - 1, 2**32, 3 * 2**32 + 7, 9 * 2**40, 9 * 2**40 + 2**33]
    rows = [timelines.row(1, None, -5, at[-1] + 1)]
    rows += [timelines.row(2 + i, 1, a, b) for i, (a, b) in enumerate(pairwise(at))]
    trace = trace_of(timelines.frame(*rows))
    trace.export(tmp_path / "net.ctf")
    check(trace, tmp_path / "net.ctf")


@needs_babeltrace
def test_names_are_ascii_for_trace_compass(tmp_path: Path) -> None:
    names = ["2 \u00d7 \u03bb\u2026", "a\tb\0", "\x9f"]
    rows = [timelines.row(at + 2, 1, at, at + 1, name=name) for at, name in enumerate(names)]
    trace = trace_of(timelines.frame(timelines.row(1, None, 0, 9), *rows))
    trace.export(tmp_path / "net.ctf")
    labels = [each.label for each in events(tmp_path / "net.ctf") if each.name == "xsp:begin"]
    assert labels == ["span 1", "2 x \\u03bb...", "a\\tb\\x00", "\\x9f"]


@needs_babeltrace
def test_more_events_than_a_packet_holds(tmp_path: Path) -> None:
    trace = trace_of(samples.frame(samples.wide(20_000)))
    trace.export(tmp_path / "net.ctf")
    check(trace, tmp_path / "net.ctf")


@needs_babeltrace
def test_threads_and_streams_have_numbers_and_names(tmp_path: Path) -> None:
    rows = [
        timelines.row(1, None, 0, 9, thread=140_110_148_254_592),
        timelines.row(2, 1, 1, 2, thread=77),
        timelines.row(3, 1, 1, 4, thread=140_110_148_254_592),
        timelines.row(4, 1, 2, 5, thread=140_110_148_254_592),  # coroutines take turns
        timelines.row(5, 1, 2, 5, kind="kernel", device=1, stream=7),
        timelines.row(6, 1, 2, 5, kind="sync", device=0, stream=None),
    ]
    trace = trace_of(timelines.frame(*rows))
    trace.export(tmp_path / "net.ctf")
    found = check(trace, tmp_path / "net.ctf")
    assert {event.thread: event.tid for event in found} == {
        "thread 1": 1, "thread 77": 77, "thread 2": 2, "GPU 1 stream 7": -1, "GPU 0": -2,
    }  # fmt: skip


@needs_babeltrace
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_the_trace_break_no_metadata(tmp_path: Path, text: str) -> None:
    run = typical_run(("region", "net", 0, 9, 5), ("syscall", text.replace("\ud800", "?"), 1, 2, 5))
    spans = timelines.frame(timelines.row(1, None, 0, 9))
    metadata = {"name": text, "warnings": [], "environment": {"host": text}}
    Trace(spans, metadata, run).export(tmp_path / "net.ctf")
    with_kernel = Trace(spans, metadata, run)
    assert with_kernel.export(tmp_path / "net.ctf").sent == 2
    assert len(events(tmp_path / "net.ctf" / "ust")) == 2


@needs_babeltrace
def test_system_calls_are_those_of_one_step_beside_its_spans(tmp_path: Path) -> None:
    thread = 140_110_148_254_592
    rows = [
        ("region", "net", 0, 90, thread),
        ("layer", "fc", 10, 80, thread),
        ("syscall", "read", 20, 30, thread),
        ("syscall", "read", 30, 30, thread),
        ("syscall", "futex", 15, 60, 4711),
    ]
    runs = [typical_run(("region", "net", 0, 1, 1)), typical_run(*rows)]
    runs[0] = runs[0].with_columns(**{"pass": pl.lit("region")})
    layer = timelines.row(2, 1, 0, 60, kind="layer", module_path="a.fc", module_class="Linear")
    spans = timelines.frame(timelines.row(1, None, 0, 70), layer)
    trace = Trace(spans, {"name": "net", "warnings": [], "began_unix_ns": BEGAN}, pl.concat(runs))
    assert trace.export(tmp_path / "net.ctf").sent == 5
    calls = events(tmp_path / "net.ctf" / "kernel")
    assert [(event.time_ns - BEGAN, event.name, event.tid, event.fields) for event in calls] == [
        (15, "syscall_entry_futex", 4711, ""),
        (20, "syscall_entry_read", 1, ""),
        (30, "syscall_exit_read", 1, ""),
        (30, "syscall_entry_read", 1, ""),
        (30, "syscall_exit_read", 1, ""),
        (60, "syscall_exit_futex", 4711, ""),
    ]
    pairs = nested(events(tmp_path / "net.ctf" / "ust"))
    assert [begin.label for begin, _ in pairs.values()] == ["a.fc Linear", "net"]
    assert pairs[0][1].time_ns == BEGAN + 90
    both = events(tmp_path / "net.ctf")
    assert [event.time_ns for event in both] == sorted(event.time_ns for event in both)


@needs_babeltrace
@given(seed=st.integers(0, 1000))
def test_switches_and_wake_ups_are_those_of_the_threads(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    stretches: list[dict[str, Any]] = []
    for thread in (5, 4711):
        now = 0
        while now < 1000:
            end = min(now + chance.randint(1, 200), 1000)
            before = stretches[-1]["state"] if now else ""
            after = {"blocked": ["runnable", "running"], "runnable": ["running"]}
            state = chance.choice(after.get(before, ["blocked", "runnable", "running"]))
            if before == state:
                stretches[-1]["end_ns"] = end
            else:
                stretches.append({
                    "name": f"worker {thread}", "thread": thread, "start_ns": now, "end_ns": end,
                    "state": state, "cause": None, "processor": chance.randrange(3),
                })  # fmt: skip
            now = end
    root = samples.pipeline("net", own_ns=1000)
    root.attributes["thread_timeline"] = stretches
    run = typical_run(("region", "net", 0, 1000, 5), ("syscall", "read", 10, 20, 5))
    metadata = {"name": "net", "warnings": [], "began_unix_ns": BEGAN}
    path = tmp_path_factory.mktemp("ctf") / "net.ctf"
    Trace(samples.frame(root), metadata, run).export(path)
    # The states again, as a reader of LTTng's events knows them.
    found: dict[int, list[tuple[int, str]]] = {5: [], 4711: []}
    for event in events(path / "kernel"):
        at = event.time_ns - BEGAN
        if event.name == "sched_waking":
            found[event.number("tid")].append((at, "runnable"))
        elif event.name == "sched_switch" and event.number("next_tid") in found:
            found[event.number("next_tid")].append((at, "running"))
        elif event.name == "sched_switch":
            state = "blocked" if event.number("prev_state") else "runnable"
            found[event.number("prev_tid")].append((at, state))
    for thread, seen in found.items():
        own = [each for each in stretches if each["thread"] == thread]
        known = [(each["start_ns"], each["state"]) for each in own]
        # What a thread did before it first ran is not told whole.
        told, ran = ([state for _, state in states].index("running") for states in (seen, known))
        assert seen[told:] == known[ran:]


def test_a_folder_of_xsp_is_replaced(tmp_path: Path) -> None:
    path, spans = tmp_path / "net.ctf", samples.frame(samples.resnet())
    trace_of(spans).export(path)
    before = {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    trace_of(spans).export(f"{path}/")
    assert before == {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    trace_of(spans).export(path, max_spans=1)
    assert (path / "ust" / "events").stat().st_size < 300
    assert os.listdir(tmp_path) == ["net.ctf"]


@pytest.mark.parametrize("what", ["file", "folder", "mixed", "link"])
def test_anything_else_of_that_name_is_left_alone(tmp_path: Path, what: str) -> None:
    path, trace = tmp_path / "net.ctf", samples.trace(samples.resnet())
    if what == "file":
        path.write_text("mine")
    elif what == "link":
        trace.export(tmp_path / "other.ctf")
        path.symlink_to(tmp_path / "other.ctf")
    else:
        if what == "mixed":
            trace.export(path)
        path.mkdir(exist_ok=True)
        (path / "notes").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ExportError, match="is there already, and not as xsp wrote it"):
        trace.export(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_written_leaves_nothing_and_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = samples.trace(samples.resnet())
    with pytest.raises(ExportError, match="there is no folder"):
        trace.export(tmp_path / "none" / "net.ctf")
    trace.export(tmp_path / "net.ctf")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="a span budget of 0"):
        trace.export(tmp_path / "net.ctf", max_spans=0)
    assert sorted(tmp_path.rglob("*")) == before


def test_trace_compass_is_told_of_fields_that_there_are(tmp_path: Path) -> None:
    samples.trace(samples.resnet()).export(tmp_path / "net.ctf")
    tree = ElementTree.parse(tmp_path / "net.ctf" / "xsp.xml")
    metadata = (tmp_path / "net.ctf" / "ust" / "metadata").read_text()
    fields = {node.get("value") for node in tree.iter() if node.get("type") == "eventField"}
    assert fields == {"context._procname", "name"}
    assert " _procname;" in metadata
    assert " _name;" in metadata
    names = {str(node.get("event")) for node in tree.iter("transition")}
    assert names == {"xsp:begin", "xsp:end"}
    assert all(f'name = "{name}";' in metadata for name in names)
