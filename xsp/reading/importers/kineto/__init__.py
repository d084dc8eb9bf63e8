"""Reads one recording for each process from a JSON file of torch.profiler.

`importer` leads through the files: it reads the file piece by piece, what is whole of a damaged one
too, finds the steps, and where it was recorded. `event` decodes events, and `table` makes columns
of them, by what they are. `host` and `device` make rows of the columns; `nesting`, `process`,
`backward` and `memory` add what only nesting and times tell. `rule` checks the file.
"""

from xsp.reading.importers.kineto.importer import Kineto

__all__ = ["Kineto"]
