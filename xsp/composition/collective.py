"""Collectives: the runs of a program's groups in, a row for each collective that was recorded out.

What several ranks recorded of one collective is found again by its group of like evaluations, the
evaluation's number there, its name, and its number among those of the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from xsp.composition.journal import Evaluation
from xsp.evaluation import Run
from xsp.level import Kind
from xsp.measurement import with_pauses, without_pauses
from xsp.provider import ATTRIBUTE
from xsp.rank import COLLECTIVE_SCHEMA
from xsp.session import Visit

_ATTRIBUTE = f"{ATTRIBUTE}collective"


def collectives(
    runs: Sequence[Run],
    visits: Sequence[Visit],
    evaluations: Sequence[Evaluation],
    final: Callable[[int], int],
    labels: Mapping[int, str],
) -> pl.DataFrame:
    """Return the collectives of timed runs, `rank.COLLECTIVE_SCHEMA`, on the session's clock.

    Args:
        runs: Evaluations of all groups.
        visits: The visits that the runs were made of.
        evaluations: The evaluations of the journal.
        final: Returns the number of the group that a group is part of in the end.
        labels: Name of each group, by its number.
    """
    numbers = _numbered(evaluations, final)
    # Of what was repeated after the program no other rank knows.
    windows = {at: own for at, own in _windows(visits).items() if own[1] in numbers}
    frames = [
        _of(run.rows, windows[run.began_ns][0])
        .with_columns(
            group=pl.lit(final(run.group), dtype=pl.Int64),
            evaluation=pl.lit(numbers[windows[run.began_ns][1]], dtype=pl.Int64),
            label=pl.lit(labels.get(final(run.group), "")),
        )
        .select(*COLLECTIVE_SCHEMA)
        for run in runs
        if run.rows is not None
        and _ATTRIBUTE in run.rows.columns
        and run.rung.timed
        and run.began_ns in windows
    ]
    found = pl.concat([pl.DataFrame(schema=COLLECTIVE_SCHEMA), *frames])
    return found.sort("start_ns")


def _numbered(evaluations: Sequence[Evaluation], final: Callable[[int], int]) -> dict[int, int]:
    """Return the number of each evaluation in its group, by the time when it began."""
    seen: Counter[int] = Counter()
    result: dict[int, int] = {}
    for each in sorted(evaluations, key=lambda each: each.begin_ns):
        group = final(each.group)
        result[each.begin_ns] = seen[group]
        seen[group] += 1
    return result


def _windows(visits: Sequence[Visit]) -> dict[int, tuple[Visit, int]]:
    """Return visit and true begin of each evaluation, by the begin that its run has."""
    return {
        shown[0]: (visit, true[0])
        for visit in visits
        for shown, true in zip(without_pauses(visit).windows, visit.windows, strict=True)
    }


def _of(rows: pl.DataFrame, visit: Visit) -> pl.DataFrame:
    is_one = (pl.col("kind") == Kind.OP.value) & pl.col(_ATTRIBUTE).is_not_null()
    found = rows.filter(is_one).select("name", "start_ns", "end_ns").sort("start_ns")
    times = [
        pl.Series(name, with_pauses(visit, found[name].to_numpy()), dtype=pl.Int64)
        for name in ("start_ns", "end_ns")
    ]
    number = pl.int_range(pl.len(), dtype=pl.Int64).over("name")
    return found.with_columns(*times, number=number)
