"""Export: spans per second into OTLP protobuf beside its peers, and memory by size of trace.

Run it as `python benchmarks/export.py`; `--quick` leaves out the largest trace. Seconds
are the process's own processor time with all of its threads, so that they are those of
one core, and of nobody else. Memory is what the process had resident at most, above
what it had when the trace was loaded and nothing of it encoded: polars' and numpy's
memory is in it. Each size has a fresh process, told to give freed memory back at once,
lest what loading left over is used for encoding and seen by nobody. The made-up texts
are like each other: what gzip makes of them is better than of a model's.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any, cast

import numpy as np
import polars as pl
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from table import print_header, print_row

from xsp.show.export.destination import MOST_SPANS
from xsp.show.export.otlp import chunks
from xsp.show.export.picture import Picture, Service, Slice
from xsp.show.export.reduction import reduce
from xsp.trace.integrity import SPAN_SCHEMA

SIZES = (10_000, 100_000, 1_000_000)
SPANS, PEERS_SPANS, ROUNDS, BATCH, ROWS = 100_000, 20_000, 5, 2_048, 1_024
OPERATORS = 9  # in each layer
WIDTHS, MEMORY_WIDTHS = (58, 10, 12, 8), (12, 14, 14, 22)
# What polars' allocator reads.
GIVE_BACK = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"}
TEN = (
    *("level", "kind", "path", "latency_ns", "latency_low_ns"),
    *("latency_high_ns", "self_ns", "overhead_ns", "runs", "thread"),
)


def trace_frame(spans: int) -> pl.DataFrame:
    """Return the spans of a made-up trace: layers of nine operators, one after the other."""
    row = np.arange(spans)
    is_op = row % (OPERATORS + 1) > 1
    layer = (row - 1) // (OPERATORS + 1)
    generator = np.random.default_rng(0)
    latency = np.where(is_op, generator.exponential(20_000, spans), 300_000.0)
    start = row * 25_000
    columns: dict[str, Any] = {
        "span_id": row + 1,
        "parent_id": np.where(is_op, row - (row - 1) % (OPERATORS + 1), 1),
        "latency_ns": latency,
        "latency_low_ns": latency * 0.99,
        "latency_high_ns": latency * 1.01,
        "self_ns": latency * 0.7,
        "overhead_ns": latency * 0.1,
        "start_ns": start,
        "end_ns": start + latency.astype(np.int64),
        "measured_start_ns": start,
        "measured_end_ns": start + latency.astype(np.int64),
    }
    op = pl.lit(pl.Series(is_op))
    number = pl.Series(generator.integers(0, 40, spans))
    module = pl.format("encoder.layers.{}.linear", pl.lit(pl.Series(layer)))
    frame = pl.DataFrame(columns).with_columns(
        level=pl.lit("framework"),
        kind=pl.when(op).then(pl.lit("op")).otherwise(pl.lit("layer")),
        name=pl.when(op).then(pl.format("aten::op{}", number)).otherwise(pl.lit("linear")),
        path=pl.format("predict/encoder/{}/{}", pl.lit(pl.Series(layer)), "span_id"),
        runs=pl.lit(30),
        thread=pl.lit(1),
        attributes=pl.struct(
            exact=pl.lit(True),
            phase=pl.lit("forward"),
            module_path=pl.when(~op).then(module),
            module_class=pl.when(~op).then(pl.lit("Linear")),
            input_shapes=pl.lit(pl.Series([[[64, 128], [128]]])).first(),
            allocated_bytes=pl.when(op).then(number * 4096),
        ),
    )
    missing = (pl.lit(None).alias(name) for name in SPAN_SCHEMA if name not in frame.columns)
    return _rooted(
        frame.with_columns(*missing).select(*SPAN_SCHEMA, "attributes").cast(SPAN_SCHEMA)
    )


def _rooted(frame: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("span_id") == 1
    duration = frame["end_ns"].max()
    return frame.with_columns(
        parent_id=pl.when(~first).then("parent_id"),
        end_ns=pl.when(first).then(duration).otherwise("end_ns"),
        level=pl.when(first).then(pl.lit("model")).otherwise("level"),
        kind=pl.when(first).then(pl.lit("region")).otherwise("kind"),
        name=pl.when(first).then(pl.lit("predict")).otherwise("name"),
    )


def picture(frame: pl.DataFrame, most: int | None = None) -> Picture:
    """Prepare a frame of spans as `trace.export` does, cut to `most` spans."""
    metadata = {"name": "Encoder", "began_unix_ns": 1_750_000_000_000_000_000, "warnings": []}
    return Picture(reduce(frame, most), metadata)


@dataclass(frozen=True)
class Cut:
    """Slices that are there already, so that only their encoding is timed."""

    parts: Sequence[Slice]
    trace_id: bytes
    services: tuple[Service, ...]
    trace_state: str = ""

    def slices(self, rows: int) -> Iterator[Slice]:
        """Yield the slices, whatever their rows."""
        yield from self.parts


def ten_attributes(source: Picture, frame: pl.DataFrame) -> Picture:
    """Return a picture's spans with ten columns of the trace as attributes, in slices."""
    ten = frame.select(pl.col(name).alias(f"attr.xsp.{name}") for name in TEN)
    parts, at = [], 0
    for part in source.slices(ROWS):
        plain = part.spans.select(name for name in part.spans.columns if name[:5] != "attr.")
        more = ten.slice(at, plain.height)
        parts.append(Slice(plain.hstack(more), part.events.clear(), part.links.clear()))
        at += plain.height
    return cast(Picture, Cut(parts, source.trace_id, source.services))


def made(source: Picture) -> Picture:
    """Return the same picture with its slices made beforehand."""
    return cast(Picture, Cut(list(source.slices(ROWS)), source.trace_id, source.services))


def rows_of(source: Picture, most: int) -> list[dict[str, Any]]:
    """Return spans as Python values, the attributes in a dictionary of their own."""
    rows = (row for part in source.slices(ROWS) for row in part.spans.iter_rows(named=True))
    return [
        row
        | {"attributes": {n[5:]: v for n, v in row.items() if n[:5] == "attr." and v is not None}}
        for row in islice(rows, most)
    ]


def sdk_spans(source: Picture, most: int) -> list[ReadableSpan]:
    """Return spans as the SDK hands them to an exporter."""
    trace_id = int.from_bytes(source.trace_id, "big")
    resources = [Resource(dict(service.attributes)) for service in source.services]
    scope = InstrumentationScope("xsp", "0")

    def context(span_id: int) -> SpanContext:
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1))

    return [
        ReadableSpan(
            row["name"],
            context(row["span_id"]),
            context(row["parent_span_id"]) if row["parent_span_id"] else None,
            resource=resources[row["service"]],
            attributes=row["attributes"],
            instrumentation_scope=scope,
            start_time=row["start_unix_ns"],
            end_time=row["end_unix_ns"],
        )
        for row in rows_of(source, most)
    ]


def ours(source: Picture) -> list[bytes]:
    return [chunk.body for chunk in chunks(source)]


def with_gzip(source: Picture) -> list[bytes]:
    return [gzip.compress(body, 6) for body in ours(source)]


def with_sdk(spans: list[ReadableSpan]) -> list[bytes]:
    batches = (spans[at : at + BATCH] for at in range(0, len(spans), BATCH))
    return [encode_spans(batch).SerializeToString() for batch in batches]


def with_messages(rows: list[dict[str, Any]], trace_id: bytes) -> list[bytes]:
    """Encode rows by protobuf's own objects, all in one resource."""
    batches = (rows[at : at + BATCH] for at in range(0, len(rows), BATCH))
    return [_request(batch, trace_id).SerializeToString() for batch in batches]


def _request(rows: list[dict[str, Any]], trace_id: bytes) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    add = request.resource_spans.add().scope_spans.add().spans.add
    for row in rows:
        span = add(
            trace_id=trace_id,
            span_id=row["span_id"].to_bytes(8, "big"),
            parent_span_id=row["parent_span_id"].to_bytes(8, "big"),
            name=row["name"],
            kind=1,
            start_time_unix_nano=row["start_unix_ns"],
            end_time_unix_nano=row["end_unix_ns"],
            flags=1,
        )
        for key, value in row["attributes"].items():
            attribute = span.attributes.add(key=key)
            if isinstance(value, str):
                attribute.value.string_value = value
            elif isinstance(value, int):
                attribute.value.int_value = value
            else:
                attribute.value.double_value = value
    return request


def per_second(encode: Callable[[], list[bytes]], spans: int) -> tuple[float, float]:
    """Return spans per second of processor time, the best of some rounds, and bytes per span."""
    seconds, size = [], 0
    for _ in range(ROUNDS):
        begin = process_time()
        bodies = encode()
        seconds.append(process_time() - begin)
        size = sum(map(len, bodies))
    return spans / min(seconds), size / spans


def compare() -> None:
    """Print the table of speeds."""
    frame = trace_frame(SPANS)
    whole = picture(frame)
    ten, prepared = ten_attributes(whole, frame), made(whole)
    spans, rows = sdk_spans(ten, PEERS_SPANS), rows_of(ten, PEERS_SPANS)
    mean = sum(len(row["attributes"]) for row in rows_of(whole, PEERS_SPANS)) / PEERS_SPANS
    exported = f"trace as exported, {mean:.0f} attributes"
    cases: tuple[tuple[str, Callable[[], list[bytes]], int], ...] = (
        ("ten attributes: xsp", lambda: ours(ten), SPANS),
        ("ten attributes: xsp, and gzip", lambda: with_gzip(ten), SPANS),
        (
            f"ten attributes: opentelemetry-sdk {version('opentelemetry-sdk')}",
            lambda: with_sdk(spans),
            PEERS_SPANS,
        ),
        (
            f"ten attributes: opentelemetry-proto, protobuf {version('protobuf')}",
            lambda: with_messages(rows, ten.trace_id),
            PEERS_SPANS,
        ),
        (f"{exported}: xsp", lambda: ours(prepared), SPANS),
        (f"{exported}: xsp, names and attributes made too", lambda: ours(whole), SPANS),
        (
            f"the same, cut to {MOST_SPANS:,} spans first",
            lambda: ours(picture(frame, MOST_SPANS)),
            SPANS,
        ),
    )
    print_row(("what is encoded, and by whom", "spans/s", "bytes/span", "speed"), WIDTHS)
    first = 0.0
    for what, encode, count in cases:
        speed, size = per_second(encode, count)
        first = first or speed
        print_row((what, f"{speed:,.0f}", f"{size:.0f}", f"{speed / first:.2f}"), WIDTHS)


def resident_mib(field: str) -> float:
    """Return `VmRSS`, what is resident, or `VmHWM`, the most that was."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise SystemExit("memory is measured on Linux only: /proc/self/status does not tell")
    return int(found[1]) / 1024


def measure_memory(path: str) -> None:
    """Print encoded bytes, the largest chunk's bytes, and the peak in MiB above start."""
    ours(picture(trace_frame(1_000)))  # what is loaded or set up once is not the trace's
    source = picture(pl.read_parquet(path))
    Path("/proc/self/clear_refs").write_text("5")  # lowers the peak to what is resident now
    before = resident_mib("VmRSS")
    sizes = [len(chunk.body) for chunk in chunks(source)]
    print(sum(sizes), max(sizes), resident_mib("VmHWM") - before)


def memory(sizes: Sequence[int]) -> None:
    """Print the table of memory, one process per size."""
    print_row(("\nspans", "encoded MiB", "largest chunk", "peak MiB above start"), MEMORY_WIDTHS)
    for size in sizes:
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            trace_frame(size).write_parquet(file.name)
            command = [sys.executable, __file__, "--memory-of", file.name]
            line = subprocess.check_output(command, env=os.environ | GIVE_BACK, text=True)
        total, largest, peak = (float(part) for part in line.split())
        mib = (f"{total / 2**20:.1f}", f"{largest / 2**20:.2f}", f"{peak:.1f}")
        print_row((f"{size:,}", *mib), MEMORY_WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the largest trace")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        measure_memory(arguments.memory_of)
        return
    print_header("Export: spans into OTLP protobuf (processor time, best of five)")
    compare()
    memory(SIZES[:-1] if arguments.quick else SIZES)


if __name__ == "__main__":
    main()
