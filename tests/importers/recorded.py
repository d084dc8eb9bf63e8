"""Recordings made by hand, and an importer of files that hold one: for tests of the front."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from xsp.errors import TraceFormatError
from xsp.importers import Contents, Recording, Source
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.reading.importers import format as formats

MAGIC = b"TOY\n"
COLUMNS = ("kind", "name", "start_ns", "end_ns", "thread", "device", "stream", "correlation_id")
Row = tuple[Any, ...]


def host(
    kind: str, name: str, start: int, end: int, *, thread: int = 1, id: int | None = None
) -> Row:
    """Return a row of the host; `id` is the correlation id."""
    return kind, name, start, end, thread, None, None, id


def device(name: str, start: int, end: int, *, id: int | None = None, stream: int = 7) -> Row:
    """Return a kernel; `id` is the correlation id."""
    return "kernel", name, start, end, None, 0, stream, id


def rows(*several: Row) -> SpanRows:
    """Return a frame of rows."""
    if not several:
        return no_rows()
    columns = dict(zip(COLUMNS, map(list, zip(*several, strict=True)), strict=True))
    return span_rows(columns)


def steps(*spans: tuple[int, int], names: Sequence[str] = ()) -> SpanRows:
    """Return the roots of steps that begin and end at these times."""
    if not spans:
        return no_rows()
    starts, ends = zip(*spans, strict=True)
    given = list(names) or [f"ProfilerStep#{number}" for number in range(len(spans))]
    return span_rows({"kind": "region", "name": given, "start_ns": starts, "end_ns": ends})


def step_rows(begin: int, number: int, *, scale: int = 1) -> list[Row]:
    """Return a layer with an operator that launches a kernel, from `begin` on, 100 µs long."""
    at = [begin + scale * part for part in (0, 10_000, 20_000, 25_000, 60_000, 90_000)]
    return [
        host("layer", "fc", at[0], at[5]),
        host("op", "aten::addmm", at[1], at[4]),
        host("launch", "cudaLaunchKernel", at[2], at[3], id=number),
        device("gemm", at[4], at[5], id=number),
    ]


def program(count: int = 3, *, tool: str = "Toy Profiler 1.2", **facts: Any) -> Recording:
    """Return a recording of so many steps of 100 µs."""
    found = [row for number in range(count) for row in step_rows(number * 100_000, number)]
    spans = [(number * 100_000, (number + 1) * 100_000) for number in range(count)]
    return Recording(tool, rows(*found), steps(*spans), **facts)


class Toy:
    """Reads files that `write` wrote."""

    name = "toy"
    tool = "the tests' own profiler"

    def recognizes(self, source: Source) -> bool:
        return source.head.startswith(MAGIC)

    def read(self, source: Source) -> Contents:
        with source.open() as file:
            recordings = json.loads(file.read().removeprefix(MAGIC))
        return tuple(self._recording(each) for each in recordings)

    def _recording(self, told: dict[str, Any]) -> Recording:
        found, roots = (self._rows(told.pop(name)) for name in ("rows", "roots"))
        return Recording(rows=found, roots=roots, **told)

    def _rows(self, columns: dict[str, Any]) -> SpanRows:
        if not columns["kind"]:
            return no_rows()
        return span_rows(columns)


class Failing(Toy):
    """Recognizes every file, and cannot read any."""

    name = "failing"

    def recognizes(self, source: Source) -> bool:
        return True

    def read(self, source: Source) -> Contents:
        raise KeyError("traceEvents")


class Refusing(Failing):
    """Says itself what is wrong with a file."""

    def read(self, source: Source) -> Contents:
        raise TraceFormatError(f"{source.path}: its version is unknown")


class Asking(Toy):
    """Fails when it is asked for the format."""

    name = "asking"

    def recognizes(self, source: Source) -> bool:
        raise RuntimeError("no idea")


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    """Install importers, `module:class` each, beside those of xsp for a test."""
    added = (
        EntryPoint(f"{number} {value}", value, formats.GROUP) for number, value in enumerate(values)
    )
    every = (*entry_points(group=formats.GROUP), *added)
    monkeypatch.setattr(formats, "entry_points", lambda group: every)


def write(path: Path, *recordings: Recording, packed: bool = False) -> Path:
    """Write recordings to a file that `Toy` reads, and return its path."""
    told = [
        {
            **{
                name: getattr(each, name)
                for name in ("tool", "name", "unix_ns", "rank", "host", "environment")
            },
            "rows": _columns(each.rows),
            "roots": _columns(each.roots),
        }
        for each in recordings
    ]
    content = MAGIC + json.dumps(told).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def _columns(frame: pl.DataFrame) -> dict[str, Any]:
    columns = frame.select(pl.col(COLUMNS)).with_columns(pl.col("kind").cast(pl.String))
    return columns.to_dict(as_series=False)
