"""Importers read recordings of other tools, of which xsp makes a trace.

`read` (in `build`) finds the format of each file from its content (`format`), has the importer of
that format turn the file into rows, and makes one trace of the rows. `source` is what an importer
is given, `recording` what it hands back. `file_step` makes a tree of each step; `graph` ties what a
replayed graph ran to what was captured; `rank` puts several processes together, on one clock.
Importers are found by entry points of the group `xsp.importers`; those of xsp itself are in this
room.
"""

from xsp.reading.importers.build import load, name_of, read, trace_of
from xsp.reading.importers.format import Importer, contents_of
from xsp.reading.importers.recording import Contents, KernelMetrics, Recording
from xsp.reading.importers.source import Source

__all__ = [
    "Contents",
    "Importer",
    "KernelMetrics",
    "Recording",
    "Source",
    "contents_of",
    "load",
    "name_of",
    "read",
    "trace_of",
]
