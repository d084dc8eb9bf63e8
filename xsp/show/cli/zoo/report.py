"""`xsp zoo report`: writes a page on a zoo's results with a summary, or prints one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xsp.show.cli import terminal
from xsp.show.cli.answer.table import drawn, print_table
from xsp.show.cli.option import output_option

if TYPE_CHECKING:
    import polars as pl

_HELP = """Write one HTML page on the RESULTS of a zoo, and print a summary.

RESULTS is the folder that xsp zoo run has written, of a run under way as well, or the Parquet file
in it. The page needs no network and no server: it may be kept, sent and printed.
"""

_EPILOG = """\b
Examples:
  xsp zoo report results/                          writes results.html
  xsp zoo report results/ -o zoo.html --open
  xsp zoo report results/ --table models           as a table, and no page
  xsp zoo report results/ --table throughput --csv > throughput.csv
"""

_MOST_NAMES = 3  # of zoos in a heading
_TABLES = (
    *("models", "throughput", "batch", "variants", "thirds", "layer-types", "primitives"),
    *("failures", "warnings"),
)


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("results", type=click.Path(exists=True, path_type=Path), metavar="RESULTS")
@output_option("File for the page.  [default: NAME.html, after the folder]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--table",
    "name",
    type=click.Choice(_TABLES),
    metavar="NAME",
    help=f"Print a table instead: {', '.join(_TABLES)}.",
)
@click.option("--csv", "form", flag_value="csv", help="Print the table as CSV.")
@click.option("--json", "form", flag_value="json", help="Print the table as JSON.")
def report(
    results: Path, output: Path | None, name: str | None, form: str | None, *, opens: bool
) -> None:
    """Write a page on a zoo, or print one of its tables."""
    from xsp.answer.zoo import noted_results  # noqa: PLC0415

    if form and not name:
        raise click.UsageError(f"--{form} needs a table. Add --table models.")
    if name and (output or opens):
        raise click.UsageError(
            "--table prints a table and writes no page. Leave out -o and --open."
        )
    frame, notes = noted_results(results)
    for note in notes:
        terminal.say(note)
    if name:
        from xsp.answer.zoo import TABLES  # noqa: PLC0415

        table = TABLES[name](frame)
        if form:
            print_table(table, form)
        else:
            terminal.show(drawn(table))
    else:
        _write(frame, results, output, opens=opens)


def _write(frame: pl.DataFrame, results: Path, output: Path | None, *, opens: bool) -> None:
    from xsp.answer.zoo import summary  # noqa: PLC0415
    from xsp.machine import check_writable  # noqa: PLC0415
    from xsp.show.page import zoo_report  # noqa: PLC0415

    named = results.resolve()
    if results.is_file():
        named = named.parent if named.name == "results.parquet" else named.with_suffix("")
    to = output or Path(f"{named.name or 'zoo'}.html")
    if to.resolve() == results.resolve():
        raise click.UsageError(f"-o would replace an input ({to}). Choose another name.")
    check_writable(to)
    # The names of the zoos of the results; empty where nobody knows, or of many.
    names = frame["zoo"].drop_nulls().unique(maintain_order=True).to_list()
    name = ", ".join(names) if len(names) <= _MOST_NAMES else ""
    zoo_report(frame, to, name=name or named.name or "zoo")
    terminal.show(summary(frame))
    terminal.say(f"the report is {to} ({to.stat().st_size / 1e6:.1f} MB)")
    if opens:
        click.launch(to.resolve().as_uri())
