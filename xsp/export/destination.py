"""Destinations: a trace and a URL, file or exporter in; what arrived there, counted, out."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, Literal

from xsp.export import otlp_json, perfetto
from xsp.export.flame import folded, speedscope
from xsp.export.otlp import FORMS, SCHEMES, Delivery, endpoint, without_credentials
from xsp.export.parcel import Parcel
from xsp.export.picture import Picture
from xsp.export.reduction import Reduced, reduce
from xsp.export.sdk import hand_over
from xsp.export.spool import send
from xsp.machine import replacing
from xsp.trace import Trace
from xsp.trace_context import parse

# As many spans as Jaeger's UI shows without becoming slow (jaeger-ui#645).
MOST_SPANS = 2_000

MaxSpans = int | None | Literal["auto"]
# Readers of these files take traces of any size, and know no trace ids.
_UNBOUNDED = (".perfetto.json", ".speedscope.json", ".folded", ".parquet")
_SUFFIXES = (".otlp.json", *_UNBOUNDED)
_VIEWERS: Mapping[str, Callable[[Reduced, Mapping[str, Any], IO[bytes]], None]] = {
    ".perfetto.json": perfetto.write,
    ".speedscope.json": speedscope.write,
    ".folded": folded.write,
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
        destination: A URL (`otlp+http://host:4318`, `otlp+https://`, and over gRPC
            `otlp://host:4317`, `otlps://`), None for what the `OTEL_EXPORTER_OTLP_*`
            variables say, a file (`.otlp.json`, `.perfetto.json`, `.speedscope.json`, `.folded`,
            `.parquet`), or an OpenTelemetry `SpanExporter`.
        max_spans: Most spans; a larger trace is reduced. None: no limit. `"auto"`: 2,000,
            what Jaeger's UI bears, but no limit for other viewers' files and Parquet.
        typical_runs: Whether to export a typical run of every rung as well, as a trace of its
            own that the spans link to.
        parent: W3C `traceparent` of the span to hang the root under, instead of
            the one that the trace was measured inside of.

    Raises:
        ExportError: Not every span arrived; the message counts them.
        ValueError: There is no such destination, it does not take typical runs or a parent,
            gRPC is not installed, or a number is out of range.
    """
    kind = _kind(destination)
    most = _most(kind, max_spans)
    _check_parent(parent)
    _check_kind(kind, typical_runs=typical_runs, parent=parent)
    if kind in _SUFFIXES:
        return _to_file(trace, Path(os.fspath(destination)), kind, most, parent)  # type: ignore[call-overload]
    if typical_runs and trace.typical_runs.is_empty():
        raise ValueError(
            "this trace holds no typical runs: export it without them, or measure anew"
        )
    parcel = Parcel(trace, most, typical_runs, parent)
    if kind == "exporter":
        return hand_over(parcel.pictures(), destination)
    assert destination is None or isinstance(destination, str)
    return send(parcel, endpoint(destination))


def check(destination: str, *, typical_runs: bool = False) -> None:
    """Verify that a destination makes sense, without connecting to it.

    Args:
        destination: URL or file.
        typical_runs: Whether typical runs are to be exported as well.

    Raises:
        ValueError: There is no such destination, it takes no runs, gRPC is not installed, or
            an `OTEL_*` variable makes no sense.
    """
    kind = _kind(destination)
    _check_kind(kind, typical_runs=typical_runs)
    if kind == "otlp":
        endpoint(destination)


def looks_like_destination(text: str) -> bool:
    """Tell whether a text has the scheme or the suffix of a destination.

    >>> looks_like_destination("net.folded"), looks_like_destination("net.json")
    (True, False)
    """
    schemes = tuple(f"{scheme}://" for scheme in SCHEMES)
    return text.lower().startswith(schemes) or text.lower().endswith(_SUFFIXES)


def _check_kind(kind: str, *, typical_runs: bool, parent: str | None = None) -> None:
    if typical_runs and kind in _SUFFIXES:
        raise ValueError(
            f"typical runs are exported over OTLP or to an exporter, not to a {kind} file"
        )
    if parent is not None and kind in _UNBOUNDED:
        raise ValueError(f"a {kind} file has no place for a parent: leave parent={parent!r} out")


def _check_parent(traceparent: str | None) -> None:
    if traceparent is not None and parse(traceparent) is None:
        raise ValueError(
            f"parent={traceparent!r} is no W3C traceparent; one looks like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
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
    if isinstance(destination, str) and text.lower().startswith(
        tuple(f"{scheme}:" for scheme in SCHEMES)
    ):
        return "otlp"
    for suffix in _SUFFIXES:
        if text.lower().endswith(suffix):
            return suffix
    shown = without_credentials(text)
    if text.lower().endswith(".jaeger.json"):
        raise ValueError(
            f"a trace cannot be exported to {shown!r}: export it as .otlp.json, which Jaeger's "
            "pages take as an upload"
        )
    raise ValueError(f"a trace cannot be exported to {shown!r}{_meant(shown)}; {_CHOICES}")


def _meant(shown: str) -> str:
    """Return the destination that was probably meant, as a question in brackets."""
    name, dot, suffix = shown.partition(".")
    likely = get_close_matches(dot + suffix.lower(), _SUFFIXES, n=1)
    if shown.startswith(("http://", "https://")):
        meant = f"otlp+{shown}"
    elif re.fullmatch(r"[\w.-]+:\d+", shown):
        meant = f"{'otlp' if shown.endswith(':4317') else 'otlp+http'}://{shown}"
    elif dot and likely:
        meant = name + likely[0]
    else:
        return ""
    return f" (did you mean {meant}?)"


_CHOICES = (
    f"destinations are {FORMS}, files that end in {', '.join(_SUFFIXES)}, "
    "and OpenTelemetry span exporters"
)


def _most(kind: str, max_spans: MaxSpans) -> int | None:
    if max_spans == "auto":
        return None if kind in _UNBOUNDED else MOST_SPANS
    return max_spans


def _to_file(trace: Trace, path: Path, kind: str, most: int | None, parent: str | None) -> Delivery:
    """Write a file: the whole file, or none."""
    reduced = reduce(trace.spans, most)
    trace_id = ""
    with replacing(path) as file:
        if kind == ".parquet":
            buffer = io.BytesIO()  # for a full disk polars raises errors of its own
            reduced.spans.write_parquet(buffer)
            file.write(buffer.getbuffer())
        elif kind in _VIEWERS:
            _VIEWERS[kind](reduced, trace.metadata, file)
        else:
            picture = Picture(reduced, trace.metadata, parent=parent)
            trace_id = picture.trace_id.hex()
            otlp_json.write(picture, file)
    height = reduced.spans.height
    return Delivery(height, height, 0, destination=str(path), trace_id=trace_id)
