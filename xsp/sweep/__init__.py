"""Sweeps: a target and lists of settings in, a trace for each point and one table out.

`grid_of` makes points (point.py) of the settings asked for (setting.py, grid.py). `run`
(execution.py) measures one after the other (measuring.py), until the rule of curve.py or a limit
ends a curve, keeps each result (result.py) in a folder (folder.py, table.py), and measures none
again that rests on the same versions and machine (basis.py). `curves_of` reads the answer off the
traces.
"""

from xsp.sweep.basis import basis_of, changes, machine_facts
from xsp.sweep.curve import THRESHOLD_PCT, Curve, curves_of
from xsp.sweep.execution import Watch, expected_s, run
from xsp.sweep.folder import Folder, opened, peeked
from xsp.sweep.grid import Grid, grid_of
from xsp.sweep.point import Point
from xsp.sweep.result import Result, Status
from xsp.sweep.setting import frameworks, numbers, precisions, single, ways_to_run, wished
from xsp.sweep.table import COLUMNS, TABLE, frame

__all__ = [
    "COLUMNS",
    "TABLE",
    "THRESHOLD_PCT",
    "Curve",
    "Folder",
    "Grid",
    "Point",
    "Result",
    "Status",
    "Watch",
    "basis_of",
    "changes",
    "curves_of",
    "expected_s",
    "frame",
    "frameworks",
    "grid_of",
    "machine_facts",
    "numbers",
    "opened",
    "peeked",
    "precisions",
    "run",
    "single",
    "ways_to_run",
    "wished",
]
