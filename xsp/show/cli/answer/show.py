"""`xsp show` prints the tree of a trace, or metadata and spans as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import tree_options
from xsp.show.cli.reading import FILE, read

_EPILOG = """\b
Examples:
  xsp show resnet50.xsp
  xsp show resnet50.xsp --all | less
  xsp show resnet50.xsp --errors --overhead    how far each time is known, and what was removed
  xsp show rank0.json.gz rank1.json.gz         files of other tools, as xsp import reads them
  xsp show resnet50.xsp --json | jq '.spans[] | select(.kind == "layer") | .path'
"""


@click.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="About how many rows to print.",
)
@click.option("--all", "everything", is_flag=True, help="Print every span.")
@tree_options
@click.option("--whole", is_flag=True, help="Of other tools' files: the whole, not a typical step.")
@click.option("--json", "as_json", is_flag=True, help="Print metadata and spans as JSON.")
def show(
    files: tuple[Path, ...],
    rows: int,
    *,
    everything: bool,
    whole: bool,
    as_json: bool,
    **columns: bool,
) -> None:
    """Print the tree of the trace in FILES: one that xsp saved, or recordings of other tools."""
    trace = read(files, steps=not whole)
    if as_json:
        terminal.show(terminal.as_json(trace))
    elif everything:
        terminal.show(trace.tree(rows=None, min_share=0.0, **columns))
    else:
        terminal.show(trace.tree(rows=rows, **columns))
