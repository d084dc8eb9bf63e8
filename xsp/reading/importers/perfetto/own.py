"""Makes rows of what `xsp export --to NAME.pftrace` wrote, whose spans state ids and parents."""

from __future__ import annotations

import polars as pl

from xsp.level import Kind
from xsp.protobuf import BYTES, Ints
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.reading.importers.perfetto.argument import ANNOTATION, Arguments
from xsp.reading.importers.perfetto.slice import Slices
from xsp.reading.importers.perfetto.stage import Stages

_NUMBERS = {
    "thread": "thread.id",
    "device": "xsp.device",
    "stream": "xsp.stream",
    "correlation_id": "xsp.correlation_id",
    "span": "xsp.span_id",
    "parent": "xsp.parent_id",
}
_KINDS = [kind.value for kind in Kind]
_STAGES = {"gpu_memcpy": Kind.MEMCPY.value, "gpu_memset": Kind.MEMSET.value}


def own_rows(slices: Slices, stages: Stages) -> tuple[SpanRows, SpanRows, int]:
    """Return the spans below the root, the root, and how many slices are no spans of xsp's."""
    wanted = {*_NUMBERS.values(), "registers_per_thread"}
    args = Arguments(
        slices.packets, slices.fields.of(4, BYTES), slices.packet, slices.count, ANNOTATION, wanted
    )
    begin, _, end = slices.paired
    spans = _numbers(args, begin).with_columns(
        kind=slices.category.gather(begin),
        name=slices.name.gather(begin).fill_null(""),
        start_ns=slices.time_ns[begin],
        end_ns=end,
    )
    launch = stages.arguments(wanted)
    device = _numbers(launch, None).with_columns(
        kind=stages.sort.replace(_STAGES),
        name=stages.label,
        start_ns=stages.start_ns,
        end_ns=stages.end_ns,
        registers=launch.integers("registers_per_thread"),
        grid=_sizes(stages, 1),
        block=_sizes(stages, 2),
        full_name=stages.kernel,
    )
    found = pl.concat([spans, device], how="diagonal").filter(
        pl.col("kind").is_in(_KINDS), pl.col("span").is_not_null()
    )
    return *_rows(found), spans.height + device.height - found.height


def _numbers(args: Arguments, events: Ints | None) -> pl.DataFrame:
    columns = [args.integers(key).alias(name) for name, key in _NUMBERS.items()]
    frame = pl.DataFrame(columns)
    return frame if events is None else frame.select(pl.all().gather(events))


def _sizes(stages: Stages, number: int) -> pl.Series:
    texts = [None if size is None else size.decode() for size in stages.size(number)]
    return pl.Series(texts, dtype=pl.String).str.json_decode(pl.List(pl.Int64))


def _rows(found: pl.DataFrame) -> tuple[SpanRows, SpanRows]:
    """Return spans with small ids, the rows below the root apart from the root."""
    if not found.height:
        return no_rows(), no_rows()
    number = found.select("span").unique(maintain_order=True).with_row_index("id", 1)
    number = number.with_columns(pl.col("id").cast(pl.Int64))
    above = number.rename({"span": "parent", "id": "above"})
    found = found.join(number, on="span", how="left", maintain_order="left")
    found = found.join(above, on="parent", how="left", maintain_order="left")
    root = found.filter(pl.col("parent").is_null()).head(1)
    top = int(root["id"][0]) if root.height else 0
    inside = found.filter(pl.col("id") != top).with_columns(
        # The parent of what lies in the root is named by 0; of what has no such span, it is found.
        parent_id=pl.when(pl.col("above") == top).then(0).otherwise("above")
    )
    return _typed(inside), _typed(root.with_columns(parent_id=pl.lit(None, pl.Int64)))


def _typed(found: pl.DataFrame) -> SpanRows:
    if not found.height:
        return no_rows()
    attributes = {
        f"attr.{name}": found[name]
        for name in ("registers", "grid", "block", "full_name")
        if found[name].null_count() < found.height
    }
    plain = (
        "kind",
        "name",
        "start_ns",
        "end_ns",
        "thread",
        "stream",
        "correlation_id",
        "id",
        "parent_id",
    )
    ends = found.select(pl.max_horizontal("start_ns", "end_ns")).to_series()
    return span_rows(
        {name: found[name] for name in plain}
        | {"end_ns": ends, "device": found["device"].cast(pl.Int32), **attributes}
    )
