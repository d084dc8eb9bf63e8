"""rocmProfileData: the SQLite file of AMD's tracer in, rows out.

The tables are those of rocmProfileData's schema 2: `rocpd_api` has the calls on the host, roctx
ranges among them (`UserMarker`), `rocpd_op` what devices did, and `rocpd_api_ops` which call asked
for it. What a launched graph does has no numbers of nodes in the file; the nodes are numbered in
the order in which the file has them.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.importers.reading import listed
from xsp.importers.recording import Contents, Recording
from xsp.importers.rocm import part_steps, range_columns
from xsp.importers.source import Source
from xsp.kernel_name import call_name, full_name, short_name
from xsp.level import Kind
from xsp.problem import Problem
from xsp.provider import SpanRows, concat_rows, no_rows, span_rows
from xsp.quantity import counted

_MAGIC = b"SQLite format 3\x00"
_MARKER = "UserMarker"
_API = r"^_{0,2}(hip|hsa)"  # names of calls of HIP and HSA
_OWN = r"^(\w+::writeRows|rpdflush|hcc_activity_callback)$"  # the tracer's own work
_COPIES = {
    "CopyDeviceToDevice": "DtoD",
    "CopyDeviceToHost": "DtoH",
    "CopyHostToDevice": "HtoD",
    "CopyHostToHost": "HtoH",
}
_SET = "FillBuffer"
_KERNELS = ("KernelExecution", "Task")  # a graph's kernels are tasks
# Calls whose sizes are in threads, where those of the others are in blocks.
_IN_THREADS = r"^hip(Ext|Hcc)ModuleLaunchKernel$"
_GRAPH = re.compile(r"graphExec ?= ?0x([0-9a-fA-F]{1,15})\b")
# Tables that are read, and those that repeat others or the schema.
_READ = {"rocpd_api", "rocpd_op", "rocpd_api_ops", "rocpd_string", "rocpd_kernelapi"}
_READ |= {"rocpd_copyapi", "ext_autogradapi"}
_REPEATING = {"rocpd_metadata", "sqlite_sequence", "ext_callstack", "rocpd_kernelcodeobject"}


class RocmProfileData:
    """Reads the files of rocmProfileData (`runTracer.sh`, `rpdTracerControl`)."""

    name = "rpd"
    tool = "rocmProfileData, *.rpd"

    def recognises(self, source: Source) -> bool:
        """Tell whether the file is SQLite, and its schema has tables of rocpd."""
        return source.head.startswith(_MAGIC) and b"rocpd_" in source.head

    def read(self, source: Source) -> Contents:
        """Return what each process did.

        Raises:
            TraceFormatError: The file is damaged, or of the other tool that calls its tables so.
        """
        try:
            with source.unpacked() as path, closing(_opened(path)) as file:
                return _Reader(file, source.path).recordings()
        except (sqlite3.Error, EOFError) as error:
            raise TraceFormatError(
                f"{source.path} is a damaged file of rocmProfileData: {error}"
            ) from error


def _opened(path: Path) -> sqlite3.Connection:
    """Return a connection that neither writes nor waits."""
    file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    file.text_factory = lambda text: text.decode(errors="replace")
    return file


class _Reader:
    """Reads one file."""

    def __init__(self, file: sqlite3.Connection, path: Path) -> None:
        self._file = file
        names = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self._tables = {str(name) for (name,) in names}
        if not {"rocpd_api", "rocpd_op"} <= self._tables:
            raise TraceFormatError(
                f"{path} has tables of rocpd, but not those of rocmProfileData; of rocprofv3's "
                "output xsp reads JSON: rocprofv3 --output-format json"
            )
        self._left: Counter[str] = Counter()
        self._damaged: Counter[str] = Counter()
        self._own = 0

    def recordings(self) -> Contents:
        """Return what each process did."""
        strings = {key: _text(text) for key, text in self._rows("rocpd_string", "id", "string")}
        calls, ops = self._calls(strings), self._ops(strings)
        rows = concat_rows([self._ranges(calls), self._launches(calls), *self._activities(ops)])
        self._count_others()
        problems = tuple(self._problems())
        if not rows.height:
            return (_recording(rows, problems),)
        pids = rows["attr.pid"].drop_nulls().unique(maintain_order=True).to_list()
        # An operation without a call tells no process; it is given to the first.
        process = pl.col("attr.pid").fill_null(pids[0] if pids else 0)
        made = [
            _recording(rows.filter(process == pid).drop("attr.pid"), problems)
            for pid in pids or [0]
        ]
        return tuple(made)

    def _rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a table, in the order of its rows; none if there is no such table."""
        if table not in self._tables:
            return []
        quoted = ", ".join(f'"{column}"' for column in columns)
        return self._file.execute(f'SELECT {quoted} FROM "{table}" ORDER BY rowid').fetchall()

    def _frame(self, table: str, **columns: str) -> pl.DataFrame:
        """Return columns of whole numbers; what is none is null.

        Args:
            table: Name of the table.
            columns: Name of each column in the file, by its name here.
        """
        parts = list(zip(*self._rows(table, *columns.values()), strict=True)) or [()] * len(columns)
        return pl.DataFrame(
            [
                pl.Series(name, [_whole(each) for each in part], dtype=pl.Int64)
                for name, part in zip(columns, parts, strict=True)
            ]
        )

    def _calls(self, strings: Mapping[int, str | None]) -> pl.DataFrame:
        """Return `id`, `pid`, `thread`, times, `name` and `text` of the calls of the host."""
        frame = self._frame(
            "rocpd_api",
            id="id",
            pid="pid",
            thread="tid",
            start_ns="start",
            end_ns="end",
            name="apiName_id",
            text="args_id",
        )
        frame = self._sound(_worded(frame, strings, "name", "text"), "calls")
        own = pl.col("name").str.contains(_OWN)
        self._own = int(frame.select(own.sum()).item())
        return frame.filter(~own)

    def _ops(self, strings: Mapping[int, str | None]) -> pl.DataFrame:
        """Return what devices did, with `call`, the id of the call that asked for it."""
        frame = self._frame(
            "rocpd_op",
            id="id",
            device="gpuId",
            stream="queueId",
            start_ns="start",
            end_ns="end",
            text="description_id",
            name="opType_id",
        )
        asked = self._frame("rocpd_api_ops", call="api_id", id="op_id")
        asked = asked.unique("id", keep="first", maintain_order=True)
        calls = self._frame("rocpd_api", call="id", pid="pid", called="apiName_id", args="args_id")
        asked = asked.join(_worded(calls, strings, "called", "args"), on="call", how="left")
        frame = self._sound(_worded(frame, strings, "name", "text"), "operations of devices")
        return frame.join(asked, on="id", how="left", maintain_order="left")

    def _sound(self, frame: pl.DataFrame, what: str) -> pl.DataFrame:
        """Return rows that have a name, a start, and an end after it."""
        sound = pl.col("name").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns"))
        kept = frame.filter(sound.fill_null(value=False))
        if kept.height < frame.height:
            self._damaged[what] += frame.height - kept.height
        return kept

    def _ranges(self, calls: pl.DataFrame) -> SpanRows:
        """Return roctx ranges, and functions that Python's decorator marked."""
        marker = pl.col("name") == _MARKER
        texts = pl.when(marker).then(pl.col("text").fill_null(_MARKER)).otherwise("name")
        frame = calls.filter(~pl.col("name").str.contains(_API)).with_columns(said=texts)
        autograd = self._frame("ext_autogradapi", id="api_ptr_id", number="seq")
        frame = frame.join(
            autograd.unique("id", keep="first").with_columns(autograd=True),
            on="id",
            how="left",
            maintain_order="left",
        )
        columns = range_columns(frame["said"].to_list())
        frame = frame.with_columns(**{f"{name}_": column for name, column in columns.items()})
        kind = pl.when(pl.col("autograd")).then(pl.lit(Kind.OP.value)).otherwise("kind_")
        frame = frame.with_columns(kind.alias("kind_"), pl.coalesce("sequence_", "number"))
        return self._host_rows(frame, frame["kind_"], frame["name_"], frame["sequence_"])

    def _launches(self, calls: pl.DataFrame) -> SpanRows:
        frame = calls.filter(pl.col("name").str.contains(_API))
        names = _each(frame["name"], call_name)
        rows = self._host_rows(frame, Kind.LAUNCH.value, names, None)
        return rows.with_columns(correlation_id=frame["id"])

    def _host_rows(self, frame: pl.DataFrame, kind: Any, name: Any, sequence: Any) -> SpanRows:
        if not frame.height:
            return no_rows()
        return span_rows(
            {
                "kind": kind,
                "name": name,
                "start_ns": frame["start_ns"],
                "end_ns": frame["end_ns"],
                "thread": frame["thread"],
                "sequence": sequence,
                "attr.pid": frame["pid"],
            }
        )

    def _activities(self, ops: pl.DataFrame) -> list[SpanRows]:
        """Return kernels, copies and sets; what else devices did is counted."""
        nodes = _with_nodes(ops)
        kernel = pl.col("name").is_in(_KERNELS) & (pl.col("text").fill_null("") != "")
        copy, set_ = pl.col("name").is_in(list(_COPIES)), pl.col("name").str.starts_with(_SET)
        others = nodes.filter(~kernel & ~copy & ~set_)
        self._left.update(f"operations {name}" for name in others["name"])
        sizes = self._frame("rocpd_copyapi", call="api_ptr_id", bytes="size")
        sizes = sizes.unique("call", keep="first")
        # What a graph copies is not what its launch was asked to copy.
        sized = nodes.join(sizes, on="call", how="left", maintain_order="left")
        return [
            self._kernels(nodes.filter(kernel)),
            _copies(sized.filter(copy)),
            _sets(sized.filter(set_)),
        ]

    def _kernels(self, frame: pl.DataFrame) -> SpanRows:
        if not frame.height:
            return no_rows()
        sizes = {
            f"{part}{axis}": f"{part}{axis}" for part in ("grid", "workgroup") for axis in "XYZ"
        }
        shapes = self._frame(
            "rocpd_kernelapi", call="api_ptr_id", shared="groupSegmentSize", **sizes
        )
        frame = frame.join(
            shapes.unique("call", keep="first"), on="call", how="left", maintain_order="left"
        )
        frame = frame.with_columns(
            pl.when(pl.col("called").str.contains(_IN_THREADS))
            .then(-(-pl.col(f"grid{axis}") // pl.col(f"workgroup{axis}")))
            .otherwise(f"grid{axis}")
            .alias(f"grid{axis}")
            for axis in "XYZ"
        )
        full = _each(frame["text"], full_name)
        return span_rows(
            {
                "kind": Kind.KERNEL.value,
                "name": _each(full, short_name),
                **_placed(frame),
                "attr.full_name": full,
                "attr.grid": _triple(frame, "grid"),
                "attr.block": _triple(frame, "workgroup"),
                "attr.dynamic_shared_bytes": frame["shared"],
                "attr.launched_by": _each(frame["called"], call_name),
            }
        )

    def _count_others(self) -> None:
        """Count the rows of tables that are not read."""
        for table in sorted(self._tables - _READ - _REPEATING):
            count = self._file.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            if count:
                self._left[f"rows of {table}"] += count

    def _problems(self) -> Iterator[Problem]:
        if self._damaged:
            yield Problem("damaged", f"left out, for they are damaged: {listed(self._damaged)}")
        if self._left:
            yield Problem("not-read", f"not understood, and left out: {listed(self._left)}")
        if self._own:
            yield Problem(
                "own-left-out", f"{counted(self._own, 'range')} of the tracer's own work left out"
            )


def _recording(rows: SpanRows, problems: tuple[Problem, ...]) -> Recording:
    rows, steps = part_steps(rows)
    return Recording(tool="rocmProfileData", rows=rows, roots=steps, problems=problems)


def _copies(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    ways = frame["name"].replace_strict(_COPIES, return_dtype=pl.String)
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": "memcpy " + ways,
            **_placed(frame),
            "attr.transfer_bytes": frame["bytes"],
            "attr.direction": ways,
        }
    )


def _sets(frame: pl.DataFrame) -> SpanRows:
    if not frame.height:
        return no_rows()
    columns = _placed(frame)
    return span_rows({"kind": Kind.MEMSET.value, "name": "memset", **columns})


def _with_nodes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return operations with `graph` and `node` where a graph's launch asked for them."""
    graphs = ops.filter(pl.col("called") == "hipGraphLaunch")
    addresses = {text: _graph(text) for text in graphs["args"].drop_nulls().unique().to_list()}
    numbered = graphs.select(
        "id",
        graph=pl.col("args").replace_strict(addresses, default=None, return_dtype=pl.Int64),
        node=pl.int_range(pl.len()).over("call"),
    )
    return ops.join(numbered, on="id", how="left", maintain_order="left")


def _graph(text: str) -> int | None:
    found = _GRAPH.search(text)
    return int(found[1], 16) if found else None


def _placed(frame: pl.DataFrame) -> dict[str, pl.Series]:
    return {
        **{name: frame[name] for name in ("start_ns", "end_ns", "device", "stream")},
        "correlation_id": frame["call"],
        "attr.graph": frame["graph"],
        "attr.graph_node": frame["node"],
        "attr.pid": frame["pid"],
    }


def _triple(frame: pl.DataFrame, name: str) -> pl.Series:
    known = pl.all_horizontal(pl.col(f"{name}{axis}").is_not_null() for axis in "XYZ")
    lists = pl.concat_list(f"{name}{axis}" for axis in "XYZ")
    return frame.select(pl.when(known).then(lists).alias(name)).to_series()


def _worded(frame: pl.DataFrame, strings: Mapping[int, str | None], *columns: str) -> pl.DataFrame:
    """Return a frame with texts in place of the numbers of texts; null for numbers of none."""
    texts = pl.DataFrame(
        {"number": list(strings), "text_": list(strings.values())},
        schema={"number": pl.Int64, "text_": pl.String},
        strict=False,
    )
    for column in columns:
        joined = frame.select(column).join(
            texts, left_on=column, right_on="number", how="left", maintain_order="left"
        )
        frame = frame.with_columns(joined["text_"].alias(column))
    return frame


def _each(texts: pl.Series, value_of: Any) -> pl.Series:
    """Return the value of each text; `value_of` is called once per distinct text."""
    known = {text: value_of(text) for text in texts.drop_nulls().unique().to_list()}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)


def _text(value: Any) -> str | None:
    """Return text, which SQLite keeps as bytes where the tracer wrote bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    """Return a whole number; None for anything else that SQLite keeps in its place."""
    return value if isinstance(value, int) else None
