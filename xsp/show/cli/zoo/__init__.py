"""`xsp zoo` and `xsp sweep`, a zoo of one model.

`run.py` has the commands that take a zoo, with their arguments and their progress; `sweep.py` makes
the zoo of a sweep; `report.py` and `compare.py` read results.
"""

import click

from xsp.show.cli.zoo.compare import compare
from xsp.show.cli.zoo.report import report
from xsp.show.cli.zoo.run import init, list_zoo, run_zoo
from xsp.show.cli.zoo.sweep import sweep

_HELP = """Characterize a zoo: many models, measured one after the other.

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


for command in (init, list_zoo, run_zoo, report, compare):
    zoo.add_command(command)

__all__ = ["sweep", "zoo"]
