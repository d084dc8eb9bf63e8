"""Gives the spans of a trace their names, attributes, errors and events as people read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from xsp.inexact import Inexact
from xsp.text import beyond, duration, estimate, margin, share
from xsp.trace import EARLY_ENDS, EXPORTED, USER, attribute_column, find_attribute, inexact_column

PREFIX = "attr."

# Columns of the events of spans; `row` is the span's.
EVENT_SCHEMA: dict[str, Any] = {
    "row": pl.Int64,
    "unix_ns": pl.Int64,
    "name": pl.String,
    "message": pl.String,
}
# Jaeger's Badger storage refuses a span with a value of more than 65,000 bytes; a character
# takes at most four bytes.
MOST_CHARACTERS = 8_192

# Children that sum to a little more than their parent are noise; a larger excess gets an event.
_EXCESS = 0.05
_TEXT = pl.String()
_TEXTS = pl.List(pl.String())


def names(spans: pl.DataFrame, subject: str = "") -> pl.Series:
    """Return the name of each span, made of words that a person would search for.

    Args:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`.
        subject: Name of the model; appended to the root's name, unless they are the same.
    """
    known = spans.select(
        "name",
        "kind",
        pl.col("parent_id").is_null().alias("root"),
        pl.coalesce(attribute_column(spans, "calls", pl.Int64), "rolled_count").alias("count"),
        attribute_column(spans, "module_path").alias("path"),
        attribute_column(spans, "module_class").alias("class"),
        attribute_column(spans, "phase").alias("phase"),
    )
    layer = pl.concat_str(
        pl.col("path").replace("", None),
        pl.coalesce("class", "name"),
        separator=" ",
        ignore_nulls=True,
    )
    backward = (
        pl.when(pl.col("phase") == "backward").then(pl.lit(" backward")).otherwise(pl.lit(""))
    )
    single = pl.when(pl.col("kind") == "layer").then(layer + backward).otherwise("name")
    rolled = pl.format("{} \u00d7 {}", "count", single)
    whose = pl.when(pl.col("root") & (pl.col("name") != subject)).then(
        pl.lit(f" {subject}".rstrip())
    )
    shown = pl.when(pl.col("count").fill_null(1) == 1).then(single).otherwise(rolled)
    whole = pl.concat_str(shown.replace("", "(no name)"), whose.fill_null(""))
    return shortened(known.select(shown=whole).to_series())


class Whole(NamedTuple):
    """The model's latency, of which spans have shares.

    Attributes:
        latency_ns: The latency; None where it is not known.
        error: Half of its interval, as a fraction of it.
    """

    latency_ns: float | None
    error: float = 0.0


def whole(spans: pl.DataFrame) -> Whole:
    """Return the latency of the model, which is the first of the spans."""
    if not spans.height:
        return Whole(None)
    latency, low, high = spans.select("latency_ns", "latency_low_ns", "latency_high_ns").row(0)
    return Whole(latency, (margin(latency, low, high) or 0.0) / latency if latency else 0.0)


def attributes(spans: pl.DataFrame, model: Whole, *, readable: bool = True) -> pl.DataFrame:
    """Return one column `attr.NAME` per attribute, null where a span lacks it.

    Args:
        spans: Columns of `trace.spans` and of `reduction.EXTRA`.
        model: Latency of the model.
        readable: Whether to add `xsp.latency`, which says in words what other attributes tell.
    """
    known = pl.lit(100 / model.latency_ns if model.latency_ns else None, pl.Float64)
    busy = pl.coalesce(attribute_column(spans, "busy_ns", pl.Float64), "latency_ns")
    percentage = (busy * known).round(3)
    words = [_readable(spans, model)] if readable else []
    frame = spans.select(
        *(pl.col(one.column).alias(PREFIX + one.name) for one in EXPORTED if one.column),
        *words,
        percentage.alias(f"{PREFIX}xsp.share_pct"),
        pl.col("span_id").cast(pl.String).alias(f"{PREFIX}xsp.span_id"),
        pl.when(pl.col("rolled_count").is_not_null())
        .then("latency_ns")
        .alias(f"{PREFIX}xsp.rolled.sum_ns"),
    )
    struct = spans["attributes"].struct.unnest()
    taken = {PREFIX + one.name for one in EXPORTED}
    tables = {name for name, dtype in struct.schema.items() if dtype == pl.List(pl.Struct)}
    more = [_column(struct[name], taken) for name in struct.columns if name not in tables]
    # Fractions of a nanosecond tell nobody anything.
    whole = [pl.col(name).round() for name in frame.columns if name.endswith("_ns")]
    return frame.with_columns(*whole, pl.col(pl.Int32).cast(pl.Int64)).hstack(more)


def _readable(spans: pl.DataFrame, model: Whole) -> pl.Series:
    """Return latencies in a form for people: `45.7 ± 1.7 ms · 12.3 %`."""
    numbers = spans.select(
        "latency_ns",
        "latency_low_ns",
        "latency_high_ns",
        attribute_column(spans, "busy_ns", pl.Float64),
    )
    words = [_latency(row, model) for row in numbers.iter_rows()]
    return pl.Series(f"{PREFIX}xsp.latency", words, dtype=pl.String)


def known(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the attributes of a span by name, without those that are None."""
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def _latency(numbers: tuple[float | None, ...], model: Whole) -> str | None:
    latency, low, high, busy = numbers
    if latency is None:
        return None
    reach = margin(latency, low, high)
    value, plus_minus, unit = estimate(latency, reach)
    said = [f"{value} ± {plus_minus} {unit}" if plus_minus else f"{value} {unit}".rstrip()]
    part = latency if busy is None else busy
    if model.latency_ns:
        free = beyond(reach or 0.0, model.error * latency) * (part / latency if latency else 1.0)
        said.append(share(part / model.latency_ns, free / model.latency_ns))
    if 0 < part < latency:
        said.append(f"{latency / part:.1f} at once")
    return " · ".join(said)


def _column(values: pl.Series, taken: set[str]) -> pl.Series:
    """Return one field of a trace's `attributes`, renamed as exported; the name joins `taken`."""
    known = find_attribute(values.name)
    name = values.name.removeprefix(USER) if known is None else known.exported
    name = PREFIX + (name or USER.rstrip("."))
    while name in taken:
        name += "'"
    taken.add(name)
    if known is not None and isinstance(values.dtype, pl.List):
        values = joined(values)
    return plain(values).alias(name)


def errors(spans: pl.DataFrame) -> pl.Series:
    """Return the error of each span in words, null where there is none."""
    raised = attribute_column(spans, "error").replace(dict.fromkeys(EARLY_ENDS))
    return spans.select(
        error=pl.when(raised.is_not_null())
        .then(pl.lit("raised ") + raised)
        .when(pl.col("latency_ns").is_null())
        .then(pl.lit("its latency could not be measured"))
    ).to_series()


def events(spans: pl.DataFrame, start_unix_ns: pl.Series) -> pl.DataFrame:
    """Return the warnings of single spans as events, in the columns of `EVENT_SCHEMA`.

    Overhead that is left is none of a single span where no overhead of any span is known, as in
    a recording by another tool: the name of such a trace says so.
    """
    scaled = attribute_column(spans, "scaled_ns", pl.Float64)
    carried = inexact_column(spans) & Inexact.INCLUDES_OVERHEAD.bit
    known = spans.select("latency_ns").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
        start_unix_ns.alias("unix_ns"),
        scaled.alias("scaled_ns"),
    )
    told = spans["overhead_ns"].null_count() < spans.height
    loaded = known.filter(pl.Series(carried > 0) & told)
    exceeded = known.filter(pl.col("scaled_ns") > _EXCESS * pl.col("latency_ns"))
    said = [(row, at, "overhead-left", _OVERHEAD_LEFT) for row, at in _places(loaded)]
    said += [
        (row, at, "children-exceed", _CHILDREN_EXCEED.format(duration(excess)))
        for (row, at), excess in zip(_places(exceeded), exceeded["scaled_ns"], strict=True)
    ]
    return pl.DataFrame(sorted(said), schema=EVENT_SCHEMA, orient="row")


_OVERHEAD_LEFT = (
    "something deeper was recorded in the runs that its latency is from, which holds that overhead"
)
_CHILDREN_EXCEED = (
    "the latencies of the spans below sum to {} more than its own: they are drawn shorter"
)


def _places(spans: pl.DataFrame) -> list[tuple[int, int]]:
    return spans.select("row", "unix_ns").rows()


def warnings(
    metadata: Mapping[str, Any], unix_ns: int, *, left_out: str | None = None
) -> pl.DataFrame:
    """Return the warnings of a trace as events of its root.

    Args:
        metadata: The trace's metadata.
        unix_ns: When the root began.
        left_out: A sentence about spans that the span budget left out; None if there are none.
    """
    said = [(str(p["code"]), str(p["message"])) for p in metadata.get("warnings", ())]
    if left_out is not None:
        said.append(("span-budget", left_out))
    return pl.DataFrame([(0, unix_ns, *words) for words in said], schema=EVENT_SCHEMA, orient="row")


def shortened(values: pl.Series) -> pl.Series:
    """Return texts cut to `MOST_CHARACTERS` characters; a text that was longer says so."""
    length = values.str.len_chars()
    if not (length > MOST_CHARACTERS).any():
        return values
    cut = pl.format("{}… (cut: {} characters)", values.str.head(MOST_CHARACTERS), length)
    known = pl.when(length > MOST_CHARACTERS).then(cut).otherwise(values)
    return pl.select(known.alias(values.name)).to_series()


def joined(values: pl.Series) -> pl.Series:
    """Return lists of texts, numbers or shapes as one text each: `1x3x224x224, -, ?`."""
    if values.dtype == pl.List(pl.List(pl.Int64())):
        shape = pl.element().cast(_TEXTS).list.join("x")
        values = values.list.eval(shape)
    values = values.cast(_TEXTS)
    shown = values.list.eval(pl.element().replace("", "-").fill_null("?"))
    return shown.list.join(", ")


def plain(values: pl.Series) -> pl.Series:
    """Return values as text, Int64, Float64, Boolean or lists of text: types of attributes.

    A column with a number that is not finite becomes text: JSON lacks such numbers, and
    Jaeger cannot show a trace with one.
    """
    dtype = values.dtype
    if isinstance(dtype, pl.List):
        return _plain_lists(values)
    if dtype.is_nested() or dtype == pl.Binary:
        written = [None if value is None else str(value) for value in values]
        return shortened(pl.Series(written, dtype=_TEXT))
    if dtype.is_integer() and dtype != pl.UInt64:
        dtype = pl.Int64()
    elif dtype.is_float():
        finite = values.is_finite().fill_null(value=True).all()
        dtype = pl.Float64() if finite else _TEXT
    elif dtype != pl.Boolean:
        dtype = _TEXT
    known: pl.Series = values.cast(dtype)
    return shortened(known) if dtype == _TEXT else known


def _plain_lists(values: pl.Series) -> pl.Series:
    written = [None if items is None else [str(item) for item in items] for items in values]
    texts = pl.Series(written, dtype=_TEXTS)
    whole = texts.list.join(", ")
    return shortened(whole) if (whole.str.len_chars() > MOST_CHARACTERS).any() else texts


def json_of(document: Any) -> bytes:
    r"""Return a document as JSON in UTF-8.

    Text from other JSON or from the environment may hold half a surrogate pair, which is
    no Unicode: a question mark stands for that half.

    Args:
        document: Dictionaries, lists and scalars; a number that is not finite becomes null.

    >>> json_of({"a": [1, "\ud800"]})
    b'{"a":[1,"?"]}'
    """
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return written.encode("utf-8", "replace")
