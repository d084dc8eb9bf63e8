"""Draws the table of an analysis no wider than the terminal.

Other programs get the whole table, as CSV, JSON or Parquet.

Names of rows stay readable and numbers are never cut: a table that is too wide loses whole columns,
and a line below it names them.
"""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import click

from xsp.show.cli import terminal

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

Cells = Mapping[str, list[str]]

# What names a row, besides its path.
_NAMES = ("kernel", "layer", "module", "operator", "primitive", "work", "name")
# Sentences: their lines are broken, where names are shortened in the middle.
_PROSE = ("evidence", "estimate", "advice", "verify")
# Characters of a name that can be read, those of one that hints, and those between two columns.
_READABLE, _LEAST, _GAP = 40, 8, 2
_MEASURES = ("_ns", "_bytes")


def drawn(table: pl.DataFrame, sort: str | None = None) -> str:
    """Return a table as the terminal shows it: quantities in units that people read.

    A value has its interval behind it. Columns without any value, and those for which there is no
    room, are named below the table.

    Args:
        table: Result of an analysis.
        sort: Column by which rows are sorted, which stays.
    """
    from xsp.answer.analyses import ends_of, estimate_of  # noqa: PLC0415

    ends = ends_of(table.columns)
    hidden = {end for pair in ends.values() for end in pair}
    shown = [name for name in table.columns if name not in hidden]
    unknown = [name for name in shown if table.height and table[name].null_count() == table.height]
    columns = {}
    for name in [name for name in shown if name not in unknown]:
        cells = zip(*(table[column] for column in (name, *ends.get(name, ()))), strict=True)
        columns[name] = [estimate_of(name, *cell) for cell in cells]
    numbers = {name for name in columns if table[name].dtype.is_numeric()}
    text, out = _fitting(columns, numbers, sort)
    notes = [_note("hidden for lack of space", out, _ALL)] if out else []
    notes += [_note("no values here", unknown)] if unknown else []
    return "\n".join([text, "", *notes] if notes else [text])


_ALL = " (wider terminal, --csv or -o FILE has all)"


def _note(what: str, names: list[str], end: str = "") -> str:
    from xsp.answer.analyses import heading_of  # noqa: PLC0415

    line = f"{what}: {', '.join(map(heading_of, names))}{end}"
    return textwrap.fill(line, terminal.width(), break_long_words=False, break_on_hyphens=False)


def _fitting(columns: Cells, numbers: set[str], sort: str | None) -> tuple[str, list[str]]:
    """Return a table that is not wider than the terminal, and the columns that it lacks.

    Texts that have their row's name beside them go first, then texts are shortened. One of few rows
    that still is too wide has its columns as lines; others lose numbers from the right.
    """
    room = terminal.width()
    kept = list(columns)
    for spare in _spare(kept):
        if spare != sort and _wide(columns, kept, numbers, whole=True) > room:
            kept.remove(spare)
    if _wide(columns, kept, numbers) > room:
        turned = terminal.drawn(_turned(columns), terminal.UNBOUNDED).splitlines()
        if max(map(len, turned)) <= room:
            return "\n".join(turned), []
        kept = _chosen(columns, kept, numbers, sort)
    grid = _grid(_shortened({name: columns[name] for name in kept}, numbers), numbers)
    return terminal.drawn(grid), [name for name in columns if name not in kept]


def _spare(names: list[str]) -> list[str]:
    """Return the columns that say at length what another says in short."""
    named = any(name in names for name in _NAMES)
    spare = ["full_name"] if "kernel" in names else []
    spare += ["path"] if named else []
    return [name for name in spare if name in names]


def _chosen(columns: Cells, names: list[str], numbers: set[str], sort: str | None) -> list[str]:
    """Return the columns for which there is room: a name and a measure, then those from the left.

    A text for which there is no room lets the columns on its right in; a number does not.
    """
    measures = [name for name in names if name in numbers]
    timed = [name for name in measures if name.endswith(_MEASURES)]
    keys = _keys(columns, [name for name in names if name not in numbers]) or names[:1]
    kept = {*keys, sort or keys[0], *(timed or measures)[:1]} & set(names)
    for name in names:
        if _wide(columns, [*kept - {name}, name], numbers) <= terminal.width():
            kept.add(name)
        elif name in numbers and name not in kept:
            break
    return [name for name in names if name in kept]


def _keys(columns: Cells, texts: list[str]) -> list[str]:
    """Return the column that names a row, or else the first texts that tell all rows apart.

    >>> _keys({"phase": ["a", "a"], "type": ["x", "y"], "more": ["p", "q"]}, ["phase", "type"])
    ['type']
    """
    named = [name for name in texts if name in _NAMES]
    if named:
        return named[:1]
    keys: list[str] = []
    known = 1
    for name in texts:
        different = len(set(zip(*(columns[each] for each in (*keys, name)), strict=True)))
        if different > known:
            keys, known = [*keys, name], different
    return keys or texts[:1]


def _wide(columns: Cells, names: list[str], numbers: set[str], *, whole: bool = False) -> int:
    """Return how wide a table is whose texts are readable, or else whole."""
    widths = (_width(name, columns[name]) for name in names)
    limits = (
        width if whole or name in numbers else min(width, _READABLE)
        for name, width in zip(names, widths, strict=True)
    )
    return sum(limits) + _GAP * (len(names) - 1)


def _width(name: str, cells: list[str]) -> int:
    from rich.cells import cell_len  # noqa: PLC0415

    from xsp.answer.analyses import heading_of  # noqa: PLC0415

    return max(map(cell_len, (heading_of(name), *cells)))


def _shortened(columns: Cells, numbers: set[str]) -> Cells:
    """Return columns that fit the terminal, for names in them are shortened in the middle."""
    from xsp.text import shorten  # noqa: PLC0415

    widths = {name: _width(name, cells) for name, cells in columns.items()}
    over = sum(widths.values()) + _GAP * (len(widths) - 1) - terminal.width()
    texts = sorted(widths.keys() - numbers, key=lambda name: -widths[name])
    for least in (_READABLE, _LEAST):  # less than what can be read only to spare the numbers
        for name in texts:
            less = max(0, min(over, widths[name] - least))
            widths[name], over = widths[name] - less, over - less
    return {
        name: [shorten(cell, widths[name]) for cell in cells]
        if name in texts and name not in _PROSE
        else cells
        for name, cells in columns.items()
    }


def _grid(columns: Cells, numbers: set[str]) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from xsp.answer.analyses import heading_of  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        whole = name not in _PROSE
        grid.add_column(Text(heading_of(name)), justify=justify, no_wrap=whole)
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _turned(columns: Cells) -> Table:
    """Return a table whose lines are the columns."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from xsp.answer.analyses import heading_of  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False, show_header=False)
    for name, cells in columns.items():
        grid.add_row(heading_of(name), *map(Text, cells))
    return grid


def print_table(table: pl.DataFrame, form: str) -> None:
    """Write a table on standard output: as `csv`, `json` or `parquet`."""
    if form == "csv":
        terminal.show(flat(table).write_csv().rstrip("\n"))
    elif form == "json":
        terminal.show(table.write_json())
    elif sys.stdout.isatty():
        raise click.UsageError("Parquet is no text. Use -o FILE.parquet, or a pipe.")
    else:
        packed = io.BytesIO()  # standard output cannot be searched, as polars wants
        table.write_parquet(packed)
        sys.stdout.buffer.write(packed.getvalue())


def flat(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose lists are texts, for CSV has none."""
    import polars as pl  # noqa: PLC0415

    from xsp.answer.analyses import text_of  # noqa: PLC0415

    for name, dtype in table.schema.items():
        if dtype.is_nested():
            texts = [None if value is None else text_of(name, value) for value in table[name]]
            table = table.with_columns(pl.Series(name, texts, dtype=pl.String))
    return table
