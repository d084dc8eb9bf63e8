from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from system_rings import (
    BEGIN_NS,
    EXIT,
    FUTEX,
    READ,
    WRITE,
    come,
    counter,
    ended,
    enter,
    fault,
    leave,
    leave_call,
    lost,
    recorded,
    waking,
)

from xsp.provider import ACCOUNT_SCHEMA, Records, Watched, pack, unpack
from xsp_levels.system.linux.provider import LinuxSystem
from xsp_levels.system.linux.record import What

SYSTEM = LinuxSystem()


def calls(records: Records) -> list[tuple[object, ...]]:
    rows = SYSTEM.spans(records)
    return rows.select(
        "name",
        pl.col("start_ns") - BEGIN_NS,
        pl.col("end_ns") - BEGIN_NS,
        "thread",
        "attr.bytes",
        "attr.error",
    ).rows()


def accounts(records: Records, *sorts: str) -> list[tuple[Any, ...]]:
    found = SYSTEM.accounts(records).filter(pl.col("what").is_in(sorts))
    start, end = pl.col("start_ns") - BEGIN_NS, pl.col("end_ns") - BEGIN_NS
    return found.select("what", start, end, "thread", "cause", "amount").sort("start_ns").rows()


def states(records: Records) -> list[tuple[object, ...]]:
    return [row[:3] + row[4:5] for row in accounts(records, "runnable", "blocked")]


def test_calls_have_names_threads_bytes_and_errors() -> None:
    ring = enter(10, WRITE) + leave_call(30, WRITE, 5) + enter(40, READ) + leave_call(41, READ, -11)
    other = enter(50, FUTEX) + leave_call(60, FUTEX, -512) + enter(70, 9999) + leave_call(80, 9999)
    records = recorded((7, ring), (8, other), pythons={7: 140_000})
    assert calls(records) == [
        ("write", 10, 30, 140_000, 5, None),
        ("read", 40, 41, 140_000, None, "EAGAIN"),
        ("futex", 50, 60, -8, None, "ERESTARTSYS"),
        ("syscall 9999", 70, 80, -8, None, None),
    ]
    assert accounts(records, "written_bytes", "read_bytes") == [
        ("written_bytes", 30, 30, 140_000, None, 5.0)
    ]


def test_call_that_is_open_at_an_end_of_the_visit_is_cut_there() -> None:
    ring = leave_call(20, FUTEX) + enter(30, READ) + leave_call(40, READ, 1) + enter(900, FUTEX)
    assert calls(recorded((7, ring))) == [
        ("futex", 0, 20, -7, None, None),
        ("read", 30, 40, -7, 1, None),
        ("futex", 900, 1000, -7, None, None),
    ]


def test_calls_outside_of_the_visit_are_none() -> None:
    """Those by which xsp switches events on and off are there."""
    ring = leave_call(-5, 16) + enter(10, READ) + leave_call(20, READ) + enter(1001, 16)
    assert [row[0] for row in calls(recorded((7, ring)))] == ["read"]


def test_call_that_ends_the_thread_is_none() -> None:
    ring = enter(10, READ) + leave_call(20, READ) + enter(30, EXIT) + ended(35, 7)
    records = recorded((7, ring))
    assert [row[0] for row in calls(records)] == ["read"]
    assert {row[2] for row in accounts(records, "watched")} == {35}


def test_half_of_a_call_makes_no_call() -> None:
    ring = enter(10, READ) + enter(20, WRITE) + leave_call(30, WRITE, 2) + leave_call(40, READ)
    assert [row[:3] for row in calls(recorded((7, ring)))] == [("write", 20, 30)]


def test_return_of_a_signal_handler_ends_without_a_number() -> None:
    ring = enter(10, 15) + leave_call(20, -1)
    assert [row[:3] for row in calls(recorded((7, ring)))] == [("rt_sigreturn", 10, 20)]


def test_calls_of_other_processes_bear_their_names() -> None:
    ring = enter(10, READ) + leave_call(30, READ, 5)
    rows = SYSTEM.spans(recorded((7, ring), (9, ring), processes={9: "pt_data_worker 9"}))
    assert rows["attr.process_name"].to_list() == [None, "pt_data_worker 9"]


def test_preempted_thread_could_run_and_one_that_waits_is_blocked_in_its_call() -> None:
    ring = (
        leave(100, preempted=True) + come(150)
        + enter(200, FUTEX) + leave(210) + come(300) + leave_call(310, FUTEX)
        + fault(400) + leave(410) + come(420)
    )  # fmt: skip
    records = recorded((7, ring))
    assert states(records) == [
        ("runnable", 100, 150, None),
        ("blocked", 210, 300, "futex"),
        ("blocked", 410, 420, "page fault"),
    ]
    assert accounts(records, "preempted") == [("preempted", 100, 100, -7, None, 1.0)]
    assert accounts(records, "page_fault") == [("page_fault", 400, 400, -7, None, 1.0)]


def test_woken_thread_waits_for_a_processor() -> None:
    ring = enter(90, READ) + leave(100) + come(200) + leave(300) + come(400) + leave_call(401, READ)
    wakings = waking(350, 7, 33, interrupt=True) + waking(160, 7, 8) + waking(170, 99, 8)
    records = recorded((7, ring), wakings=wakings, names={8: "pt_thread"})
    assert states(records) == [
        ("blocked", 100, 160, "read"),
        ("runnable", 160, 200, None),
        ("blocked", 300, 350, "read"),
        ("runnable", 350, 400, None),
    ]
    assert [row[1:5] for row in accounts(records, "woken")] == [
        (160, 160, -7, "pt_thread"),
        (350, 350, -7, "interrupt"),
    ]


def test_thread_that_is_woken_while_it_leaves_was_not_blocked() -> None:
    records = recorded((7, leave(100) + come(200)), wakings=waking(98, 7, 8))
    assert [row[:3] for row in states(records)] == [("runnable", 100, 200)]


def test_wakeup_of_an_earlier_wait_is_not_that_of_a_later_one() -> None:
    ring = leave(100) + come(200) + leave(300) + come(400)
    records = recorded((7, ring), wakings=waking(150, 7, 8))
    assert [row[:3] for row in states(records)] == [
        ("blocked", 100, 150),
        ("runnable", 150, 200),
        ("blocked", 300, 400),
    ]


def test_thread_that_waits_when_the_visit_begins_or_ends_is_blocked_until_then() -> None:
    ring = come(100) + leave_call(110, FUTEX) + enter(800, FUTEX) + leave(900)
    assert states(recorded((7, ring))) == [
        ("blocked", 0, 100, "futex"),
        ("blocked", 900, 1000, "futex"),
    ]


@pytest.mark.parametrize(("ran_ns", "off"), [(0, [("blocked", 0, 1000, None)]), (990, [])])
def test_thread_that_never_switched_ran_or_waited_all_the_time(
    ran_ns: int, off: list[object]
) -> None:
    assert states(recorded((7, b""), ran_ns=ran_ns)) == off


def test_thread_that_goes_on_elsewhere_has_migrated() -> None:
    ring = leave(100, 0) + come(150, 1) + leave(200, 1) + come(250, 1)
    assert [row[1] for row in accounts(recorded((7, ring)), "migration")] == [150]


def test_causes_are_unknown_where_calls_are_not_watched() -> None:
    watched = (Watched.SWITCHES, Watched.FAULTS)
    records = recorded((7, leave(100) + come(200)), watched=watched)
    assert states(records) == [("blocked", 100, 200, None)]
    assert {row[4] for row in accounts(records, "watched")} == {"switches", "faults"}


def test_faults_that_waited_for_a_disk_are_faults_too() -> None:
    records = recorded((7, fault(10) + fault(20, major=True) + lost()))
    assert [row[:2] for row in accounts(records, "page_fault", "major_fault")] == [
        ("page_fault", 10),
        ("page_fault", 20),
        ("major_fault", 20),
    ]


def test_faults_outside_of_the_visit_are_none() -> None:
    records = recorded((7, fault(-3) + fault(4) + fault(1003, major=True)))
    assert [row[1] for row in accounts(records, "page_fault", "major_fault")] == [4]


def test_samples_of_counters_stand_for_their_period_within_the_visit() -> None:
    ring = b"".join(
        counter(time, what)
        for time, what in (
            (-5, What.CYCLES),
            (100, What.CYCLES),
            (200, What.INSTRUCTIONS),
            (300, What.CACHE_MISSES),
            (1_001, What.CYCLES),
        )
    )
    found = LinuxSystem().accounts(recorded((1, ring)))
    kept = found.filter(pl.col("what").is_in(["cycles", "instructions", "cache_misses"]))
    assert kept.select("what", pl.col("start_ns") - BEGIN_NS, "amount").rows() == [
        ("cycles", 100, 1e6),
        ("instructions", 200, 1e6),
        ("cache_misses", 300, 1e4),
    ]


def test_visit_without_threads_has_no_rows() -> None:
    nothing = LinuxSystem().stop()
    assert SYSTEM.spans(nothing).height == 0
    assert SYSTEM.accounts(nothing).schema == pl.Schema(ACCOUNT_SCHEMA)


def test_records_are_kept_as_bytes_and_make_the_same_rows() -> None:
    ring = enter(10, READ) + leave(20) + come(30) + leave_call(40, READ, 3)
    records = recorded((7, ring), wakings=waking(25, 7, 8), names={8: "other"})
    unpacked = unpack(SYSTEM, pack(SYSTEM, records))
    assert SYSTEM.spans(unpacked).equals(SYSTEM.spans(records))
    assert SYSTEM.accounts(unpacked).equals(SYSTEM.accounts(records))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Records, dict[tuple[int, str, str | None], int]]:
    """Return records of threads whose times in each state, and causes, are known."""
    truth: dict[tuple[int, str, str | None], int] = {}
    rings, wakings, length = [], [], 0
    for number in range(11, 11 + draw(st.integers(1, 3))):
        ring, now = b"", 0
        stretches = draw(
            st.lists(
                st.tuples(st.sampled_from(["preempted", "blocked", "in call"]),
                          st.integers(1, 50), st.integers(1, 50), st.integers(0, 50)),
                max_size=6,
            )
        )  # fmt: skip
        for sort, ran, waited, queued in stretches:
            now += ran
            if sort == "preempted":
                ring += leave(now, preempted=True) + come(now + waited)
                truth[-number, "runnable", None] = (
                    truth.get((-number, "runnable", None), 0) + waited
                )
                now += waited
                continue
            inside = sort == "in call"
            ring += (enter(now, FUTEX) if inside else b"") + leave(now + 1)
            woken, now = now + 1 + waited, now + 1 + waited + queued
            wakings.append((woken, waking(woken, number, 5)))
            ring += come(now) + (leave_call(now + 1, FUTEX) if inside else b"")
            for state, cause, ns in (
                ("blocked", "futex" if inside else "page fault", waited),
                ("runnable", None, queued),
            ):
                if ns:
                    truth[-number, state, cause] = truth.get((-number, state, cause), 0) + ns
            now += 1
        rings.append((number, ring))
        length = max(length, now + 1)
    order = draw(st.permutations(wakings))  # several processors' rings, one after the other
    records = recorded(
        *rings, length_ns=length, wakings=b"".join(data for _, data in order), ran_ns=length
    )
    return records, truth


@given(programs())
def test_states_are_those_of_the_program(
    program: tuple[Records, dict[tuple[int, str, str | None], int]],
) -> None:
    records, truth = program
    found: dict[tuple[int, str, str | None], int] = {}
    for what, start, end, thread, cause, amount in accounts(records, "runnable", "blocked"):
        assert end - start == amount
        # Before a thread's first call nobody can say whether it is in one.
        key = (thread, what, "page fault" if what == "blocked" and cause is None else cause)
        found[key] = found.get(key, 0) + end - start
    assert found == truth


ANY = st.one_of(
    st.builds(leave, st.integers(-50, 1050), st.integers(0, 3), preempted=st.booleans()),
    st.builds(come, st.integers(-50, 1050), st.integers(0, 3)),
    st.builds(enter, st.integers(-50, 1050), st.sampled_from([READ, FUTEX, EXIT])),
    st.builds(leave_call, st.integers(-50, 1050), st.sampled_from([READ, FUTEX, -1])),
    st.builds(fault, st.integers(-50, 1050), major=st.booleans()),
    st.builds(ended, st.integers(-50, 1050), st.integers(7, 8)),
    st.builds(lost),
)
WAKINGS = st.builds(waking, st.integers(-50, 1050), st.integers(6, 9), st.integers(0, 9))


@given(
    rings=st.lists(st.lists(ANY, max_size=12).map(b"".join), min_size=1, max_size=3),
    wakings=st.lists(WAKINGS, max_size=8).map(b"".join),
    ran_ns=st.sampled_from([0, 1000]),
)
def test_in_whatever_order_records_come_states_fill_the_time_that_was_watched(
    rings: list[bytes], wakings: bytes, ran_ns: int
) -> None:
    records = recorded(*enumerate(rings, 7), wakings=wakings, ran_ns=ran_ns)
    found = SYSTEM.accounts(records)
    SYSTEM.spans(records)
    for thread in found["thread"].unique().to_list():
        own = found.filter(pl.col("thread") == thread)
        watched = own.filter(what="watched", cause="switches").row(0, named=True)
        off = own.filter(pl.col("what").is_in(["runnable", "blocked"])).sort("start_ns")
        edges = off.select("start_ns", "end_ns").rows()
        assert all(start < end for start, end in edges)
        assert all(before[1] <= after[0] for before, after in pairwise(edges))
        if edges:
            assert watched["start_ns"] <= edges[0][0] < edges[-1][1] <= watched["end_ns"]
        assert off["amount"].sum() <= watched["amount"]


WORDS = st.binary(max_size=400).map(lambda data: data[: len(data) // 8 * 8])


@given(ring=WORDS, wakings=WORDS)
def test_no_bytes_break_it(ring: bytes, wakings: bytes) -> None:
    records = recorded((7, ring), (8, leave(5) + come(6)), wakings=wakings)
    SYSTEM.spans(records)
    assert ("blocked", 5, 6, None) in states(records)


def test_sizes_that_lie_end_the_ring() -> None:
    broken = struct.pack("=IHH", 14, 0, 0) + bytes(24)
    assert states(recorded((7, leave(1) + broken + come(5)), ran_ns=0)) == [
        ("blocked", 1, 1000, None)
    ]


def test_time_that_goes_back_stands_still() -> None:
    ring = leave(100) + come(200) + leave(150) + come(300)
    assert [row[:3] for row in states(recorded((7, ring)))] == [
        ("blocked", 100, 200),
        ("blocked", 200, 300),
    ]


def test_many_records_are_read_at_once() -> None:
    """Every tenth call of 20,000 waits; numbers, not times, are looked at."""
    ring = b"".join(
        enter(at, READ) + (leave(at + 1) + come(at + 3) if at % 100 == 0 else b"")
        + leave_call(at + 5, READ, 8)
        for at in range(0, 200_000, 10)
    )  # fmt: skip
    records = recorded((7, ring), length_ns=200_000)
    rows = SYSTEM.spans(records)
    assert rows.height == 20_000
    assert np.all((rows["end_ns"] - rows["start_ns"]).to_numpy() == 5)
    assert len(states(records)) == 2_000


def test_of_a_thread_nothing_is_known_after_its_first_lost_record() -> None:
    ring = enter(10, READ) + leave_call(30, READ, 5) + leave(40) + come(60) + enter(70, FUTEX)
    records = recorded((7, ring))
    [thread] = records.data.threads
    lossy = replace(records.data, threads=(replace(thread, lost=9),))
    records = replace(records, data=lossy)
    assert [row[0] for row in calls(records)] == ["read"]
    assert states(records) == [("blocked", 40, 60, "page fault")]
    assert {row[2] for row in accounts(records, "watched")} == {70}
