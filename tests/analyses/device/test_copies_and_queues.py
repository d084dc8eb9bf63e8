"""Copies by direction, queues of streams, and collectives one by one, on known answers."""

from __future__ import annotations

from typing import Any

from device_samples import Row, call, rows_of, timeline, work

from xsp.analyses import collectives, copies, stream_queue


def copy(start: int, end: int, size: int | None, way: str = "HtoD") -> Row:
    about: dict[str, Any] = {
        "kind": "memcpy",
        "name": f"memcpy {way}",
        "direction": way,
        "transfer_bytes": size,
    }
    return work(start, end, None, **about)


def test_copies_have_a_bandwidth_in_each_direction() -> None:
    made = timeline(
        1_000,
        copy(0, 100, 1_000),
        copy(200, 300, 3_000),
        copy(400, 500, None),
        copy(600, 610, 50, "DtoH"),
        work(250, 350, stream=8),
    )
    table = copies(made)
    columns = ("direction", "count", "time_ns", "exposed_ns", "size_bytes")
    assert rows_of(table, *columns) == [("HtoD", 3, 300, 250, 4_000), ("DtoH", 1, 10, 10, 50)]
    assert table["mean_bytes_per_s"].to_list() == [20e9, 5e9]
    assert table["largest_bytes_per_s"].to_list() == [30e9, 5e9]
    assert copies(timeline(10, work(0, 5))).height == 0


def test_a_queue_is_full_where_the_host_is_far_ahead_and_empty_where_it_is_not() -> None:
    many = [call(n, n + 1, n) for n in range(1_100)]
    long = [work(10_000 + n, 10_001 + n, n) for n in range(1_100)]
    alone = [call(20_000, 20_001, 2_000), work(20_002, 20_003, 2_000, stream=8)]
    table = stream_queue(timeline(30_000, *many, *long, *alone))
    assert rows_of(table, "stream", "launches", "ahead_max", "full") == [
        (7, 1_100, 1_099, 76),
        (8, 1, 0, 0),
    ]
    assert table["empty_pct"].to_list() == [100 / 1_100, 100]
    assert table["full_ns"].to_list() == [76, 0]


def reduce(rank: int, start: int, end: int) -> Row:
    sizes: dict[str, Any] = {
        "in_elements": 100,
        "out_elements": 100,
        "element_type": "float",
        "group_size": 2,
    }
    name: dict[str, Any] = {"name": "ncclDevKernel_AllReduce", "collective": "allreduce"}
    return work(start, end, None, device=rank, inside=rank + 1, **name, **sizes)


def test_of_each_collective_the_wait_for_the_last_rank_is_apart() -> None:
    ranks = [
        {"kind": "region", "name": f"rank {n}", "start_ns": 0, "end_ns": 500, "thread": n}
        | {"process": n, "rank": n}
        for n in range(2)
    ]
    both = [reduce(0, 100, 200), reduce(1, 160, 200), reduce(0, 300, 350)]
    table = collectives(timeline(500, *ranks, *both))
    columns = ("rank", "time_ns", "waiting_ns", "transfer_ns", "payload_bytes")
    assert rows_of(table, *columns) == [
        (0, 100, 60, 40, 400),
        (1, 40, 0, 40, 400),
        (0, 50, None, None, 400),
    ]
    # All-reduce of two ranks: the bus has to move as much as the payload.
    assert table["bus_bytes_per_s"].to_list() == [10e9, 10e9, 8e9]
