"""Settles whose child a row is, where that was in doubt, by a run in which less is.

Before merging. In a serialised run the host waits for each kernel, and libraries use one
thread: what ran side by side runs one after the other there. Has not run on a GPU yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import Keys, Run, observe, typical_run
from xsp.level import EXECUTIONS, Kind
from xsp.provider import DOUBTFUL, is_doubtful

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EXECUTION = pl.col("kind").is_in([kind.value for kind in EXECUTIONS])
_LABEL = ("kind", "name", "device", "stream")
_FAMILY = ("parent", "kind", "name")


@dataclass(frozen=True, slots=True)
class Settled:
    """Runs of which less is in doubt.

    Attributes:
        runs: All runs, in their order.
        done: How many rows were settled, by the code of the problem that they were.
        left: How many are still in doubt, by that code and the name of the rung.
    """

    runs: tuple[Run, ...]
    done: Mapping[str, int]
    left: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class _Tree:
    """The rows of one run; n entries each.

    Attributes:
        rows: The rows, root first.
        parent: Index of each row's parent, -1 for the root.
        key: Hash of each row's path.
        doubtful: Whether the row may as well have another parent.
    """

    rows: pl.DataFrame
    parent: Ints
    key: Keys
    doubtful: Bools

    def kinds(self, *kinds: Kind) -> Bools:
        """Return which rows are of one of these kinds."""
        chosen: Bools = self.rows["kind"].is_in([kind.value for kind in kinds]).to_numpy()
        return chosen

    @property
    def on_device(self) -> Bools:
        """Which rows are on a device."""
        on_device: Bools = self.rows["device"].is_not_null().to_numpy()
        return on_device

    def numbers(self, column: str) -> Ints:
        """Return a column of numbers."""
        numbers: Ints = self.rows[column].to_numpy()
        return numbers


def settle(runs: Sequence[Run], serialised: Sequence[Run]) -> Settled:
    """Return the runs with what was in doubt under the parents of a serialised run.

    A doubtful row is that row of the typical serialised run which is the k-th of its kind
    and name, in the order of their start, as it is here; on a device also of its stream.
    Only where both runs have equally many of those, made on one thread, none of which is
    known to be another's, and it is in no doubt there. It moves
    under the row with the path that its parent has there; what it launched moves along.
    It stays, in doubt, where there is no such row, or one that cannot be: the parent of a
    row of the host encloses that in time.

    Args:
        runs: Of all rungs; `Run.rows` as `xsp.correlation.parent` returns them.
        serialised: Those of the serialised measurement.
    """
    there, doubts = _typical(serialised), _doubts(runs)
    if there is None or not doubts:
        return Settled(tuple(runs), {}, doubts)
    moved = tuple(_settled(run, there) if _in_doubt(run) else run for run in runs)
    left = _doubts(moved)
    done = {
        code: sum(counts.values()) - sum(left.get(code, {}).values())
        for code, counts in doubts.items()
    }
    return Settled(moved, {code: many for code, many in done.items() if many}, left)


def _in_doubt(run: Run) -> bool:
    return run.rows is not None and bool(is_doubtful(run.rows).any())


def _doubts(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """Return how many rows are in doubt, by code and rung."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        if run.rows is not None:
            for code in _codes(run.rows, is_doubtful(run.rows)):
                counts.setdefault(code, Counter())[run.rung.name] += 1
    return {code: dict(by_rung) for code, by_rung in counts.items()}


def _codes(rows: pl.DataFrame, chosen: Bools) -> list[str]:
    """Return the code of the problem that each of the chosen rows is."""
    if not chosen.any():
        return []
    launched = rows.filter(pl.col("kind") == Kind.LAUNCH.value)["correlation_id"].drop_nulls()
    lost = _EXECUTION & ~pl.col("correlation_id").is_in(launched.implode()).fill_null(value=False)
    code = (
        pl.when(pl.col("kind") == Kind.CALL.value)
        .then(pl.lit("ambiguous-thread"))
        .when(lost)
        .then(pl.lit("no-launch"))
        .otherwise(pl.lit("ambiguous"))
    )
    return rows.filter(pl.Series(chosen)).select(code).to_series().to_list()


def _typical(runs: Sequence[Run]) -> _Tree | None:
    """Return the most typical run of the deepest rung, None where no run has spans."""
    timed = [run for run in runs if run.rows is not None and run.rung.timed]
    if not timed:
        return None
    deepest = max(run.rung.order for run in timed)
    seen = observe([run for run in timed if run.rung.order == deepest])
    return _tree(seen.runs[typical_run(seen, range(len(seen.runs)))])


def _tree(run: Run) -> _Tree:
    seen = observe([run])
    rows = seen.runs[0].rows
    assert rows is not None
    return _Tree(rows, seen.parent, seen.key, is_doubtful(rows))


def _settled(run: Run, there: _Tree) -> Run:
    """Return the run with those of its doubtful rows moved that can be."""
    here = _tree(run)
    match = _trusted(here, there, _counterparts(here, there))
    asking = np.flatnonzero(here.doubtful & (match >= 0))
    asking = asking[~there.doubtful[match[asking]]]
    home = _homes(here, there, match, asking)
    able = _can_be(here, asking, home)
    left = _left(here, asking[able])
    while np.any(stuck := able & left[home]):  # what it would lie in stays in doubt
        able &= ~stuck
        left = _left(here, asking[able])
    asking, home = asking[able], home[able]
    parent = _moved(here, asking, home)
    new = (parent != here.parent) | (here.doubtful & ~left)
    rows = _fitted(here.rows, asking, parent).with_columns(pl.Series(DOUBTFUL, left))
    return replace(run, rows=_reordered(rows, parent, match, new))


def _left(here: _Tree, settled: Ints) -> Bools:
    """Return which rows are still in doubt when these no longer are."""
    left: Bools = here.doubtful.copy()
    left[settled] = False
    return left


def _counterparts(here: _Tree, there: _Tree) -> Ints:
    """Return which row there each row is, -1 where there are more or fewer of its label."""
    both = [*_LABEL, "number", "many"]
    found = _numbered(here.rows).join(
        _numbered(there.rows).select(*both, there="row"),
        on=both,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    match: Ints = found["there"].fill_null(-1).to_numpy()
    return match


def _trusted(here: _Tree, there: _Tree, match: Ints) -> Ints:
    """Return matches without those of labels whose rows may have come in another order there.

    So it is where a row that is in no doubt has another parent there, and may be where
    several threads made them.
    """
    asked = here.kinds(Kind.LAUNCH, Kind.CALL, *EXECUTIONS) & (match >= 0)
    rows = np.flatnonzero(asked & ~here.doubtful & ~there.doubtful[match])
    home = _homes(here, there, match, rows)
    contradicts = np.zeros(len(match), np.bool_)
    contradicts[rows] = (home >= 0) & (home != here.parent[rows])
    makers = there.rows["thread"].gather(there.parent[match])
    rightly = (
        _numbered(here.rows)
        .with_columns(
            asked=pl.Series(asked),
            contradicts=pl.Series(contradicts),
            maker=pl.select(pl.when(pl.Series(asked)).then(makers)).to_series(),
        )
        .select(
            ~pl.col("contradicts").any().over(_LABEL)
            & (pl.col("maker").drop_nulls().n_unique().over(_LABEL) <= 1)
        )
        .to_series()
        .to_numpy()
    )
    trusted: Ints = np.where(rightly, match, -1)
    return trusted


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the label of each row, its number among those of it, and how many there are."""
    on_device = pl.col("device").is_not_null() & pl.col("thread").is_null()
    place = [pl.when(on_device).then(name).alias(name) for name in ("device", "stream")]
    return rows.select("kind", "name", "start_ns", *place).select(
        *_LABEL,
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        number=pl.col("start_ns").rank("ordinal").over(_LABEL),
        many=pl.len().over(_LABEL),
    )


def _homes(here: _Tree, there: _Tree, match: Ints, asking: Ints) -> Ints:
    """Return the row here that each row's parent there is, -1 where there is none.

    It has the same path, unless that is in doubt itself, or is a launch or what a graph
    replays in one: the path of those depends on which others were seen, and they are known
    by their number.
    """
    above = there.parent[match[asking]]
    back = np.full(len(there.key), -1, np.int64)
    back[match[match >= 0]] = np.flatnonzero(match >= 0)
    by_number = back[above]
    order = np.argsort(here.key)
    place = np.minimum(np.searchsorted(here.key[order], there.key[above]), len(order) - 1)
    same = here.key[order[place]] == there.key[above]
    by_path = np.where(same, order[place], -1)
    numbered = (there.kinds(Kind.LAUNCH) | there.on_device)[above]
    numbered |= (by_number >= 0) & here.doubtful[by_number]
    home: Ints = np.where(numbered, by_number, by_path)
    return home


def _can_be(here: _Tree, rows: Ints, home: Ints) -> Bools:
    """Return which of the rows can lie in their new home; it comes before them in any case."""
    start, end = here.numbers("start_ns"), here.numbers("end_ns")
    thread = here.rows["thread"].fill_null(here.rows["thread"][0]).to_numpy()
    slack = here.rows["uncertainty_ns"].fill_null(0).to_numpy()[rows]
    inside = (start[home] <= start[rows] + slack) & (end[rows] - slack <= end[home])
    inside &= (thread[home] == thread[rows]) | here.kinds(Kind.CALL)[rows]
    anywhere = here.kinds(*EXECUTIONS)[rows]
    replayed = here.on_device[here.parent[rows]]  # it belongs to its graph's layers
    able: Bools = (home >= 0) & (home < rows) & (inside | anywhere) & ~replayed
    return able


def _moved(here: _Tree, rows: Ints, home: Ints) -> Ints:
    """Return all parents; what a moved launch launched has its new one."""
    parent: Ints = here.parent.copy()
    parent[rows] = home
    launches = rows[here.kinds(Kind.LAUNCH)[rows]]
    ids = here.rows["correlation_id"]
    gone = pl.DataFrame(
        {"id": ids.gather(launches), "old": here.parent[launches], "new": parent[launches]}
    ).unique(["id", "old"], keep="first")
    free = here.rows["thread"].is_null().to_numpy() & ~here.doubtful
    asking = pl.DataFrame({"id": ids, "old": here.parent}).with_row_index("row")
    along = asking.filter(pl.Series(free)).join(gone, on=["id", "old"])
    parent[along["row"].to_numpy()] = along["new"].to_numpy()
    return parent


def _fitted(rows: pl.DataFrame, moved: Ints, parent: Ints) -> pl.DataFrame:
    """Return rows with library calls on the thread of their parents, cut to lie in them."""
    chosen = np.zeros(rows.height, np.bool_)
    chosen[moved] = True
    around = rows.select("start_ns", "end_ns", "thread")[np.maximum(parent, 0)]
    call = pl.Series(chosen) & (pl.col("kind") == Kind.CALL.value)
    start = pl.max_horizontal("start_ns", around["start_ns"])
    return rows.with_columns(
        start_ns=pl.when(call).then(start).otherwise("start_ns"),
        end_ns=pl.when(call)
        .then(pl.max_horizontal(start, pl.min_horizontal("end_ns", around["end_ns"])))
        .otherwise("end_ns"),
        thread=pl.when(call).then(around["thread"]).otherwise("thread"),
    )


def _reordered(rows: pl.DataFrame, parent: Ints, match: Ints, new: Bools) -> pl.DataFrame:
    """Return rows with their parents, and new executions in the order of their launches.

    Those of a name under one parent stand in the order that they have in the serialised
    run, where all of them are known there. They hold nothing, so that no other row moves.
    """
    columns = {"row": np.arange(rows.height), "match": match, "new": new, "parent": parent}
    numbered = rows.select("kind", "name").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )
    chosen = numbered.filter(_EXECUTION).filter(
        pl.col("new").any().over(_FAMILY), (pl.col("match") >= 0).all().over(_FAMILY)
    )
    sequence = np.arange(rows.height)
    at = chosen.sort(*_FAMILY, "row")["row"].to_numpy()
    sequence[at] = chosen.sort(*_FAMILY, "match")["row"].to_numpy()
    return rows[sequence].with_columns(parent=pl.Series(parent[sequence]))
