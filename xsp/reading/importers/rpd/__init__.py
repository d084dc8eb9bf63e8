"""Reads the SQLite file of rocmProfileData, AMD's tracer, as rows.

The tables are those of rocmProfileData's schema 2: `rocpd_api` has the calls on the host, roctx
ranges among them (`UserMarker`), `rocpd_op` what devices did, and `rocpd_api_ops` which call asked
for it. `table` reads them, `host` and `device` make rows of them.
"""

from __future__ import annotations

import gzip
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing

import polars as pl

from xsp.errors import TraceFormatError
from xsp.provider import SpanRows, concat_rows
from xsp.reading.importers.call import doubled_calls, tied
from xsp.reading.importers.reading import listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.rocm import part_steps
from xsp.reading.importers.rpd.device import device_rows
from xsp.reading.importers.rpd.host import host_rows
from xsp.reading.importers.rpd.table import Tables, opened
from xsp.reading.importers.source import Source
from xsp.text import counted
from xsp.warning import TraceWarning

_MAGIC = b"SQLite format 3\x00"
_PROCESS = "attr.pid"
# What a damaged file makes Python raise.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)


class RocmProfileData:
    """Reads the files of rocmProfileData (`runTracer.sh`, `rpdTracerControl`)."""

    name = "rpd"
    tool = "rocmProfileData, *.rpd"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file is SQLite, and its schema has tables of rocpd."""
        head = source.head
        return head.startswith(_MAGIC) and b"rocpd_" in head and b"rocpd_info_" not in head

    def read(self, source: Source) -> Contents:
        """Read a recording of each process.

        Raises:
            TraceFormatError: The file is damaged, or of the other tool that calls its tables so.
        """
        try:
            with source.unpacked() as path, closing(opened(path, source.path)) as file:
                tables = Tables(file)
                tables.check(source.path)
                # What each process did.
                host, own = host_rows(tables)
                rows = concat_rows([host, device_rows(tables)])
                tables.count_others()
                warnings = tuple(_warnings(tables, own))
                if not rows.height:
                    return (_recording(rows, warnings),)
                pids = rows[_PROCESS].drop_nulls().unique(maintain_order=True).to_list() or [0]
                # An operation without a call tells no process; it is given to the first.
                process = pl.col(_PROCESS).fill_null(pids[0])
                return tuple(
                    _recording(rows.filter(process == pid).drop(_PROCESS), warnings) for pid in pids
                )
        except _DAMAGE as error:
            raise TraceFormatError(
                f"{source.path} is a damaged file of rocmProfileData: {error}"
            ) from error


def _recording(rows: SpanRows, warnings: tuple[TraceWarning, ...]) -> Recording:
    rows, doubled = tied(rows)
    rows, steps = part_steps(rows)
    warnings = (*warnings, *doubled_calls(doubled))
    return Recording(tool="rocmProfileData", rows=rows, roots=steps, warnings=warnings)


def _warnings(tables: Tables, own: int) -> Iterator[TraceWarning]:
    if tables.damaged:
        yield TraceWarning("damaged", f"damaged and left out: {listed(tables.damaged)}")
    if tables.left:
        yield TraceWarning(
            "not-understood", f"xsp does not know and left out: {listed(tables.left)}"
        )
    if own:
        yield TraceWarning(
            "own-left-out", f"{counted(own, 'range')} of the tracer's own work are left out"
        )
