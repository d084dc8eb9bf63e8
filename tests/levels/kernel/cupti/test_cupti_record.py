from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from fake_cupti import FakeCupti
from fake_records import DTYPES, ActivityKind, record
from hypothesis import given
from hypothesis import strategies as st

from xsp.level import Kind
from xsp.provider.contract import Records
from xsp.provider.packing import pack, unpack
from xsp.provider.row import ROW_SCHEMA
from xsp_levels.kernel.cupti.provider import Cupti
from xsp_levels.kernel.cupti.record import CuptiRecords, nodes_that_ran, rows
from xsp_levels.kernel.cupti.stray import unfinished, untimed
from xsp_levels.kernel.cupti.table import Table, gather, join, layout
from xsp_levels.native.alignment import Alignment

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


def test_queue_delay_is_told_where_cupti_was_asked_for_it() -> None:
    made = [kernel(1, queued=12), kernel(2, queued=0), kernel(3, queued=99)]
    found = converted(*made).sort("correlation_id")["attr.queue_delay_ns"]
    assert found.to_list() == [18, None, None]


def test_operators_of_generated_kernels_are_kept_with_the_records() -> None:
    sources = {"triton_poi_0": ("aten.add, aten.relu", "")}
    data = CuptiRecords(ALL, tables(kernel(1), kernel(2, name=2)), TEXTS, sources=sources)
    kept = unpack(Cupti(), pack(Cupti(), Records(data)))
    found = Cupti().spans(kept).sort("correlation_id")
    assert found["attr.source_ops"].to_list() == ["aten.add, aten.relu", None]
    assert found["attr.source_nodes"].to_list() == [None, None]


def test_nodes_of_a_graph_say_which_they_are() -> None:
    row = converted(kernel(1, graph_id=3, graph_node_id=99)).row(0, named=True)
    assert (row["attr.graph"], row["attr.graph_node"]) == (3, 99)


def test_a_launch_bears_the_name_in_the_program_and_pythons_thread() -> None:
    made = rows(CuptiRecords(ALL, tables(launch(1)), TEXTS, CALLS, {7: 140_000_000_000_007}))
    assert made["name"].to_list() == ["cudaLaunchKernel"]
    assert made["thread"].to_list() == [140_000_000_000_007]


def test_launches_are_as_uncertain_as_the_clocks() -> None:
    found = converted(launch(1), kernel(1), alignment=Alignment(error_ns=70))
    assert found.select("kind", "uncertainty_ns").rows() == [("launch", 70), ("kernel", None)]


def test_a_thread_that_is_not_pythons_keeps_the_kernels_number_negative() -> None:
    assert converted(launch(1))["thread"].to_list() == [-7]


def test_a_driver_call_inside_a_runtime_call_is_the_same_call() -> None:
    inner = record(K.DRIVER, correlation_id=1, start=12, end=18, cbid=307, thread_id=7)
    alone = record(K.DRIVER, correlation_id=2, start=40, end=50, cbid=307, thread_id=7)
    found = converted(launch(1), inner, alone)
    assert found["name"].to_list() == ["cudaLaunchKernel", "cuLaunchKernel"]


FLUSH, INSTRUMENTATION, LOADING, LAZY, FULL, REQUEST, MANAGED = (
    n << 16 for n in (1, 2, 4, 5, 6, 7, 8)
)


def overhead(number: int, kind: int, end: int, start: int = 1) -> bytes:
    return record(K.OVERHEAD, correlation_id=number, overhead_kind=kind, start=start, end=end)


def test_what_cupti_itself_cost_in_a_call_is_added_up() -> None:
    costs = [overhead(1, FLUSH, 4), overhead(1, REQUEST, 6)]
    found = converted(launch(1), launch(2), *costs)
    assert found["attr.cupti_overhead_ns"].to_list() == [8, None]


def test_loading_code_and_a_full_queue_are_not_cuptis_cost() -> None:
    """As in a cold step on a B200: functions are loaded lazily, and one buffer is asked for."""
    costs = [
        overhead(1, LAZY, 82_001),
        overhead(1, LOADING, 11),
        overhead(1, 1, 101),  # the driver's compiler
        overhead(2, FULL, 51),
        overhead(3, REQUEST, 1_500_001),
        overhead(3, INSTRUMENTATION, 3),
        overhead(4, MANAGED, 9),
        overhead(4, 0, 9),  # of a kind that CUPTI does not know itself
    ]
    found = converted(*(launch(n) for n in (1, 2, 3, 4)), *costs)
    costs_of = found.select(
        "attr.module_loading_ns", "attr.queue_full_ns", "attr.cupti_overhead_ns"
    )
    assert costs_of.rows() == [
        (82_110, None, None),
        (None, 50, None),
        (None, None, 1_500_002),
        (None, None, None),
    ]


TICKING = Alignment((0, 2_000), (0, -1_000))  # two ticks in a nanosecond


def test_what_is_counted_in_ticks_is_told_in_nanoseconds() -> None:
    queued, cost = kernel(1, start=300, end=400, queued=100), overhead(1, FLUSH, 150, start=50)
    found = converted(launch(1, 40, 200), queued, cost, alignment=TICKING).sort("start_ns")
    assert found.select("start_ns", "end_ns").rows() == [(20, 100), (150, 200)]
    assert found["attr.queue_delay_ns"].to_list() == [None, 100]
    assert found["attr.cupti_overhead_ns"].to_list() == [50, None]


def test_an_id_that_was_pushed_around_a_call_is_kept() -> None:
    pushed = record(K.EXTERNAL_CORRELATION, correlation_id=2, external_id=77)
    assert converted(launch(1), launch(2), pushed)["attr.external_id"].to_list() == [None, 77]


def test_ids_of_the_users_ranges_are_not_taken_for_those_of_operators() -> None:
    operators, ranges = 3, 4  # CUSTOM0, CUSTOM1

    def pushed(number: int, kind: int, value: int) -> bytes:
        values = {"external_kind": kind, "external_id": value}
        return record(K.EXTERNAL_CORRELATION, correlation_id=number, **values)

    both = [pushed(1, operators, 77), pushed(1, ranges, 5), pushed(2, ranges, 5)]
    found = converted(launch(1), launch(2), *both)
    assert found["attr.external_id"].to_list() == [77, None]


def test_memory_that_a_call_allocated_or_freed_is_told() -> None:
    made = [
        record(K.MEMORY2, correlation_id=1, memory_operation_type=1, bytes=512),
        record(K.MEMORY2, correlation_id=2, memory_operation_type=2, bytes=64),
    ]
    found = converted(launch(1), launch(2), launch(3), *made)
    assert found["attr.allocated_bytes"].to_list() == [512, 0, None]
    assert found["attr.freed_bytes"].to_list() == [0, 64, None]


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


def test_only_what_was_asked_for_becomes_rows() -> None:
    found = converted(launch(1), kernel(1), kinds=frozenset({Kind.LAUNCH, Kind.OP}))
    assert found["kind"].to_list() == ["launch"]


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


def test_times_are_converted_to_our_clock() -> None:
    found = converted(kernel(1), alignment=Alignment((0, 100), (1000, 1000), 5))
    assert found.select("start_ns", "end_ns").row(0) == (1030, 1090)


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


def test_no_records_are_no_rows() -> None:
    assert converted().height == 0
    assert set(DTYPES) == set(HOW.forms)


def created(*nodes: tuple[int, int, int]) -> Table:
    columns = np.array(nodes, np.int64).reshape(-1, 3).T
    return dict(zip(("time", "thread", "node"), columns, strict=True))


def test_a_launch_says_which_nodes_it_captured() -> None:
    made = [launch(1, 10, 20), launch(2, 30, 40), launch(3, 30, 40, thread_id=8)]
    nodes = created((12, 7, 101), (35, 7, 103), (15, 7, 102), (35, 8, 104), (25, 7, 105))
    frame = converted(*made, created=nodes).sort("correlation_id")
    assert frame["attr.created_nodes"].to_list() == [[101, 102], [103], [104]]


def test_clocks_that_differ_a_little_do_not_lose_a_node() -> None:
    nodes = created((8, 7, 101), (42, 7, 102), (60, 7, 103))
    aligned = Alignment(error_ns=5)
    made = [launch(1, 10, 20), launch(2, 30, 40)]
    frame = converted(*made, created=nodes, alignment=aligned).sort("correlation_id")
    assert frame["attr.created_nodes"].to_list() == [[101], [102]]


def test_a_node_in_one_call_is_not_given_to_the_next_for_the_clocks_error() -> None:
    nodes = created((99, 7, 101), (100, 7, 102), (105, 7, 103))
    made = [launch(1, 50, 100), launch(2, 105, 140)]
    frame = converted(*made, created=nodes, alignment=Alignment(error_ns=10))
    assert frame.sort("correlation_id")["attr.created_nodes"].to_list() == [[101, 102], [103]]


def test_a_node_that_ran_says_what_it_was_captured_as() -> None:
    made = [kernel(1, graph_id=4, graph_node_id=21), kernel(1, graph_id=4, graph_node_id=22)]
    frame = converted(*made, kernel(2), captured={21: 11})
    assert frame["attr.captured_node"].to_list() == [11, None, None]
    assert frame["attr.graph_node"].to_list() == [21, 22, None]


def test_nodes_that_ran_are_those_of_graphs() -> None:
    made = tables(kernel(1, graph_id=4, graph_node_id=21), kernel(2, graph_node_id=99))
    assert nodes_that_ran(made) == {21}
