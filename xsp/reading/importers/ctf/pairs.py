"""Makes rows of spans from the events that begin and end them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows

BEGIN, END = "xsp:begin", "xsp:end"
_DEVICE = r"^GPU (\d+)(?: stream (-?\d+))?"  # names of threads that stand for streams
_KINDS = [kind.value for kind in Kind]
# Ends of names by which LTTng and users name the two events of a system call, range or function.
_CALL = r"^(?:compat_)?syscall_(entry|exit)_(.+)$"
_RANGE = r"^(.+?)(?:[_:.](begin|start|entry|enter|end|stop|exit))$"
_BEGINS = ["begin", "start", "entry", "enter"]


@dataclass(frozen=True, slots=True)
class Paired:
    """Spans of one sort.

    Attributes:
        rows: Their rows.
        taken: The names of the events that they are made of, in a column `event`.
        what: What one of them is, for people.
        unended: How many have no end.
        redrawn: How many are not as long on xsp's timeline as their latency.
        damaged: What is left out, and how often.
    """

    rows: SpanRows
    taken: pl.DataFrame
    what: str
    unended: int = 0
    redrawn: int = 0
    damaged: Counter[str] = field(default_factory=Counter)


def own_rows(events: pl.DataFrame) -> tuple[Paired, SpanRows]:
    """Return the spans of an export of xsp, and apart from them the root, if that is a region.

    Args:
        events: Columns of `EVENT_SCHEMA`, in the order of time.
    """
    begun = events.filter(pl.col("event") == BEGIN)
    ended = events.filter((pl.col("event") == END) & pl.col("span").is_not_null())
    sound = begun.filter((pl.col("kind") < len(Kind)) & pl.col("span").is_not_null())
    first = sound.unique("span", keep="first", maintain_order=True)
    ends = ended.unique("span", keep="first").select("span", end_ns="time_ns")
    spans = first.join(ends, on="span", how="left", maintain_order="left")
    damaged = Counter({"begins of spans": begun.height - first.height})
    damaged["ends of spans"] = events.filter(pl.col("event") == END).height - (
        spans.height - spans["end_ns"].null_count()
    )
    unended = spans["end_ns"].null_count()
    long = (pl.col("end_ns") - pl.col("time_ns") - pl.col("latency_ns")).abs() > 1
    redrawn = int(spans.select((long & (pl.col("latency_ns") >= 0)).sum()).item())
    device = pl.col("thread_name").str.extract_groups(_DEVICE)
    on_device = pl.col("tid") < 0
    # A parent begins before its child, so it has a lower number.
    lower = pl.col("parent").is_in(first["span"].implode()) & (pl.col("parent") < pl.col("span"))
    spans = spans.select(
        kind=pl.col("kind").replace_strict(dict(enumerate(_KINDS)), return_dtype=pl.String),
        name=pl.col("label").fill_null(""),
        start_ns="time_ns",
        end_ns=pl.max_horizontal(pl.col("end_ns").fill_null(events["time_ns"].max()), "time_ns"),
        thread=pl.when(~on_device).then("tid"),
        device=pl.when(on_device).then(device.struct[0].cast(pl.Int32, strict=False)),
        stream=pl.when(on_device).then(device.struct[1].cast(pl.Int64, strict=False)),
        id=pl.col("span") + 1,
        parent_id=pl.when(lower).then(pl.col("parent") + 1).otherwise(0),
    )
    rows = span_rows(spans.to_dict()) if spans.height else no_rows()
    is_root = (pl.col("id") == 1) & (pl.col("kind") == Kind.REGION.value)
    root = rows.filter(is_root)
    inside = rows.filter(~is_root)
    if root.height:  # the parent of what lies in the root is named by 0
        up = pl.when(pl.col("parent_id") != 1).then("parent_id").otherwise(0)
        inside = inside.with_columns(up.alias("parent_id"))
    taken = pl.DataFrame({"event": [BEGIN, END]})
    return Paired(inside, taken, "span", unended, redrawn, +damaged), root


def call_rows(events: pl.DataFrame) -> Paired:
    """Return the system calls that LTTng's kernel tracer recorded.

    Without `lttng add-context --kernel --type=tid` the thread of a call is the one to which its
    processor switched last.
    """
    parts = pl.col("event").str.extract_groups(_CALL).struct
    switched = pl.col("next_tid").forward_fill().over("cpu")
    calls = events.with_columns(tid=pl.coalesce("tid", switched)).filter(
        pl.col("event").str.contains(_CALL)
    )
    calls = calls.with_columns(begins=parts[0] == "entry", of=parts[1], label=parts[1])
    return _paired(calls, Kind.SYSCALL, "system call", "--kernel --type=tid")


def range_rows(events: pl.DataFrame) -> Paired:
    """Return ranges of programs: pairs of events whose names differ in begin and end alone.

    They are named by their field `name`, else as their events; functions by their address.
    """
    parts = pl.col("event").str.extract_groups(_RANGE).struct
    others = ~(pl.col("event").is_in([BEGIN, END]) | pl.col("event").str.contains(_CALL))
    ranges = events.filter(others & pl.col("event").str.contains(_RANGE))
    ranges = ranges.with_columns(begins=parts[1].is_in(_BEGINS), of=parts[0])
    # What only begins, or only ends, is no pair, but a name that looks like one.
    both = pl.col("begins").any().over("of") & (~pl.col("begins")).any().over("of")
    ranges = ranges.filter(both).with_columns(label=pl.coalesce("label", "of"))
    return _paired(ranges, Kind.REGION, "range", "--userspace --type=vtid")


def _paired(events: pl.DataFrame, kind: Kind, what: str, context: str) -> Paired:
    """Pair begins with ends of the same thing on the same thread; they may nest.

    Args:
        events: Columns of `EVENT_SCHEMA`, in the order of time, and `begins` and `of`; a pair has
            the same `of`.
        kind: Kind of the spans.
        what: What one of them is, for people.
        context: What makes LTTng record the threads of these events.
    """
    taken = events.select("event").unique()
    known = events.filter(pl.col("tid").is_not_null())
    lacking = f"events of {what}s on unknown threads (lttng add-context {context})"
    damaged = Counter({lacking: events.height - known.height})
    step = pl.when("begins").then(1).otherwise(-1).cum_sum().over("tid", "of")
    # The begin and the end of a span have the same depth.
    deep = known.with_columns(depth=step + pl.when("begins").then(0).otherwise(1))
    lane = ("tid", "of", "depth")
    following = deep.with_columns(
        end_ns=pl.when(~pl.col("begins").shift(-1).over(lane)).then(
            pl.col("time_ns").shift(-1).over(lane)
        )
    )
    spans = following.filter("begins")
    unended = spans["end_ns"].null_count()
    damaged[f"ends of {what}s that began before the recording"] = (
        known.height - spans.height - (spans.height - unended)
    )
    spans = spans.select(
        name="label",
        start_ns="time_ns",
        end_ns=pl.coalesce("end_ns", pl.lit(events["time_ns"].max(), pl.Int64)),
        thread="tid",
    )
    rows = span_rows({"kind": kind.value, **spans.to_dict()}) if spans.height else no_rows()
    return Paired(rows, taken, what, unended, damaged=+damaged)
