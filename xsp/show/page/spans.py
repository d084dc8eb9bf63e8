"""Packs the spans of a trace and their attributes for the page's script."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses import text_of
from xsp.inexact import Inexact
from xsp.level import Kind
from xsp.show.page.packing import pack
from xsp.text import printable
from xsp.trace import Trace, attribute_column, inexact_column, parent_rows

_KINDS = [kind.value for kind in Kind]
# Kinds in words for readers who have not read of kinds.
WORDS = {
    Kind.REGION: "model or step",
    Kind.LAYER: "layer",
    Kind.OP: "operator",
    Kind.CALL: "library call",
    Kind.LAUNCH: "launch",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "copy",
    Kind.MEMSET: "set",
    Kind.SYNC: "synchronization",
    Kind.SYSCALL: "system call",
}
# Columns that the script shows as they are: 7 digits are more than it shows.
_TIMES = (
    *("latency_ns", "latency_low_ns", "latency_high_ns"),
    *("self_ns", "overhead_ns", "device_ns"),
)
# What the panel shows by words of its own.
_SHOWN_ELSEWHERE = ("exact", "inexact", "scaled_ns")
_WITHOUT = "time without the profiler"
_LONGEST = 4_000  # characters of an attribute's text


def packed_spans(trace: Trace) -> str:
    """Return names, tree, times and lanes of a trace's spans, packed.

    The rows are those of `trace.spans`. A lane is a thread of the host or a stream of a device.
    """
    spans = trace.spans
    names, name = _coded(_labels(spans))
    modules, module = _coded(attribute_column(spans, "module_path").fill_null(""))
    lanes, lane = _lanes(spans)
    header = {
        "names": [printable(text) for text in names],
        "modules": [printable(text) for text in modules],
        "kinds": _KINDS,
        "words": list(WORDS.values()),
        "lanes": lanes,
        "clock": "time as recorded" if trace.metadata.get("imported") else _WITHOUT,
        "reasons": [[reason.mark, reason.words] for reason in Inexact],
    }
    coded_as = (
        spans["kind"].replace_strict(_KINDS, range(len(_KINDS)), return_dtype=pl.UInt8).to_numpy()
    )
    arrays: dict[str, NDArray[Any]] = {
        "parent": parent_rows(spans).astype(np.int32),
        "name": name,
        "module": module,
        "kind": coded_as,
        "lane": lane,
        "start_ns": spans["start_ns"].cast(pl.Float64).to_numpy(),
        "end_ns": spans["end_ns"].cast(pl.Float64).to_numpy(),
        "runs": spans["runs"].cast(pl.Int32).to_numpy(),
        "inexact": inexact_column(spans).astype(np.uint8),
    }
    for column in _TIMES:
        arrays[column] = spans[column].cast(pl.Float32).fill_null(np.nan).to_numpy()
    return pack(header, arrays)


def packed_attributes(trace: Trace) -> str:
    """Return the attributes of a trace's spans, packed: of each field its texts, once each.

    The arrays `FIELD.rows` and `FIELD.codes` say which span has which text.
    """
    spans = trace.spans
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, list[str]] = {}
    for field in spans.schema["attributes"].fields:  # type: ignore[attr-defined]
        if field.name in _SHOWN_ELSEWHERE or field.dtype == pl.List(pl.Struct):
            continue  # tables of threads, which analyses show
        column = attribute_column(spans, field.name, field.dtype)
        rows = np.flatnonzero(column.is_not_null().to_numpy())
        if rows.size:
            values, codes = _coded(column.gather(rows))
            texts[field.name] = [_text(field.name, value) for value in values]
            arrays[f"{field.name}.rows"] = rows.astype(np.int32)
            arrays[f"{field.name}.codes"] = codes
    return pack({"texts": texts}, arrays)


def _labels(spans: pl.DataFrame) -> pl.Series:
    """Return the names of spans, those of layers with their class where that says more."""
    kind = attribute_column(spans, "module_class").fill_null("")
    says_more = (kind != "") & (kind != spans["name"])
    labels = spans.select(
        pl.when(says_more).then(pl.format("{} {}", "name", kind)).otherwise("name")
    )
    return labels.to_series()


def _text(field: str, value: Any) -> str:
    if isinstance(value, (list, pl.Series)):
        return ", ".join(_text(field, part) if part is not None else "?" for part in value) or "()"
    return text_of(field, value)[:_LONGEST]


def _coded(column: pl.Series) -> tuple[list[Any], NDArray[np.uint32]]:
    """Return the different values of a column, and the number of each row's value."""
    frame = pl.DataFrame({"value": column})
    unique = frame.unique(maintain_order=True).with_row_index("code")
    codes = frame.join(unique, on="value", how="left", maintain_order="left", nulls_equal=True)
    return unique["value"].to_list(), codes["code"].to_numpy().astype(np.uint32)


def _lanes(spans: pl.DataFrame) -> tuple[list[dict[str, Any]], NDArray[np.uint16]]:
    """Return the lanes, threads before streams, and the number of each span's lane."""
    # The rank of the process that each span lies in, null where there is none.
    rank = attribute_column(spans, "rank", pl.Int64)
    if not rank.is_not_null().any():
        ranks = rank
    else:
        parents, known = parent_rows(spans), rank.is_not_null().to_numpy()
        found = np.arange(spans.height)
        while (on := np.flatnonzero((found >= 0) & ~known[found])).size:
            found[on] = parents[found[on]]
        ranks = rank.gather(pl.Series(np.where(found >= 0, found, 0)))
    lanes = spans.select("thread", "device", "stream").with_columns(
        pl.Series("rank", ranks), row=pl.int_range(pl.len())
    )
    keys = ["thread", "device", "stream", "rank"]
    first = (
        lanes.group_by(keys)
        .agg(pl.col("row").min())
        .sort(pl.col("device").is_not_null(), "rank", "device", "stream", "row", nulls_last=False)
        .with_row_index("lane")
    )
    of = lanes.join(first.drop("row"), on=keys, how="left", nulls_equal=True, maintain_order="left")
    threads = 0
    named = []
    for entry in first.iter_rows(named=True):
        threads += entry["device"] is None
        named.append({"name": _lane_name(entry, threads), "device": entry["device"] is not None})
    return named, of["lane"].to_numpy().astype(np.uint16)


def _lane_name(entry: dict[str, Any], threads: int) -> str:
    of = "" if entry["rank"] is None else f"rank {entry['rank']} · "
    if entry["device"] is None:
        return f"{of}thread {threads}"
    stream = "" if entry["stream"] is None else f" stream {entry['stream']}"
    return f"{of}device {entry['device']}{stream}"
