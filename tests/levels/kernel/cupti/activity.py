"""Rows of launches and device activities in; the records that CUPTI would have made of them out.

It goes the way of `xsp_levels.kernel.cupti` backwards: what another tool recorded, or what is
played, becomes bytes in buffers, from which that package has to make the same rows again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from fake_cupti import FakeCupti
from fake_records import DTYPES, ActivityKind

from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider.row import SpanRows
from xsp_levels.kernel.cupti.record import _COPIES, _MEMORIES, _SYNCS, CuptiRecords
from xsp_levels.kernel.cupti.table import Table, gather, join, layout, walk
from xsp_levels.native.alignment import Alignment

K = ActivityKind
AHEAD_NS = 1_700_000_000_000_000_000  # by how much CUPTI's clock is ahead of the rows'
KINDS = frozenset({Kind.LAUNCH, Kind.SYNC, *DEVICE_ACTIVITIES})
DRIVER = r"^cu[A-Z]"
INVALID = 0xFFFFFFFF
BUFFER = 1 << 16  # bytes

Records = npt.NDArray[Any]


def of_cupti(rows: SpanRows) -> SpanRows:
    """Return the rows that CUPTI has records of."""
    return rows.filter(pl.col("kind").is_in([kind.value for kind in KINDS]))


def others(rows: SpanRows) -> SpanRows:
    """Return the rows that other levels make."""
    return rows.filter(~pl.col("kind").is_in([kind.value for kind in KINDS]))


class Played:
    """CUPTI's records of some rows, as the provider keeps them.

    CUPTI has 32 bits for ids of calls and numbers of threads: the rows' are numbered anew, in the
    order of their values. Kernels that a launch of a graph ran are nodes of that graph.

    Args:
        rows: Rows of any kinds; those that CUPTI has no record of are passed over.
        seed: Of the order in which the records lie in the buffers.

    Attributes:
        kept: What `Cupti.spans` makes rows of.
    """

    def __init__(self, rows: SpanRows, seed: int = 0) -> None:
        rows = of_cupti(rows)
        self._texts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        threads = rows["thread"].drop_nulls().unique().sort().to_list()
        self._threads = {thread: number for number, thread in enumerate(threads, 1)}
        self._ids = _ranks(rows["correlation_id"])
        graphs = rows.filter(kind="launch").filter(pl.col("name").str.contains("GraphLaunch"))
        self._graphs = set(graphs["correlation_id"].drop_nulls())
        arrays = [array for array in self._arrays(rows) if len(array)]
        self.kept = CuptiRecords(
            kinds=KINDS,
            tables=_tables(_buffers(arrays, seed)),
            texts={number: text for text, number in self._texts.items()},
            calls={(_call(name), number): name for name, number in self._numbers.items()},
            threads={number: thread for thread, number in self._threads.items()},
            alignment=Alignment((0, 1), (-AHEAD_NS, -AHEAD_NS)),
        )

    def number_of(self, correlation_id: int | None) -> int:
        """Return the number that stands for a row's id; 0 for none."""
        return 0 if correlation_id is None else self._ids[correlation_id]

    def _arrays(self, rows: SpanRows) -> Iterator[Records]:
        of = {str(kind): frame for (kind,), frame in rows.group_by("kind")}
        launches = of.get("launch", rows.clear())
        in_driver = pl.col("name").str.contains(DRIVER)
        yield self._launches(K.RUNTIME, launches.filter(~in_driver))
        yield self._launches(K.DRIVER, launches.filter(in_driver))
        yield self._kernels(of.get("kernel", rows.clear()))
        copies = of.get("memcpy", rows.clear())
        peer = pl.col("name").str.ends_with("PtoP")
        yield self._copies(K.MEMCPY, copies.filter(~peer))
        yield self._copies(K.MEMCPY2, copies.filter(peer))
        sets = of.get("memset", rows.clear())
        yield self._made(K.MEMSET, sets, **self._place(sets), bytes=_whole(sets, "transfer_bytes"))
        yield self._waits(of.get("sync", rows.clear()))
        devices = rows["device"].drop_nulls().unique().to_numpy()
        contexts = np.zeros(len(devices), DTYPES[K.CONTEXT])
        contexts["kind"], contexts["device_id"] = K.CONTEXT, devices
        contexts["context_id"] = devices + 1
        yield contexts

    def _launches(self, kind: ActivityKind, rows: SpanRows) -> Records:
        numbers = [self._numbers.setdefault(name, len(self._numbers) + 1) for name in rows["name"]]
        threads = [self._threads.get(thread, 0) for thread in rows["thread"]]
        return self._made(kind, rows, cbid=numbers, thread_id=threads)

    def _kernels(self, rows: SpanRows) -> Records:
        full = rows["attr.full_name"] if "attr.full_name" in rows.columns else rows["name"]
        names = [self._text(name) for name in full.fill_null(rows["name"])]
        return self._made(K.CONCURRENT_KERNEL, rows, **self._place(rows), name=names)

    def _copies(self, kind: ActivityKind, rows: SpanRows) -> Records:
        return self._made(
            kind,
            rows,
            **self._place(rows),
            bytes=_whole(rows, "transfer_bytes"),
            copy_kind=_numbers(rows["name"].str.strip_prefix("memcpy "), _COPIES),
            src_kind=_numbers(_attribute(rows, "source"), _MEMORIES),
            dst_kind=_numbers(_attribute(rows, "destination"), _MEMORIES),
        )

    def _waits(self, rows: SpanRows) -> Records:
        return self._made(
            K.SYNCHRONIZATION,
            rows,
            type=_numbers(rows["name"].str.strip_prefix("synchronize "), _SYNCS),
            context_id=rows["device"].cast(pl.Int64).fill_null(INVALID - 1).to_numpy() + 1,
            stream_id=rows["stream"].fill_null(INVALID).to_numpy(),
        )

    def _place(self, rows: SpanRows) -> dict[str, Any]:
        device = rows["device"].cast(pl.Int64).fill_null(0).to_numpy()
        in_graph = np.array([number in self._graphs for number in rows["correlation_id"]], bool)
        if "attr.graph_node" in rows.columns:
            in_graph |= rows["attr.graph_node"].is_not_null().to_numpy()
        return {
            "device_id": device,
            "context_id": device + 1,
            "stream_id": rows["stream"].fill_null(0).to_numpy(),
            "graph_id": in_graph.astype(np.uint32),
            "graph_node_id": np.cumsum(in_graph),
        }

    def _made(self, kind: ActivityKind, rows: SpanRows, **fields: Any) -> Records:
        made = np.zeros(rows.height, DTYPES[kind])
        made["kind"] = kind
        for name, values in fields.items():
            made[name] = values
        for name in ("start", "end"):
            made[name] = rows[f"{name}_ns"].to_numpy() + AHEAD_NS
        made["correlation_id"] = [self.number_of(number) for number in rows["correlation_id"]]
        return made

    def _text(self, name: str) -> int:
        return self._texts.setdefault(name, len(self._texts) + 1)


def _call(name: str) -> str:
    return "driver" if re.match(DRIVER, name) else "runtime"


def _ranks(values: pl.Series) -> dict[int, int]:
    known = values.drop_nulls().unique().sort().to_list()
    return {value: number for number, value in enumerate(known, 1)}


def _attribute(rows: SpanRows, name: str) -> pl.Series:
    column = f"attr.{name}"
    return (
        rows[column] if column in rows.columns else pl.Series([None] * rows.height, dtype=pl.String)
    )


def _whole(rows: SpanRows, name: str) -> npt.NDArray[np.int64]:
    column = f"attr.{name}"
    values = rows[column] if column in rows.columns else pl.Series([0] * rows.height)
    return values.cast(pl.Int64).fill_null(0).to_numpy()


def _numbers(words: pl.Series, known: tuple[str, ...]) -> list[int]:
    return [known.index(word) if word in known else 0 for word in words]


def _buffers(arrays: list[Records], seed: int) -> list[bytes]:
    """Return buffers with the records in any order, as CUPTI's threads leave them."""
    records = [array[at : at + 1].tobytes() for array in arrays for at in range(len(array))]
    buffers, content = [], bytearray()
    for at in np.random.default_rng(seed).permutation(len(records)).tolist():
        if len(content) + len(records[at]) > BUFFER:
            buffers.append(bytes(content))
            content.clear()
        content += records[at]
    return [*buffers, bytes(content)]


def _tables(buffers: list[bytes]) -> Mapping[str, Table]:
    """Read buffers as the session reads CUPTI's."""
    how = layout(FakeCupti())
    parts: dict[str, list[Table]] = {}
    for buffer in buffers:
        content = memoryview(buffer)
        found, unread = walk(content, lambda kind, _: DTYPES[ActivityKind(kind)].itemsize)
        assert unread == 0
        for kind, places in found.items():
            form = how.forms[kind]
            parts.setdefault(form.table, []).append(gather(content, places, how.dtypes[kind], form))
    return {name: join(tables) for name, tables in parts.items()}
