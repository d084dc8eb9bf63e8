"""Reads columns of tables from an SQLite file of Nsight Systems.

Nothing is taken for granted of the file: tables and columns may be absent, integers may be text,
and text may be no UTF-8. Only pages that are damaged are an error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

MAGIC = b"SQLite format 3\0"
_ROWS = 50_000  # read at a time, so that few of them are Python's objects at once


class Database:
    """A file's tables, and the names that the file gives to numbers.

    Args:
        connection: A connection to the file; whoever made it closes it.

    Attributes:
        columns: Names of the columns of each table.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = _decoded
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.columns: dict[str, frozenset[str]] = {
            name: self._columns_of(name) for (name,) in tables.fetchall()
        }
        self._strings: pl.DataFrame | None = None

    def check_size(self, size: int) -> None:
        """Tell whether the file has all of its pages, before what is missing is taken for zeros.

        Args:
            size: Bytes of the file.

        Raises:
            sqlite3.DatabaseError: It has not.
        """
        pages, page = (
            int(self._connection.execute(f"PRAGMA {what}").fetchone()[0])
            for what in ("page_count", "page_size")
        )
        if size < pages * page:
            raise sqlite3.DatabaseError(f"only {size:,} of {pages * page:,} bytes are there")

    def read(self, table: str, schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return columns of a table, in the order in which its rows were written.

        A column that the table lacks is null, and a table that the file lacks has no rows. So is
        a value that is not of its column's type.
        """
        known = self.columns.get(table, frozenset())
        here = {name: dtype for name, dtype in schema.items() if name in known}
        if not here:
            return pl.DataFrame(schema=schema)
        asked = ", ".join(map(_quoted, here))
        cursor = self._connection.execute(f"SELECT {asked} FROM {_quoted(table)}")
        parts = [pl.DataFrame(schema=here)]
        while rows := cursor.fetchmany(_ROWS):
            columns = zip(here.items(), zip(*rows, strict=True), strict=True)
            parts.append(pl.DataFrame([_series(*column, values) for column, values in columns]))
        absent = [pl.lit(None, schema[name]).alias(name) for name in schema if name not in here]
        return pl.concat(parts).with_columns(absent)

    def count(self, table: str) -> int:
        """Return the number of rows of a table that exists."""
        asked = self._connection.execute(f"SELECT count(*) FROM {_quoted(table)}")
        return int(asked.fetchone()[0])

    def strings(self, ids: pl.Series) -> pl.Series:
        """Return the strings that the file stores under these ids; null where it has none."""
        if self._strings is None:
            read = self.read("StringIds", {"id": pl.Int64, "value": pl.String})
            self._strings = read.unique("id", keep="last").drop_nulls()
        asked = pl.DataFrame({"id": ids})
        found = asked.join(self._strings, on="id", how="left", maintain_order="left")
        return found["value"]

    def enumeration(self, table: str, default: Mapping[int, str]) -> dict[int, str]:
        """Return the names of an enumeration's numbers.

        Args:
            table: The table that lists them.
            default: Names of the numbers where the file has no such table, as in exports of
                before 2023.
        """
        read = self.read(table, {"id": pl.Int64, "name": pl.String}).drop_nulls()
        return dict(read.iter_rows()) or dict(default)

    def _columns_of(self, table: str) -> frozenset[str]:
        described = self._connection.execute(f"PRAGMA table_info({_quoted(table)})")
        return frozenset(row[1] for row in described.fetchall())


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Yield the database in a file, which is not written to.

    Raises:
        sqlite3.Error: The file is no SQLite database, or is damaged; at any time.
    """
    # `immutable`: no journal is looked for beside a file that may lie in a read-only folder.
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        yield Database(connection)


def _series(name: str, dtype: Any, values: tuple[Any, ...]) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=dtype)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):  # SQLite holds any type anywhere
        return pl.Series(name, values, dtype=dtype, strict=False)


def _quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")
