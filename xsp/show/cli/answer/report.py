"""`xsp report` writes one HTML page about traces, which needs no other file."""

from __future__ import annotations

from pathlib import Path

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import output_option
from xsp.show.cli.reading import FILE, names_of, read

_HELP = """Write one HTML page on the traces in FILES, to look at in a browser.

FILES are traces that xsp saved, or recordings of other tools (see xsp import).
The page needs no network and no server: it may be kept, sent and printed.
"""

_EPILOG = """\b
Examples:
  xsp report resnet50.xsp                       writes resnet50.html
  xsp report resnet50.xsp --open
  xsp report before.xsp after.xsp -o change.html
  xsp report trace.json.gz
"""

# Of names such as `trace.json.gz`, which the page's name has none of.
_SUFFIXES = (".gz", ".json", ".xsp", ".pb", ".xplane", ".sqlite", ".csv", ".rpd")


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, type=FILE)
@output_option("File for the page.  [default: NAME.html, of several files report.html]")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def report(files: tuple[Path, ...], output: Path | None, *, opens: bool) -> None:
    """Write a page on traces."""
    from xsp.machine import check_writable  # noqa: PLC0415
    from xsp.show.page import report as write_report  # noqa: PLC0415

    to = output or Path(_name(files))
    if any(to.resolve() == file.resolve() for file in files):
        raise click.UsageError(f"-o would replace an input file ({to}). Choose another name.")
    check_writable(to)
    write_report([read([file]) for file in files], to, names=names_of(files))
    terminal.say(f"the report is {to} ({to.stat().st_size / 1e6:.1f} MB)")
    if opens:
        click.launch(to.resolve().as_uri())


def _name(files: tuple[Path, ...]) -> str:
    """Return the name of the page on some files, in the working folder."""
    if len(files) > 1:
        return "report.html"
    name = files[0]
    while name.suffix in _SUFFIXES and name.stem:
        name = name.with_suffix("")
    return f"{name.name}.html"
