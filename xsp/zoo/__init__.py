"""Zoos: many models in, a trace of each measurement and one table of results out.

A zoo's file or shorthand becomes tasks (`definition`), each of which a process of its own carries
out (`work`), here one after the other (`execution`) or on the machines of a cluster (`cluster`);
what comes out is kept in a folder (`results`), read off it (`characterisation`), and set beside
that of another one (`comparison`). `preview` (`forecast`) says what a run would do.
"""

from xsp.zoo.characterisation import (
    IDENTITY,
    TABLES,
    ZooTable,
    counts,
    entry_rows,
    failures,
    findings,
    is_measured,
    labels_of,
    layer_types,
    models,
    primitives,
    problems,
    roofs,
    summary,
    thirds_by_quantity,
    varying,
)
from xsp.zoo.cluster import run_on_ray
from xsp.zoo.comparison import DIFFERENCE_COLUMNS, ZooComparison, compare_results
from xsp.zoo.definition import Zoo, read_zoo, template
from xsp.zoo.execution import WAITING, Tally, Watch, has_failed, run
from xsp.zoo.forecast import Planned, preview
from xsp.zoo.results import TABLE, THIRDS, Folder, Row, noted_results, opened, read_results
from xsp.zoo.task import Limits, Task

__all__ = [
    "DIFFERENCE_COLUMNS",
    "IDENTITY",
    "TABLE",
    "TABLES",
    "THIRDS",
    "WAITING",
    "Folder",
    "Limits",
    "Planned",
    "Row",
    "Tally",
    "Task",
    "Watch",
    "Zoo",
    "ZooComparison",
    "ZooTable",
    "compare_results",
    "counts",
    "entry_rows",
    "failures",
    "findings",
    "has_failed",
    "is_measured",
    "labels_of",
    "layer_types",
    "models",
    "noted_results",
    "opened",
    "preview",
    "primitives",
    "problems",
    "read_results",
    "read_zoo",
    "roofs",
    "run",
    "run_on_ray",
    "summary",
    "template",
    "thirds_by_quantity",
    "varying",
]
