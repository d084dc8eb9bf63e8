"""Joins the traces of all ranks into one trace with a child for each rank.

The root lasts from the first beginning in any rank to the last end. Below it stand the trees of
the ranks, side by side, on the clock of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.matching import covered, mix
from xsp.reading.rank.account import Account
from xsp.reading.rank.naming import apart, listed
from xsp.reading.rank.trouble import warnings_of_all
from xsp.reading.rank.wait import imbalance, matched, per_span
from xsp.text import counted, duration, percent
from xsp.trace import SPAN_SCHEMA, Trace, attribute_column, gathering_spans, parent_rows
from xsp.warning import TraceWarning

_PREFIX = "\0attribute."
_TIMES = ("start_ns", "end_ns")
_MEASURED = ("measured_start_ns", "measured_end_ns")
# Attributes that the root has of the rank that ends last.
_OF_THE_LAST = ("exact", "inexact", "program_part")


@dataclass(frozen=True, slots=True)
class _Part:
    """The tree of a rank.

    Attributes:
        account: What the rank measured.
        spans: Its spans, attributes as columns.
        later_ns: By how much it began after the first.
    """

    account: Account
    spans: pl.DataFrame
    later_ns: int

    @property
    def ends_ns(self) -> float:
        """Time from the first rank's begin to this rank's end, without overhead."""
        return self.later_ns + float(self.spans["latency_ns"][0] or 0.0)


def joined(accounts: Sequence[Account], size: int) -> Trace | None:
    """Return the trace of all ranks; None if none has a trace.

    Args:
        accounts: What each rank measured, in their order.
        size: How many ranks there are.
    """
    there = [each for each in accounts if each.trace is not None]
    if not there:
        return None
    adds = {each.rank: clock_of(each, accounts[0]) for each in there}
    found = matched([_on_one_clock(each, adds) for each in accounts], size)
    began = {each.rank: each.began_ns + adds[each.rank] for each in there}
    first = min(began.values())
    frames = apart([[_unnested(each)] for each in there])
    parts = [
        _Part(each, _with_waits(frame, each.rank, found, size), began[each.rank] - first)
        for each, [frame] in zip(there, frames, strict=True)
    ]
    spans = _together(parts, f"distributed program of {size} ranks")
    return Trace(spans, _metadata(accounts, spans, imbalance(found, size), adds))


def clock_of(account: Account, first: Account) -> int:
    """Return the ns that put a rank's times on the clock of the first, rank 0, when added."""
    if account.machine and account.machine == first.machine:
        return 0
    if account.add_ns is not None:
        return account.add_ns
    return account.wall_ns - first.wall_ns


def _on_one_clock(account: Account, adds: Mapping[int, int]) -> pl.DataFrame:
    add = adds.get(account.rank, 0)
    return account.collectives.with_columns(pl.col(name) + add for name in _TIMES)


def _unnested(account: Account) -> pl.DataFrame:
    """Return a rank's spans with their attributes as columns, named apart."""
    assert account.trace is not None
    spans = account.trace.spans
    fields = spans["attributes"].struct.unnest().rename(lambda name: _PREFIX + name)
    return spans.drop("attributes").hstack(fields)


def _with_waits(spans: pl.DataFrame, rank: int, found: pl.DataFrame, size: int) -> pl.DataFrame:
    """Return spans of which the collectives say how large they are, and how long they waited."""
    if _PREFIX + "collective" not in spans.columns:
        return spans
    is_one = (pl.col("kind") == Kind.OP.value) & pl.col(_PREFIX + "collective").is_not_null()
    parents = spans.select(parent_id="span_id", label="name")
    shares = per_span(found).filter(rank=rank).drop("rank")
    known = spans.join(parents, on="parent_id", how="left", maintain_order="left").join(
        shares, on=("label", "name"), how="left", maintain_order="left"
    )
    waits = pl.when(is_one).then(pl.col("wait") * pl.col("latency_ns"))
    # How many elements of which type collectives have, where shapes were recorded.
    shapes, types = _PREFIX + "input_shapes", _PREFIX + "input_dtypes"
    if shapes not in known.columns or types not in known.columns:
        sizes = {}
    else:
        each = pl.col(shapes).list.eval(pl.element().list.eval(pl.element().product()).list.first())
        sizes = {
            "in_elements": pl.when(is_one).then(each.list.sum()),
            "element_type": pl.when(is_one).then(pl.col(types).list.first()),
        }
    columns = {
        "wait_ns": waits,
        "group_size": pl.when(waits.is_not_null()).then(pl.lit(size, dtype=pl.Int64)),
        **sizes,
    }
    marked = known.with_columns(values.alias(_PREFIX + name) for name, values in columns.items())
    return marked.drop("label", "wait")


def _together(parts: Sequence[_Part], name: str) -> pl.DataFrame:
    """Return one table of the spans of all ranks, below a new root."""
    frames = [_below(part, name, number) for number, part in enumerate(parts)]
    table = pl.concat([_root(parts, frames, name), *frames], how="diagonal_relaxed")
    fields = [name for name in table.columns if name.startswith(_PREFIX)]
    attributes = table.select(pl.col(name).alias(name.removeprefix(_PREFIX)) for name in fields)
    plain = table.select(pl.col(name).cast(dtype) for name, dtype in SPAN_SCHEMA.items())
    # Spans of which the root, if it gathers others, has as self time what none covers.
    spans = plain.with_columns(attributes=attributes.to_struct())
    parent = parent_rows(spans)
    if not gathering_spans(spans, parent)[0]:
        return spans
    tops = spans.filter(pl.Series(parent == 0))
    start, end = (tops[name].to_numpy() for name in _TIMES)
    busy_ns = covered(np.zeros(tops.height, np.int64), start, end, 1)[0]
    own_ns = spans["latency_ns"][0] * max(1 - busy_ns / max(spans["end_ns"][0], 1), 0.0)
    is_root = pl.int_range(pl.len()) == 0
    return spans.with_columns(self_ns=pl.when(is_root).then(own_ns).otherwise("self_ns"))


def _below(part: _Part, root: str, number: int) -> pl.DataFrame:
    """Return the spans of a rank as they stand below the root."""
    spans, account = part.spans, part.account
    path = f"{root}/rank {account.rank}"
    key = np.uint64(_key(path))
    ids = {
        name: pl.Series(name, mix(spans[name].fill_null(0).to_numpy() ^ key), dtype=pl.UInt64)
        for name in ("span_id", "parent_id")
    }
    top = pl.int_range(pl.len()) == 0
    about = {
        "process": pl.lit(number, dtype=pl.Int64),
        "rank": pl.lit(account.rank, dtype=pl.Int64),
        "host": pl.lit(account.host or None, dtype=pl.String),
    }
    return spans.with_columns(
        *ids.values(),
        pl.when(top).then(pl.lit(f"rank {account.rank}")).otherwise("name").alias("name"),
        (pl.lit(path) + pl.col("path").str.slice(len(spans["path"][0]))).alias("path"),
        *(pl.col(name) + part.later_ns for name in (*_TIMES, *_MEASURED)),
    ).with_columns(
        pl.when(top).then(pl.lit(_key(root), dtype=pl.UInt64)).otherwise("parent_id")
        .alias("parent_id"),
        pl.lit(None, dtype=pl.Boolean).alias(_PREFIX + "whole_block"),
        *(pl.when(top).then(value).alias(_PREFIX + name) for name, value in about.items()),
    )  # fmt: skip


def _root(parts: Sequence[_Part], frames: Sequence[pl.DataFrame], name: str) -> pl.DataFrame:
    last = max(parts, key=lambda part: part.ends_ns)
    tops = pl.concat([frame.head(1).select(*SPAN_SCHEMA) for frame in frames])
    measured = int(tops["measured_end_ns"].max() or 0)  # type: ignore[arg-type]
    names = ("latency_low_ns", "latency_high_ns")
    bounds = {name: last.spans[name][0] for name in names}
    interval = {name: None if at is None else at + last.later_ns for name, at in bounds.items()}
    columns = {
        "span_id": _key(name),
        "level": Kind.REGION.level.label,
        "kind": Kind.REGION.value,
        "name": name,
        "path": name,
        "start_ns": 0,
        "end_ns": tops["end_ns"].max(),
        "latency_ns": last.ends_ns,
        **interval,
        "self_ns": float(last.later_ns),  # on the thread of the last, which is the root's
        "overhead_ns": max(measured - last.ends_ns, 0.0),
        "device_ns": tops["device_ns"].sum() if tops["device_ns"].count() else None,
        "measured_start_ns": 0,
        "measured_end_ns": measured,
        "runs": tops["runs"].max(),
        "thread": last.spans["thread"][0],
    }
    whole = {name: [columns.get(name)] for name in SPAN_SCHEMA}
    row = pl.DataFrame(whole, schema=SPAN_SCHEMA)
    kept = [_PREFIX + name for name in _OF_THE_LAST if _PREFIX + name in last.spans.columns]
    return row.hstack(last.spans.head(1).select(kept)).with_columns(
        pl.lit(value=True).alias(_PREFIX + "whole_block")
    )


def _metadata(
    accounts: Sequence[Account],
    spans: pl.DataFrame,
    arrivals: Sequence[Mapping[str, Any]],
    adds: Mapping[int, int],
) -> dict[str, Any]:
    """Return the metadata of the trace of all ranks: what they share is that of the first."""
    first = next(each.trace for each in accounts if each.trace is not None)
    both = zip(accounts, arrivals, strict=True)
    ranks = [described(each, adds.get(each.rank)) | dict(found) for each, found in both]
    return dict(first.metadata) | {
        "warnings": warnings(accounts, ranks),
        "summary": sentences(accounts, spans, ranks),
        "ranks": ranks,
    }


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) or 1


# Writes the metadata, summary lines and warnings of a trace of several ranks.

_NAMED = 8  # ranks that have a sentence each
_LATE_PCT = 60  # of the collectives: a rank that is the last so often is named


def described(account: Account, add_ns: int | None) -> dict[str, Any]:
    """Return the metadata of a rank and of its clock."""
    source, error_ns = _clock(account, add_ns)
    return {
        "rank": account.rank,
        "host": account.host or None,
        "machine": account.machine or None,
        "clock": source,
        "clock_add_ns": add_ns,
        "clock_error_ns": error_ns,
    }


def _clock(account: Account, add_ns: int | None) -> tuple[str | None, int | None]:
    if add_ns is None:
        return None, None
    if account.add_ns is not None:
        return "exchange", account.error_ns
    return ("same machine", 0) if add_ns == 0 else ("time of day", None)


def sentences(
    accounts: Sequence[Account], spans: pl.DataFrame, ranks: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the lines that stand above the tree: what ran, and who waited for whom."""
    told = [each for each in accounts if each.trace is not None]
    lines = list(told[0].trace.metadata.get("summary", ())) if told[0].trace else []
    own = [f"rank {told[0].rank}: {line}" for line in lines]
    return [*own, *_waiting(told, spans), *_last(ranks)]


def _waiting(told: Sequence[Account], spans: pl.DataFrame) -> Iterator[str]:
    """Yield how long each rank communicated, and how much of that was waiting."""
    # How long each rank was in collectives, and waited there, in the order of ranks.
    # What the timeline draws at one time counts once.
    count = len(told)
    table = spans.select(
        attribute_column(spans, "process", pl.Int64).forward_fill().alias("process"),
        attribute_column(spans, "wait_ns", pl.Float64).alias("wait_ns"),
        "start_ns",
        "end_ns",
    ).filter(pl.col("wait_ns").is_not_null())
    process, wait, start, end = (column.to_numpy() for column in table)
    sums = (covered(process, start, until, count) for until in (end, np.minimum(start + wait, end)))
    times = list(zip(*(each.tolist() for each in sums), strict=True))
    for account, (ran_ns, wait_ns) in zip(told[:_NAMED], times, strict=False):
        if ran_ns:
            share = percent(wait_ns / ran_ns)
            yield (
                f"rank {account.rank}: {duration(ran_ns)} in collectives, of which "
                f"{duration(wait_ns)} ({share}) waiting for other ranks"
            )


def _last(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which rank the others mostly wait for."""
    for each in ranks:
        count, last = each["collectives"], each["last"] or 0
        if count and 100 * last > _LATE_PCT * count:
            late = duration(each["late_median_ns"])
            yield (
                f"rank {each['rank']} is the last to arrive at {percent(last / count)} of "
                f"{counted(count, 'recorded collective')}, {late} after the first (median)"
            )


def warnings(
    accounts: Sequence[Account], ranks: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the warnings of all ranks, and of their being together."""
    told = [each for each in accounts if each.trace is not None]
    own = [_with_notes(each.trace) for each in told if each.trace is not None]
    names = [f"rank {each.rank}" for each in told]
    found = [
        *_of_failures(accounts),
        *_of_windows(accounts),
        *_of_clocks(ranks),
        *_of_collectives(accounts, ranks),
        *warnings_of_all(own, names),
    ]
    return [asdict(warning) for warning in found]


def _with_notes(trace: Trace) -> list[TraceWarning]:
    """Return the warnings of a trace, and what is only noted."""
    told = trace.metadata.get("warnings", ())
    return [TraceWarning(str(each["code"]), str(each["message"])) for each in told]


def _of_failures(accounts: Sequence[Account]) -> Iterator[TraceWarning]:
    for each in accounts:
        if each.trace is None:
            yield TraceWarning("rank-missing", f"the trace lacks rank {each.rank}: {each.why}")
        elif each.failed:
            yield TraceWarning(
                "rank-failed",
                f"the script of rank {each.rank} ended by {each.failed}; the trace holds its "
                "times up to "
                "then",
            )


def _of_windows(accounts: Sequence[Account]) -> Iterator[TraceWarning]:
    """Yield where ranks did not record the same windows."""
    told = [each for each in accounts if each.trace is not None]
    for each in told[1:]:
        pairs = list(zip(told[0].windows, each.windows, strict=False))
        unlike = sum(one != other for one, other in pairs)
        if unlike or len(told[0].windows) != len(each.windows):
            yield TraceWarning(
                "windows-differ",
                f"ranks {each.rank} and {told[0].rank} recorded different steps "
                f"({len(each.windows)} and {len(told[0].windows)}, {unlike} of unlike kinds), so "
                "one "
                "may wait while the other records. Waits in collectives are less certain.",
            )


def _of_clocks(ranks: Sequence[Mapping[str, Any]]) -> Iterator[TraceWarning]:
    for each in ranks:
        if each["clock"] == "exchange":
            yield TraceWarning(
                "clocks",
                f"the clock of rank {each['rank']} is known to "
                f"±{duration(each['clock_error_ns'])}; "
                "shorter waits in collectives are not certain",
            )
    by_day = [f"rank {each['rank']}" for each in ranks if each["clock"] == "time of day"]
    if by_day:
        yield TraceWarning(
            "clocks",
            f"{listed(by_day)} joined rank 0 by the time of day, which may be off by milliseconds; "
            "waits in collectives are as uncertain. Synchronize the machines' clocks.",
        )


def _of_collectives(
    accounts: Sequence[Account], ranks: Sequence[Mapping[str, Any]]
) -> Iterator[TraceWarning]:
    """Yield how many collectives are not known to be the same in all ranks."""
    recorded = max((each.collectives.height for each in accounts), default=0)
    matched = max((each["collectives"] for each in ranks), default=0)
    if recorded > matched:
        yield TraceWarning(
            "waits-unknown",
            f"waits in {counted(recorded - matched, 'collective')} of {recorded} are unknown, "
            "because "
            "not all ranks recorded them (sends, receives and groups of some ranks). The others "
            "are "
            "right.",
        )
