"""The trace of a measurement: a read-only object with spans and metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from xsp.delivery import Delivery, bound
from xsp.errors import AnalysisError, TraceFormatError
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.text import counted, duration, encodable, printable, shorten, writable
from xsp.trace import heading, html, integrity
from xsp.trace import text as tree
from xsp.trace.earlier import metadata_of_format_1, runs_of_format_1, spans_of_format_1
from xsp.trace.file import (
    check_metadata,
    frozen,
    pack_runs,
    read_file,
    unpack_readings,
    unpack_runs,
    write_file,
)
from xsp.warning import NOTE, TraceWarning

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["FORMAT", "SPAN_SCHEMA", "Span", "Trace", "load"]

# Version of the file format, which `load` checks; rises when columns or metadata change meaning.
FORMAT = 2

SPAN_SCHEMA = integrity.SPAN_SCHEMA

_MOST_ADVISED = 100_000  # spans: rules take longer than a tree should with more


@dataclass(frozen=True, slots=True)
class Span:
    """One row of `trace.spans`; each field is the column of that name (docs/trace.md).

    Example:
        The longest child of the root::

            max(trace.children(trace.root), key=lambda span: span.latency_ns or 0.0)
    """

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

    def __repr__(self) -> str:
        latency = "" if self.latency_ns is None else f", {duration(self.latency_ns)}"
        known = {
            field.name: value
            for field in fields(self)
            if field.name not in _IN_SHORT and (value := getattr(self, field.name)) is not None
        }
        known |= {name: value for name, value in self.attributes.items() if value is not None}
        rest = "".join(f", {name}={value!r}" for name, value in known.items())
        return f"<Span {self.kind} {printable(self.name)}{latency}{rest}>"


# Fields of a span that its `repr` says in other words, or leaves out.
_IN_SHORT = (
    "kind", "level", "name", "latency_ns", "latency_low_ns", "latency_high_ns", "start_ns",
    "end_ns", "measured_start_ns", "measured_end_ns", "attributes",
)  # fmt: skip


class Trace:
    """One measurement as one hierarchy of spans, without the profiler in the numbers.

    A trace cannot be changed: its `spans` are a copy, its `metadata` is read-only.

    Example:
        The slowest layers of a saved trace::

            trace = xsp.load("train.xsp")
            print(trace.layers.sort("self_ns", descending=True).head(10))

    Args:
        spans: Frame with the columns of `SPAN_SCHEMA` in that order, then `attributes`; root
            first, parents before children.
        metadata: Values that JSON can hold: `name`, `warnings`, `levels`, `passes`,
            `plan`, `environment`, `created` and `xsp_version`.
        typical_runs: Frame with the columns of `RUN_SCHEMA`: an example run of each pass; or its
            text in a file, which the property `typical_runs` unpacks. By default none.
        readings: Frame with the columns of `xsp.provider.READING_SCHEMA`, or its text in a file.
            By default none.

    Raises:
        TraceFormatError: A column is missing or of the wrong type, a kind or level is
            unknown, or an entry of the metadata is not of its documented type.
        TypeError: `metadata` has a value that JSON cannot hold.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_json",
        "_metadata",
        "_readings",
        "_spans",
        "_typical_runs",
    )

    _file: str  # where it was saved last, or came from; for the commands below a tree
    _json: str
    _metadata: Mapping[str, Any]
    _readings: pl.DataFrame | str
    _typical_runs: pl.DataFrame | str
    _spans: pl.DataFrame

    def __init__(
        self,
        spans: pl.DataFrame,
        metadata: Mapping[str, Any],
        typical_runs: pl.DataFrame | str | None = None,
        readings: pl.DataFrame | str | None = None,
    ) -> None:
        integrity.check_columns(spans)
        integrity.check_words(spans)
        if isinstance(typical_runs, pl.DataFrame):
            integrity.check_run_columns(typical_runs)
            typical_runs = typical_runs.clone()
        # Metadata goes through JSON and back, so that a new trace equals a loaded one.
        text = json.dumps({"format": FORMAT, **writable(metadata)}, default=_plain)
        # `__setattr__` of this class refuses all changes.
        put = super().__setattr__
        put("_json", text)
        put("_file", "")
        # Metadata parsed from JSON, read-only; NaN and infinity become None.
        parsed = json.loads(text, parse_constant=lambda _: None)
        check_metadata(parsed)
        checked = frozen(parsed)  # a mapping: `check_metadata` refuses all else
        put("_metadata", checked)
        put("_spans", spans.clone())
        put("_typical_runs", typical_runs if typical_runs is not None else "")
        put("_readings", readings if readings is not None else "")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A trace is read-only (you set {name!r}). Make another Trace.")

    @property
    def spans(self) -> pl.DataFrame:
        """One row per span, root first; docs/trace.md documents the columns."""
        return self._spans.clone()

    @property
    def layers(self) -> pl.DataFrame:
        """The spans of layers, such as PyTorch modules; columns as `spans`."""
        return self._of(Kind.LAYER)

    @property
    def ops(self) -> pl.DataFrame:
        """The spans of the framework's operators; columns as `spans`."""
        return self._of(Kind.OP)

    @property
    def kernels(self) -> pl.DataFrame:
        """The spans of kernels, copies and sets of a device; columns as `spans`."""
        return self._of(*DEVICE_ACTIVITIES)

    def _of(self, *kinds: Kind) -> pl.DataFrame:
        return self._spans.filter(pl.col("kind").is_in([kind.value for kind in kinds]))

    @property
    def typical_runs(self) -> pl.DataFrame:
        """An example run of each pass as it was measured, one row per span.

        docs/trace.md documents the columns. There are no rows if no run was kept.

        Raises:
            TraceFormatError: The typical runs in the file are damaged.
        """
        # Unpacked once, when first asked for: most readers want the spans only.
        if isinstance(self._typical_runs, str):
            runs = runs_of_format_1(unpack_runs(self._typical_runs))
            integrity.check_runs(runs)
            super().__setattr__("_typical_runs", runs)
        assert isinstance(self._typical_runs, pl.DataFrame)
        return self._typical_runs.clone()

    @property
    def readings(self) -> pl.DataFrame:
        """What monitors read: energy, power, utilization; docs/trace.md documents the columns.

        There are no rows if nothing was read.

        Raises:
            TraceFormatError: The readings in the file are damaged.
        """
        if isinstance(self._readings, str):
            super().__setattr__("_readings", unpack_readings(self._readings))
        assert isinstance(self._readings, pl.DataFrame)
        return self._readings.clone()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Settings, environment and history of the measurement; read-only, lists are tuples."""
        return self._metadata

    @property
    def name(self) -> str:
        """Name of the model or function that was measured, for people."""
        return str(self._metadata.get("name") or "trace")

    @property
    def warnings(self) -> tuple[TraceWarning, ...]:
        """Warnings to read before you trust the numbers, the most important first."""
        warnings = self._metadata.get("warnings", ())
        found = (TraceWarning(str(entry["code"]), str(entry["message"])) for entry in warnings)
        return tuple(warning for warning in found if warning.code != NOTE)

    problems = warnings  # their name in earlier versions

    @property
    def root(self) -> Span:
        """The span of a whole step of the model."""
        return self._span(self._spans.head(1))

    def span(self, path: str) -> Span:
        """Return the span with this path.

        Raises:
            KeyError: No span has the path.
        """
        found = self._spans.filter(pl.col("path") == path)
        if not found.height:
            raise KeyError(f"No span has this path ({path!r}). trace.spans['path'] lists all.")
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
        runs, readings = (
            each if isinstance(each, str) else pack_runs(each)
            for each in (self._typical_runs, self._readings)
        )
        written = write_file(self._spans, self._json, Path(path), runs=runs, readings=readings)
        super().__setattr__("_file", printable(str(path)))
        return written

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
            destination: `http://host:4318` or `https://…`; None for the endpoint of the
                `OTEL_EXPORTER_OTLP_*` variables, or without these a Jaeger on this machine; a
                file that ends in `.pftrace` or `.pftrace.gz` (Perfetto), `.perfetto.json`,
                `.otlp.json`, `.speedscope.json`, `.folded` (stacks for flame graphs) or
                `.parquet`; a folder that ends in `.ctf` (Trace
                Compass); or an OpenTelemetry `SpanExporter`.
                Headers, certificates, compression and timeout come from the variables.
            max_spans: Most spans exported; to keep the limit deeper levels are cut, and
                repeated small spans rolled up into one span with their sum. None: no limit.
                `"auto"`: 2,000, which Jaeger's UI can draw, and no limit for files but
                `.otlp.json`.
            typical_runs: Whether to export a typical run of every pass as well, as a trace of its
                own that the spans link to.
            parent: W3C `traceparent` of the span to hang the root under, instead of the
                span in which the trace was measured.

        Returns:
            How many spans were sent, and how many of them were accepted.

        Raises:
            ExportError: Not every span arrived, or a file could not be written. The message
                counts the spans that arrived, and says how to send the trace again under the
                same ids.
            ValueError: There is no such destination, or a number is out of range.
            TypeError: `destination` is neither text nor a path nor a `SpanExporter`.
        """
        sent: Delivery = bound("export")(
            self, destination, max_spans=max_spans, typical_runs=typical_runs, parent=parent
        )
        return sent

    def report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write one HTML page about the trace, and return its path; see `xsp.report`.

        Example:
            Write the page and show it in a browser::

                webbrowser.open(trace.report("train.html").resolve().as_uri())

        Args:
            path: File to write, such as `train.html`; an older one is replaced. None (default):
                a file in the working folder, with the trace's name.

        Raises:
            ExportError: The file could not be written.
        """
        if path is None:
            name = re.sub(r"[^\w.-]+", "_", self.name).removesuffix(".py")
            path = f"{name or 'trace'}.html"
        page: Path = bound("report")(self, path)
        return page

    def advice(self) -> pl.DataFrame:
        """Return a table of what to look at next, the largest possible gain first.

        It is `xsp.analyses.advice(trace)`, whose `columns` say what the columns mean.

        Example:
            The most promising change, in words::

                print(trace.advice()["advice"][0])
        """
        table: pl.DataFrame = bound("advice")(self)
        return table

    def as_measured(self) -> Trace:
        """Return the same trace drawn with the times that the deepest run measured."""
        measured = [pl.col(f"measured_{end}").alias(end) for end in ("start_ns", "end_ns")]
        trace = self.replaced(self._spans.with_columns(measured), self._metadata)
        object.__setattr__(trace, "_file", self._file)
        return trace

    def replaced(
        self, spans: pl.DataFrame | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Trace:
        """Return the same trace with other spans or metadata.

        Args:
            spans: As for `Trace`; None (default): the same.
            metadata: As for `Trace`; None (default): the same.
        """
        return Trace(
            self._spans if spans is None else spans,
            self._metadata if metadata is None else metadata,
            self._typical_runs,
            self._readings,
        )

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

    def validate(self) -> None:
        """Verify that the spans are one well-formed tree whose drawn timeline nests.

        Raises:
            TraceFormatError: The spans are not; the message names the first breach.
        """
        integrity.check(self._spans)

    check = validate  # its name in earlier versions

    def tree(  # noqa: PLR0913  # what a person may ask a tree for
        self,
        *,
        width: int | None = None,
        rows: int | None = 60,
        min_share: float | None = None,
        errors: bool = False,
        overhead: bool = False,
        warnings: bool = False,
        smallest: float | None = None,
    ) -> str:
        """Return the tree that `print(trace)` shows.

        Example:
            Every span that takes 5 % of the latency or more::

                print(trace.tree(rows=None, min_share=0.05))

        Args:
            width: Columns to fill; None (default): those of the terminal, or 100 without one.
            rows: About how many rows at most, by default 60; None: every span.
            min_share: Share of the latency, and of the devices' time, below which spans are only
                counted. None (default): 0.01, or less while there are rows for smaller spans.
            errors: Show the 95 % interval of each time, and mark times that are not exact.
            overhead: Show the overhead that was removed from each row.
            warnings: Show all warnings and notes, not only the three gravest warnings.
            smallest: The former name of `min_share`.
        """
        return tree.text(
            self._spans,
            self._metadata,
            width=width,
            rows=rows,
            smallest=min_share if smallest is None else smallest,
            show=tree.Show(errors, overhead, warnings, self._file, self._look_next()),
        )

    def _look_next(self) -> Sequence[tuple[str, str]]:
        """List the first findings of advice; none if the trace has too little for any."""
        if not 0 < len(self) <= _MOST_ADVISED:
            return ()
        try:
            found = bound("look_next")(self)
            return [(said, check.replace("FILE", self._file or "FILE")) for said, check in found]
        except AnalysisError:
            return ()

    def __str__(self) -> str:
        return encodable(self.tree())

    def __repr__(self) -> str:
        latency = heading.model_latency(self._spans)
        found = f", {counted(len(self.warnings), 'warning')}" if self.warnings else ""
        spans = counted(len(self), "span")
        return f"<Trace {heading.title(self._metadata)}: {latency}, {spans}{found}>"

    def _repr_html_(self) -> str:
        return html.page_part(self._spans, self._metadata, advice=self._look_next())

    def __len__(self) -> int:
        return self._spans.height

    # Without this a trace of no spans would be false, through `__len__`.
    def __bool__(self) -> bool:
        return True

    @staticmethod
    def _span(row: pl.DataFrame) -> Span:
        return Span(**row.row(0, named=True))


def load(path: str | PathLike[str]) -> Trace:
    """Load the trace of a file; nothing in the file is ever executed.

    The checksum and the metadata are verified, and that the spans are one tree.

    Raises:
        TraceFormatError: The file is damaged, is no trace, or is newer than this xsp.
        OSError: The file cannot be opened; as Python raises it.
    """
    spans, text, runs, readings = read_file(Path(path))
    metadata = _read_metadata(path, text)
    try:
        if metadata["format"] == 1:
            spans, metadata = spans_of_format_1(spans), metadata_of_format_1(metadata)
        trace = Trace(spans, frozen(metadata), runs, readings)
        # Times are not checked: a trace with a wrong time is still worth reading.
        integrity.check_tree(spans)
        object.__setattr__(trace, "_file", printable(str(path)))
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
            f"The file is damaged: its metadata is unreadable ({path}). Measure again."
        ) from error
    if not isinstance(version, int) or version > FORMAT:
        shown = shorten(printable(str(version)), _LONGEST)
        raise TraceFormatError(
            f"{path} is a trace of format {shown}, and this xsp reads up to {FORMAT}. Upgrade xsp."
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
