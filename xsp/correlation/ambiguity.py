"""Resolves ambiguous rows: runs of all rungs and serialised runs in, less ambiguous runs out.

In a serialised run the host waits for each kernel, and libraries use one thread: rows that
overlap in a plain run come one after the other, so that fewer rows are ambiguous.

    plain run        ops "mm" and "add" overlap; launch "go", in both of them, is ambiguous,
                     and hangs under "add", which began last
    serialised run   launch "go" lies in "mm"
    result           the plain run, with "go" under "mm", no longer ambiguous

In this file `plain` is a tree that holds ambiguous rows, and `serial` the tree of a serialised
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.evaluation import ON_DEVICE, Keys, Run, is_ambiguous, observe, on_device, typical_run
from xsp.level import DEVICE_ACTIVITIES, Kind

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ACTIVITY = pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES])
_LABEL = ("kind", "name", "device", "stream")
_FAMILY = ("parent", "kind", "name")


@dataclass(frozen=True, slots=True)
class Resolution:
    """Runs with fewer ambiguous rows, and counts of the resolved and the remaining ones.

    Attributes:
        runs: All runs, in their order.
        resolved: How many rows are no longer ambiguous, by the code of their problem.
        remaining: How many rows are still ambiguous, by the code of their problem and the rung.
    """

    runs: tuple[Run, ...]
    resolved: Mapping[str, int]
    remaining: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class _Tree:
    """The rows of one run; n entries each.

    Attributes:
        rows: The rows, root first.
        parent: Index of each row's parent, -1 for the root.
        key: Hash of each row's path.
        ambiguous: Whether several rows may be the row's parent.
    """

    rows: pl.DataFrame
    parent: Ints
    key: Keys
    ambiguous: Bools

    def kinds(self, *kinds: Kind) -> Bools:
        """Return which rows are of one of these kinds."""
        return self.rows["kind"].is_in([kind.value for kind in kinds]).to_numpy()

    @property
    def on_device(self) -> Bools:
        """Which rows are on a device."""
        return on_device(self.rows)

    def numbers(self, column: str) -> Ints:
        """Return a column of numbers."""
        return self.rows[column].to_numpy()


def resolve(runs: Sequence[Run], serialised: Sequence[Run]) -> Resolution:
    """Return the runs with ambiguous rows moved under the parents of a serialised run.

    An ambiguous row corresponds to a row of the typical serialised run: the k-th row of a kind
    and name (on a device also of a stream), in the order of their start, to the k-th. Rows of
    one kind and name correspond only where both runs have equally many of them, one thread
    made all of them, and the rows that are not ambiguous have corresponding parents.

    An ambiguous row moves under the row with the path of the corresponding row's parent; device
    activities that it launched move along. It keeps its parent, and stays ambiguous, where the
    corresponding row is ambiguous too, where no row has that path, or where that row does not
    enclose it in time, as the parent of a row of the host must.

    Args:
        runs: Runs of all rungs; `Run.rows` as `parent` returns them.
        serialised: Runs of the serialised measurement.
    """
    serial, before = _typical(serialised), _ambiguities(runs)
    if serial is None or not before:
        return Resolution(tuple(runs), {}, before)
    moved = tuple(_resolved(run, serial) if _has_ambiguities(run) else run for run in runs)
    remaining = _ambiguities(moved)
    resolved = {
        code: sum(counts.values()) - sum(remaining.get(code, {}).values())
        for code, counts in before.items()
    }
    resolved = {code: count for code, count in resolved.items() if count}
    return Resolution(moved, resolved, remaining)


def _has_ambiguities(run: Run) -> bool:
    return run.rows is not None and bool(is_ambiguous(run.rows).any())


def _ambiguities(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """Return how many rows are ambiguous, by code of the problem and rung."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        if run.rows is not None:
            for code in _codes(run.rows, is_ambiguous(run.rows)):
                counts.setdefault(code, Counter())[run.rung.name] += 1
    return {code: dict(by_rung) for code, by_rung in counts.items()}


def _codes(rows: pl.DataFrame, chosen: Bools) -> list[str]:
    """Return the code of the problem under which each of the chosen rows is counted."""
    if not chosen.any():
        return []
    launched = rows.filter(pl.col("kind") == Kind.LAUNCH.value)["correlation_id"].drop_nulls()
    lost = _ACTIVITY & ~pl.col("correlation_id").is_in(launched.implode()).fill_null(value=False)
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
    return _Tree(rows, seen.parent, seen.key, is_ambiguous(rows))


def _resolved(run: Run, serial: _Tree) -> Run:
    """Return the run with the ambiguous rows moved whose parent the serial tree tells."""
    plain = _tree(run)
    match = _trusted(plain, serial, _corresponding(plain, serial))
    asking = np.flatnonzero(plain.ambiguous & (match >= 0))
    asking = asking[~serial.ambiguous[match[asking]]]
    home = _homes(plain, serial, match, asking)
    able = _can_hold(plain, asking, home)
    ambiguous = _still_ambiguous(plain, asking[able])
    while np.any(stuck := able & ambiguous[home]):  # so is a row in an ambiguous parent
        able &= ~stuck
        ambiguous = _still_ambiguous(plain, asking[able])
    asking, home = asking[able], home[able]
    parent = _moved(plain, asking, home)
    new = (parent != plain.parent) | (plain.ambiguous & ~ambiguous)
    rows = _fitted(plain.rows, asking, parent).with_columns(pl.Series("ambiguous", ambiguous))
    return replace(run, rows=_reordered(rows, parent, match, new))


def _still_ambiguous(plain: _Tree, resolved: Ints) -> Bools:
    """Return which rows remain ambiguous when the `resolved` rows no longer are."""
    ambiguous: Bools = plain.ambiguous.copy()
    ambiguous[resolved] = False
    return ambiguous


def _corresponding(plain: _Tree, serial: _Tree) -> Ints:
    """Return the serial row that each plain row corresponds to, by label and number.

    The result is -1 where the serial tree has more or fewer rows of the label (`_LABEL`).
    """
    both = [*_LABEL, "number", "count"]
    found = _numbered(plain.rows).join(
        _numbered(serial.rows).select(*both, serial="row"),
        on=both,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return found["serial"].fill_null(-1).to_numpy()


def _trusted(plain: _Tree, serial: _Tree, match: Ints) -> Ints:
    """Return the matches of labels whose rows surely come in the same order in both trees.

    The order differs where a row that is ambiguous in neither tree has parents that do not
    correspond, and it may differ where several threads made the rows of a label.
    """
    asked = plain.kinds(Kind.LAUNCH, Kind.CALL, *DEVICE_ACTIVITIES) & (match >= 0)
    rows = np.flatnonzero(asked & ~plain.ambiguous & ~serial.ambiguous[match])
    home = _homes(plain, serial, match, rows)
    contradicts = np.zeros(len(match), np.bool_)
    contradicts[rows] = (home >= 0) & (home != plain.parent[rows])
    makers = serial.rows["thread"].gather(serial.parent[match])
    rightly = (
        _numbered(plain.rows)
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
    return np.where(rightly, match, -1)


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the label of each row, its number among the rows of that label, and their count."""
    place = [pl.when(ON_DEVICE).then(name).alias(name) for name in ("device", "stream")]
    return rows.select("kind", "name", "start_ns", *place).select(
        *_LABEL,
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        number=pl.col("start_ns").rank("ordinal").over(_LABEL),
        count=pl.len().over(_LABEL),
    )


def _homes(plain: _Tree, serial: _Tree, match: Ints, asking: Ints) -> Ints:
    """Return for each asking row the plain row that is its parent in the serial tree, or -1.

    Usually that plain row has the path of the serial parent. Where paths may differ, it is the
    plain row that corresponds to the serial parent by number instead: where the serial parent is
    a launch or on a device, whose ordinals depend on which other rows were seen.
    """
    above = serial.parent[match[asking]]
    back = np.full(len(serial.key), -1, np.int64)
    back[match[match >= 0]] = np.flatnonzero(match >= 0)
    by_number = back[above]
    order = np.argsort(plain.key)
    place = np.minimum(np.searchsorted(plain.key[order], serial.key[above]), len(order) - 1)
    same = plain.key[order[place]] == serial.key[above]
    by_path = np.where(same, order[place], -1)
    numbered = (serial.kinds(Kind.LAUNCH) | serial.on_device)[above]
    return np.where(numbered, by_number, by_path)


def _can_hold(plain: _Tree, rows: Ints, home: Ints) -> Bools:
    """Return which of the rows can have `home` as parent, which must stand before them.

    A row of the host must lie in `home` in time and, unless it is a library call, on the thread
    of `home`. A device activity may lie anywhere, but for one in a row derived from a CUDA graph.
    """
    start, end = plain.numbers("start_ns"), plain.numbers("end_ns")
    thread = plain.rows["thread"].fill_null(plain.rows["thread"][0]).to_numpy()
    slack = plain.rows["uncertainty_ns"].fill_null(0).to_numpy()[rows]
    inside = (start[home] <= start[rows] + slack) & (end[rows] - slack <= end[home])
    inside &= (thread[home] == thread[rows]) | plain.kinds(Kind.CALL)[rows]
    anywhere = plain.kinds(*DEVICE_ACTIVITIES)[rows]
    replayed = plain.on_device[plain.parent[rows]]
    return (home >= 0) & (home < rows) & (inside | anywhere) & ~replayed


def _moved(plain: _Tree, rows: Ints, home: Ints) -> Ints:
    """Return all parents, with the rows, and the device activities they launched, under `home`."""
    parent: Ints = plain.parent.copy()
    parent[rows] = home
    launches = rows[plain.kinds(Kind.LAUNCH)[rows]]
    ids = plain.rows["correlation_id"]
    gone = pl.DataFrame(
        {"id": ids.gather(launches), "old": plain.parent[launches], "new": parent[launches]}
    ).unique(["id", "old"], keep="first")
    free = plain.on_device & ~plain.ambiguous
    asking = pl.DataFrame({"id": ids, "old": plain.parent}).with_row_index("row")
    along = asking.filter(pl.Series(free)).join(gone, on=["id", "old"])
    parent[along["row"].to_numpy()] = along["new"].to_numpy()
    return parent


def _fitted(rows: pl.DataFrame, moved: Ints, parent: Ints) -> pl.DataFrame:
    """Return rows with moved library calls on the thread, and cut to the time, of the parent."""
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
    """Return rows with their parents, and moved device activities in the order of their launches.

    Device activities of one name under one parent are put into the order of the serial tree,
    where all of them correspond to serial rows. They hold no other rows, so no other row moves.
    """
    columns = {"row": np.arange(rows.height), "match": match, "new": new, "parent": parent}
    numbered = rows.select("kind", "name").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )
    chosen = numbered.filter(_ACTIVITY).filter(
        pl.col("new").any().over(_FAMILY), (pl.col("match") >= 0).all().over(_FAMILY)
    )
    sequence = np.arange(rows.height)
    at = chosen.sort(*_FAMILY, "row")["row"].to_numpy()
    sequence[at] = chosen.sort(*_FAMILY, "match")["row"].to_numpy()
    return rows[sequence].with_columns(parent=pl.Series(parent[sequence]))
