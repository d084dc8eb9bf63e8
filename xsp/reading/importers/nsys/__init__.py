"""Reads an SQLite file that `nsys export` wrote, as one recording per process.

`database` reads columns and `table` parts them by process; `host`, `device` and `nvtx` make rows
of them, and `process` puts those of a process together. `about` says where and with what the file
was recorded, and `remark` what of it is missing. Exports of 2023 to 2026 differ in columns and
tables: what one lacks is absent.
"""

from __future__ import annotations

import gzip
import sqlite3
import zlib

import psutil

from xsp.errors import TraceFormatError
from xsp.reading.importers.nsys import table
from xsp.reading.importers.nsys.database import MAGIC, opened
from xsp.reading.importers.nsys.process import recordings
from xsp.reading.importers.recording import Contents
from xsp.reading.importers.source import Source

# Every export has the first; an export of a recording that saw anything has one of the others.
_STRINGS = "StringIds"
_OTHERS = (
    *("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_SYSTEM_ENV"),
    *("META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS"),
)
# Bytes of memory that a row takes while the file is read, and the trace is made: measured.
_ROW_BYTES = 1_500

# What a damaged file makes Python raise; the message about a damaged name may be no text.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)

__all__ = ["NsightSystems"]


class NsightSystems:
    """Reads what `nsys export --type sqlite` writes."""

    name = "nsys"
    tool = "Nsight Systems, exported by `nsys export --type sqlite`"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file is an SQLite database with Nsight's tables."""
        if not source.head.startswith(MAGIC):
            return False
        try:
            with Source(source.path).unpacked() as path, opened(path) as database:
                tables = set(database.columns)
        except (*_DAMAGE, OSError):
            return _STRINGS.encode() in source.head  # damaged; reading it says how
        return _STRINGS in tables and any(name.startswith(_OTHERS) for name in tables)

    def read(self, source: Source) -> Contents:
        """Return one recording for each process that the file has spans of.

        Raises:
            TraceFormatError: The file is damaged, holds no spans, or holds more than the memory
                that is available can take.
        """
        try:
            with source.unpacked() as path, opened(path) as database:
                size = path.stat().st_size
                database.check_size(size)
                rows = sum(database.count(name) for name in table.FORMS if name in database.columns)
                needed, most = rows * _ROW_BYTES, int(psutil.virtual_memory().available)
                if needed > most:
                    raise TraceFormatError(
                        f"{source.path} is too large for this machine: its {rows:,} events take "
                        f"some {needed / 1e9:.1f} GB of memory, of which {most / 1e9:.1f} GB are "
                        "available now; read it on a machine with more memory, or export less "
                        "(nsys export --times)"
                    )
                found = recordings(database)
                if not source.packed:  # what is unpacked has been told of already
                    source.told(size)
        except _DAMAGE as error:
            raise TraceFormatError(
                f"{source.path} is damaged: {error}; export the report again "
                "(nsys export --type sqlite)"
            ) from error
        if not found:
            raise TraceFormatError(
                f"{source.path} holds no calls, ranges or kernels: record the program with "
                "`nsys profile --trace=cuda,nvtx,osrt`"
            )
        return found
