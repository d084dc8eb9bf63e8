"""Tables of results: one row for each point and machine, with the best batch of each curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import polars as pl

from xsp.answer.zoo.row import CRASHED, FAILED, MEASURED, OUT_OF_MEMORY, SCHEMA, TIME_OUT, Row

THRESHOLD_PCT: Final = 5.0  # of the paper: a smaller rise is not worth doubling the batch
_CURVE: Final = ("model", "machine", "_basis", "_settings")
_BATCH = r'"batch": \d+(, )?|, "batch": \d+'
_LIMIT = r'"memory limit": "[^"]*", '  # in the basis of what ran out of memory alone


def without_batch() -> pl.Expr:
    """Return the settings of results without the batch, as JSON."""
    return pl.col("settings").str.replace(_BATCH, "")


def with_best(frame: pl.DataFrame) -> pl.DataFrame:
    """Return results with `optimal_batch` and `gain_pct` computed anew."""
    names = frame.columns
    numbered = frame.drop("optimal_batch", "gain_pct").with_row_index("_row")
    curves = numbered.with_columns(
        _settings=without_batch(),
        _basis=pl.col("basis").str.replace(_LIMIT, ""),
    )
    measured = curves.filter(
        pl.col("status") == "measured", pl.col("batch") > 0, pl.col("throughput_per_s") > 0
    )
    gains = measured.sort("batch", maintain_order=True).with_columns(gain_pct=_gain())
    full = curves.filter(pl.col("status") == "out-of-memory").select(_CURVE).unique()
    best = (
        gains.join(full.with_columns(_full=True), on=_CURVE, how="left", nulls_equal=True)
        .group_by(_CURVE)
        .agg(optimal_batch=_best())
    )
    return (
        curves.join(gains.select("_row", "gain_pct"), on="_row", how="left", maintain_order="left")
        .join(best, on=_CURVE, how="left", nulls_equal=True, maintain_order="left")
        .select(names)
    )


def _gain() -> pl.Expr:
    """Return by how much a doubling raises the throughput; of several, each alike."""
    batch, rate = pl.col("batch"), pl.col("throughput_per_s")
    doublings = (batch.shift(-1) / batch).log(2)
    gain = 100 * ((rate.shift(-1) / rate).pow(1 / doublings) - 1)
    return pl.when(batch.shift(-1) > batch).then(gain).over(_CURVE)


def _best() -> pl.Expr:
    """Return the best batch of a curve; the only one that fits in memory is the best."""
    batch = pl.col("batch")
    enough = batch.filter(pl.col("gain_pct") <= THRESHOLD_PCT).min()
    known = (pl.len() > 1) | pl.col("_full").any()
    return pl.when(known).then(pl.coalesce(enough, batch.max()))


# A point with such a status would have the same again if it were measured again.
COMPLETE: Final = frozenset({MEASURED, OUT_OF_MEMORY, TIME_OUT})
_PASSING: Final = (FAILED, CRASHED)  # and with such a one something else, if only elsewhere
_KEY = ("model", "settings", "machine", "status")


class _Entry(NamedTuple):
    """Place of a row: in the frame, or among the rows added since."""

    place: int
    machine: str | None
    status: str


class Table:
    """Results by model, settings and machine.

    A new row takes the place of that of the same model, settings and machine, and of what could not
    be measured on another machine.

    Args:
        frame: The results so far.
    """

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        self._since: list[Row | None] = []
        self._gone: list[int] = []  # rows of the frame
        self._count = frame.height

    def __len__(self) -> int:
        return self._count

    def put(self, row: Row) -> list[Row]:
        """Add a row, and return those that it takes the place of."""
        entries = self._index.setdefault((row["model"], row["settings"]), [])
        machine = row.get("machine")
        old = [e for e in entries if e.machine == machine or e.status in _PASSING]
        rows = [self._row(entry) for entry in old]
        for entry in old:
            entries.remove(entry)
            if entry.place < self._frame.height:
                self._gone.append(entry.place)
            else:
                self._since[entry.place - self._frame.height] = None
        entries.append(_Entry(self._frame.height + len(self._since), machine, row["status"]))
        self._since.append(row)
        self._count += 1 - len(old)
        return rows

    def rows(self, model: str, settings: str) -> Iterator[Row]:
        """Yield the rows of a point, one for each machine, that of now first."""
        for entry in reversed(self._index.get((model, settings), ())):
            yield self._row(entry)

    def frame(self) -> pl.DataFrame:
        """Return all rows as a table, with the best batch of each curve."""
        new = frame_of([row for row in self._since if row is not None])
        if not new.height and not self._gone:
            return self._frame
        gone = pl.Series(self._gone, dtype=pl.Int64)
        places = pl.int_range(self._frame.height, eager=True)
        kept = self._frame.filter(~places.is_in(gone.implode()))
        return with_best(joined([kept, new]))

    @cached_property
    def _index(self) -> dict[tuple[str, str], list[_Entry]]:
        """Where the rows of each point are; made when first asked for, as readers need none."""
        index: dict[tuple[str, str], list[_Entry]] = {}
        columns = (self._frame[name].to_list() for name in _KEY)
        for place, (model, settings, *rest) in enumerate(zip(*columns, strict=True)):
            index.setdefault((model, settings), []).append(_Entry(place, *rest))
        return index

    def _row(self, entry: _Entry) -> Row:
        if entry.place < self._frame.height:
            return self._frame.row(entry.place, named=True)
        row = self._since[entry.place - self._frame.height]
        assert row is not None
        return row


def frame_of(rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows as a table: the columns of `COLUMNS`, then those that only some rows have.

    A further column whose values are of several types is text.
    """
    known = [
        pl.Series(name, [row.get(name) for row in rows], dtype=dtype, strict=False)
        for name, dtype in SCHEMA.items()
    ]
    names = dict.fromkeys(name for row in rows for name in row if name not in SCHEMA)
    return pl.DataFrame([*known, *(_further(name, rows) for name in names)])


def joined(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of several tables as one; further columns of unlike types become text."""
    types: dict[str, set[pl.DataType]] = {}
    for frame in frames:
        for name, dtype in frame.schema.items():
            types.setdefault(name, set()).add(dtype)
    unlike = [
        name
        for name, found in types.items()
        if len(found - {pl.Null()}) > 1 and not all(dtype.is_numeric() for dtype in found)
    ]
    texts = [
        frame.with_columns(pl.col(name).cast(pl.String) for name in unlike if name in frame.columns)
        for frame in frames
    ]
    return pl.concat(texts, how="diagonal_relaxed")


def _further(name: str, rows: Iterable[Row]) -> pl.Series:
    values: list[Any] = [row.get(name) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and not kinds <= {int, float}:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, strict=False)
