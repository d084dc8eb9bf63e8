"""Turns what threads did over time into the events of LTTng's kernel tracer.

The other side of a switch is not known from a thread's own record: it is thread 2147483647,
`(not recorded)`; never 0, which stands for a processor without work.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from xsp.show.export.ctf.packet import Events, Integers, string

SWITCH, WAKING = "sched_switch", "sched_waking"
_OTHER, _PRIORITY = 2**31 - 1, 120  # of an ordinary thread
_UNKNOWN = string("(not recorded)")
_RUNNING, _SLEEPING = 0, 1  # of `prev_state`: could run on, or waits
_SIDE = struct.Struct("<ii")
_STATE = struct.Struct("<q")
_WOKEN = struct.Struct("<iii")


def switch_events(
    stretches: Sequence[Mapping[str, Any]], numbers: Mapping[int | None, int], first: int
) -> tuple[Events, Integers]:
    """Return the switches and wake-ups of threads, and the processor of each.

    Args:
        stretches: What each thread did, by thread and time (the attribute `thread_timeline`).
        numbers: Number of each thread.
        first: Place of `sched_switch` among the kinds of event; that of `sched_waking` is the next.
    """
    rows: list[tuple[int, int, int, int, int, bytes]] = []
    names: dict[int, bytes] = {}
    cpu, last_state = 0, ""
    for at, each in enumerate(stretches):
        tid = numbers[each["thread"]]
        own = names.setdefault(tid, string(each["name"] or f"thread {tid}"))
        fresh = at == 0 or stretches[at - 1]["thread"] != each["thread"]
        begin, state = int(each["start_ns"]), str(each["state"])
        onto = each["processor"] if each["processor"] is not None else 0
        mine, other = own + _SIDE.pack(tid, _PRIORITY), _UNKNOWN + _SIDE.pack(_OTHER, _PRIORITY)
        if state == "running":
            if not fresh and last_state == "running":  # it was moved meanwhile
                away = mine + _STATE.pack(_RUNNING) + other
                rows.append((begin, first, tid, cpu, 0, away))
            cpu = onto
            told = other + _STATE.pack(_RUNNING) + mine
            rows.append((begin, first, tid, cpu, 1, told))
        else:
            if not fresh and last_state == "running":
                waits = _SLEEPING if state == "blocked" else _RUNNING
                rows.append((begin, first, tid, cpu, 0, mine + _STATE.pack(waits) + other))
            if not fresh and last_state == "blocked" and state == "runnable":
                woken = own + _WOKEN.pack(tid, _PRIORITY, onto)
                rows.append((begin, first + 1, tid, onto, 0, woken))
        last_state = state
    rows.sort(key=lambda row: (row[0], row[4]))
    place = {tid: number for number, tid in enumerate(names)}
    time_ns, number, tids, cpus = (
        np.array([row[column] for row in rows], np.int64) for column in range(4)
    )
    events = Events(
        time_ns=time_ns,
        number=number,
        tid=tids,
        thread=np.array([place[tid] for tid in tids.tolist()], np.int64),
        names=list(names.values()),
        fields=[row[5] for row in rows],
    )
    return events, cpus


def processors(events: Events, stretches: Sequence[Mapping[str, Any]], tids: Integers) -> Integers:
    """Return the processor of each event: the one that its thread ran on at the time.

    Args:
        events: Events of threads.
        stretches: What each thread did, by thread and time.
        tids: Number of the thread of each stretch.
    """
    table = pl.DataFrame(
        {
            "tid": tids,
            "time": [each["start_ns"] for each in stretches],
            "cpu": [each["processor"] for each in stretches],
        },
        schema={"tid": pl.Int64, "time": pl.Int64, "cpu": pl.Int32},
    ).sort("time")
    asked = pl.DataFrame({"tid": events.tid, "time": events.time_ns}).with_row_index("row")
    found = asked.sort("time").join_asof(table, on="time", by="tid", check_sortedness=False)
    return found.sort("row")["cpu"].fill_null(0).cast(pl.Int64).to_numpy()
