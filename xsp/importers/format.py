"""Formats: the first bytes of a file in, the importer that reads it out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Protocol

from xsp.errors import TraceFormatError
from xsp.importers.recording import Contents
from xsp.importers.source import Source

GROUP = "xsp.importers"


class Importer(Protocol):
    """Reads one format of other tools' files. It is made without arguments.

    Attributes:
        name: The format, in one word.
        tool: The tool that writes it, and how: for messages.
    """

    name: str
    tool: str

    def recognises(self, source: Source) -> bool:
        """Tell by the content (`source.head`), never by the name, whether the format is this."""

    def read(self, source: Source) -> Contents:
        """Return what the file holds. Pure: the same file gives the same contents.

        Raises:
            TraceFormatError: The file is damaged, and nothing of it can be read.
        """


def importers() -> Iterator[Importer]:
    """Yield an importer of each format that is installed, in the order of their names."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        yield entry.load()()


def importer_of(source: Source) -> Importer:
    """Return the importer that reads a file.

    Raises:
        TraceFormatError: No importer knows the format.
    """
    known = []
    for importer in importers():
        if importer.recognises(source):
            return importer
        known.append(f"{importer.name} ({importer.tool})")
    raise TraceFormatError(
        f"{source.path} is in no format that xsp reads: it is neither a trace of xsp nor of "
        + ", ".join(known)
    )
