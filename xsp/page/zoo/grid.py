"""Grids: a table of a zoo in, its columns packed for the page's script out.

The script draws those rows that can be seen, so a table may have a hundred thousand. Numbers have
13 significant bits, which are more than the page shows, and compress well; texts stand in the page
once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.analyses import ends_of, heading_of
from xsp.page.packing import pack
from xsp.text import printable, shorten
from xsp.zoo import IDENTITY, ZooTable, labels_of, varying

_KEPT_BITS = np.uint32(0xFFFFFC00)  # sign, exponent, and 13 bits of the mantissa
_HALF = np.uint32(0x200)
_LONGEST = 200  # characters of a cell
_KNOWN = (*IDENTITY, "batch", "optimal_batch", "optimal_batch_sure", "best", "differs")
_HIDDEN = ("variant", "machine")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid: its name, heading and meaning."""

    name: str
    heading: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A table on the page.

    Attributes:
        name: Name of the table on the command line.
        question: Its heading.
        paper: The table of the paper that it has the shape of, or empty.
        columns: Its columns.
        height: Rows of the whole table.
        kept: Rows that are on the page.
        same: Columns that say the same of all entries, and what.
        unknown: Headings of columns without values.
        packed: What the page's script needs.
    """

    name: str
    question: str
    paper: str
    columns: tuple[Column, ...]
    height: int
    kept: int
    same: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    packed: str

    @property
    def says_more(self) -> bool:
        """Whether any row has more than what its entry and batch are."""
        return any(column.name not in _KNOWN for column in self.columns)


def grid_of(table: ZooTable, results: pl.DataFrame, most: int) -> Grid:
    """Return a table of results as the page shows it.

    Args:
        table: The table.
        results: The frame of results.
        most: Rows that the page has at most.
    """
    whole = table.make(results)
    ends = {end for pair in ends_of([*table.columns]).values() for end in pair}
    told = [name for name in table.columns if name not in ends]
    shown, same, unknown = _parted(whole, told)
    frame = whole.head(most)
    columns = tuple(Column(name, heading_of(name), _meaning(table, name)) for name in shown)
    return Grid(
        name=table.name,
        question=table.question,
        paper=table.paper,
        columns=columns,
        height=whole.height,
        kept=frame.height,
        same=same,
        unknown=unknown,
        packed=_packed(frame, shown),
    )


def _parted(
    whole: pl.DataFrame, told: list[str]
) -> tuple[list[str], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the columns that are shown, those that say the same throughout, and empty ones."""
    known = [name for name in told if whole[name].count()]
    differing = ["model", "family", *varying(whole)]
    if labels_of(whole).n_unique() < whole["entry"].n_unique():
        differing.append("variant")  # settings that have no column of their own
    constant = [name for name in known if name in IDENTITY and name not in differing]
    shown = [name for name in known if name not in constant]
    same = tuple(
        (heading_of(name), _word(whole[name].drop_nulls()[0]))
        for name in constant
        if name not in _HIDDEN
    )
    empty = [name for name in told if name not in known and name not in IDENTITY]
    return shown, same, tuple(map(heading_of, empty))


def _word(value: Any) -> str:
    return (
        {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )


def _meaning(table: ZooTable, name: str) -> str:
    has_interval = name in ends_of([*table.columns])
    return table.columns[name] + " With the reach of its 95 % interval." * has_interval


def _packed(frame: pl.DataFrame, shown: list[str]) -> str:
    ends = ends_of(frame.columns)
    arrays: dict[str, NDArray[Any]] = {"entry": frame["entry"].to_numpy().astype(np.int32)}
    columns = []
    for name in shown:
        if frame[name].dtype.is_numeric():
            whole = frame[name].dtype.is_integer()
            columns.append({"name": name, "whole": whole, "interval": name in ends})
            arrays |= _numbers(frame, (name, *ends.get(name, ())))
        else:
            texts, arrays[name] = _texts(frame[name])
            columns.append({"name": name, "texts": texts})
    return pack({"columns": columns, "height": frame.height}, arrays)


def _numbers(frame: pl.DataFrame, names: tuple[str, ...]) -> Mapping[str, NDArray[Any]]:
    """Return a column, and the ends of its interval, as `NAME`, `NAME.low` and `NAME.high`."""
    called = (names[0], f"{names[0]}.low", f"{names[0]}.high")
    return {said: rounded(frame[name]) for said, name in zip(called, names, strict=False)}


def rounded(values: pl.Series) -> NDArray[np.float32]:
    """Return numbers with 13 bits behind the first; whole ones up to 8,191 are exact.

    >>> rounded(pl.Series([3.0, None, 41_234_567.0])).tolist()
    [3.0, nan, 41234432.0]
    """
    floats = values.cast(pl.Float64).fill_null(np.nan).to_numpy().astype(np.float32)
    bits = np.where(np.isfinite(floats), floats, np.float32(0)).view(np.uint32)
    kept: NDArray[np.float32] = ((bits + _HALF) & _KEPT_BITS).view(np.float32)
    kept[~np.isfinite(floats)] = np.nan
    return kept


def _texts(column: pl.Series) -> tuple[list[str], NDArray[np.uint32]]:
    """Return the different texts of a column, and the number of each row's; missing is empty."""
    if column.dtype == pl.Boolean:
        column = column.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    texts = pl.DataFrame({"text": column.cast(pl.String).fill_null("")})
    unique = texts.unique(maintain_order=True).with_row_index("code")
    codes = texts.join(unique, on="text", how="left", maintain_order="left")["code"]
    words = [shorten(printable(text), _LONGEST) for text in unique["text"]]
    return words, codes.to_numpy().astype(np.uint32)
