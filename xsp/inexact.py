"""Reasons why latencies are not exact, as bits of a code, in lists and in words.

A latency is exact where no reason applies. The reasons of a span fit into one number, a code, so
that the reasons of many spans are quickly united; in a trace they are lists of texts.

    reasons    includes_overhead, few_samples    code 0b101    in a trace a list of both
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import numpy as np
import polars as pl
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FEWEST_RUNS = 5  # with fewer, one or two slow steps show in the trimmed mean


class Inexact(StrEnum):
    """A reason why a latency is not exact; lists of reasons have the order below."""

    INCLUDES_OVERHEAD = (
        "includes_overhead"  # overhead is left: a deeper pass's latency, or the cost is not known
    )
    WARM_UP_ONLY = "warm_up_only"  # only first steps, in which libraries set themselves up
    FEW_SAMPLES = "few_samples"  # fewer than `FEWEST_RUNS` runs
    UNSTABLE = "unstable"  # more than 5 % of the runs lack the span, or one known to be the same
    INFERRED = "inferred"  # made from the spans inside, never observed itself

    @property
    def bit(self) -> int:
        """The reason's bit in a code."""
        return 1 << list(Inexact).index(self)

    @property
    def mark(self) -> str:
        """The sign beside a latency, one character."""
        return _WORDS[self][0]

    @property
    def words(self) -> str:
        """The meaning of the mark, in a few words."""
        return _WORDS[self][1]


_WORDS = {
    Inexact.INCLUDES_OVERHEAD: ("+", "still with overhead"),
    Inexact.WARM_UP_ONLY: ("*", "from first steps alone"),
    Inexact.FEW_SAMPLES: ("?", f"in fewer than {FEWEST_RUNS} runs"),
    Inexact.UNSTABLE: ("~", "missing in some runs"),
    Inexact.INFERRED: ("=", "made from the spans inside"),
}


def encoded(flags: Mapping[Inexact, Bools]) -> Codes:
    """Return the code of each span, from the spans that each reason applies to."""
    codes = np.zeros(len(next(iter(flags.values()))), dtype=np.uint8)
    for reason, applies in flags.items():
        codes[applies] |= reason.bit
    return codes


def codes_of(lists: pl.Series) -> Codes:
    """Return the code of each list of reasons; 0 for null and for an empty list."""
    if lists.null_count() == lists.len():
        return np.zeros(lists.len(), dtype=np.uint8)
    flags = {}
    for reason in Inexact:
        flags[reason] = lists.list.contains(reason.value).fill_null(value=False).to_numpy()
    return encoded(flags)


def lists_of(codes: Codes) -> pl.Series:
    """Return each code's list of reasons; null where the code is 0.

    >>> lists_of(np.array([0, 5], dtype=np.uint8)).to_list()
    [None, ['includes_overhead', 'few_samples']]
    """
    every = [[one.value for one in reasons_of(code)] or None for code in range(1 << len(Inexact))]
    return pl.Series("inexact", every, dtype=pl.List(pl.String())).gather(codes)


def reasons_of(code: int) -> tuple[Inexact, ...]:
    """Return the reasons in a code."""
    return tuple(reason for reason in Inexact if code & reason.bit)


def marks(reasons: Iterable[Inexact]) -> str:
    """Return the signs beside a latency that is not exact for these reasons.

    >>> marks([Inexact.FEW_SAMPLES, Inexact.INCLUDES_OVERHEAD])
    '+?'
    """
    present = set(reasons)
    return "".join(reason.mark for reason in Inexact if reason in present)


def legend(reasons: Iterable[Inexact]) -> str:
    """Return the meanings of the marks of these reasons; empty where there is no reason."""
    present = set(reasons)
    return " · ".join(f"{reason.mark} {reason.words}" for reason in Inexact if reason in present)


def united(codes: Codes, group: Ints, groups: int) -> Codes:
    """Return for each group the reasons that apply to any member.

    Args:
        codes: Code of each span.
        group: Number of each span's group, from 0.
        groups: Number of groups.

    >>> united(np.array([1, 4, 0], dtype=np.uint8), np.array([0, 0, 1]), 2)
    array([5, 0], dtype=uint8)
    """
    union = np.zeros(groups, dtype=np.uint8)
    np.bitwise_or.at(union, group, codes)
    return union
