"""`xsp demo` shows a trace that comes with xsp: a training step on a GPU."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import click

from xsp.show.cli import terminal
from xsp.show.cli.option import output_option

TRACE = Path(__file__).with_name("demo.xsp")

_EPILOG = """\b
Examples:
  xsp demo
  xsp demo --open                              the page, in the browser
"""


@click.command(epilog=_EPILOG)
@output_option("File for the page.  [default: xsp-demo.html]")
@click.option("--rows", type=click.IntRange(min=1), default=30, show_default=True, metavar="N")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def demo(output: Path | None, rows: int, *, opens: bool) -> None:
    """Show a profile that comes with xsp: a training step on an NVIDIA H200.

    xsp prints its tree and writes its report. You need no GPU, no model and no network.
    """
    from xsp.trace import load  # noqa: PLC0415

    trace = load(TRACE)
    # The file lies among those of the installation: commands with its path would help nobody.
    object.__setattr__(trace, "_file", "")
    terminal.show(
        re.sub(r"trace\.tree\(rows=(\d+)\)", r"xsp demo --rows \1", trace.tree(rows=rows))
    )
    to = output or Path("xsp-demo.html")
    if output is None and not os.access(".", os.W_OK):
        to = Path(tempfile.gettempdir()) / to
    try:
        trace.report(to)
    except ModuleNotFoundError as error:  # Bokeh and Jinja are extras
        terminal.say(f"xsp: No report: {error.msg or error}")
        return
    terminal.say(f"The whole profile is in {to}. To make your own: xsp train.py")
    if opens:
        click.launch(to.resolve().as_uri())
