"""Importers: other tools' recordings in, a trace out.

`read` finds the format of each file from its content, has the importer of that format turn the
file into rows, and makes one trace of the rows. `source` is what an importer is given, `recording`
what it hands back, `format` finds importers, and `build` makes the trace. Importers are found by
entry points of the group `xsp.importers`; those of xsp itself are in this room.
"""

from xsp.importers.build import read, trace_of
from xsp.importers.format import Importer
from xsp.importers.recording import Contents, KernelMetrics, Recording
from xsp.importers.source import Source

__all__ = [
    "Contents",
    "Importer",
    "KernelMetrics",
    "Recording",
    "Source",
    "read",
    "trace_of",
]
