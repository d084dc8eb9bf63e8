"""Writes a trace's content in a form that can be compared on another machine.

Texts are kept in full; of tables each column has a digest, over values of six significant digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

import xsp
from xsp import analyses

DIGITS = 6
# Entries of the metadata that say when and where a trace was made, and by which version.
UNSTEADY = {"created", "xsp_version", "environment", "began_unix_ns", "file", "files"}
Json = dict[str, Any]


def content(trace: xsp.Trace, folder: Path) -> Json:
    """Describe a trace's content; `folder` is for files that are written and read again."""
    return {
        "tree": trace.tree(width=120, rows=100).splitlines(),
        "spans": table(without_idents(trace.spans)),
        "typical runs": table(without_idents(trace.typical_runs)),
        "metadata": metadata(trace.metadata),
        "otlp": otlp(trace, folder),
        "analyses": dict(answers(trace)),
    }


def document(said: Json) -> str:
    """Return a content as the text of its file, a line for each line of the tree."""
    return json.dumps(said, indent=1, ensure_ascii=False) + "\n"


def without_idents(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans whose threads are numbered in the order in which they are named."""
    if "thread" not in spans.columns:
        return spans
    threads = spans["thread"].drop_nulls().unique(maintain_order=True).to_list()
    numbers = {thread: number for number, thread in enumerate(threads)}
    numbered = pl.col("thread").replace_strict(numbers, return_dtype=pl.Int64)
    return spans.with_columns(numbered) if threads else spans


def table(frame: pl.DataFrame) -> Json:
    """Return the number of rows, and a digest of each column by its name, in the table's order."""
    return {"rows": frame.height, "columns": {each.name: digest(each) for each in frame}}


def digest(column: pl.Series) -> str:
    """Return a digest of a column's values, whatever their type."""
    said = hashlib.sha256()
    for name, values in leaves(column):
        texts = values.cast(pl.String).fill_null("\x00")
        said.update("\x1f".join([name, *texts.to_list(), "\n"]).encode())
    return said.hexdigest()[:16]


def leaves(column: pl.Series) -> Iterator[tuple[str, pl.Series]]:
    """Yield what a column consists of: fields of structs, lengths and items of lists, plain values.

    Floating-point numbers, and times in nanoseconds, have six significant digits.
    """
    if isinstance(column.dtype, pl.Struct):
        for field in column.struct.fields:
            inner = column.struct.field(field)
            if inner.null_count() < len(inner):
                yield from leaves(inner)
    elif isinstance(column.dtype, pl.List):
        yield f"{column.name} lengths", column.list.len()
        items = column.drop_nulls().explode(empty_as_null=False).rename(column.name)
        yield from leaves(items)
    elif column.dtype.is_float() or (column.dtype.is_integer() and column.name.endswith("_ns")):
        # Adding 0 makes one zero of two.
        yield column.name, column.cast(pl.Float64).round_sig_figs(DIGITS) + 0.0
    else:
        yield column.name, column


def rounded(value: Any) -> Any:
    """Return a value of JSON with numbers of six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return value


def metadata(given: Mapping[str, Any]) -> Json:
    """Return the metadata, and digests of what is long in it."""
    kept = {key: rounded(value) for key, value in given.items() if key not in UNSTEADY}
    return {
        key: value if len(short(value)) < 2_000 else hashed(value) for key, value in kept.items()
    }


def short(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def hashed(value: Any) -> str:
    return hashlib.sha256(short(value).encode()).hexdigest()[:16]


def otlp(trace: xsp.Trace, folder: Path) -> Json:
    """Describe the trace's file of OTLP: names and tree by digests, attributes alike.

    Left out are ids, absolute times and the resource, which differ from machine to machine.
    """
    path = folder / "trace.otlp.json"
    path.unlink(missing_ok=True)
    delivery = trace.export(path)
    resources = json.loads(path.read_text(encoding="utf-8"))["resourceSpans"]
    spans = [
        span
        for resource in resources
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    number = {span["spanId"]: at for at, span in enumerate(spans)}
    began = min(int(span["startTimeUnixNano"]) for span in spans)
    attributes: dict[str, list[Any]] = {}
    for at, span in enumerate(spans):
        for each in span.get("attributes", ()):
            if each["key"] not in {"thread.id", "xsp.thread"}:
                attributes.setdefault(each["key"], []).append([at, plain(each["value"])])
    return {
        "spans": len(spans),
        "accepted": delivery.accepted,
        "names": hashed([span["name"] for span in spans]),
        "parents": hashed([number.get(span.get("parentSpanId", ""), -1) for span in spans]),
        "times": hashed(
            [
                [rounded(float(int(span[end]) - began)) for span in spans]
                for end in ("startTimeUnixNano", "endTimeUnixNano")
            ]
        ),
        "links": sum(len(span.get("links", ())) for span in spans),
        "attributes": {key: hashed(values) for key, values in sorted(attributes.items())},
    }


def plain(value: Mapping[str, Any]) -> Any:
    """Return the value of an attribute, a number with six significant digits."""
    ((kind, held),) = value.items()
    if kind == "doubleValue":
        return rounded(float(held))
    if kind == "intValue":
        return rounded(float(held))
    if kind == "arrayValue":
        return [plain(each) for each in held.get("values", ())]
    return held


def answers(trace: xsp.Trace) -> Iterator[tuple[str, Any]]:
    """Yield the tables of the analyses that apply, and of the others why they do not."""
    for analysis in analyses.ALL:
        if analysis.several:
            continue
        if why := analysis.unmet(trace):
            yield analysis.name, why
            continue
        try:
            yield analysis.name, table(without_idents(analysis(trace)))
        except xsp.AnalysisError as error:
            yield analysis.name, str(error)
