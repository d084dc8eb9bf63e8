"""Telling: what each rank measured in, facts, sentences and problems for people out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from xsp.evaluation import covered
from xsp.problem import Problem
from xsp.rank.apart import listed
from xsp.rank.exchange import Account
from xsp.rank.trouble import problems_of_all
from xsp.text import counted, duration, percent
from xsp.trace import Trace, attribute_column

_NAMED = 8  # ranks that have a sentence each
_LATE_PCT = 60  # of the collectives: a rank that is the last so often is named


def described(account: Account, add_ns: int | None) -> dict[str, Any]:
    """Return what metadata tells of a rank, and of its clock."""
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
    for account, (ran_ns, wait_ns) in zip(told[:_NAMED], _times(spans, len(told)), strict=False):
        if ran_ns:
            share = percent(wait_ns / ran_ns)
            yield (
                f"rank {account.rank}: {duration(ran_ns)} in collectives, of which "
                f"{duration(wait_ns)} ({share}) waiting for other ranks"
            )


def _times(spans: pl.DataFrame, count: int) -> list[tuple[float, float]]:
    """Return how long each rank was in collectives, and waited there, in the order of ranks.

    What the timeline draws at one time counts once.
    """
    table = spans.select(
        attribute_column(spans, "process", pl.Int64).forward_fill().alias("process"),
        attribute_column(spans, "wait_ns", pl.Float64).alias("wait_ns"),
        "start_ns",
        "end_ns",
    ).filter(pl.col("wait_ns").is_not_null())
    process, wait, start, end = (column.to_numpy() for column in table)
    sums = (covered(process, start, until, count) for until in (end, np.minimum(start + wait, end)))
    return list(zip(*(each.tolist() for each in sums), strict=True))


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


def problems(
    accounts: Sequence[Account], ranks: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the problems of all ranks, and of their being together."""
    told = [each for each in accounts if each.trace is not None]
    own = [_with_notes(each.trace) for each in told if each.trace is not None]
    names = [f"rank {each.rank}" for each in told]
    found = [
        *_of_failures(accounts),
        *_of_agreement(accounts),
        *_of_clocks(ranks),
        *_of_collectives(accounts, ranks),
        *problems_of_all(own, names),
    ]
    return [asdict(problem) for problem in found]


def _with_notes(trace: Trace) -> list[Problem]:
    """Return the problems of a trace, and what is only noted."""
    told = trace.metadata.get("problems", ())
    return [Problem(str(each["code"]), str(each["message"])) for each in told]


def _of_failures(accounts: Sequence[Account]) -> Iterator[Problem]:
    for each in accounts:
        if each.trace is None:
            yield Problem("rank-missing", f"rank {each.rank} is not in the trace: {each.why}")
        elif each.failed:
            yield Problem(
                "rank-failed",
                f"the script of rank {each.rank} ended by {each.failed}; the trace holds what was "
                "measured until then",
            )


def _of_agreement(accounts: Sequence[Account]) -> Iterator[Problem]:
    """Yield where ranks did not record the same of an evaluation."""
    for each in accounts:
        if each.trouble:
            yield Problem("rank-alone", f"rank {each.rank}: {each.trouble}")
    told = [each for each in accounts if each.trace is not None]
    for each in told[1:]:
        unlike, both = _unlike(told[0].rungs, each.rungs)
        if unlike:
            yield Problem(
                "rungs-differ",
                f"{unlike} of {counted(both, 'evaluation')} were recorded on another rung in rank "
                f"{each.rank} than in rank {told[0].rank}: the times of both hold what recording "
                "cost the slower",
            )


def _unlike(
    one: Mapping[int, Sequence[str]], other: Mapping[int, Sequence[str]]
) -> tuple[int, int]:
    """Return how many evaluations of two ranks were recorded on unlike rungs, of how many."""
    pairs = [
        (mine or "bare", others or "bare")
        for group in one.keys() & other.keys()
        for mine, others in zip(one[group], other[group], strict=False)
    ]
    return sum(mine != others for mine, others in pairs), len(pairs)


def _of_clocks(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for each in ranks:
        if each["clock"] == "exchange":
            yield Problem(
                "clocks",
                f"rank {each['rank']}: its machine's clock was read from rank 0 to "
                f"±{duration(each['clock_error_ns'])}, when the program had ended",
            )
    by_day = [f"rank {each['rank']}" for each in ranks if each["clock"] == "time of day"]
    if by_day:
        yield Problem(
            "clocks",
            f"{listed(by_day)}: brought onto the clock of rank 0 by the time of day, which may be "
            "off by milliseconds, or by as much as the machines' clocks are; waits in collectives "
            "are as wrong",
        )


def _of_collectives(
    accounts: Sequence[Account], ranks: Sequence[Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield how many collectives are not known to be the same in all ranks."""
    recorded = max((each.collectives.height for each in accounts), default=0)
    matched = max((each["collectives"] for each in ranks), default=0)
    if recorded > matched:
        yield Problem(
            "waits-unknown",
            f"of {counted(recorded - matched, 'collective')} of {recorded} it is not known when "
            "the other ranks arrived: they were not recorded in all ranks at one moment, as those "
            "of a part of the ranks are not, nor sends and receives",
        )
