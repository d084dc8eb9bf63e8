"""Makes rows of launches and device activities from tables of CUPTI's records. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import Provenance, SpanRows, concat_rows, no_rows, span_rows
from xsp.text import call_name, full_name, short_name
from xsp_levels.kernel.cupti.stray import WORK
from xsp_levels.kernel.cupti.table import Table
from xsp_levels.kernel.occupancy import Device, Launches, occupancy_pct
from xsp_levels.native import thread
from xsp_levels.native.alignment import Alignment

Integers = npt.NDArray[np.int64]

_NO_STREAM = 0xFFFFFFFF  # CUPTI_SYNCHRONIZATION_INVALID_VALUE
# Words for CUpti_ActivityMemcpyKind, _MemoryKind and _SynchronizationType, by number.
_COPIES = (
    "unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
)
_MEMORIES = (
    "unknown",
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device static",
    "managed static",
)
_SYNCS = ("synchronize", "event", "stream wait event", "stream", "context")


@dataclass(frozen=True, slots=True)
class CuptiRecords:
    """The records of one visit.

    Attributes:
        kinds: Kinds of span that were asked for.
        tables: Columns of the records, by name of the table; see `table.FORMS`.
        texts: The texts that pointers in the tables point to, by pointer.
        calls: Name of each call, by table and number.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
        created: `time`, `thread` and `node` of each node that was captured into a graph.
        captured: The captured node by each node that ran, where known.
    """

    kinds: frozenset[Kind]
    tables: Mapping[str, Table] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)
    calls: Mapping[tuple[str, int], str] = field(default_factory=dict)
    threads: Mapping[int, int] = field(default_factory=dict)
    alignment: Alignment = field(default_factory=Alignment)
    created: Table = field(default_factory=dict)
    captured: Mapping[int, int] = field(default_factory=dict)


def rows(records: CuptiRecords) -> SpanRows:
    """Return one row per launch, kernel, copy, set and wait that was recorded."""
    tables, launches = records.tables, _launches(records)
    table = _timed(records.tables.get("memset"))
    if table is None:
        sets = no_rows()
    else:
        sets = span_rows(
            {
                "kind": Kind.MEMSET.value,
                "name": "memset",
                **_times(records, table),
                **_place(records, table),
                "attr.transfer_bytes": table["bytes"].astype(np.int64),
                "attr.destination": _worded(table["memory_kind"], _MEMORIES),
            }
        )
    frames = [
        launches,
        _kernels(records, launches),
        *(_copies(records, name) for name in ("memcpy", "peer")),
        sets,
        _waits(records),
        range_rows(tables.get("marker"), records.texts, records.threads, records.alignment),
    ]
    wanted = [kind.value for kind in records.kinds]
    return concat_rows([frame.filter(pl.col("kind").is_in(wanted)) for frame in frames])


def nodes_that_ran(tables: Mapping[str, Table]) -> set[int]:
    """Return the graph nodes among the device activities."""
    found = (tables[name] for name in WORK if name in tables)
    return {
        node for t in found for node in np.unique(t["graph_node_id"][t["graph_id"] > 0]).tolist()
    }


def _launches(records: CuptiRecords) -> SpanRows:
    runtime = _launches_of(records, "runtime")
    driver = _launches_of(records, "driver")
    # A runtime call and the driver call inside the runtime call bear the same id.
    inner = driver["correlation_id"].is_in(runtime["correlation_id"].to_list())
    both = concat_rows([runtime, driver.filter(~inner)])
    error_ns = records.alignment.error_ns
    made = captured_by(both, records.created, records.threads, error_ns=error_ns)
    return annotated(made, records.tables, records.alignment)


def _launches_of(records: CuptiRecords, name: str) -> SpanRows:
    table = records.tables.get(name)
    if table is None:
        return no_rows()

    def called(number: int) -> str:
        return call_name(records.calls.get((name, number), f"{name} {number}"))

    return span_rows(
        {
            "kind": Kind.LAUNCH.value,
            "name": _each(table["cbid"], called),
            **_times(records, table),
            "uncertainty_ns": records.alignment.error_ns,
            "thread": thread.named(table["thread_id"].astype(np.int64), records.threads),
            "correlation_id": table["correlation_id"].astype(np.int64),
        }
    )


def _kernels(records: CuptiRecords, launches: SpanRows) -> SpanRows:
    table = _timed(records.tables.get("kernel"))
    if table is None:
        return no_rows()
    name = table["name"]

    def full(pointer: int) -> str:
        return full_name(records.texts.get(pointer, "kernel"))

    # The nanoseconds from queueing to start of each kernel; null where unknown.
    queued, start = table["queued"].astype(np.int64), table["start"].astype(np.int64)
    delay = records.alignment.convert(start) - records.alignment.convert(
        queued
    )  # CUPTI's may be no nanoseconds
    queue_delays = _absent(delay, (queued <= 0) | (queued > start))
    made = span_rows(
        {
            "kind": Kind.KERNEL.value,
            "name": _each(name, lambda pointer: short_name(full(pointer))),
            **_times(records, table),
            **_place(records, table),
            "attr.full_name": _each(name, full),
            "attr.grid": _triples(table, "grid"),
            "attr.block": _triples(table, "block"),
            "attr.registers": table["registers_per_thread"].astype(np.int64),
            "attr.static_shared_bytes": table["static_shared_memory"].astype(np.int64),
            "attr.dynamic_shared_bytes": table["dynamic_shared_memory"].astype(np.int64),
            "attr.occupancy_pct": _occupancies(table, devices(records.tables)),
            "attr.queue_delay_ns": queue_delays,
        }
    )
    names = launches.select("correlation_id", pl.col("name").alias("attr.launched_by"))
    return made.join(names.unique("correlation_id"), on="correlation_id", how="left")


def _copies(records: CuptiRecords, name: str) -> SpanRows:
    table = _timed(records.tables.get(name))
    if table is None:
        return no_rows()
    directions = _worded(table["copy_kind"], _COPIES)
    return span_rows(
        {
            "kind": Kind.MEMCPY.value,
            "name": [f"memcpy {direction}" for direction in directions],
            **_times(records, table),
            **_place(records, table),
            "attr.transfer_bytes": table["bytes"].astype(np.int64),
            "attr.direction": directions,
            "attr.source": _worded(table["src_kind"], _MEMORIES),
            "attr.destination": _worded(table["dst_kind"], _MEMORIES),
        }
    )


def _waits(records: CuptiRecords) -> SpanRows:
    table = _timed(records.tables.get("sync"))
    if table is None:
        return no_rows()
    device = _devices_of_contexts(records.tables)
    stream = table["stream_id"].astype(np.int64)
    context = table["context_id"].tolist()
    return span_rows(
        {
            "kind": Kind.SYNC.value,
            "name": [f"synchronize {what}" for what in _worded(table["type"], _SYNCS)],
            **_times(records, table),
            "device": pl.Series([device.get(number) for number in context], dtype=pl.Int32),
            "stream": _absent(stream, stream == _NO_STREAM),
            "correlation_id": table["correlation_id"].astype(np.int64),
            "attr.context": table["context_id"].astype(np.int64),
        }
    )


def devices(tables: Mapping[str, Table]) -> dict[int, Device]:
    """Return the resources of each device, by its number."""
    table = tables.get("device", {})
    limits = ("warps", "blocks", "registers", "shared_memory")
    return {
        int(number): Device(
            (
                int(table["compute_capability_major"][at]),
                int(table["compute_capability_minor"][at]),
            ),
            *(int(table[f"max_{limit}_per_multiprocessor"][at]) for limit in limits),
        )
        for at, number in enumerate(table.get("id", ()))
    }


def _occupancies(table: Table, known: Mapping[int, Device]) -> pl.Series:
    share = np.full(len(table["start"]), np.nan)
    for number, device in known.items():
        mine = np.flatnonzero(table["device_id"] == number)
        if len(mine) and device.known:
            taken = {name: table[name][mine].astype(np.int64) for name in _TAKEN}
            as_launches = Launches(
                threads=taken["block_x"] * taken["block_y"] * taken["block_z"],
                registers=taken["registers_per_thread"],
                shared_bytes=taken["static_shared_memory"] + taken["dynamic_shared_memory"],
                carved_bytes=taken["shared_memory_executed"],
            )
            share[mine] = occupancy_pct(device, as_launches)
    return pl.Series(share).fill_nan(None)


_TAKEN = (
    "block_x",
    "block_y",
    "block_z",
    "registers_per_thread",
    "static_shared_memory",
    "dynamic_shared_memory",
    "shared_memory_executed",
)


def _times(records: CuptiRecords, table: Table) -> dict[str, Integers]:
    convert = records.alignment.convert
    start, end = table["start"].astype(np.int64), table["end"].astype(np.int64)
    return {"start_ns": convert(start), "end_ns": convert(np.maximum(start, end))}


def _place(records: CuptiRecords, table: Table) -> dict[str, Any]:
    graph, node = table["graph_id"].astype(np.int64), table["graph_node_id"].astype(np.int64)
    return {
        "device": table["device_id"].astype(np.int32),
        "stream": table["stream_id"].astype(np.int64),
        "correlation_id": table["correlation_id"].astype(np.int64),
        "attr.context": table["context_id"].astype(np.int64),
        "attr.graph": _absent(graph, graph == 0),
        "attr.graph_node": _absent(node, graph == 0),
        "attr.captured_node": _each(node, records.captured.get, pl.Int64),
    }


def _each(
    numbers: npt.NDArray[Any], value_of: Callable[[int], Any], dtype: Any = pl.String
) -> pl.Series:
    """Return the value of each number; `value_of` is called once per distinct number."""
    known, places = np.unique(numbers, return_inverse=True)
    return pl.Series([value_of(number) for number in known.tolist()], dtype=dtype).gather(places)


def _timed(table: Table | None) -> Table | None:
    if table is None:
        return None
    timed = (table["start"] > 0) & (table["end"] > 0)
    if not timed.any():
        return None
    return {name: column[timed] for name, column in table.items()}


def _triples(table: Table, name: str) -> pl.Series:
    columns = [table[f"{name}_{axis}"].astype(np.int64) for axis in "xyz"]
    return pl.Series(np.stack(columns, axis=1)).cast(pl.List(pl.Int64))


def _devices_of_contexts(tables: Mapping[str, Table]) -> dict[int, int]:
    found: dict[int, int] = {}
    for name in ("context", "kernel", "memcpy", "memset"):
        if table := tables.get(name):
            pairs = np.unique(np.stack([table["context_id"], table["device_id"]]), axis=1)
            found |= dict(pairs.T.tolist())
    return found


def _worded(numbers: Iterable[Any], words: tuple[str, ...]) -> list[str]:
    known = dict(enumerate(words))
    return [known.get(int(number), words[0]) for number in numbers]


def _absent(values: Integers, where: npt.NDArray[np.bool_]) -> pl.Series:
    """Return values with null where `where` is true."""
    return pl.Series(values).scatter(np.flatnonzero(where), None)


# Adds device memory, ids, cost and captured nodes to rows of launches. Pure.

_START, _END = 1 << 1, 1 << 2  # CUPTI_ACTIVITY_FLAG_MARKER_START, _END
_LOGGED = re.compile(r"cublas|cudnn", re.IGNORECASE)  # domains of libraries with loggers
_ALLOCATION, _RELEASE = 1, 2  # of CUpti_ActivityMemoryOperationType
# The attribute by CUpti_ActivityOverheadKind. Others (unknown, of managed memory) are nobody's.
_CUPTI, _LOADING, _FULL = "attr.cupti_overhead_ns", "attr.module_loading_ns", "attr.queue_full_ns"
_COSTS = {
    1: _LOADING,  # the driver's compiler
    1 << 16: _CUPTI,  # flushing buffers
    2 << 16: _CUPTI,  # instrumentation
    3 << 16: _CUPTI,  # resources
    4 << 16: _LOADING,  # a module that the runtime loads
    5 << 16: _LOADING,  # a function that is loaded when first launched
    6 << 16: _FULL,  # no room for commands
    7 << 16: _CUPTI,  # asking for a buffer
}


def annotated(frame: SpanRows, tables: Mapping[str, Table], alignment: Alignment) -> SpanRows:
    """Return launches with the attributes that tables other than the launches' own hold.

    Args:
        frame: The launches.
        tables: Columns of CUPTI's records, by name of the table.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
    """
    for name, attributes in _ATTRIBUTES.items():
        if (table := tables.get(name)) is not None:
            found = attributes(table, alignment)
            frame = frame.join(found, on="correlation_id", how="left", maintain_order="left")
    return frame


def captured_by(
    frame: SpanRows, created: Table, threads: Mapping[int, int], *, error_ns: int
) -> SpanRows:
    """Return launches with the numbers of the nodes that each captured into a graph.

    Args:
        frame: The launches; no launch lies within another on the same thread.
        created: `time`, `thread` (the kernel's number) and `node` of each captured node.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        error_ns: By how much the times of launches may be wrong; if a launch is shorter
            than that, its node may be given to a neighbor.
    """
    if not len(created.get("node", ())) or not frame.height:
        return frame
    numbered = frame.with_row_index("call")
    nodes = pl.DataFrame(
        {
            "time": created["time"],
            "thread": thread.named(created["thread"], threads),
            "attr.created_nodes": created["node"],
        }
    ).sort("time")
    calls = numbered.select("call", "thread", "start_ns", "end_ns").sort("start_ns")
    certain = _within(nodes, calls)
    rest = nodes.join(certain, on=nodes.columns, how="anti")
    widened = calls.with_columns(pl.col("start_ns") - error_ns, pl.col("end_ns") + error_ns)
    found = pl.concat([certain, _within(rest, widened)])
    lists = found.sort("time", maintain_order=True).group_by("call").agg("attr.created_nodes")
    return numbered.join(lists, on="call", how="left", maintain_order="left").drop("call")


def _within(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes that lie in a call of their thread, with the call's number; both sorted."""
    found = nodes.join_asof(
        calls, left_on="time", right_on="start_ns", by="thread", check_sortedness=False
    )
    return found.filter(pl.col("time") <= pl.col("end_ns")).select(*nodes.columns, "call")


def _overheads(table: Table, alignment: Alignment) -> pl.DataFrame:
    """Sum the other work within each launch: CUPTI's own, and the driver's."""
    start, end = (alignment.convert(table[name].astype(np.int64)) for name in ("start", "end"))
    cost = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "kind": table["overhead_kind"].astype(np.int64),
            "length": end - start,
        }
    )
    named = cost.with_columns(
        pl.col("kind").replace_strict(_COSTS, default=None, return_dtype=pl.String)
    )
    return named.group_by("correlation_id").agg(
        _sum_or_null(pl.col("length").filter(pl.col("kind") == name)).alias(name)
        for name in dict.fromkeys(_COSTS.values())
    )


def _sum_or_null(values: pl.Expr) -> pl.Expr:
    """Return the sum of values, null for no values at all: what was not told is not zero."""
    return pl.when(values.len() > 0).then(values.sum())


def _external_ids(table: Table, _: Alignment) -> pl.DataFrame:
    """Return the id that another tool or the framework pushed around each launch.

    Several may push, each ids of a kind of its own. The ids of one kind are taken: the lowest, for
    Kineto pushes operators' ids as that, and ids of the user's ranges as the next.
    """
    ids = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "attr.external_id": table["external_id"].astype(np.int64),
            "kind": table["external_kind"].astype(np.int64),
        }
    )
    ids = ids.filter(pl.col("kind") == pl.col("kind").min()).drop("kind")
    return ids.unique("correlation_id", keep="last", maintain_order=True)


def _memory(table: Table, _: Alignment) -> pl.DataFrame:
    """Return the device memory that each launch allocated or freed."""
    operation, size = pl.col("operation"), pl.col("size")
    changes = pl.DataFrame(
        {
            "correlation_id": table["correlation_id"].astype(np.int64),
            "operation": table["memory_operation_type"].astype(np.int64),
            "size": table["bytes"].astype(np.int64),
        }
    )
    return changes.group_by("correlation_id").agg(
        size.filter(operation == _ALLOCATION).sum().alias("attr.allocated_bytes"),
        size.filter(operation == _RELEASE).sum().alias("attr.freed_bytes"),
    )


# Attributes of launches by correlation id, by the table that CUPTI tells them in.
_ATTRIBUTES: dict[str, Callable[[Table, Alignment], pl.DataFrame]] = {
    "external": _external_ids,
    "overhead": _overheads,
    "memory": _memory,
}


def range_rows(
    table: Table | None,
    texts: Mapping[int, str],
    threads: Mapping[int, int],
    alignment: Alignment,
) -> SpanRows:
    """Return one row per range of a library, such as NCCL, that was both begun and ended.

    CUPTI sees ranges of NVTX only if the environment variable NVTX_INJECTION64_PATH named libcupti
    before NVTX was first used. They are recorded on the kernels' pass, so their latency is taken
    from that pass. Ranges without a domain are the user's own and left out; so are those of cuBLAS
    and cuDNN, whose calls the library level tells of.

    Args:
        table: Markers as CUPTI recorded them.
        texts: The texts that the table's pointers point to, by pointer.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        alignment: Alignment of CUPTI's clock with the measurement's clock.
    """
    if table is None:
        return no_rows()
    flags, ends = table["flags_"], {}
    for at in np.flatnonzero(flags & _END).tolist():
        ends[int(table["id"][at])] = at
    begun = [
        at
        for at in np.flatnonzero(flags & _START).tolist()
        if int(table["id"][at]) in ends and _is_told(texts.get(int(table["domain"][at])))
    ]
    ended = [ends[int(table["id"][at])] for at in begun]
    times = alignment.convert(table["timestamp"].astype(np.int64))
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [texts.get(int(table["name"][at]), "range") for at in begun],
            "start_ns": times[begun],
            "end_ns": times[ended],
            "thread": thread.named(table["object_id"][begun].astype(np.int64), threads),
            "provenance": Provenance.MARKER.value,
            "attr.library": pl.Series(
                [texts[int(table["domain"][at])] for at in begun], dtype=pl.String
            ),
            "attr.placement": "ends",
        }
    )


def _is_told(domain: str | None) -> bool:
    return domain is not None and domain != "" and not _LOGGED.match(domain)
