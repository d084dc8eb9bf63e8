"""Traces in Perfetto's own format, decoded by the generated classes of the package `perfetto`."""

from __future__ import annotations

import gzip
import io
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from sketch import some
from timelines import frame, frames, row

from xsp.errors import TraceFormatError
from xsp.importers import Recording, Source, trace_of
from xsp.reading.importers.perfetto import Perfetto
from xsp.show.export import label
from xsp.show.export.pftrace import write_pftrace
from xsp.show.export.reduction import reduce

METADATA = {
    "name": "Net",
    "began_unix_ns": 10**18,
    "environment": {"host": "box", "pid": 4711, "gpus": [{"name": "H200"}]},
    "warnings": [{"code": "drift", "message": 'it "drifted" \ud800'}],
}


def content(spans: pl.DataFrame, metadata: Any = METADATA) -> bytes:
    file = io.BytesIO()
    write_pftrace(reduce(spans, None), metadata, file)
    return file.getvalue()


class Decoded:
    """A file, with the texts that its packets name by numbers."""

    def __init__(self, data: bytes) -> None:
        self.packets = pb.Trace.FromString(data).packet
        self.texts: dict[str, dict[int, str]] = defaultdict(dict)
        self.slices: list[dict[str, Any]] = []
        open_: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for packet in self.packets:
            assert packet.trusted_packet_sequence_id == 1
            for field, entries in packet.interned_data.ListFields():
                for entry in entries:
                    if field.name == "debug_annotation_string_values":
                        self.texts[field.name][entry.iid] = entry.str.decode()
                    elif hasattr(entry, "name"):
                        self.texts[field.name][entry.iid] = entry.name
            if packet.HasField("track_event"):
                self._take(packet, open_[packet.track_event.track_uuid])
        assert not any(open_.values())

    def _take(self, packet: Any, open_: list[dict[str, Any]]) -> None:
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_SLICE_END:
            open_.pop()["end"] = packet.timestamp
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            args = {}
            for each in event.debug_annotations:
                value = getattr(each, each.WhichOneof("value"))
                if each.HasField("string_value_iid"):
                    value = self.texts["debug_annotation_string_values"][value]
                args[self.texts["debug_annotation_names"][each.name_iid]] = value
            found = {
                "name": self.texts["event_names"][event.name_iid],
                "category": self.texts["event_categories"][event.category_iids[0]],
                "start": packet.timestamp,
                "track": event.track_uuid,
                "around": open_[-1]["args"]["xsp.span_id"] if open_ else None,
                "args": args,
            }
            open_.append(found)
            self.slices.append(found)

    def of(self, name: str) -> list[Any]:
        """Return the packets that have a field."""
        return [packet for packet in self.packets if packet.HasField(name)]


@some
@given(frames())
def test_every_span_is_there_to_the_nanosecond(spans: pl.DataFrame) -> None:
    found = Decoded(content(spans))
    origin = min(0, *spans["start_ns"])
    written = [
        (
            each["args"]["xsp.span_id"],
            each["category"],
            each["start"] + origin,
            each["end"] + origin,
        )
        for each in found.slices
    ]
    for packet in found.of("gpu_render_stage_event"):
        stage, start = packet.gpu_render_stage_event, packet.timestamp + origin
        span = spans.row(stage.event_id - 1, named=True)
        kind = found.texts["gpu_specifications"][stage.stage_iid].lower()
        written.append((span["span_id"], kind, start, start + stage.duration))
        assert stage.gpu_id == span["device"]
    ends = pl.max_horizontal("start_ns", "end_ns").alias("until")
    expected = spans.select("span_id", "kind", "start_ns", ends)
    assert Counter(written) == Counter(expected.rows())


@some
@given(frames())
def test_a_slice_within_another_is_its_descendant(spans: pl.DataFrame) -> None:
    above = dict(spans.select("span_id", "parent_id").iter_rows())
    for each in Decoded(content(spans)).slices:
        ancestors, at = set(), each["args"]["xsp.span_id"]
        while at is not None:
            at = above[at]
            ancestors.add(at)
        assert each["around"] in ancestors
        assert each["args"].get("xsp.parent_id") == above[each["args"]["xsp.span_id"]]


@some
@given(frames())
def test_tracks_have_names_that_no_other_of_their_kind_has(spans: pl.DataFrame) -> None:
    found = Decoded(content(spans))
    tracks = {
        each.track_descriptor.uuid: each.track_descriptor for each in found.of("track_descriptor")
    }
    named = Counter(
        (track.parent_uuid, track.name or track.thread.thread_name or track.process.process_name)
        for track in tracks.values()
    )
    assert set(named.values()) == {1}
    assert {each["track"] for each in found.slices} <= tracks.keys()
    threads = [each.thread.tid for each in tracks.values() if each.HasField("thread")]
    assert len(set(threads)) == len(threads)


@some
@given(frames())
def test_the_trace_comes_back_whole(spans: pl.DataFrame) -> None:
    found = read(content(spans))
    rows = pl.concat([found.roots, found.rows], how="diagonal")
    columns = ("kind", "thread", "device", "stream", "correlation_id")
    times = pl.col("start_ns", "end_ns") - min(0, *spans["start_ns"])
    names = label.names(reduce(spans, None).spans, "Net")
    expected = spans.select(*columns, times, name=names)
    assert Counter(rows.select(expected.columns).rows()) == Counter(expected.rows())
    trace_of(found, "trace").check()


def read(data: bytes) -> Recording:
    """Return the recording in a file's content."""
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        (found,) = Perfetto().read(Source(Path(file.name)))
    assert isinstance(found, Recording)
    return found


@some
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4))
def test_any_name_is_written(names: list[str]) -> None:
    rows = [row(1, None, 0, 99)] + [
        row(n, 1, n, n + 1, name=name) for n, name in enumerate(names, 2)
    ]
    found = Decoded(content(frame(*rows)))
    assert [each["name"] for each in found.slices[1:]] == [name or "(no name)" for name in names]


def launched() -> pl.DataFrame:
    return frame(
        row(1, None, 0, 99),
        row(2, 1, 5, 9, kind="launch", correlation_id=7),
        row(3, 1, 10, 30, kind="kernel", device=1, stream=20, correlation_id=7),
        row(4, 1, 40, 50, kind="sync", device=1, stream=20, correlation_id=7),
    )


def test_kernels_are_render_stages_of_which_their_launch_knows_the_number() -> None:
    found = Decoded(content(launched()))
    (packet,) = found.of("gpu_render_stage_event")
    stage = packet.gpu_render_stage_event
    specifications = found.texts["gpu_specifications"]
    assert specifications[stage.hw_queue_iid] == "stream 20"
    categories = {
        each.iid: each.category
        for p in found.packets
        for each in p.interned_data.gpu_specifications
    }
    assert categories[stage.stage_iid] == pb.InternedGpuRenderStageSpecification.COMPUTE
    assert found.texts["event_names"][stage.name_iid] == "span 3"
    (launch,) = (each for each in found.of("track_event") if b"\x08\x03" in _correlation(each))
    (wait,) = (each for each in found.of("track_event") if each.track_event.terminating_flow_ids)
    assert list(wait.track_event.terminating_flow_ids) == list(launch.track_event.flow_ids)


def _correlation(packet: Any) -> bytes:
    """Find the bytes after the tag of `gpu_correlation`, unknown to the generated classes."""
    whole: bytes = packet.track_event.SerializeToString()
    return whole.partition(b"\xc2\xbb\x01")[2]


def test_the_page_of_kernels_finds_their_resources() -> None:
    kernel = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers": 32, "occupancy_pct": 62.5,
              "static_shared_bytes": 512, "full_name": "void gemm<float>(int)"}  # fmt: skip
    spans = launched()
    attributes = [None if kind != "kernel" else kernel for kind in spans["kind"]]
    sizes, number = pl.List(pl.Int64), pl.Int64
    types: dict[str, Any] = {"grid": sizes, "block": sizes, "registers": number}
    types |= {"occupancy_pct": pl.Float64, "static_shared_bytes": number, "full_name": pl.String}
    spans = spans.with_columns(pl.Series("attributes", attributes, dtype=pl.Struct(types)))
    data = content(spans)
    found = Decoded(data)
    stage = found.of("gpu_render_stage_event")[0].gpu_render_stage_event
    launch = [
        (each.x, each.y, each.z) for each in (stage.launch.grid_size, stage.launch.workgroup_size)
    ]
    assert launch == [(4, 2, 1), (128, 1, 1)]
    for term in (b"registers_per_thread", b"shared_mem_static", b"void gemm<float>(int)",
                 b"sm__maximum_warps_per_active_cycle_pct"):  # fmt: skip
        assert data.count(term) == 1
    (own,) = read(data).rows.filter(pl.col("kind") == "kernel").to_dicts()
    told = {key: own[f"attr.{key}"] for key in ("grid", "block", "registers", "full_name")}
    assert told == {key: kernel[key] for key in told}


def test_memory_is_a_counter_and_warnings_are_an_instant() -> None:
    found = Decoded(
        content(frame(row(1, None, 0, 99), row(2, 1, 5, 9, allocated_bytes=64, freed_bytes=0)))
    )
    events = [(packet.timestamp, packet.track_event) for packet in found.of("track_event")]
    counted = [
        (at, each.counter_value) for at, each in events if each.type == pb.TrackEvent.TYPE_COUNTER
    ]
    assert counted == [(0, 0), (9, 64)]
    (instant,) = (each for _, each in events if each.type == pb.TrackEvent.TYPE_INSTANT)
    assert (
        instant.debug_annotations[0].array_values[0].string_value == 'drift: it "drifted" \\ud800'
    )
    (snapshot,) = found.of("clock_snapshot")
    assert {each.clock_id: each.timestamp for each in snapshot.clock_snapshot.clocks} == {
        6: 0, 1: 10**18
    }  # fmt: skip


def test_what_monitors_read_are_counters_of_each_device() -> None:
    read = pl.DataFrame(
        {"device": ["GPU 0", "GPU 0", "host"], "start_ns": [0, 100, 0],
         "power_w": [350.5, None, None], "cpu_pct": [None, None, 80.0]}
    )  # fmt: skip
    file = io.BytesIO()
    write_pftrace(reduce(frame(row(1, None, 0, 99)), None), METADATA, file, read)
    found = Decoded(file.getvalue())
    described = [packet.track_descriptor for packet in found.of("track_descriptor")]
    tracks = {each.uuid: each.name for each in described}
    counted = [
        (tracks[event.track_uuid], packet.timestamp, event.double_counter_value)
        for packet in found.packets
        if (event := packet.track_event).type == pb.TrackEvent.TYPE_COUNTER
    ]
    assert sorted(counted) == [("GPU 0 power_w", 0, 350.5), ("host cpu_pct", 0, 80.0)]


def test_a_cut_file_says_so_wherever_it_was_cut() -> None:
    whole = content(launched())
    count = len(read(whole).rows)
    told: list[str] = []
    for size in range(60, len(whole), 7):
        try:
            found = read(whole[:size])
        except TraceFormatError as error:
            told.append(str(error))
            continue
        is_told = "cut-short" in {warning.code for warning in found.warnings}
        assert is_told or (len(found.rows) == count and size > 0.9 * len(whole))
    assert told
    assert all("end is missing" in each for each in told)
    assert "cut-short" not in {warning.code for warning in read(whole).warnings}


def test_files_of_both_suffixes_hold_the_same(tmp_path: Path) -> None:
    trace = trace_of(read(content(launched())), "Net")
    for name in ("net.pftrace", "net.pftrace.gz"):
        assert trace.export(tmp_path / name).accepted == trace.spans.height
    plain = (tmp_path / "net.pftrace").read_bytes()
    assert gzip.decompress((tmp_path / "net.pftrace.gz").read_bytes()) == plain
    assert len(Decoded(plain).slices) == trace.spans.height - 1
