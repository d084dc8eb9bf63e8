"""Reads the tables of a rocmProfileData file as frames."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from xsp.errors import TraceFormatError

_PIECE = 100_000  # rows that are read at once
_SPACE = 12  # times the file's size that reading takes
_NEEDED = {"rocpd_api", "rocpd_op"}
_READ = {"rocpd_api_ops", "rocpd_string", "rocpd_kernelapi", "rocpd_copyapi", "ext_autogradapi"}
# Tables that repeat others, or the schema.
_REPEATING = {"rocpd_metadata", "sqlite_sequence", "ext_callstack", "rocpd_kernelcodeobject"}


def opened(path: Path, name: Path) -> sqlite3.Connection:
    """Return a connection to a database that neither writes nor waits.

    Args:
        path: The database.
        name: The file that the user named, which may be the database packed.

    Raises:
        TraceFormatError: The database is too large for the memory that is available.
    """
    if path.stat().st_size * _SPACE > psutil.virtual_memory().available:
        raise TraceFormatError(
            f"{name} is too large for the memory that is available now: read it on a machine with "
            "more memory, or record for less time"
        )
    file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    file.text_factory = lambda text: text.decode(errors="replace")
    return file


@dataclass(frozen=True)
class Tables:
    """The tables of a file, and what of them is left out.

    Attributes:
        file: The database.
        damaged: Rows that are damaged, by what they are.
        left: Rows that are not understood, by what they are.
    """

    file: sqlite3.Connection
    damaged: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the tables."""
        found = self.file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return frozenset(str(name) for (name,) in found)

    @cached_property
    def strings(self) -> Mapping[int, str | None]:
        """The texts of the file by their numbers."""
        pieces = self._pieces("rocpd_string", "id", "string")
        return {key: _text(text) for rows in pieces for key, text in rows}

    @cached_property
    def calls(self) -> pl.DataFrame:
        """`id`, `pid`, `thread`, times, `name` and `text` (arguments) of the calls of the host."""
        frame = self.frame(
            "rocpd_api",
            id="id",
            pid="pid",
            thread="tid",
            start_ns="start",
            end_ns="end",
            name="apiName_id",
            text="args_id",
        )
        return self.worded(frame, "name", "text")

    def check(self, path: Path) -> None:
        """Find out whether the tables are those of rocmProfileData.

        Raises:
            TraceFormatError: They are not.
        """
        if not self.names >= _NEEDED:
            raise TraceFormatError(
                f"{path} has tables of rocpd, but not those of rocmProfileData. Record again with "
                "rocprofv3 --output-format json"
            )

    def frame(self, table: str, **columns: str) -> pl.DataFrame:
        """Return columns of whole numbers; what is none is null. No rows if there is no table.

        Args:
            table: Name of the table.
            columns: Name of each column in the file, by its name in the frame.
        """
        names = tuple(columns)
        parts = [pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))]
        for rows in self._pieces(table, *columns.values()):
            values = zip(names, zip(*rows, strict=True), strict=True)
            parts.append(pl.DataFrame([_numbers(name, part) for name, part in values]))
        return pl.concat(parts)

    def worded(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Return a frame with texts in place of the numbers of texts; null for numbers of none."""
        texts = pl.DataFrame(
            {"number": list(self.strings), "text_": list(self.strings.values())},
            schema={"number": pl.Int64, "text_": pl.String},
            strict=False,
        )
        for column in columns:
            joined = frame.select(column).join(
                texts, left_on=column, right_on="number", how="left", maintain_order="left"
            )
            frame = frame.with_columns(joined["text_"].alias(column))
        return frame

    def sound(self, frame: pl.DataFrame, what: str) -> pl.DataFrame:
        """Return rows that have a name, a start, and an end after it; the others are counted."""
        sound = pl.col("name").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns"))
        kept = frame.filter(sound.fill_null(value=False))
        if kept.height < frame.height:
            self.damaged[what] += frame.height - kept.height
        return kept

    def count_others(self) -> None:
        """Count the rows of tables that are not read."""
        for table in sorted(self.names - _NEEDED - _READ - _REPEATING):
            quoted = table.replace('"', '""')
            count = self.file.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()[0]
            if count:
                self.left[f"rows of {table}"] += count

    def _pieces(self, table: str, *columns: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield columns of a table, in the order of its rows; nothing if there is no such table.

        Tuples take many times the memory of columns, so there are never many of them.
        """
        if table not in self.names:
            return
        quoted = ", ".join(f'"{column}"' for column in columns)
        found = self.file.execute(f'SELECT {quoted} FROM "{table}" ORDER BY rowid')
        while rows := found.fetchmany(_PIECE):
            yield rows


def _text(value: Any) -> str | None:
    """Return text, which SQLite keeps as bytes where the tracer wrote bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _numbers(name: str, values: Sequence[Any]) -> pl.Series:
    """Return a column of whole numbers; null for anything else."""
    try:
        return pl.Series(name, values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [_whole(each) for each in values], dtype=pl.Int64)


def _whole(value: Any) -> int | None:
    """Return a whole number; None for anything else that SQLite keeps in its place."""
    return value if isinstance(value, int) else None
