"""Reads Perfetto's own format: what torch.profiler, rocprofv3, wprof and xsp write as `.pftrace`.

`packet` splits the file and finds what packets name by numbers; `slice` pairs begins with ends,
`argument` reads the arguments of events, and `stage` what GPUs did. `kind` tells what slices are,
and adds them to the tables that torch.profiler's JSON fills, so that rows, steps and rules are
those of that format; `own` makes rows of xsp's own exports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.protobuf import BYTES
from xsp.reading.importers.kineto import Facts, Tables, recordings
from xsp.reading.importers.perfetto.kind import add_slices
from xsp.reading.importers.perfetto.own import own_rows
from xsp.reading.importers.perfetto.packet import (
    ATTRIBUTES,
    FTRACE,
    Packets,
    looks_like_packets,
    read_packets,
)
from xsp.reading.importers.perfetto.slice import Slices
from xsp.reading.importers.perfetto.stage import Stages
from xsp.reading.importers.reading import content, listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.source import Source
from xsp.text import counted
from xsp.warning import TraceWarning

_LIBRARY_CALL = (pl.col("kind") == Kind.OP.value) & pl.col("name").str.contains(r"^nccl[A-Z]\w*$")
# Packets that hold events of which no spans are made.
_UNREAD = {
    FTRACE: "bundles of the kernel's events (ftrace)",
    52: "values of GPU counters",
    66: "samples of stacks",
    9: "statistics of processes",
    7: "statistics of the system",
    37: "heap profiles",
}
# Packets that tell of the recording, and those that are read.
_KNOWN = {2, 6, 11, 12, 33, 34, 35, 36, 44, 45, 50, 53, 59, 60, 69, 89, ATTRIBUTES, *_UNREAD}
_TYPES = {0: "events without a type", 4: "values of counters", 5: "states of tracks"}


class Perfetto:
    """Reads a sequence of Perfetto's packets."""

    name = "perfetto"
    tool = "torch.profiler, rocprofv3, wprof, or xsp export: NAME.pftrace"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file begins with packets."""
        return looks_like_packets(source.head)

    def read(self, source: Source) -> Contents:
        """Return a recording for each process whose operators or calls the file holds.

        Raises:
            TraceFormatError: The file holds no slices and no render stages, or its packets are
                compressed in a way that xsp does not unpack.
        """
        whole, cut = content(source)
        packets = read_packets(whole, source, cut=cut)
        slices, stages = Slices(packets), Stages(packets)
        about = _attributes(packets)
        if "xsp.format" in about:
            return (_own(slices, stages, about),)
        tables = Tables(python=False)
        tool = add_slices(slices, stages, tables)
        _count_unread(packets, slices, tables.strange)
        found = tuple(recordings(tables, Facts({}, packets.cut), source))
        if not any(each.rows.height or each.roots.height for each in found):
            said = f" ({listed(tables.strange)})" if tables.strange else ""
            said += ", and its end is missing" if packets.cut else ""
            raise TraceFormatError(
                f"{source.path} holds no slices of a program{said}. Record it with the events of "
                "the program (`track_event`)."
            )
        return tuple(_described(each, packets, tool) for each in _with(found, slices))


def _own(slices: Slices, stages: Stages, about: dict[str, str]) -> Recording:
    rows, root, others = own_rows(slices, stages)
    count, written = root.height + rows.height, about.get("xsp.spans", "")
    lacks = slices.unended > 0 or (written.isdecimal() and count < int(written))
    if not count:
        why = ", and its end is missing" if lacks or slices.packets.cut else ""
        raise TraceFormatError(f"The export of xsp holds no spans{why}. Export the trace again.")
    if others:
        slices.packets.left["slices that are no spans of xsp's"] += others
    cut = [TraceWarning("cut-short", _CUT)] if slices.packets.cut or lacks else []
    host = about.get("xsp.host", "")
    return Recording(
        tool=f"xsp {about.get('xsp.version', '')}, as pftrace",
        rows=rows,
        roots=root,
        name=about.get("xsp.name", ""),
        warnings=(*cut, *_warnings(slices)),
        environment={"host": host} if host else {},
        unix_ns=slices.packets.unix_ns,
        host=host,
    )


_CUT = "the file ends in the middle; later spans are missing. Export or record it again."


def _with(found: tuple[Recording, ...], slices: Slices) -> Iterator[Recording]:
    """Yield recordings, the first one with the warnings of the file."""
    for number, each in enumerate(found):
        more = () if number else tuple(_warnings(slices))
        yield replace(each, warnings=(*each.warnings, *more))


def _described(found: Recording, packets: Packets, tool: str) -> Recording:
    """Return a recording with its tool, its clock, and calls of RCCL as such."""
    kind = pl.when(_LIBRARY_CALL).then(pl.lit(Kind.CALL.value, found.rows.schema["kind"]))
    unix_ns = packets.unix_ns
    return replace(
        found,
        tool=tool or "Perfetto",
        rows=found.rows.with_columns(kind.otherwise("kind").alias("kind")),
        unix_ns=found.unix_ns if unix_ns is None else unix_ns,
    )


def _attributes(packets: Packets) -> dict[str, str]:
    """Read the file's description of itself, by key."""
    found: dict[str, str] = {}
    for _, entries in packets.messages(packets.fields.of(ATTRIBUTES, BYTES), "attributes"):
        for entry in (entry for number, entry in entries if number == 1):
            parts = dict(packets.message(entry, "attributes"))
            key, value = (parts.get(each) for each in (1, 3))
            if isinstance(key, memoryview) and isinstance(value, memoryview):
                text = bytes(value).decode("utf-8", "replace")
                found[bytes(key).decode("utf-8", "replace")] = text
    return found


def _count_unread(packets: Packets, slices: Slices, strange: Counter[str]) -> None:
    for number, what in _UNREAD.items():
        if count := len(packets.fields.of(number, BYTES).value):
            strange[what] += count
    others = packets.fields.number[packets.fields.wire == BYTES]
    for number, count in zip(*np.unique(others, return_counts=True), strict=True):
        if number not in _KNOWN:
            strange[f"packets with the field {number}"] += int(count)
    for kind, what in _TYPES.items():
        if count := slices.count_of(kind):
            strange[what] += count


def _warnings(slices: Slices) -> Iterator[TraceWarning]:
    if slices.unended:
        yield TraceWarning(
            "unended",
            f"{counted(slices.unended, 'slice')} had not ended when the recording did; shown are "
            "the parts in it",
        )
    left = slices.packets.left + Counter({"ends of slices without a begin": slices.open_since})
    if left:
        yield TraceWarning("damaged", f"left out: {listed(left)}")
