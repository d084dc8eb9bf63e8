"""The trace of a measurement: spans and metadata in, a read-only object for all uses out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from xsp.errors import TraceFormatError
from xsp.problem import NOTE, Problem
from xsp.text import counted, printable, shorten
from xsp.trace import heading, html, integrity
from xsp.trace import text as tree
from xsp.trace.file import (
    check_metadata,
    frozen,
    pack_runs,
    read_file,
    unpack_runs,
    write_file,
)

if TYPE_CHECKING:
    import pandas as pd

    from xsp.export import Delivery

__all__ = ["FORMAT", "SPAN_SCHEMA", "Span", "Trace", "load"]

# Version of the file format, which `load` checks; rises when columns or metadata change meaning.
FORMAT = 1

SPAN_SCHEMA = integrity.SPAN_SCHEMA


@dataclass(frozen=True, slots=True)
class Span:
    """One row of `trace.spans`; each field is the column of that name (docs/trace.md)."""

    span_id: int
    parent_id: int | None
    level: str
    kind: str
    name: str
    path: str
    start_ns: int
    end_ns: int
    latency_ns: float | None
    latency_low_ns: float | None
    latency_high_ns: float | None
    self_ns: float | None
    overhead_ns: float | None
    device_ns: float | None
    measured_start_ns: int | None
    measured_end_ns: int | None
    runs: int
    thread: int | None
    device: int | None
    stream: int | None
    correlation_id: int | None
    attributes: Mapping[str, Any]


class Trace:
    """One measurement as one hierarchy of spans, without the profiler in the numbers.

    A trace cannot be changed: its `spans` are a copy, its `metadata` is read-only.

    Args:
        spans: Columns of `SPAN_SCHEMA` in that order, then `attributes`; root
            first, parents before children.
        metadata: Values that JSON can hold: `name`, `problems`, `levels`, `rungs`,
            `plan`, `environment`, `created` and `xsp_version`.
        typical_runs: Columns of `RUN_SCHEMA`: one typical run of each rung; or the text
            of typical runs in a file, which the property `typical_runs` unpacks.

    Raises:
        TraceFormatError: A column is missing or of the wrong type, a kind or level is
            unknown, or an entry of the metadata is not of its documented type.
        TypeError: `metadata` has a value that JSON cannot hold.
    """

    __slots__ = ("__weakref__", "_json", "_metadata", "_spans", "_typical_runs")

    _json: str
    _metadata: Mapping[str, Any]
    _typical_runs: pl.DataFrame | str
    _spans: pl.DataFrame

    def __init__(
        self,
        spans: pl.DataFrame,
        metadata: Mapping[str, Any],
        typical_runs: pl.DataFrame | str | None = None,
    ) -> None:
        integrity.check_columns(spans)
        integrity.check_words(spans)
        if isinstance(typical_runs, pl.DataFrame):
            integrity.check_run_columns(typical_runs)
            typical_runs = typical_runs.clone()
        # Metadata goes through JSON and back, so that a new trace equals a loaded one.
        text = json.dumps({"format": FORMAT, **metadata}, default=_plain)
        # `__setattr__` of this class refuses all changes.
        put = super().__setattr__
        put("_json", text)
        put("_metadata", _checked(text))
        put("_spans", spans.clone())
        put("_typical_runs", typical_runs if typical_runs is not None else "")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a trace cannot be changed; make another instead of setting {name!r}")

    @property
    def spans(self) -> pl.DataFrame:
        """One row per span, root first; docs/trace.md documents the columns."""
        return self._spans.clone()

    @property
    def typical_runs(self) -> pl.DataFrame:
        """A typical run of each rung as it was measured, one row per span.

        docs/trace.md documents the columns. There are no rows where no run was kept.

        Raises:
            TraceFormatError: The typical runs in the file are damaged.
        """
        # Unpacked once, when first asked for: most readers want the spans only.
        if isinstance(self._typical_runs, str):
            runs = unpack_runs(self._typical_runs)
            integrity.check_runs(runs)
            super().__setattr__("_typical_runs", runs)
        assert isinstance(self._typical_runs, pl.DataFrame)
        return self._typical_runs.clone()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How the trace came to be; read-only, lists are tuples."""
        return self._metadata

    @property
    def name(self) -> str:
        """Name of the model or function that was measured, for people."""
        return str(self._metadata.get("name") or "trace")

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems that a reader should know before trusting the numbers."""
        problems = self._metadata.get("problems", ())
        found = (Problem(str(entry["code"]), str(entry["message"])) for entry in problems)
        return tuple(problem for problem in found if problem.code != NOTE)

    @property
    def root(self) -> Span:
        """The span of a whole evaluation of the model."""
        return self._span(self._spans.head(1))

    def span(self, path: str) -> Span:
        """Return the span with this path.

        Raises:
            KeyError: No span has the path.
        """
        found = self._spans.filter(pl.col("path") == path)
        if not found.height:
            raise KeyError(f"no span has the path {path!r}; trace.spans['path'] has them all")
        return self._span(found)

    def children(self, span: Span) -> tuple[Span, ...]:
        """Return the spans right below `span`, in the order they began."""
        rows = self._spans.filter(pl.col("parent_id") == span.span_id)
        return tuple(Span(**row) for row in rows.iter_rows(named=True))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the trace to one Parquet file, whole or not at all, and return its path.

        pandas, polars and DuckDB read the file without xsp; an older file of that
        name is replaced.

        Raises:
            ExportError: The file could not be written: the disk is full, the folder is
                missing or not writable. No part of the file is left behind.
        """
        # Typical runs that were never unpacked are written as they were read.
        runs = (
            self._typical_runs
            if isinstance(self._typical_runs, str)
            else pack_runs(self._typical_runs)
        )
        return write_file(self._spans, self._json, Path(path), runs=runs)

    def export(
        self,
        destination: str | PathLike[str] | object | None = None,
        *,
        max_spans: int | Literal["auto"] | None = "auto",
        typical_runs: bool = False,
        parent: str | None = None,
    ) -> Delivery:
        """Take the trace to Jaeger, any OTLP endpoint, an exporter, or a file of another format.

        Args:
            destination: `otlp+http://host:4318`, `otlp://host:4317` (gRPC, which
                `xsp[grpc]` brings), `otlp+https://` and `otlps://` with TLS; None for the
                endpoint of the `OTEL_EXPORTER_OTLP_*` variables, or without these a Jaeger
                on this machine; a file that ends in `.otlp.json`, `.perfetto.json`,
                `.speedscope.json`, `.folded` (stacks for flame graphs) or `.parquet`; or an
                OpenTelemetry `SpanExporter`. Headers, certificates,
                compression and timeout come from the variables.
            max_spans: Most spans exported; to keep the limit deeper levels are cut, and
                repeated small spans rolled up into one span with their sum. None: no limit.
                `"auto"`: 2,000, which Jaeger's UI can draw, and no limit for files but
                `.otlp.json`.
            typical_runs: Whether to export a typical run of every rung as well, as a trace of its
                own that the spans link to.
            parent: W3C `traceparent` of the span to hang the root under, instead of the
                span in which the trace was measured.

        Returns:
            How many spans were sent, and how many of them were accepted.

        Raises:
            ExportError: Not every span arrived, or a file could not be written. The message
                counts the spans that arrived, and names the file that keeps the trace.
            ValueError: There is no such destination, or a number is out of range.
            TypeError: `destination` is neither text nor a path nor a `SpanExporter`.
        """
        from xsp.export import export  # noqa: PLC0415  # an upward import, made when used

        return export(
            self, destination, max_spans=max_spans, typical_runs=typical_runs, parent=parent
        )

    def as_measured(self) -> Trace:
        """Return the same trace drawn with the times that the deepest run measured."""
        measured = [pl.col(f"measured_{end}").alias(end) for end in ("start_ns", "end_ns")]
        return Trace(self._spans.with_columns(measured), self._metadata, self._typical_runs)

    def to_pandas(self) -> pd.DataFrame:
        """Return `spans` as a pandas frame, attributes as one dictionary per span.

        Raises:
            ModuleNotFoundError: pandas or pyarrow is not installed.
        """
        try:
            return self._spans.to_pandas()
        except ModuleNotFoundError as error:
            error.msg = f"{error.msg}; `pip install 'xsp[pandas]'` brings what it needs"
            raise

    def check(self) -> None:
        """Verify that the spans are one well-formed tree whose drawn timeline nests.

        Raises:
            TraceFormatError: The spans are not; the message names the first breach.
        """
        integrity.check(self._spans)

    def tree(
        self, *, width: int | None = None, rows: int | None = 60, smallest: float = 0.01
    ) -> str:
        """Return the tree that `print(trace)` shows.

        Args:
            width: Columns to fill; None for those of the terminal, or 100 without one.
            rows: About how many rows at most; None for every span.
            smallest: Fraction of the model's latency below which a span is only counted.
        """
        return tree.text(self._spans, self._metadata, width=width, rows=rows, smallest=smallest)

    def __str__(self) -> str:
        return self.tree()

    def __repr__(self) -> str:
        latency = heading.model_latency(self._spans)
        found = f", {counted(len(self.problems), 'problem')}" if self.problems else ""
        spans = counted(len(self), "span")
        return f"<Trace {heading.title(self._metadata)}: {latency}, {spans}{found}>"

    def _repr_html_(self) -> str:
        return html.page_part(self._spans, self._metadata)

    def __len__(self) -> int:
        return self._spans.height

    # Without this a trace of no spans would be false, through `__len__`.
    def __bool__(self) -> bool:
        return True

    @staticmethod
    def _span(row: pl.DataFrame) -> Span:
        return Span(**row.row(0, named=True))


def load(path: str | PathLike[str]) -> Trace:
    """Return the trace of a file; nothing in the file is ever executed.

    The checksum and the metadata are verified, and that the spans are one tree.

    Raises:
        TraceFormatError: The file is damaged, is no trace, or is newer than this xsp.
        OSError: The file cannot be opened; as Python raises it.
    """
    spans, text, runs = read_file(Path(path))
    metadata = _read_metadata(path, text)
    try:
        trace = Trace(spans, frozen(metadata), runs)
        # Times are not checked: a trace with a wrong time is still worth reading.
        integrity.check_tree(spans)
    except TraceFormatError as error:
        raise TraceFormatError(f"{path}: {error}") from error
    return trace


def _read_metadata(path: str | PathLike[str], text: str) -> Mapping[str, Any]:
    """Return the metadata of a file whose format this version knows."""
    try:
        metadata = json.loads(text)
        version = metadata["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TraceFormatError(
            f"{path} is damaged: its metadata cannot be read; save it anew or measure again"
        ) from error
    if not isinstance(version, int) or version > FORMAT:
        shown = shorten(printable(str(version)), _LONGEST)
        raise TraceFormatError(
            f"{path} is a trace of format {shown}, this xsp reads up to {FORMAT}: "
            "upgrade xsp to open it"
        )
    return metadata  # a mapping, as it has the entry `format`


_LONGEST = 40  # characters of a damaged value that an error repeats


def _plain(value: Any) -> Any:
    """Return a numpy number or a mapping as a value that JSON can hold."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a trace's metadata must be JSON; {type(value).__name__} is not: {value!r}")


def _checked(text: str) -> Mapping[str, Any]:
    """Return metadata parsed from JSON, read-only; NaN and infinity become None."""
    parsed = json.loads(text, parse_constant=lambda _: None)
    check_metadata(parsed)
    return frozen(parsed)  # a mapping: `check_metadata` refuses all else
