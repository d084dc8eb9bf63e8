"""`xsp analyze`: trace files and the name of an analysis in, its table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import terminal
from xsp.cli.answer.prose import advised
from xsp.cli.answer.table import drawn, flat, print_table
from xsp.cli.option import output_option
from xsp.cli.reading import read

if TYPE_CHECKING:
    import polars as pl

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
@click.option("--sort", metavar="COLUMN", help="Largest values of this column first, as latency.")
@click.option("--csv", "form", flag_value="csv", help="Print the whole table as CSV.")
@click.option("--json", "form", flag_value="json", help="Print the whole table as JSON.")
@click.option("--parquet", "form", flag_value="parquet", help="Write it as Parquet, into a pipe.")
@output_option("Save the whole table: .csv, .json or .parquet, or its picture: .html.")
def analyze(
    arguments: tuple[str, ...],
    rows: int | None,
    sort: str | None,
    output: Path | None,
    form: str | None,
) -> None:
    """Print what one analysis says of traces."""
    files, name = _parted(arguments)
    if output is not None and output.suffix not in _FORMATS:
        raise click.UsageError(f"{output} has to end in .csv, .json, .parquet or .html")
    traces = [read([file]) for file in files]
    if name is None:
        terminal.show(_possible(traces, files))
        return
    analysis = _named(name)
    table = _answer(analysis, traces, files)
    by = None if sort is None else _column(table, sort)
    table = table if by is None else table.sort(by, descending=True, nulls_last=True)
    table = table if rows is None else table.head(rows)
    if output is not None and output.suffix == ".html":
        _draw(analysis, table, output)
    elif output is not None:
        _save(table, output)
    elif form is not None:
        print_table(table, form)
    elif analysis.name == "advice":
        terminal.write(advised(table))
    else:
        terminal.show(drawn(table, by))


def _parted(arguments: tuple[str, ...]) -> tuple[list[Path], str | None]:
    """Return the files among the arguments, and the name, wherever that stands."""
    files = [Path(each) for each in arguments if Path(each).is_file()]
    others = [each for each in arguments if not Path(each).is_file()]
    names = [each for each in others if _is_name(each)]
    wrong = [each for each in others if each not in names]
    if wrong and (names or not files):
        raise click.UsageError(f"there is no file {wrong[0]}: {_ORDER}")
    if wrong:
        raise click.UsageError(f"{wrong[0]} is neither a file nor an analysis{_near(wrong[0])}")
    if not files:
        raise click.UsageError(f"there is no file: {_ORDER}")
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} are two analyses: ask one at a time")
    return files, names[0] if names else None


_ORDER = "xsp analyze FILES... [NAME]"


def _is_name(name: str) -> bool:
    from xsp.analyses import ALL  # noqa: PLC0415

    return any(name in _names(analysis) for analysis in ALL)


def _near(name: str) -> str:
    from xsp.analyses import ALL  # noqa: PLC0415
    from xsp.text import suggest  # noqa: PLC0415

    near = suggest(name, [analysis.name for analysis in ALL])
    return f"{near} The order is: {_ORDER}" if near else f": {_ORDER}"


def _names(analysis: Analysis[Any]) -> tuple[str | None, ...]:
    return analysis.name, analysis.name.replace("-", "_"), analysis.paper


def _named(name: str) -> Analysis[Any]:
    from xsp.analyses import ALL  # noqa: PLC0415

    return next(analysis for analysis in ALL if name in _names(analysis))


def _answer(analysis: Analysis[Any], traces: list[Trace], files: list[Path]) -> pl.DataFrame:
    if len(traces) > 1 and not analysis.several:
        raise click.UsageError(
            f"{analysis.name} is of one trace, and there are {len(traces)}. {_joining(files)}"
        )
    return analysis(*traces)


def _joining(files: list[Path]) -> str:
    return f"Recordings of ranks are joined by: xsp import {' '.join(map(str, files))} -o ranks.xsp"


def _possible(traces: list[Trace], files: list[Path]) -> str:
    """Return a line for each analysis: its question, or what the traces lack for it.

    Of several traces these are the analyses that take several.
    """
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from xsp.analyses import ALL  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    for analysis in [each for each in ALL if each.several or len(traces) == 1]:
        unmet = next((why for trace in traces if (why := analysis.unmet(trace))), None)
        said = f"[dim]— {escape(unmet)}[/dim]" if unmet else escape(analysis.question)
        table.add_row(analysis.name, analysis.paper or "", said)
    if len(traces) == 1:
        return terminal.drawn(table)
    return f"{terminal.drawn(table)}\n\nThe other analyses are of one trace. {_joining(files)}"


def _column(table: pl.DataFrame, name: str) -> str:
    """Return the column of this name, or of this heading, with or without its unit."""
    from xsp.analyses import heading_of  # noqa: PLC0415
    from xsp.text import suggest  # noqa: PLC0415

    headings = {column: heading_of(column) for column in table.columns}
    bare = {column: heading.removesuffix(" %") for column, heading in headings.items()}
    words = {column: column.replace("_", " ") for column in headings}
    folded = name.lower().replace("_", " ").replace("-", " ")
    for called in ({column: column for column in headings}, words, headings, bare):
        for column, known in called.items():
            if known in (name, folded):
                return column
    near = suggest(name, table.columns) or suggest(folded, bare.values())
    known = near or f"; there are {', '.join(table.columns)}"
    raise click.UsageError(f"there is no column {name}{known}")


def _save(table: pl.DataFrame, to: Path) -> None:
    """Write a table to a file whose suffix says the format, whole or not at all."""
    from xsp.machine import replacing  # noqa: PLC0415

    with replacing(to) as file:
        if to.suffix == ".csv":
            flat(table).write_csv(file)
        elif to.suffix == ".json":
            file.write(table.write_json().encode())
        else:
            table.write_parquet(file)


def _draw(analysis: Analysis[Any], table: pl.DataFrame, to: Path) -> None:
    """Write the picture of a table to a file."""
    from xsp.plot import picture_of  # noqa: PLC0415

    picture = picture_of(analysis)
    if picture is None:
        raise click.UsageError(f"{analysis.name} has no picture, for its table says it all")
    picture.of(table).save(to)
