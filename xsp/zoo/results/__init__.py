"""Results of a zoo: measurements in, a row each in one folder out, whatever ends the run.

`row_of` and `row_without` (row.py, measured.py) make rows with the columns of `COLUMNS`
(column.py). `opened` yields the `Folder` (folder.py) that keeps them, in a journal (journal.py) and
a table (table.py, best.py), and knows which rest on what they would rest on now (basis.py).
`read_results` (reading.py) returns the table as a polars frame.
"""

from xsp.zoo.results.basis import machine_of
from xsp.zoo.results.best import without_batch
from xsp.zoo.results.column import COLUMNS, FACT, SCHEMA, SET, THIRDS, TYPES, UNTYPED, Column, Row
from xsp.zoo.results.folder import Folder, Kept, opened
from xsp.zoo.results.reading import JOURNAL, TABLE, noted_results, read_results
from xsp.zoo.results.row import row_of, row_without
from xsp.zoo.results.table import MEASURED

__all__ = [
    "COLUMNS",
    "FACT",
    "JOURNAL",
    "MEASURED",
    "SCHEMA",
    "SET",
    "TABLE",
    "THIRDS",
    "TYPES",
    "UNTYPED",
    "Column",
    "Folder",
    "Kept",
    "Row",
    "machine_of",
    "noted_results",
    "opened",
    "read_results",
    "row_of",
    "row_without",
    "without_batch",
]
