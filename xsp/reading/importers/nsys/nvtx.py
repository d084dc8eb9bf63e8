"""Makes rows of one process's NVTX ranges, and counts all other events.

What a range is, is told by who announced it:

* a library, in a domain of its own (cuBLAS, cuDNN, NCCL, CCCL, ...): a library call;
* PyTorch's `emit_nvtx` ("aten::mm, seq = 3, op_id = 7"): an operator;
* hooks around modules ("{'Module': 'model.layers.0', ...}", "nn.Module: Linear_0") and TensorRT:
  a layer;
* anybody else: a region span, as `xsp.span` makes one. The name of a range does not tell
  whether the range is around a module or around a phase of the program. A layer would claim the
  former, and the share of the kernels' time that lies in layers would rest on a guess.

A range that ends on another thread than it began on is in no thread's calls, and is not shown.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.reading.importers.nsys import table
from xsp.reading.importers.nsys.database import Database
from xsp.reading.importers.nsys.host import UNNAMED
from xsp.reading.importers.nsys.table import Tables

# The numbers of events where a file has no enumerations.
_EVENT_TYPES = {
    33: "NvtxCategory",
    34: "NvtxMark",
    39: "NvtxThread",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    75: "NvtxDomainCreate",
    76: "NvtxDomainDestroy",
}
_RANGES = ("NvtxPushPopRange", "NvtxStartEndRange")
_NAMES = ("NvtxCategory", "NvtxDomainCreate", "NvtxDomainDestroy", "NvtxThread")

_LIBRARY = (
    r"(?i)^(lib)?(cublas(lt)?|cudnn|cufft|cusparse(lt)?|cusolver|curand|cutensor|nccl|nvshmem"
    r"|cccl|cub|thrust|npp|nvjpeg|cudf|rmm|raft|dali|mpi|ucx|ucp|ucc)\b"
)
_LAYERED = r"(?i)^tensorrt\b"  # domain of a library whose ranges are layers
_MODULE = r"^nn\.Module: (?<module>.+)$"
_HOOKED = r"^\{\s*'Module': '(?<path>[^']*)'"
_OPERATOR = (
    r"(?s)^(?<plain>.*?)(, seq = (?<sequence>-?\d+))?(, op_id = (?<number>\d+))?"
    r"(, sizes = (?<sizes>\[.*?\]))?(, input_op_ids = .*)?$"
)
_BACKWARD = r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$"
_LOCK = ("Holding GIL", "Waiting for GIL")  # these cross all other ranges
_START, _END = pl.col("start"), pl.col("end")
# Ranges that have no place among the calls of a thread, by what is said of them.
_UNFIT = {
    "ranges that had no end yet": _END.is_null(),
    "damaged ranges": (_END < _START) | _START.is_null() | pl.col("thread").is_null(),
    "ranges that end on another thread": (
        (pl.col("type") == "NvtxStartEndRange")
        & (pl.col("endGlobalTid") % table.PROCESS != pl.col("thread"))
    ),
    "ranges of Python's lock": pl.col("name").is_in(_LOCK),
}


def ranges(database: Database, tables: Tables) -> tuple[SpanRows, dict[str, int]]:
    """Return one row per range, and how many events of each other sort there are."""
    # Events with `type`, `name` and the name of their `domain`, null for the default.
    frame = tables[table.RANGE]
    types = database.enumeration("ENUM_NSYS_EVENT_TYPE", _EVENT_TYPES)
    kind, text = pl.col("eventType"), database.strings(frame["textId"])
    named = frame.with_columns(
        type=kind.replace_strict(types, default=pl.format("Nvtx event {}", kind.fill_null(-1))),
        name=pl.coalesce("text", text, pl.lit(UNNAMED)),
    )
    created = named.filter(pl.col("type") == "NvtxDomainCreate").drop_nulls("domainId")
    domains = created.unique("domainId", keep="last").select("domainId", domain="name")
    number = pl.col("domainId")
    unknown = pl.when(number != 0).then(pl.format("domain {}", number))
    events = named.join(domains, on="domainId", how="left", maintain_order="left").with_columns(
        pl.coalesce("domain", unknown)
    )
    is_range = pl.col("type").is_in(_RANGES)
    others = events.filter(~is_range & ~pl.col("type").is_in(_NAMES))
    counts = dict(others.group_by("type", maintain_order=True).len().iter_rows())
    found = events.filter(is_range)
    for what, mask in _UNFIT.items():
        fit = found.filter(~mask.fill_null(value=False))
        if fit.height < found.height:
            counts[what] = found.height - fit.height
        found = fit
    return _rows(_told(found)), counts


def _told(found: pl.DataFrame) -> pl.DataFrame:
    """Return ranges with `kind`, and with what their names hold beside a name."""
    name, domain = pl.col("name"), pl.col("domain").fill_null("")
    parted = found.with_columns(
        name.str.extract_groups(_OPERATOR).struct.unnest(),
        name.str.extract(_MODULE).alias("module"),
        name.str.extract(_HOOKED).alias("path"),
    )
    from_torch = pl.col("sequence").is_not_null() | pl.col("number").is_not_null()
    is_op = pl.col("sequence").is_not_null() | pl.col("plain").str.contains("::", literal=True)
    is_layer = pl.col("path").is_not_null() | pl.col("module").is_not_null()
    last = pl.col("path").str.split(".").list.last()
    return parted.with_columns(
        kind=pl.when(domain.str.contains(_LIBRARY))
        .then(pl.lit(Kind.CALL.value))
        .when(from_torch & is_op)
        .then(pl.lit(Kind.OP.value))
        .when(is_layer | domain.str.contains(_LAYERED))
        .then(pl.lit(Kind.LAYER.value))
        .otherwise(pl.lit(Kind.REGION.value)),
        name=pl.coalesce(
            pl.when(last != "").then(last),
            "module",
            pl.when(from_torch).then("plain"),
            "name",
        ),
    )


def _rows(found: pl.DataFrame) -> SpanRows:
    if not found.height:
        return no_rows()
    # Operators with a sequence number, and backward ones with their forward's thread.
    # PyTorch does not tell that thread here. Each thread numbers its own operators, so a backward
    # operator's forward is known only if operators of one thread alone bear the number.
    number = pl.col("sequence").cast(pl.Int64, strict=False)
    is_op = pl.col("kind") == Kind.OP.value
    numbered = found.with_columns(
        sequence=pl.when(is_op & (number >= 0)).then(number),
        backward=is_op & pl.col("name").str.contains(_BACKWARD),
    )
    forward = numbered.filter(~pl.col("backward")).drop_nulls("sequence")
    threads = forward.group_by("sequence").agg(
        forward_thread=pl.col("thread").first(), several=pl.col("thread").n_unique() > 1
    )
    sole = threads.filter(~pl.col("several")).drop("several").with_columns(backward=True)
    operators = numbered.join(sole, on=["sequence", "backward"], how="left", maintain_order="left")
    is_call = pl.col("kind") == Kind.CALL.value
    told = operators.select(
        library=pl.when(is_call).then("domain"),
        placement=pl.when(is_call).then(pl.lit("ends")),
        nvtx_domain="domain",
        module_path="path",
    )
    return span_rows(
        {
            **{name: operators[name] for name in ("kind", "name", "thread", "sequence")},
            "start_ns": operators["start"],
            "end_ns": operators["end"],
            "forward_thread": operators["forward_thread"],
            **{f"attr.{column.name}": column for column in told},
            "attr.input_shapes": _shapes(operators["sizes"]),
        }
    )


def _shapes(sizes: pl.Series) -> pl.Series:
    """Return shapes of tensors as PyTorch writes them: "[[1, 3], []]"; others are null."""
    texts = sizes.unique().drop_nulls()
    shapes = pl.Series([_shape(text) for text in texts], dtype=pl.List(pl.List(pl.Int64)))
    known = pl.DataFrame({"sizes": texts, "shapes": shapes})
    return pl.DataFrame({"sizes": sizes}).join(
        known, on="sizes", how="left", maintain_order="left"
    )["shapes"]


def _shape(text: str) -> list[list[int]] | None:
    try:
        read: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_shape = isinstance(read, list) and all(isinstance(each, list) for each in read)
    return read if is_shape and all(type(n) is int for each in read for n in each) else None
