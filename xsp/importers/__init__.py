"""Importers: other tools' recordings in, a trace out.

`read` (in `build`) finds the format of each file from its content (`format`), has the importer of
that format turn the file into rows, and makes one trace of the rows. `source` is what an importer
is given, `recording` what it hands back. `evaluation` makes a tree of each step; `rank` puts
those of several processes together, on one clock (`clock`). Importers are found by entry points of
the group `xsp.importers`; those of xsp itself are in this room.
"""

from xsp.importers.build import name_of, read, trace_of
from xsp.importers.format import Importer
from xsp.importers.recording import Contents, KernelMetrics, Recording
from xsp.importers.source import Source

__all__ = [
    "Contents",
    "Importer",
    "KernelMetrics",
    "Recording",
    "Source",
    "name_of",
    "read",
    "trace_of",
]
