"""Reads rocpd, the SQLite database that rocprofv3 writes where no other format is asked for.

The tables of each process end with its identifier (`rocpd_region_0000c0de_...`). `rocpd_region` has
the calls and ranges of the host, `rocpd_kernel_dispatch` and `rocpd_memory_copy` what devices did,
and the `stack_id` of their events ties the latter to the former. Written by the schema of version
3 (ROCm 7), and tried on databases made by it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import PurePath
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import Kind
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.reading.importers.call import doubled_calls, tied
from xsp.reading.importers.reading import each_once, listed
from xsp.reading.importers.recording import Contents, Recording
from xsp.reading.importers.rocm import copy_direction, part_steps, range_columns
from xsp.reading.importers.rpd.table import opened
from xsp.reading.importers.source import Source
from xsp.text import call_name, full_name, short_name
from xsp.warning import TraceWarning

_MAGIC = b"SQLite format 3\x00"
_DISPATCH = re.compile(r"^rocpd_kernel_dispatch(?P<process>_\w+)?$")
_LAUNCHES = r"^(HIP|HSA)_"
_LIBRARIES = {"RCCL_API": "RCCL", "ROCDECODE_API": "rocDecode", "ROCJPEG_API": "rocJPEG"}
_MARKER = r"^MARKER_"
_NOT_SHOWN = {"sample": "samples", "memory_allocate": "allocations", "pmc_event": "counter values"}

_REGIONS = """
SELECT r.start, r.end, t.tid AS thread, e.stack_id AS correlation_id, c.string AS category,
    n.string AS name, e.extdata AS extra
FROM rocpd_region{0} r LEFT JOIN rocpd_event{0} e ON e.id = r.event_id
    LEFT JOIN rocpd_string{0} c ON c.id = e.category_id
    LEFT JOIN rocpd_string{0} n ON n.id = r.name_id
    LEFT JOIN rocpd_info_thread{0} t ON t.id = r.tid
"""
_KERNELS = """
SELECT k.start, k.end, e.stack_id AS correlation_id, a.type_index AS device,
    k.stream_id AS stream, s.display_name AS display, s.kernel_name AS mangled,
    k.grid_size_x AS gx, k.grid_size_y AS gy, k.grid_size_z AS gz, k.workgroup_size_x AS bx,
    k.workgroup_size_y AS by_, k.workgroup_size_z AS bz, k.group_segment_size AS shared,
    s.group_segment_size AS static, s.arch_vgpr_count AS vectors, s.accum_vgpr_count AS sums
FROM rocpd_kernel_dispatch{0} k LEFT JOIN rocpd_event{0} e ON e.id = k.event_id
    LEFT JOIN rocpd_info_agent{0} a ON a.id = k.agent_id
    LEFT JOIN rocpd_info_kernel_symbol{0} s ON s.id = k.kernel_id
"""
_COPIES = """
SELECT m.start, m.end, e.stack_id AS correlation_id, n.string AS name, m.size,
    m.stream_id AS stream,
    CASE WHEN d.type = 'GPU' THEN d.type_index ELSE o.type_index END AS device
FROM rocpd_memory_copy{0} m LEFT JOIN rocpd_event{0} e ON e.id = m.event_id
    LEFT JOIN rocpd_string{0} n ON n.id = m.name_id
    LEFT JOIN rocpd_info_agent{0} d ON d.id = m.dst_agent_id
    LEFT JOIN rocpd_info_agent{0} o ON o.id = m.src_agent_id
"""
_PROCESS = """
SELECT p.pid, p.command, n.hostname FROM rocpd_info_process{0} p
    LEFT JOIN rocpd_info_node{0} n ON n.id = p.nid LIMIT 1
"""
_DEVICES = """
SELECT coalesce(nullif(product_name, ''), name) FROM rocpd_info_agent{0}
WHERE type = 'GPU' ORDER BY type_index
"""
_TYPES = dict.fromkeys(("category", "name", "extra", "display", "mangled"), pl.String)


class Rocpd:
    """Reads the databases of rocprofv3 (`rocprofv3 --output-format rocpd`)."""

    name = "rocpd"
    tool = "rocprofv3, *.db"

    def recognizes(self, source: Source) -> bool:
        """Tell whether the file is SQLite, and its schema has rocpd's tables of facts."""
        return source.head.startswith(_MAGIC) and b"rocpd_info_" in source.head

    def read(self, source: Source) -> Contents:
        """Read a recording of each process.

        Raises:
            TraceFormatError: The file is damaged, or its tables are not those of version 3.
        """
        try:
            with source.unpacked() as path, closing(opened(path, source.path)) as file:
                found = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                names = {str(name) for (name,) in found}
                matches = filter(None, map(_DISPATCH.match, sorted(names)))
                processes = [match["process"] or "" for match in matches]
                if not processes:
                    raise TraceFormatError(
                        f"{source.path} is a rocpd database of a version that xsp does not know; "
                        "record again with --output-format json"
                    )
                return tuple(_recording(file, process, names) for process in processes)
        except sqlite3.Error as error:
            raise TraceFormatError(f"{source.path} is a damaged rocpd database: {error}") from error


def _recording(file: sqlite3.Connection, process: str, names: set[str]) -> Recording:
    """Build the recording of a process.

    Args:
        file: The database.
        process: What the names of its tables end with.
        names: The names of all tables.
    """
    damaged, left = Counter[str](), Counter[str]()
    regions = _sound(_frame(file, _REGIONS, process), "regions", damaged)
    kernels = _sound(_frame(file, _KERNELS, process), "kernels", damaged)
    copies = _sound(_frame(file, _COPIES, process), "copies", damaged)
    rows = concat_rows([_host(regions, left), _kernels(kernels), _copies(copies)])
    rows, doubled = tied(rows)
    rows, steps = part_steps(rows)
    for table, what in _NOT_SHOWN.items():
        if f"rocpd_{table}{process}" in names:
            left[what] += file.execute(f'SELECT count(*) FROM "rocpd_{table}{process}"').fetchone()[
                0
            ]
    pid, command, host = file.execute(_PROCESS.format(process)).fetchone() or (None, "", "")
    devices = [str(name) for (name,) in file.execute(_DEVICES.format(process))]
    environment: dict[str, Any] = {"devices": devices, "host": host}
    return Recording(
        tool="rocprofv3",
        rows=rows,
        roots=steps,
        name=_program(command or "", pid),
        warnings=(*_warnings(damaged, +left), *doubled_calls(doubled)),
        environment={key: value for key, value in environment.items() if value},
        host=host or "",
    )


def _frame(file: sqlite3.Connection, query: str, process: str) -> pl.DataFrame:
    """Return the rows of a query; what is not of its column's type is null."""
    found = file.execute(query.format(process))
    columns = [column[0] for column in found.description]
    schema = {name: _TYPES.get(name, pl.Int64) for name in columns}
    frame = pl.DataFrame(found.fetchall(), schema=schema, orient="row", strict=False)
    return frame.rename({"start": "start_ns", "end": "end_ns"})


def _sound(frame: pl.DataFrame, what: str, damaged: Counter[str]) -> pl.DataFrame:
    sound = frame.filter((pl.col("end_ns") >= pl.col("start_ns")).fill_null(value=False))
    damaged[what] += frame.height - sound.height
    return sound


def _host(regions: pl.DataFrame, left: Counter[str]) -> SpanRows:
    """Return launches, library calls and ranges; regions of other categories are counted."""
    category = pl.col("category").fill_null("")
    launches = regions.filter(category.str.contains(_LAUNCHES))
    calls = regions.filter(category.is_in(list(_LIBRARIES)))
    ranges = regions.filter(category.str.contains(_MARKER))
    known = category.str.contains(_LAUNCHES) | category.str.contains(_MARKER)
    others = regions.filter(~known & ~category.is_in(list(_LIBRARIES)))
    left.update(f"regions of {name or 'no category'}" for name in others["category"])
    parts = []
    if launches.height:
        name = each_once(launches["name"], call_name)
        tie = launches["correlation_id"]
        parts.append(_rows(launches, kind=Kind.LAUNCH.value, name=name, correlation_id=tie))
    if calls.height:
        library = {"attr.library": calls["category"].replace_strict(_LIBRARIES)}
        parts.append(_rows(calls, kind=Kind.CALL.value, name=calls["name"], **library))
    if ranges.height:
        said = [
            _message(extra) or name or "" for extra, name in ranges.select("extra", "name").rows()
        ]
        parts.append(_rows(ranges, **range_columns(said)))
    return concat_rows(parts)


def _rows(regions: pl.DataFrame, **columns: Any) -> SpanRows:
    times = {name: regions[name] for name in ("start_ns", "end_ns", "thread")}
    return span_rows({**times, **columns})


def _message(extra: str | None) -> str | None:
    """Return the text given to roctx, which stands among the facts of its event."""
    try:
        found = json.loads(extra or "{}")
    except ValueError:
        return None
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) else None


def _kernels(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    full = each_once(
        frame.select(pl.coalesce("display", "mangled", pl.lit("kernel"))).to_series(), full_name
    )
    block = frame.select(pl.concat_list("bx", "by_", "bz")).to_series()
    grid = frame.select(
        pl.concat_list(
            -(-pl.col(g) // pl.col(b).clip(1))
            for g, b in (("gx", "bx"), ("gy", "by_"), ("gz", "bz"))
        )
    ).to_series()
    return span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": each_once(full, short_name),
            **_placed(frame),
            "attr.full_name": full,
            "attr.grid": grid,
            "attr.block": block,
            "attr.registers": frame.select(
                pl.col("vectors") + pl.col("sums").fill_null(0)
            ).to_series(),
            "attr.static_shared_bytes": frame["static"],
            "attr.dynamic_shared_bytes": frame["shared"] - frame["static"],
        }
    )


def _copies(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    ways = each_once(frame["name"].fill_null(""), copy_direction)
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": "memcpy " + ways,
            **_placed(frame),
            "attr.transfer_bytes": frame["size"],
            "attr.direction": ways,
        }
    )


def _placed(frame: pl.DataFrame) -> dict[str, pl.Series]:
    placed = {name: frame[name] for name in ("start_ns", "end_ns", "stream", "correlation_id")}
    return {**placed, "device": frame["device"].fill_null(0).cast(pl.Int32)}


def _program(command: str, pid: int | None) -> str:
    """Return the name of the program that was recorded.

    >>> _program("/usr/bin/python3 /srv/train.py --steps 5", 7)
    'train.py'
    """
    words = command.split()
    script = next((word for word in words if word.endswith(".py")), words[0] if words else "")
    return PurePath(script).name or (f"process {pid}" if pid is not None else "")


def _warnings(damaged: Counter[str], left: Counter[str]) -> Iterator[TraceWarning]:
    if lost := +damaged:
        yield TraceWarning("damaged", f"damaged and left out: {listed(lost)}")
    if left:
        yield TraceWarning("not-understood", f"xsp does not know and left out: {listed(left)}")
