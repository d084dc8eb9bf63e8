"""Reading results: a folder in, under way or done, its table out, with what to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import polars as pl

from xsp.errors import TraceFormatError
from xsp.text import counted
from xsp.trace import DAMAGE
from xsp.zoo.results.column import FACT, SCHEMA, SET
from xsp.zoo.results.journal import rows_in
from xsp.zoo.results.table import Table, frame_of

TABLE, JOURNAL = "results.parquet", "results.journal"
_NEEDED = ("model", "settings", "machine", "status")
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """The results in a folder.

    Attributes:
        table: The results.
        journalled: How many rows of the journal are among them.
        notes: What to know of them, a sentence each.
    """

    table: Table
    journalled: int
    notes: tuple[str, ...]


def read_results(path: str | PathLike[str]) -> pl.DataFrame:
    """Return the results in a folder, of a run under way as well; or of a table copied from one.

    Args:
        path: The folder, or a Parquet file.

    Raises:
        TraceFormatError: There are no results, or they are damaged.
    """
    return noted_results(path)[0]


def noted_results(path: str | PathLike[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the results as `read_results` does, and sentences on what to know of them.

    Raises:
        TraceFormatError: There are no results, or they are damaged.
    """
    path = Path(path)
    if path.is_file():
        return _table(path)
    if not (path / TABLE).exists() and not (path / JOURNAL).exists():
        raise TraceFormatError(f"{path} holds no results of a zoo: xsp zoo run writes some (-o)")
    found = stored(path)
    return found.table.frame(), found.notes


def stored(folder: Path) -> Stored:
    """Return the results in a folder; none where there are none yet.

    Raises:
        TraceFormatError: The table is damaged, or is none of a zoo.
    """
    for _ in range(_TRIES):
        # The journal first: its rows may move to the table meanwhile, and never back.
        before = _identity(folder / JOURNAL)
        rows, damaged = rows_in(folder / JOURNAL)
        frame, notes = _table(folder / TABLE)
        if _identity(folder / JOURNAL) == before:
            break
    table = Table(frame)
    for row in rows:
        table.put(row)
    return Stored(table, len(rows), (*notes, *_damaged(folder, damaged)))


def _identity(path: Path) -> int | None:
    """Return what differs between a journal and that which has taken its place."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _table(path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the table in a file, with all columns, and what to know of it."""
    if not path.exists():
        return frame_of([]), ()
    try:
        frame = pl.read_parquet(path)
        frame.select(_NEEDED)  # without which nothing is known of any row
        missing = [name for name in SCHEMA if name not in frame.columns]
        known = [pl.col(name).cast(dtype) for name, dtype in SCHEMA.items() if name not in missing]
        empty = [pl.lit(None, dtype=SCHEMA[name]).alias(name) for name in missing]
        more = [name for name in frame.columns if name not in SCHEMA]
        complete = frame.with_columns(*known, *empty).select(*SCHEMA, *more)
    except DAMAGE as error:
        raise TraceFormatError(
            f"{path} is damaged, or no table of a zoo's results: choose another folder, or delete "
            f"it to measure all anew ({error})"
        ) from error
    return complete, tuple(_notes(path, missing, more))


def _notes(path: Path, missing: list[str], more: list[str]) -> list[str]:
    notes = []
    if missing:
        notes.append(
            f"{path} was written by an older xsp: not known of its results are {', '.join(missing)}"
        )
    if foreign := [name for name in more if not name.startswith((SET, FACT))]:
        notes.append(f"{path} has columns that this xsp does not know: {', '.join(foreign)}")
    return notes


def _damaged(folder: Path, lines: int) -> list[str]:
    if not lines:
        return []
    said = counted(lines, "line")
    return [f"{said} of {folder / JOURNAL} cannot be read: what stood there is measured again"]
