"""`xsp analyze`: trace files and the name of an analysis in, its table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from xsp.cli import terminal
from xsp.cli.option import output_option
from xsp.cli.reading import read

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from xsp.analyses import Analysis
    from xsp.trace import Trace

_HELP = """Answer one question about the traces in FILES by a table.

FILES are traces that xsp saved, or recordings of other tools (see xsp import).
Without a NAME: what these traces can answer, and what the rest would need.
"""

_EPILOG = """\b
Examples:
  xsp analyze resnet50.xsp                           what can be asked
  xsp analyze resnet50.xsp layer-latency
  xsp analyze resnet50.xsp layer-latency --rows 10 --sort own_ns
  xsp analyze resnet50.xsp layer-latency --csv > layers.csv
  xsp analyze resnet50.xsp layer-latency -o layers.html      its picture
  xsp analyze trace.json.gz kernel-by-name -o kernels.parquet
"""

_FORMATS = (".csv", ".json", ".parquet", ".html")


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("arguments", nargs=-1, required=True, metavar="FILES... [NAME]")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Print the first N rows.")
@click.option("--sort", metavar="COLUMN", help="Largest values of this column first.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the whole table as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole table as JSON.")
@output_option("Save the whole table: .csv, .json or .parquet, or its picture: .html.")
def analyze(
    arguments: tuple[str, ...],
    rows: int | None,
    sort: str | None,
    output: Path | None,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print what one analysis says of traces."""
    files, name = _parted(arguments)
    if output is not None and output.suffix not in _FORMATS:
        raise click.UsageError(f"{output} has to end in .csv, .json, .parquet or .html")
    traces = [read([file]) for file in files]
    if name is None:
        terminal.show(_possible(traces))
        return
    analysis = _named(name)
    table = _sorted(_answer(analysis, traces), sort)
    table = table if rows is None else table.head(rows)
    if output is not None and output.suffix == ".html":
        _draw(analysis, table, output)
    elif output is not None:
        _save(table, output)
    elif as_csv:
        terminal.show(_flat(table).write_csv().rstrip("\n"))
    elif as_json:
        terminal.show(table.write_json())
    else:
        terminal.show(_drawn(table))


def _parted(arguments: tuple[str, ...]) -> tuple[list[Path], str | None]:
    """Return the files among the arguments, and the name after them."""
    *files, last = arguments
    name = None if Path(last).exists() else last
    paths = [Path(file) for file in (files if name else arguments)]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing or not paths:
        raise click.UsageError(f"there is no file {(missing or [last])[0]}")
    return paths, name


def _named(name: str) -> Analysis[Any]:
    from xsp.analyses import ALL  # noqa: PLC0415
    from xsp.suggestion import suggest  # noqa: PLC0415

    for analysis in ALL:
        if name in (analysis.name, analysis.name.replace("-", "_"), analysis.paper):
            return analysis
    names = [analysis.name for analysis in ALL]
    raise click.UsageError(f"there is no analysis {name!r}{suggest(name, names)}")


def _answer(analysis: Analysis[Any], traces: list[Trace]) -> pl.DataFrame:
    if len(traces) > 1 and not analysis.several:
        raise click.UsageError(f"{analysis.name} is of one trace, and there are {len(traces)}")
    return analysis(*traces)


def _possible(traces: list[Trace]) -> str:
    """Return a line for each analysis: its question, or what the traces lack for it."""
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from xsp.analyses import ALL  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    for analysis in ALL:
        unmet = next((why for trace in traces if (why := analysis.unmet(trace))), None)
        said = f"[dim]— {escape(unmet)}[/dim]" if unmet else escape(analysis.question)
        table.add_row(analysis.name, analysis.paper or "", said)
    return terminal.drawn(table)


def _sorted(table: pl.DataFrame, column: str | None) -> pl.DataFrame:
    if column is None:
        return table
    if column not in table.columns:
        raise click.UsageError(f"there is no column {column}; there are {', '.join(table.columns)}")
    return table.sort(column, descending=True, nulls_last=True)


def _drawn(table: pl.DataFrame) -> str:
    """Return a table as the terminal shows it: quantities in units that people read.

    A value has its interval behind it. Columns without any value are named below. A table that is
    too wide for the terminal has no paths; one of few rows that still is has its columns as lines.
    """
    from xsp.analyses import ends_of, estimate_of, heading_of  # noqa: PLC0415

    ends = ends_of(table.columns)
    hidden = {end for pair in ends.values() for end in pair}
    shown = [name for name in table.columns if name not in hidden]
    unknown = [name for name in shown if table.height and table[name].null_count() == table.height]
    columns = {}
    for name in [name for name in shown if name not in unknown]:
        cells = zip(*(table[column] for column in (name, *ends.get(name, ()))), strict=True)
        columns[name] = [estimate_of(name, *cell) for cell in cells]
    numbers = {name for name in columns if table[name].dtype.is_numeric()}
    text = _fitting(columns, numbers)
    names = ", ".join(heading_of(column) for column in unknown)
    return f"{text}\n\nno values here: {names}" if unknown else text


def _fitting(columns: dict[str, list[str]], numbers: set[str]) -> str:
    """Return a table that is not wider than the terminal, if that can be had."""
    if not _fits(_grid(columns, numbers)):
        columns = {name: columns[name] for name in columns if name != "path" or len(columns) == 1}
    grid = _grid(columns, numbers)
    if not _fits(grid) and _fits(turned := _turned(columns)):
        return terminal.drawn(turned)
    return terminal.drawn(grid)


def _fits(grid: Table) -> bool:
    lines = terminal.drawn(grid, terminal.UNBOUNDED).splitlines()
    return max(map(len, lines), default=0) <= terminal.width()


def _grid(columns: dict[str, list[str]], numbers: set[str]) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from xsp.analyses import heading_of  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        grid.add_column(heading_of(name), justify=justify, no_wrap=name in numbers)
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _turned(columns: dict[str, list[str]]) -> Table:
    """Return a table whose lines are the columns."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from xsp.analyses import heading_of  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False, show_header=False)
    for name, cells in columns.items():
        grid.add_row(heading_of(name), *map(Text, cells))
    return grid


def _save(table: pl.DataFrame, to: Path) -> None:
    """Write a table to a file whose suffix says the format, whole or not at all."""
    from xsp.atomic_file import replacing  # noqa: PLC0415

    with replacing(to) as file:
        if to.suffix == ".csv":
            _flat(table).write_csv(file)
        elif to.suffix == ".json":
            file.write(table.write_json().encode())
        else:
            table.write_parquet(file)


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose lists are texts, for CSV has none."""
    import polars as pl  # noqa: PLC0415

    from xsp.analyses import text_of  # noqa: PLC0415

    for name, dtype in table.schema.items():
        if dtype.is_nested():
            texts = [None if value is None else text_of(name, value) for value in table[name]]
            table = table.with_columns(pl.Series(name, texts, dtype=pl.String))
    return table


def _draw(analysis: Analysis[Any], table: pl.DataFrame, to: Path) -> None:
    """Write the picture of a table to a file."""
    from xsp.plot import picture_of  # noqa: PLC0415

    picture = picture_of(analysis)
    if picture is None:
        raise click.UsageError(f"{analysis.name} has no picture, for its table says it all")
    picture.of(table).save(to)
