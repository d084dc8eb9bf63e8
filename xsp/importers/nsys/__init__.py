"""Nsight Systems: an SQLite file that `nsys export` wrote in, one recording per process out.

`database` reads columns and `table` parts them by process; `host`, `device` and `nvtx` make rows
of them, and `step` finds evaluations among the rows. `about` says where and with what the file was
recorded, and `remark` what of it is missing. Exports of 2023 to 2026 differ in columns and
tables: what one lacks is absent.
"""

from __future__ import annotations

import sqlite3

from xsp.errors import TraceFormatError
from xsp.importers.nsys.database import MAGIC, opened
from xsp.importers.nsys.process import recordings
from xsp.importers.recording import Contents
from xsp.importers.source import Source

# Every export has the first; an export of a recording that saw anything has one of the others.
_STRINGS = "StringIds"
_OTHERS = (
    *("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_SYSTEM_ENV"),
    *("META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS"),
)

__all__ = ["NsightSystems"]


class NsightSystems:
    """Reads what `nsys export --type sqlite` writes."""

    name = "nsys"
    tool = "Nsight Systems, exported by `nsys export --type sqlite`"

    def recognises(self, source: Source) -> bool:
        """Tell whether the file is an SQLite database with Nsight's tables."""
        if not source.head.startswith(MAGIC):
            return False
        try:
            with source.unpacked() as path, opened(path) as database:
                tables = set(database.columns)
        except (sqlite3.Error, EOFError, OSError):
            return _STRINGS.encode() in source.head  # damaged; reading it says how
        return _STRINGS in tables and any(table.startswith(_OTHERS) for table in tables)

    def read(self, source: Source) -> Contents:
        """Return one recording for each process that the file has spans of.

        Raises:
            TraceFormatError: The file is damaged, or holds no spans.
        """
        try:
            with source.unpacked() as path, opened(path) as database:
                database.check_size(path.stat().st_size)
                found = recordings(database)
        except (sqlite3.Error, EOFError) as error:
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
