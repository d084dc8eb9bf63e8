"""Reads one recording for each process from a JSON file of torch.profiler.

`importer` leads through the files. `chunk` reads the file piece by piece, of a damaged one what is
whole; `event` decodes events, and `table` makes columns of them, by what they are. `host` and
`device` make rows of the columns; `nesting`, `process`, `backward` and `memory` add what only
nesting and times tell. `step` finds the steps, `origin` where the file was recorded, and `rule`
checks it. Perfetto's format fills the same tables.
"""

from xsp.reading.importers.kineto.event import Args
from xsp.reading.importers.kineto.importer import Facts, Kineto, recordings
from xsp.reading.importers.kineto.table import COLLECTIVE, INTEGERS, Sort, Tables, sort_of

__all__ = [
    "COLLECTIVE", "INTEGERS", "Args", "Facts", "Kineto", "Sort", "Tables",
    "recordings", "sort_of",
]  # fmt: skip
