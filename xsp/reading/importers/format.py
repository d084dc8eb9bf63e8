"""Finds the importer of a file by its first bytes, and reads the file with that importer.

Importers are found by entry points of the group `xsp.importers`. One that cannot be loaded, or
that fails, is named, and never stops the others.
"""

from __future__ import annotations

import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from contextlib import closing
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from xsp.errors import TraceFormatError, XspError
from xsp.reading.importers.recording import Contents, KernelMetrics, Recording
from xsp.reading.importers.source import Source
from xsp.text import printable
from xsp.warning import TraceWarning

GROUP = "xsp.importers"

_SQLITE = b"SQLite format 3\0"
_BINARIES = {
    BOM_UTF16_LE: "is text in UTF-16; save it as UTF-8",
    BOM_UTF16_BE: "is text in UTF-16; save it as UTF-8",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it with `zstd -d`",
}
_MOST_TABLES = 8  # of a database that are named
# Reports in formats of their vendors' own, and what makes files of them that can be read.
_EXPORTED = {
    ".nsys-rep": "nsys export --type sqlite",
    ".qdrep": "nsys export --type sqlite",
}


class Importer(Protocol):
    """Reads one format of other tools' files. It is made without arguments.

    Attributes:
        name: The format, in one word.
        tool: The tool that writes it, and how: for messages.
    """

    name: str
    tool: str

    def recognizes(self, source: Source) -> bool:
        """Tell by the content (`source.head`), never by the name, whether the format is this."""

    def read(self, source: Source) -> Contents:
        """Return the contents of the file. Pure: the same file gives the same contents.

        Raises:
            TraceFormatError: The file is damaged, and nothing of it can be read.
        """


def contents_of(source: Source) -> tuple[Contents, tuple[TraceWarning, ...]]:
    """Return the contents of a file, and a warning for each importer that could not be asked.

    Raises:
        TraceFormatError: No importer knows the format, or the importer that does cannot read it.
        OSError: The file cannot be opened.
    """
    head = source.head  # read first: that a file cannot be opened is no importer's fault
    if not source.path.stat().st_size:
        raise TraceFormatError(
            f"{source.path} is empty: nothing was recorded, or copying it failed; copy it anew"
        )
    known: list[str] = []
    broken: list[TraceWarning] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        answer = _asked(point, source)
        if isinstance(answer, TraceWarning):
            broken.append(answer)
            continue
        importer, recognized = answer
        if recognized:
            return _read(importer, source), tuple(broken)
        known.append(f"{importer.name} ({importer.tool})")
    what = "is a folder without a recording" if source.path.is_dir() else _described(source, head)
    raise TraceFormatError(
        f"{source.path} {what}, which xsp does not read. It reads its own "
        f"traces, and {', '.join(known)}{''.join(f'; {each.message}' for each in broken)}"
    )


def _asked(point: EntryPoint, source: Source) -> tuple[Importer, bool] | TraceWarning:
    """Return an importer, and whether it recognizes a file; or what is wrong with the importer."""
    try:
        importer: Importer = point.load()()
        return importer, importer.recognizes(source)
    except Exception as error:  # noqa: BLE001  a third party's module may raise anything
        return TraceWarning(
            "importer",
            f"the importer {point.name} ({point.value}) failed and is ignored "
            f"({type(error).__name__}: {printable(str(error))}). Update or remove its package.",
        )


def _read(importer: Importer, source: Source) -> Contents:
    try:
        contents = importer.read(source)
    except (XspError, OSError):
        raise
    except Exception as error:
        raise TraceFormatError(
            f"{source.path} cannot be read: the importer {importer.name} failed "
            f"({type(error).__name__}: {printable(str(error))}); if {importer.tool} wrote the file "
            "and it is whole, report that"
        ) from error
    for each in contents:
        if not isinstance(each, Recording | KernelMetrics):
            raise TraceFormatError(
                f"{source.path} cannot be read: the importer {importer.name} hands back a "
                f"{type(each).__name__}, neither a Recording nor KernelMetrics"
            )
    return contents


def _described(source: Source, head: bytes) -> str:
    """Describe the content of a file of unknown format, as the rest of a sentence."""
    if not head:
        return "is damaged from its beginning on, or packs nothing"
    if head.startswith(_SQLITE):
        return f"is an SQLite database {_tables(source)}"
    if head.lstrip()[:1] in (b"{", b"["):
        return f"is JSON that begins with {printable(_text(head.lstrip()[:60]))}"
    if export := _EXPORTED.get(source.path.suffix):
        return f"is a report that must be exported first (`{export} {source.path.name}`)"
    if b"\0" in head or not _is_utf_8(head):
        known = (what for start, what in _BINARIES.items() if head.startswith(start))
        return next(known, "is binary, of unknown format")
    return f"is text that begins with {printable(_text(head[:60]))}"


def _is_utf_8(head: bytes) -> bool:
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _text(head: bytes) -> str:
    return repr(head.decode("utf-8", "replace"))


def _tables(source: Source) -> str:
    """Return the names of the tables of an SQLite database, for a message."""
    import sqlite3  # noqa: PLC0415  # needed only for this message

    try:
        with (
            source.unpacked() as path,
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database,
        ):
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = sorted(printable(str(name)) for (name,) in rows)
    except (sqlite3.Error, UnicodeDecodeError, EOFError, OSError, zlib.error):
        return "that is damaged"
    if not names:
        return "without tables"
    more = f" and {len(names) - _MOST_TABLES} more" if len(names) > _MOST_TABLES else ""
    return f"with the tables {', '.join(names[:_MOST_TABLES])}{more}"
