"""Writes text to standard output and standard error, where it cannot drive the terminal."""

from __future__ import annotations

import sys

import click


def show(text: str) -> None:
    """Print lines on standard output that may come from a stranger's file."""
    from xsp.quantity import printable_lines  # noqa: PLC0415  # help and completion come at once

    write(printable_lines(text))


def say(text: str) -> None:
    """Print lines on standard error that may come from a stranger's file or server."""
    from xsp.quantity import printable_lines  # noqa: PLC0415

    click.echo(printable_lines(text), err=True)


def write(text: str) -> None:
    """Write on standard output as well as its encoding can, to whoever still reads."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "replace").decode(encoding))
    except BrokenPipeError:  # as with `xsp show | head`
        sys.stdout = None
