"""Finds what the operating system took from a program: CPUs, the interpreter's lock, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.finding import Case, Finding, named
from xsp.answer.analyses.system.off_cpu import WATCHED, of_all
from xsp.answer.analyses.system.page_faults import FAULT_NS
from xsp.level import Kind
from xsp.text import counted, duration, percent

_MUCH = 0.1  # of the latency: waits that are worth a finding
_FAULTS = 0.02  # of the latency
_DEMAND = 1.2  # CPUs that own threads want, for each one that there is, from which on they fight
_READS = r"^(read|readv|pread64|preadv|preadv2|openat|open|newfstatat|statx|lseek|getdents64)$"
_READING = 0.3  # of the wait for batches: as much of it as a worker reads is worth a finding
_BUSY = 0.5  # of the time that the thread is blocked
_ALLOCATES = r"^(brk|munmap|madvise|mremap)$"
_LOCKS = r"^futex"
_MALLOC = (
    "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736 xsp profile …; then "
    "xsp analyze FILE page-faults"
)


def _states(case: Case) -> pl.DataFrame:
    """Return the states of threads in a step."""
    told: Any = case.trace.root.attributes.get("thread_states") or ()
    times = dict.fromkeys(("running_ns", "runnable_ns"), pl.Float64)
    schema = {"name": pl.String, "python": pl.Boolean, **times}
    return pl.DataFrame([{key: each[key] for key in schema} for each in told], schema=schema)


def waits_for_cpu(case: Case) -> Iterator[Finding]:
    """Find programs whose threads wait for CPUs: too many of their own, or other programs."""
    runnable = float(np.nan_to_num(of_all(case.tree, "runnable_ns")[0]))
    if runnable < _MUCH * case.whole_ns:
        return
    environment = case.trace.metadata.get("environment") or {}
    cores = environment.get("usable_cores") or 1
    states = _states(case)
    wanted = float(states.select(pl.sum("running_ns", "runnable_ns")).sum_horizontal()[0])
    wanted = wanted / case.whole_ns if states.height else 0.0
    busy = pl.col("running_ns") + pl.col("runnable_ns") > _MUCH * case.whole_ns
    at_once = states.filter(busy).height
    told = (
        f"its thread could have run for {duration(runnable)} more, "
        f"{percent(runnable / case.whole_ns)}, and waited for a CPU; "
    )
    if wanted > _DEMAND * cores and at_once > cores:
        yield Finding(
            "more threads than CPUs",
            f"Use no more threads than there are CPUs ({cores:g}).",
            told + f"{counted(at_once, 'busy thread')} of the program share {cores:g} CPUs",
            runnable,
            None,
            "at most: as if the thread never waited for a CPU",
            f"OMP_NUM_THREADS={max(int(cores), 1)} xsp profile …, or xsp sweep MODEL --threads "
            f"{max(int(cores), 1)},{at_once}",
        )
        return
    yield Finding(
        "other programs on the CPUs",
        "Give the program CPUs of its own: stop other programs, or bind it with taskset.",
        told + f"its own threads want {wanted:.1f} of {cores:g} CPUs, so others had those",
        runnable,
        None,
        "at most: as if the thread never waited for a CPU",
        "top; then the same measurement on a quiet machine",
    )


def interpreter_lock(case: Case) -> Iterator[Finding]:
    """Find spans that wait in a lock until another Python thread wakes them."""
    tree = case.tree
    blocked = tree.own(of_all(tree, "blocked_ns"), case.is_of(*WATCHED))
    waker = tree.attribute("woken_by").fill_null("")
    lock = tree.attribute("blocked_in").fill_null("").str.contains(_LOCKS)
    rows = np.flatnonzero(lock.to_numpy() & (blocked > 0))
    # A thread that keeps the interpreter busy runs for about as long as others wait for it.
    long_ns = _BUSY * float(np.nansum(blocked[rows]))
    working = _states(case).filter("python", pl.col("running_ns") > long_ns)
    rows = rows[waker.gather(rows).is_in(working["name"].implode()).to_numpy()]
    time = float(np.nansum(blocked[rows]))
    if time < _MUCH * case.whole_ns:
        return
    threads = pl.DataFrame({"name": waker[rows], "time": blocked[rows]})
    yield Finding(
        "interpreter's lock",
        "Let other Python threads do less while the model runs, or move them to a process.",
        f"the thread is blocked in futex for {duration(time)}, {percent(time / case.whole_ns)}, "
        f"until Python threads wake it: {named(threads)}",
        time,
        None,
        "at most: as if it never waited for them",
        "the same program without these threads, profiled the same way",
    )


def slow_reads(case: Case) -> Iterator[Finding]:
    """Find workers that spend the wait for their batches in reading files."""
    tree = case.tree
    reads = case.is_of(Kind.SYSCALL) & case.is_named(_READS)
    rows = np.flatnonzero(reads & tree.attribute("process_name").is_not_null().to_numpy())
    around = np.unique(tree.parent[rows])
    waits, time = (float(np.nansum(tree.latency_ns()[each])) for each in (around, rows))
    if not len(rows) or time < _READING * waits or waits < _MUCH * case.whole_ns:
        return
    names = pl.DataFrame({"name": tree.spans["name"][rows], "time": tree.latency_ns()[rows]})
    yield Finding(
        "workers read files",
        "Read less or sooner: keep samples in memory, in larger files, or on a faster disk.",
        f"while the program waits {duration(waits)} for batches, each worker spends "
        f"{duration(time)} in files: {named(names)}",
        min(time, waits),
        None,
        "at most: as if files were read in no time",
        "xsp analyze FILE system-calls, after the change",
    )


def memory_given_back(case: Case) -> Iterator[Finding]:
    """Find programs that give memory back to the system and take it again in each step."""
    faults = of_all(case.tree, "page_faults")
    own = case.tree.own(faults, ~np.isnan(faults))
    count = float(np.nansum(own))
    time = FAULT_NS * count
    if time < _FAULTS * case.whole_ns:
        return
    names = case.tree.spans["name"][case.rows(Kind.SYSCALL)]
    if len(names) and not names.str.contains(_ALLOCATES).any():
        return  # nothing is given back: a file is mapped, say
    layers = case.layers(np.flatnonzero(own > 0), FAULT_NS * own[own > 0])
    yield Finding(
        "page faults",
        "Keep memory: tell glibc not to give it back, or use an allocator that does not.",
        f"{count:,.0f} page faults take about {duration(time)}, {percent(time / case.whole_ns)}"
        + (f", most in {layers}" if layers else ""),
        time,
        None,
        "at 1.6 µs for each, as on a small virtual machine",
        _MALLOC,
    )
