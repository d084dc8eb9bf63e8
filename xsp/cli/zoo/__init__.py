"""`xsp zoo`: the group of its commands (group.py), a module each.

`argument.py` has the arguments that commands which take a zoo share, `definition.py` the commands
that only look at one, `run.py` the one that measures (progress.py); `report.py` and `compare.py`
read results.
"""

from xsp.cli.zoo.compare import compare
from xsp.cli.zoo.definition import init, list_zoo
from xsp.cli.zoo.group import zoo
from xsp.cli.zoo.report import report
from xsp.cli.zoo.run import run_zoo

for command in (init, list_zoo, run_zoo, report, compare):
    zoo.add_command(command)

__all__ = ["zoo"]
