"""Terminal: text in, written to standard output or standard error without control characters."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from xsp.trace import Trace


# Columns of a table that goes to a file or another program.
UNBOUNDED = 400


def show(text: str) -> None:
    """Print lines on standard output; they may come from a stranger's file."""
    from xsp.text import printable_lines  # noqa: PLC0415  # help and completion come at once

    write(printable_lines(text))


def say(text: str) -> None:
    """Print lines on standard error; they may come from a stranger's file or server."""
    from xsp.text import printable_lines  # noqa: PLC0415

    click.echo(printable_lines(text), err=True)


def write(text: str) -> None:
    """Write on standard output, something like it for characters that its encoding lacks."""
    from xsp.text import encodable  # noqa: PLC0415

    try:
        click.echo(encodable(text))
    except BrokenPipeError:  # the reader has ended, as in `xsp show | head`
        sys.stdout = None


def width() -> int:
    """Return how wide a table may be: as COLUMNS says, the terminal, or else as need be."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import

    return Console().width if sys.stdout.isatty() else UNBOUNDED


def drawn(table: Table, wide: int | None = None) -> str:
    """Return a rich table as text without styles, not wider than the terminal (or `wide`)."""
    from rich.console import Console  # noqa: PLC0415  # rich is slow to import

    # Styles are control characters, which `show` makes visible.
    console = Console(width=wide or width(), color_system=None)
    with console.capture() as text:
        console.print(table)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def fail(message: str, code: int) -> int:
    """Print an error message on standard error, and return the exit code."""
    say(f"xsp: {message}")
    return code


def saved(trace: Trace, path: Path) -> str:
    """Save a trace, and return the line that says where."""
    verb = "it took the place of an older" if path.exists() else "saved to"
    return f"{verb} {trace.save(path)}; print it again with: xsp show {path}"


def as_json(trace: Trace) -> str:
    """Return metadata and spans of a trace as JSON without control characters."""
    metadata = json.dumps(trace.metadata, default=dict)
    text = f'{{"metadata": {metadata}, "spans": {trace.spans.write_json()}}}'
    if text.isprintable():
        return text
    # JSON allows C1 control characters, which terminals obey.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
