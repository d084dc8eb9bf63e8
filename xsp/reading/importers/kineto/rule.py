"""Checks a file by the rules of PyTorch's own trace validator, which came from faulty recordings.

A rule that is broken tells of clocks that disagree or of facts that were not written. The spans are
shown as they are; one warning names the rules, so that nobody rests a conclusion on them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from xsp.reading.importers.kineto.table import COLLECTIVE, Sort, Tables
from xsp.warning import TraceWarning

_NAMING_WAITS = ("Stream Wait Event", "Event Sync")
_STREAM_SYNC, _STREAM_WAIT = "Stream Sync", "Stream Wait Event"
_RECORD = r"^(cuda|hip)EventRecord"
_COMMUNICATION = "record_param_comms"
_NEEDED = ("attr.collective", "attr.group_size", "attr.in_elements", "attr.out_elements",
           "attr.element_type")  # fmt: skip
_EVALUATED = "autograd::engine::evaluate_function:"


def broken_rules(tables: Tables) -> Iterator[TraceWarning]:
    """Yield one warning that counts what breaks each rule, if anything does."""
    kernels, syncs = _named(tables, Sort.KERNEL), _named(tables, Sort.SYNC)
    calls = pl.concat([_named(tables, Sort.LAUNCH), _named(tables, Sort.DRIVER)])
    found = {
        "kernels that begin before their launch": _early(kernels, calls),
        "waits that name no event": _nameless(syncs),
        "stream synchronizations that began while a kernel ran": _overlapped(kernels, syncs),
        "stream waits for an event that nothing recorded before": _ahead(syncs, calls),
        "collectives without size, type or group": _incomplete(tables),
        "sequence numbers of several backward operators": _shared(tables),
    }
    said = [f"{what}: {count:,}" for what, count in found.items() if count]
    if said:
        yield TraceWarning(
            "rules-broken",
            f"the file breaks rules of PyTorch's trace validator ({'; '.join(said)}). Do not rest "
            "a conclusion on these.",
        )


def _named(tables: Tables, sort: Sort) -> pl.DataFrame:
    table = tables.table(sort)
    return table.with_columns(tables.texts.read(table["name"], str, pl.String).alias("name"))


def _early(kernels: pl.DataFrame, calls: pl.DataFrame) -> int:
    first = calls.group_by("correlation").agg(pl.min("start_ns").alias("called_ns"))
    return (
        kernels.join(first, on="correlation")
        .filter(pl.col("start_ns") < pl.col("called_ns"))
        .height
    )


def _nameless(syncs: pl.DataFrame) -> int:
    unnamed = (pl.col("recorded_by") < 0).fill_null(value=True)
    return syncs.filter(pl.col("name").is_in(_NAMING_WAITS), unnamed).height


def _overlapped(kernels: pl.DataFrame, syncs: pl.DataFrame) -> int:
    """Count synchronizations that began while the last kernel begun on their stream ran."""
    place = ["device", "stream"]
    asked = syncs.filter(pl.col("name") == _STREAM_SYNC).select(*place, "start_ns")
    running = kernels.select(*place, "start_ns", running_until="end_ns").drop_nulls()
    found = (
        asked.drop_nulls()
        .sort("start_ns")
        .join_asof(
            running.sort("start_ns"),
            on="start_ns",
            by=place,
            allow_exact_matches=False,
            check_sortedness=False,
        )
    )
    return found.filter(pl.col("running_until") > pl.col("start_ns")).height


def _ahead(syncs: pl.DataFrame, calls: pl.DataFrame) -> int:
    waits = syncs.filter(pl.col("name") == _STREAM_WAIT, pl.col("recorded_by") >= 0)
    records = calls.filter(pl.col("name").str.contains(_RECORD))
    first = records.group_by("correlation").agg(pl.min("start_ns").alias("recorded_ns"))
    found = waits.join(first, left_on="recorded_by", right_on="correlation", how="left")
    late = pl.col("recorded_ns") > pl.col("start_ns")
    return found.filter(late.fill_null(value=True)).height


def _incomplete(tables: Tables) -> int:
    ops = _named(tables, Sort.OP).filter(pl.col("name") == _COMMUNICATION)
    if not ops.height or ops["collective"].null_count() == ops.height:
        return ops.height
    facts = pl.DataFrame(schema=dict.fromkeys(COLLECTIVE, pl.Null))
    facts = pl.concat([facts, tables.collectives(ops["collective"])], how="diagonal_relaxed")
    return facts.filter(pl.any_horizontal(pl.col(*_NEEDED).is_null())).height


def _shared(tables: Tables) -> int:
    ops = _named(tables, Sort.OP).filter(pl.col("name").str.starts_with(_EVALUATED))
    names = (
        ops.drop_nulls("sequence")
        .group_by("sequence", "forward_thread")
        .agg(pl.col("name").n_unique().alias("names"))
    )
    return names.filter(pl.col("names") > 1).height
