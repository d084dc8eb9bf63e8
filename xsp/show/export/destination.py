"""Takes a trace to the URL, the file or the exporter that the user names."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import polars as pl

from xsp.answer.analyses import utilization_timeline
from xsp.delivery import Delivery
from xsp.level import Kind
from xsp.machine import check_folder, replacing, replacing_folder
from xsp.show.export.ctf import is_ours, write_ctf
from xsp.show.export.delivery import (
    FORMS,
    SCHEMES,
    deliver,
    endpoint,
    failure,
    without_credentials,
)
from xsp.show.export.flame import write_folded, write_speedscope
from xsp.show.export.otlp import chunks, write_json
from xsp.show.export.pftrace import write_packed, write_pftrace
from xsp.show.export.picture import Linked, Picture
from xsp.show.export.reduction import Reduced, as_spans, reduce
from xsp.show.export.sdk import hand_over
from xsp.show.export.timeline import write_perfetto
from xsp.trace import Trace
from xsp.trace_context import parse

# As many spans as Jaeger's UI shows without becoming slow (jaeger-ui#645).
MOST_SPANS = 2_000

MaxSpans = int | None | Literal["auto"]
# Readers of these files take traces of any size, and know no trace ids.
_UNBOUNDED = (
    ".pftrace", ".pftrace.gz", ".perfetto.json", ".ctf", ".speedscope.json", ".folded", ".parquet"
)  # fmt: skip
_SUFFIXES = (".otlp.json", *_UNBOUNDED)
_OF_PERFETTO: Mapping[
    str, Callable[[Reduced, Mapping[str, Any], IO[bytes], pl.DataFrame | None], None]
] = {".perfetto.json": write_perfetto, ".pftrace": write_pftrace, ".pftrace.gz": write_packed}
_VIEWERS: Mapping[str, Callable[[Reduced, Mapping[str, Any], IO[bytes]], None]] = {
    ".speedscope.json": write_speedscope,
    ".folded": write_folded,
}
_CHOICES = (
    f"destinations are {FORMS}, files that end in {', '.join(_SUFFIXES)} (.ctf is a folder), "
    "and OpenTelemetry span exporters"
)
# Kinds whose spans are linked to the run of a pass: the kinds that the pass adds.
_LINKED = {
    kind.value: [other.value for other in Kind if other.order == kind.order] for kind in Kind
}


def export(
    trace: Trace,
    destination: object,
    *,
    max_spans: MaxSpans = "auto",
    typical_runs: bool = False,
    parent: str | None = None,
) -> Delivery:
    """Export a trace to a destination.

    Args:
        trace: The trace.
        destination: A URL (`http://host:4318`, `https://…`), None for what the
            `OTEL_EXPORTER_OTLP_*` variables say, a file (`.otlp.json`, `.pftrace`,
            `.pftrace.gz`, `.perfetto.json`, `.speedscope.json`, `.folded`, `.parquet`), a folder
            (`.ctf`), or an OpenTelemetry `SpanExporter`.
        max_spans: Most spans; a larger trace is reduced. None: no limit. `"auto"`: 2,000,
            what Jaeger's UI bears, but no limit for other viewers' files and Parquet.
        typical_runs: Whether to export a typical run of every pass as well, as a trace of its
            own that the spans link to.
        parent: W3C `traceparent` of the span to hang the root under, instead of
            the one that the trace was measured inside of.

    Raises:
        ExportError: Not every span arrived; the message counts them.
        ValueError: There is no such destination, it does not take typical runs or a parent,
            or a number is out of range.
    """
    kind = _kind(destination)
    most = max_spans
    if most == "auto":
        most = None if kind in _UNBOUNDED else MOST_SPANS
    if parent is not None and parse(parent) is None:
        raise ValueError(
            f"parent={parent!r} is no W3C traceparent; one looks like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        )
    if parent is not None and kind in _UNBOUNDED:
        raise ValueError(f"a {kind} file has no place for a parent: leave parent={parent!r} out")
    _check_runs(kind, typical_runs=typical_runs)
    if kind in _SUFFIXES:
        return _to_file(trace, Path(os.fspath(destination)), kind, most, parent)  # type: ignore[call-overload]
    if typical_runs and trace.typical_runs.is_empty():
        raise ValueError(
            "This trace holds no typical runs. Export it without them, or measure again."
        )
    pictures = _pictures(trace, most, parent, typical_runs=typical_runs)
    if kind == "exporter":
        return hand_over(pictures, destination)
    assert destination is None or isinstance(destination, str)
    to = endpoint(destination)
    bodies = chain.from_iterable(map(chunks, pictures))
    total = sum(picture.height for picture in pictures)
    result = deliver(bodies, to, trace_id=pictures[0].trace_id.hex(), total=total)
    if result.accepted < total:
        raise failure(
            result,
            result.message,
            'To send the trace again, whole and under the same ids: trace.save("FILE.xsp"), '
            f"unless there is its file already, then xsp export FILE.xsp --to {to}.",
        )
    return result


def check(destination: str, *, typical_runs: bool = False) -> None:
    """Verify that a destination makes sense, without connecting to it.

    Args:
        destination: URL or file.
        typical_runs: Whether typical runs are to be exported as well.

    Raises:
        ValueError: There is no such destination, it takes no runs, or an `OTEL_*` variable
            makes no sense.
        ExportError: Something else has the name of the folder that is to be written.
    """
    kind = _kind(destination)
    _check_runs(kind, typical_runs=typical_runs)
    if kind == "otlp":
        endpoint(destination)
    if kind == ".ctf":
        check_folder(Path(destination), is_ours)


def looks_like_destination(text: str) -> bool:
    """Tell whether a text has the scheme or the suffix of a destination.

    >>> looks_like_destination("net.folded"), looks_like_destination("net.json")
    (True, False)
    """
    schemes = tuple(f"{scheme}://" for scheme in SCHEMES)
    return text.lower().startswith(schemes) or text.lower().rstrip("/").endswith(_SUFFIXES)


def _check_runs(kind: str, *, typical_runs: bool) -> None:
    if typical_runs and kind in _SUFFIXES:
        raise ValueError(
            f"typical runs are exported over OTLP or to an exporter, not to a {kind} file"
        )


def _kind(destination: object) -> str:
    """Return the kind of a destination: `otlp`, `exporter`, or the suffix of a file."""
    if destination is None:
        return "otlp"
    if callable(getattr(destination, "export", None)):
        return "exporter"
    if not isinstance(destination, (str, os.PathLike)):
        raise TypeError(f"a trace cannot be exported to {destination!r}; {_CHOICES}")
    text = os.fspath(destination)
    schemes = tuple(f"{scheme}:" for scheme in (*SCHEMES, "otlp", "otlps"))
    if isinstance(destination, str) and text.lower().startswith(schemes):
        return "otlp"
    for suffix in _SUFFIXES:
        if text.lower().rstrip("/").endswith(suffix):  # a shell ends folders with a slash
            return suffix
    shown = without_credentials(text)
    if text.lower().endswith(".jaeger.json"):
        raise ValueError(
            f"a trace cannot be exported to {shown!r}: export it as .otlp.json, which Jaeger's "
            "pages take as an upload"
        )
    name, dot, suffix = shown.partition(".")
    likely = get_close_matches(dot + suffix.lower(), _SUFFIXES, n=1)
    meant = ""
    if re.fullmatch(r"[\w.-]+:\d+", shown):
        meant = f" (did you mean http://{shown}?)"
    elif dot and likely:
        meant = f" (did you mean {name}{likely[0]}?)"
    raise ValueError(f"a trace cannot be exported to {shown!r}{meant}; {_CHOICES}")


def _to_file(trace: Trace, path: Path, kind: str, most: int | None, parent: str | None) -> Delivery:
    """Write a file or a folder: the whole of it, or none."""
    if kind == ".ctf":
        with replacing_folder(path, is_ours) as folder:
            height = write_ctf(trace, most, folder)
        return Delivery(height, height, 0, destination=str(path), trace_id="")
    reduced = reduce(trace.spans, most)
    trace_id = ""
    with replacing(path) as file:
        if kind == ".parquet":
            buffer = io.BytesIO()  # for a full disk polars raises errors of its own
            reduced.spans.write_parquet(buffer)
            file.write(buffer.getbuffer())
        elif kind in _OF_PERFETTO:
            utilization = utilization_timeline(trace) if trace.readings.height else None
            _OF_PERFETTO[kind](reduced, trace.metadata, file, utilization)
        elif kind in _VIEWERS:
            _VIEWERS[kind](reduced, trace.metadata, file)
        else:
            picture = Picture(reduced, trace.metadata, parent=parent)
            trace_id = picture.trace_id.hex()
            write_json(picture, file)
    height = reduced.spans.height
    return Delivery(height, height, 0, destination=str(path), trace_id=trace_id)


def _pictures(
    trace: Trace, most: int | None, parent: str | None, *, typical_runs: bool
) -> list[Picture]:
    """Return the picture of a trace, then those of its typical runs.

    A merged span is linked to the run of the pass that its latency is from.
    """
    runs, linked = [], []
    passes = trace.typical_runs.partition_by("pass", maintain_order=True) if typical_runs else []
    for run in passes:
        pass_ = run["pass"][0]
        # A run is a trace of its own: under the caller's span it would stand beside the merged
        # trace.
        own = {
            "name": f"{trace.metadata.get('name') or 'trace'} ({pass_} run)",
            "warnings": (),
            "traceparent": None,
            "tracestate": "",
        }
        runs.append(Picture(reduce(as_spans(run), most), {**trace.metadata, **own}))
        linked.append(Linked(tuple(_LINKED[pass_]), runs[-1].identity))
    reduced = reduce(trace.spans, most)
    return [Picture(reduced, trace.metadata, parent=parent, linked=tuple(linked)), *runs]
