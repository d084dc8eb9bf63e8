"""Reads folders in the Common Trace Format (CTF), as LTTng and xsp's own export write them.

babeltrace2 decodes the files (`printed`), whose events begin and end spans (`pairs`): xsp's own,
system calls that LTTng's kernel tracer recorded, and ranges and functions in user space.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from xsp.errors import TraceFormatError
from xsp.provider import concat_rows, no_rows
from xsp.reading.importers.ctf.pairs import BEGIN, Paired, call_rows, own_rows, range_rows
from xsp.reading.importers.ctf.printed import Printed, printed
from xsp.reading.importers.reading import listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source
from xsp.text import counted
from xsp.warning import TraceWarning

# How metadata begins: as text, or in packets of either byte order.
_BEGINNINGS = (b"/* CTF 1.", b"\x57\x1d\xd1\x75", b"\x75\xd1\x1d\x57")
_MOST_DEEP = 5  # folders from that of a session of LTTng down to that of a trace
_SINCE_2001 = 10**18  # ns; a clock that has such times counts from 1970
_SAID = re.compile(rb'\b(hostname|tracer_name|xsp_version) = "([^"\\]*)"')


class CommonTraceFormat:
    """Reads what LTTng, or xsp itself, wrote in CTF 1.8."""

    name = "ctf"
    tool = "LTTng, or xsp export --to NAME.ctf: the folder"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the folder holds metadata of CTF, or the file is such metadata."""
        if source.path.is_dir():
            return next(_traces(source.path), None) is not None
        return source.head.startswith(_BEGINNINGS)

    def read(self, source: Source) -> Contents:
        """Read one recording of all traces in the folder.

        Raises:
            TraceFormatError: babeltrace2 is not installed, or cannot read anything of the folder;
                or the folder has several exports of xsp.
        """
        folder = source.path if source.path.is_dir() else source.path.parent
        traces = sorted(_traces(folder))
        parts = [printed(trace) for trace in traces]
        faults = [fault for part in parts for fault in part.faults]
        if not any(part.events.height for part in parts):
            raise TraceFormatError(
                f"{source.path}: nothing was recorded in it, or nothing can be read"
                + "".join(f": {fault}" for fault in faults[:1])
            )
        first = (pl.col("event") == BEGIN) & (pl.col("span") == 0)
        if sum(part.events.filter(first).height for part in parts) > 1:
            raise TraceFormatError(
                f"{source.path} holds several exports of xsp, which are one trace each. Name one."
            )
        said = dict(found for trace in traces for found in _facts(trace))
        return (_recording(parts, said),)


def _traces(folder: Path) -> Iterator[Path]:
    """Yield the folders at or below one that hold the metadata of a trace."""
    above = len(folder.parts)
    for where, folders, files in os.walk(folder):
        if len(Path(where).parts) - above >= _MOST_DEEP:
            folders.clear()
        if "metadata" in files:
            with (Path(where) / "metadata").open("rb") as file:
                if file.read(16).startswith(_BEGINNINGS):
                    yield Path(where)


def _facts(trace: Path) -> Iterator[tuple[str, str]]:
    """Yield what the metadata of a trace says of where it was recorded."""
    for name, value in _SAID.findall((trace / "metadata").read_bytes()):
        yield name.decode(), value.decode("utf-8", "replace")


def _recording(parts: list[Printed], said: dict[str, str]) -> Recording:
    events = pl.concat([part.events for part in parts]).sort("time_ns", maintain_order=True)
    own, root = own_rows(events)
    found = (own, call_rows(events), range_rows(events))
    left = Counter(
        dict(
            events.join(pl.concat([each.taken for each in found]), on="event", how="anti")["event"]
            .value_counts()
            .iter_rows()
        )
    )
    version = said.get("xsp_version")
    # Times of the clock of LTTng are those since the machine started, unless it says more.
    absolute = int(events["time_ns"][0]) > _SINCE_2001
    return Recording(
        tool=f"xsp {version}, as CTF" if version else said.get("tracer_name", "CTF"),
        rows=concat_rows([each.rows for each in found]),
        roots=root if root.height else no_rows(),
        name=root["name"][0] if root.height else "",
        warnings=tuple(_warnings(parts, found, left)),
        environment={"host": said["hostname"]} if said.get("hostname") else {},
        unix_ns=0 if absolute else None,
        host=said.get("hostname", ""),
    )


def _warnings(
    parts: list[Printed], found: tuple[Paired, ...], left: Counter[str]
) -> Iterator[TraceWarning]:
    for fault in (fault for part in parts for fault in part.faults):
        yield TraceWarning("cut-short", fault)
    for each in found:
        if each.unended:
            yield TraceWarning(
                "unended",
                f"{counted(each.unended, each.what)} had not ended when the recording did; shown "
                "are the parts in it",
            )
        if each.redrawn:
            yield TraceWarning(
                "redrawn",
                f"{counted(each.redrawn, 'span')} are longer or shorter on the timeline, whose "
                "times are these, than without the profiler; the saved trace has both",
            )
        if each.damaged:
            yield TraceWarning("damaged", f"left out: {listed(each.damaged)}")
    if left:
        yield TraceWarning(
            "marks-left-out", f"events that begin and end no span are left out: {listed(left)}"
        )
