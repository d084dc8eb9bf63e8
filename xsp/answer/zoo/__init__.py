"""Zoos: measures many models, each in a process of its own, into one table and a trace of each.

A zoo's file or shorthand becomes tasks (`definition`), each of which a process of its own carries
out (process.py, worker.py), here one after the other (execution.py) or on the machines of a cluster
(`cluster`); a sweep is a zoo of one model (sweep.py). Results (row.py, table.py) are kept in a
folder (folder.py), read off it (tables.py, overview.py), and set beside those of another one
(comparison.py).
"""

from xsp.answer.zoo.cluster import run_on_ray
from xsp.answer.zoo.comparison import DIFFERENCE_COLUMNS, ZooComparison, compare_results
from xsp.answer.zoo.definition import Zoo, read_zoo, template
from xsp.answer.zoo.execution import WAITING, Planned, Tally, Watch, has_failed, preview, run
from xsp.answer.zoo.folder import TABLE, Folder, noted_results, opened, read_results
from xsp.answer.zoo.overview import counts, findings, summary
from xsp.answer.zoo.row import THIRDS, Row
from xsp.answer.zoo.setting import frameworks, numbers, precisions, single, ways_to_run, wished
from xsp.answer.zoo.sweep import Curve, curves_of, sweep_results, sweep_tasks, verdict
from xsp.answer.zoo.tables import (
    IDENTITY,
    TABLES,
    ZooTable,
    entry_rows,
    failures,
    is_measured,
    labels_of,
    layer_types,
    models,
    primitives,
    roofs,
    thirds_by_quantity,
    varying,
    warnings,
)
from xsp.answer.zoo.task import Limits, Point, Task, basis_of

__all__ = [
    "DIFFERENCE_COLUMNS",
    "IDENTITY",
    "TABLE",
    "TABLES",
    "THIRDS",
    "WAITING",
    "Curve",
    "Folder",
    "Limits",
    "Planned",
    "Point",
    "Row",
    "Tally",
    "Task",
    "Watch",
    "Zoo",
    "ZooComparison",
    "ZooTable",
    "basis_of",
    "compare_results",
    "counts",
    "curves_of",
    "entry_rows",
    "failures",
    "findings",
    "frameworks",
    "has_failed",
    "is_measured",
    "labels_of",
    "layer_types",
    "models",
    "noted_results",
    "numbers",
    "opened",
    "precisions",
    "preview",
    "primitives",
    "read_results",
    "read_zoo",
    "roofs",
    "run",
    "run_on_ray",
    "single",
    "summary",
    "sweep_results",
    "sweep_tasks",
    "template",
    "thirds_by_quantity",
    "varying",
    "verdict",
    "warnings",
    "ways_to_run",
    "wished",
]
