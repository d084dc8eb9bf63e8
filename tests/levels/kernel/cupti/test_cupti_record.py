from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from fake_cupti import FakeCupti
from fake_records import ActivityKind, record
from hypothesis import given
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.provider.row import ROW_SCHEMA
from xsp_levels.kernel.cupti.record import CuptiRecords, rows
from xsp_levels.kernel.cupti.stray import unfinished, untimed
from xsp_levels.kernel.cupti.table import Table, gather, join, layout

K = ActivityKind
ALL = frozenset({Kind.LAUNCH, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC})
HOW = layout(FakeCupti())
TEXTS = {1: "triton_poi_0", 2: "void ns::gemm<float, 4>(float*)", 3: "NCCL", 4: "ncclAllReduce"}
TEXTS |= {5: "cuBLAS", 6: "cublasLtSSSMatmul"}
CALLS = {
    ("runtime", 211): "cudaLaunchKernel_v7000",
    ("driver", 307): "cuLaunchKernel",
    ("runtime", 41): "cudaMemcpyAsync_v3020",
}


def tables(*made: bytes) -> dict[str, Table]:
    parts: dict[str, list[Table]] = {}
    for one in made:
        kind = int(np.frombuffer(one[:4], np.int32)[0])
        form = HOW.forms[kind]
        table = gather(memoryview(one), [0], HOW.dtypes[kind], form)
        parts.setdefault(form.table, []).append(table)
    return {name: join(each) for name, each in parts.items()}


def converted(*made: bytes, kinds: frozenset[Kind] = ALL, **more: Any) -> pl.DataFrame:
    return rows(CuptiRecords(kinds, tables(*made), TEXTS, CALLS, **more))


def launch(number: int, start: int = 10, end: int = 20, **more: Any) -> bytes:
    values = {"cbid": 211, "thread_id": 7, **more}
    return record(K.RUNTIME, correlation_id=number, start=start, end=end, **values)


def kernel(number: int, start: int = 30, end: int = 90, **more: Any) -> bytes:
    values = {"name": 1, "device_id": 0, "context_id": 1, "stream_id": 7, **more}
    return record(K.CONCURRENT_KERNEL, correlation_id=number, start=start, end=end, **values)


def test_a_kernel_says_where_when_and_how_it_ran() -> None:
    shape = {"grid_x": 8, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    made = kernel(
        5,
        name=2,
        registers_per_thread=40,
        static_shared_memory=16,
        dynamic_shared_memory=48,
        **shape,
    )
    row = converted(launch(5), made).filter(kind="kernel").row(0, named=True)
    assert row["name"] == "gemm"
    assert row["attr.full_name"] == TEXTS[2]
    assert (row["start_ns"], row["end_ns"]) == (30, 90)
    assert (row["device"], row["stream"], row["thread"]) == (0, 7, None)
    assert (row["attr.grid"], row["attr.block"]) == ([8, 2, 1], [128, 1, 1])
    assert row["attr.registers"] == 40
    assert (row["attr.static_shared_bytes"], row["attr.dynamic_shared_bytes"]) == (16, 48)
    assert row["attr.launched_by"] == "cudaLaunchKernel"
    assert row["attr.occupancy_pct"] is None
    assert row["attr.queue_delay_ns"] is None
    assert (row["attr.graph"], row["attr.graph_node"]) == (None, None)


def test_occupancy_is_told_where_the_device_is_known() -> None:
    device = record(
        K.DEVICE,
        id=0,
        compute_capability_major=9,
        max_warps_per_multiprocessor=64,
        max_blocks_per_multiprocessor=32,
        max_registers_per_multiprocessor=65536,
        max_shared_memory_per_multiprocessor=233472,
    )
    made = kernel(1, block_x=256, block_y=1, block_z=1, registers_per_thread=64)
    other = kernel(2, block_x=256, block_y=1, block_z=1, registers_per_thread=64, device_id=1)
    found = converted(device, made, other).sort("correlation_id")["attr.occupancy_pct"]
    assert found.to_list() == [50.0, None]


def test_a_launch_bears_the_name_in_the_program_and_pythons_thread() -> None:
    made = rows(CuptiRecords(ALL, tables(launch(1)), TEXTS, CALLS, {7: 140_000_000_000_007}))
    assert made["name"].to_list() == ["cudaLaunchKernel"]
    assert made["thread"].to_list() == [140_000_000_000_007]


FLUSH, INSTRUMENTATION, LOADING, LAZY, FULL, REQUEST, MANAGED = (
    n << 16 for n in (1, 2, 4, 5, 6, 7, 8)
)


def overhead(number: int, kind: int, end: int, start: int = 1) -> bytes:
    return record(K.OVERHEAD, correlation_id=number, overhead_kind=kind, start=start, end=end)


def test_what_cupti_itself_cost_in_a_call_is_added_up() -> None:
    costs = [overhead(1, FLUSH, 4), overhead(1, REQUEST, 6)]
    found = converted(launch(1), launch(2), *costs)
    assert found["attr.cupti_overhead_ns"].to_list() == [8, None]


def test_copies_and_sets_say_how_much_and_whence() -> None:
    copy = record(K.MEMCPY, start=1, end=5, bytes=4096, copy_kind=1, src_kind=2, dst_kind=3)
    peer = record(K.MEMCPY2, start=2, end=5, bytes=64, copy_kind=10, src_kind=3, dst_kind=3)
    fill = record(K.MEMSET, start=3, end=5, bytes=256, memory_kind=7)
    found = converted(copy, peer, fill).sort("start_ns")
    assert found["kind"].to_list() == ["memcpy", "memcpy", "memset"]
    assert found["name"].to_list() == ["memcpy HtoD", "memcpy PtoP", "memset"]
    assert found["attr.transfer_bytes"].to_list() == [4096, 64, 256]
    assert found["attr.source"].to_list() == ["pinned", "device", None]
    assert found["attr.destination"].to_list() == ["device", "device", "managed static"]


def test_waits_are_on_the_device_of_their_context() -> None:
    wait = record(K.SYNCHRONIZATION, start=1, end=5, type=4, context_id=1, stream_id=0xFFFFFFFF)
    stream = record(K.SYNCHRONIZATION, start=2, end=5, type=3, context_id=9, stream_id=7)
    context = record(K.CONTEXT, context_id=1, device_id=2)
    found = converted(wait, stream, context)
    assert found["name"].to_list() == ["synchronize context", "synchronize stream"]
    assert found["device"].to_list() == [2, None]
    assert found["stream"].to_list() == [None, 7]


def test_work_without_times_is_counted_and_left_out() -> None:
    made = tables(kernel(1), kernel(2, start=0), kernel(3, end=0))
    assert (untimed(made), unfinished(made)) == (1, 1)
    assert rows(CuptiRecords(ALL, made, TEXTS)).height == 1


def test_ranges_of_libraries_become_calls_where_calls_are_asked_for() -> None:
    made = [
        record(K.MARKER, id=1, flags_=2, timestamp=5, name=4, domain=3, object_id=7),
        record(K.MARKER, id=1, flags_=4, timestamp=9),
        record(K.MARKER, id=2, flags_=2, timestamp=6, name=4, object_id=7),  # the user's own
        record(K.MARKER, id=2, flags_=4, timestamp=8),
        record(K.MARKER, id=3, flags_=2, timestamp=7, name=4, domain=3, object_id=7),  # not ended
        record(K.MARKER, id=4, flags_=2, timestamp=5, name=6, domain=5, object_id=7),  # a logger's
        record(K.MARKER, id=4, flags_=4, timestamp=9),
    ]
    found = converted(*made, kinds=ALL | {Kind.CALL})
    assert found.select("kind", "name", "start_ns", "end_ns", "thread", "provenance").rows() == [
        ("call", "ncclAllReduce", 5, 9, -7, "marker")
    ]
    assert found["attr.library"].to_list() == ["NCCL"]
    assert converted(*made).height == 0


NUMBERS = st.integers(1, 2**31)
WORK = st.tuples(st.sampled_from([K.CONCURRENT_KERNEL, K.MEMCPY, K.MEMCPY2, K.MEMSET]), NUMBERS)


@given(st.lists(st.tuples(WORK, NUMBERS, NUMBERS, st.integers(0, 3), st.integers(0, 9))))
def test_every_record_becomes_one_row_of_the_schema(
    made: list[tuple[tuple[ActivityKind, int], int, int, int, int]],
) -> None:
    records = [
        record(
            kind,
            correlation_id=number,
            start=start,
            end=end,
            device_id=device,
            stream_id=stream,
            **({"name": 1} if kind is K.CONCURRENT_KERNEL else {}),
        )
        for (kind, number), start, end, device, stream in made
    ]
    found = converted(*records)
    assert found.height == len(made)
    assert dict(list(found.schema.items())[: len(ROW_SCHEMA)]) == ROW_SCHEMA
    assert (found["end_ns"] >= found["start_ns"]).all()
    expected = sorted((n, s, d, t) for (_, n), s, _, d, t in made)
    got = found.select("correlation_id", "start_ns", "device", "stream").rows()
    assert sorted(got) == expected


def created(*nodes: tuple[int, int, int]) -> Table:
    columns = np.array(nodes, np.int64).reshape(-1, 3).T
    return dict(zip(("time", "thread", "node"), columns, strict=True))


def test_a_launch_says_which_nodes_it_captured() -> None:
    made = [launch(1, 10, 20), launch(2, 30, 40), launch(3, 30, 40, thread_id=8)]
    nodes = created((12, 7, 101), (35, 7, 103), (15, 7, 102), (35, 8, 104), (25, 7, 105))
    frame = converted(*made, created=nodes).sort("correlation_id")
    assert frame["attr.created_nodes"].to_list() == [[101, 102], [103], [104]]
