"""Joining: what each rank measured in, one trace with a child for each rank out.

The root lasts from the first beginning in any rank to the last end. Below it stand the trees of
the ranks, side by side, on the clock of rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from xsp.evaluation import covered, mix
from xsp.level import Kind
from xsp.rank.apart import apart
from xsp.rank.exchange import Account
from xsp.rank.telling import described, problems, sentences
from xsp.rank.wait import imbalance, matched, per_span
from xsp.trace import SPAN_SCHEMA, Trace, gathering_spans, parent_rows

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
        """When the rank ended, after the first began, without overhead."""
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
    """Return what is added to a rank's times to have them on the clock of the first, rank 0."""
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
    number = pl.col("path").str.extract(r"#(\d+)$").cast(pl.Int64).fill_null(1) - 1
    parents = spans.select(parent_id="span_id", label="name")
    shares = per_span(found).filter(rank=rank).drop("rank")
    known = (
        spans.with_columns(number=number)
        .join(parents, on="parent_id", how="left", maintain_order="left")
        .join(shares, on=("label", "name", "number"), how="left", maintain_order="left")
    )
    waits = pl.when(is_one).then(pl.col("wait") * pl.col("latency_ns"))
    columns = {
        "wait_ns": waits,
        "group_size": pl.when(waits.is_not_null()).then(pl.lit(size, dtype=pl.Int64)),
        **_sizes(known, is_one),
    }
    marked = known.with_columns(values.alias(_PREFIX + name) for name, values in columns.items())
    return marked.drop("number", "label", "wait")


def _sizes(spans: pl.DataFrame, is_one: pl.Expr) -> dict[str, pl.Expr]:
    """Return how many elements of which type collectives have, where shapes were recorded."""
    shapes, types = _PREFIX + "input_shapes", _PREFIX + "input_dtypes"
    if shapes not in spans.columns or types not in spans.columns:
        return {}
    each = pl.col(shapes).list.eval(pl.element().list.eval(pl.element().product()).list.first())
    return {
        "in_elements": pl.when(is_one).then(each.list.sum()),
        "element_type": pl.when(is_one).then(pl.col(types).list.first()),
    }


def _together(parts: Sequence[_Part], name: str) -> pl.DataFrame:
    """Return one table of the spans of all ranks, below a new root."""
    frames = [_below(part, name, number) for number, part in enumerate(parts)]
    table = pl.concat([_root(parts, frames, name), *frames], how="diagonal_relaxed")
    fields = [name for name in table.columns if name.startswith(_PREFIX)]
    attributes = table.select(pl.col(name).alias(name.removeprefix(_PREFIX)) for name in fields)
    plain = table.select(pl.col(name).cast(dtype) for name, dtype in SPAN_SCHEMA.items())
    return _with_own_time(plain.with_columns(attributes=attributes.to_struct()))


def _with_own_time(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans of which the root, if it gathers others, has as own time what none covers."""
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
    """Return the row of the root."""
    last = max(parts, key=lambda part: part.ends_ns)
    tops = pl.concat([frame.head(1).select(*SPAN_SCHEMA) for frame in frames])
    measured = int(tops["measured_end_ns"].max() or 0)  # type: ignore[arg-type]
    columns = {
        "span_id": _key(name),
        "level": Kind.PIPELINE.level.label,
        "kind": Kind.PIPELINE.value,
        "name": name,
        "path": name,
        "start_ns": 0,
        "end_ns": tops["end_ns"].max(),
        "latency_ns": last.ends_ns,
        **_interval(last),
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


def _interval(last: _Part) -> dict[str, float | None]:
    names = ("latency_low_ns", "latency_high_ns")
    bounds = {name: last.spans[name][0] for name in names}
    return {name: None if at is None else at + last.later_ns for name, at in bounds.items()}


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
        "problems": problems(accounts, ranks),
        "summary": sentences(accounts, spans, ranks),
        "ranks": ranks,
    }


def _key(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) or 1
