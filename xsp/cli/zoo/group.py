"""`xsp zoo`: the name of a command of zoos in, that command out."""

from __future__ import annotations

import click

_HELP = """Characterise a zoo: many models, measured one after the other.

\b
  xsp zoo init                          write a commented zoo.toml
  xsp zoo list zoo.toml                 what would run, and about how long it takes
  xsp zoo run zoo.toml -o results/      measure all of it; the same again goes on where it was
  xsp zoo report results/               one HTML page on all models, and a summary
  xsp zoo compare a/ b/                 two machines, versions or frameworks
"""


@click.group(help=_HELP)
def zoo() -> None:
    """Hold the commands."""
