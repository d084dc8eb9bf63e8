"""Reads one recording for each process from a JSON file of torch.profiler.

`chunk` reads the file piece by piece, what is whole of a damaged one too; `event` says what is read
of an event; `table` makes columns of the events, sorted by what they are; `nesting`, `host`,
`layer`, `device` and `cost` make rows of the columns, `step` finds the steps, `metadata`
tells where it was recorded, and `importer` puts all of it together.
"""

from xsp.reading.importers.kineto.importer import Kineto

__all__ = ["Kineto"]
