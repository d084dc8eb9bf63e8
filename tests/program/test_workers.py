"""What a program's forked processes run is shown; they are as they were, and nothing stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampled import file_of_samples, is_sampled, wait_for
from simulated_program import simulate
from simulated_program.script import Do, Script, What
from simulated_program.told import read

import xsp
from xsp.record.program import BLOCKED, LineSamples, ProgramRecord, WorkerSamples
from xsp.testing import only_providers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: files in memory"),
    pytest.mark.forks,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture
def no_framework() -> Iterator[None]:
    with only_providers():
        yield


def work(number: int = 0) -> int:
    """Work until that was sampled."""
    wait_for(lambda: is_sampled("work"))
    return number + 1


def forked(do: Callable[[], int]) -> int:
    """Return the exit code of a child that does something."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = do()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def functions(prof: xsp.profile, row: str | None = None) -> list[str]:
    """Return the functions of workers that a row tells of, that of the program by default."""
    spans = prof.trace.spans.unnest("attributes")
    spans = spans[:1] if row is None else spans.filter(name=row)
    if "worker_functions" not in spans.columns:
        return []
    return spans["worker_functions"].drop_nulls().explode().to_list()


@pytest.mark.usefixtures("no_framework")
def test_what_a_pool_runs_is_told() -> None:
    with xsp.profile(levels=1) as prof, multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, range(4), chunksize=1) == [1, 2, 3, 4]
    assert {"work", "wait_for", "is_sampled"} & set(functions(prof))
    [share] = prof.trace.spans.unnest("attributes")["worker_shares"][:1].to_list()
    assert 0 < sum(share) <= 1


@pytest.mark.usefixtures("no_framework")
def test_a_child_has_its_exit_code_its_thread_and_its_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def child() -> int:
        work()
        os.write(1, b"said\n")
        return 7 + (threading.enumerate() != [threading.main_thread()])

    with xsp.profile(levels=1) as prof:
        assert forked(child) == 7
    assert functions(prof)
    assert capfd.readouterr() == ("said\n", "")


@pytest.mark.usefixtures("no_framework")
def test_the_child_of_a_child_is_sampled_too() -> None:
    with xsp.profile(levels=1) as prof:
        assert forked(lambda: work(10) + forked(lambda: work(4))) == 16
    assert functions(prof)


@pytest.mark.usefixtures("no_framework")
def test_what_a_killed_child_did_is_kept() -> None:
    def child() -> int:
        work()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with xsp.profile(levels=1) as prof:
        assert forked(child) == -signal.SIGKILL
        assert functions(prof)  # asked for in the block


@pytest.mark.usefixtures("no_framework")
def test_many_children_at_once_are_told() -> None:
    with xsp.profile(levels=1) as prof:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work) for _ in range(64)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0] * 64
    assert {"work", "wait_for", "is_sampled"} & set(functions(prof))


@pytest.mark.usefixtures("no_framework")
def test_another_program_inherits_nothing() -> None:
    code = "import os; print(*(os.path.realpath(f'/proc/self/fd/{n}') for n in range(3, 4096)))"
    with xsp.profile(levels=1):
        assert file_of_samples() is not None
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            close_fds=False, preexec_fn=lambda: None,
        )  # fmt: skip
    assert "xsp workers" not in ran.stdout


@pytest.mark.usefixtures("no_framework")
def test_a_child_that_closes_all_files_has_only_its_own_text_in_its_files(tmp_path: Path) -> None:
    def child() -> int:
        work()
        os.closerange(3, 4096)
        files = [os.open(tmp_path / str(n), os.O_CREAT | os.O_RDWR) for n in range(900)]
        wait_for(lambda: len(os.listdir("/proc/self/task")) == 1)  # the sampling thread has ended
        return sum(os.fstat(file).st_size for file in files)

    with xsp.profile(levels=1) as prof:
        assert forked(child) == 0
    assert functions(prof)


@pytest.mark.usefixtures("no_framework")
def test_a_child_that_outlives_the_block_is_left_alone() -> None:
    begun, over = os.pipe(), os.pipe()

    def child() -> int:
        work()
        os.write(begun[1], b"x")
        os.read(over[0], 1)
        wait_for(lambda: file_of_samples() is None and len(os.listdir("/proc/self/task")) == 1)
        return 3

    with xsp.profile(levels=1) as prof:
        child_id = os.fork()
        if not child_id:
            code = 99
            try:
                code = child()
            finally:
                os._exit(code)
        os.read(begun[0], 1)
    assert file_of_samples() is None
    os.write(over[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]) == 3
    assert functions(prof)
    for file in (*begun, *over):
        os.close(file)


MS = 1_000_000
LOADER = "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
SELECT = ("select", "/usr/lib/python3.11/selectors.py", 415)
LOOP = ("_worker_loop", LOADER, 300)


def program(**facts: object) -> tuple[ProgramRecord, int, int]:
    """Return the record of a program that waits 100 ms for data, and when that began and ended."""
    script = Script()
    wait = Do(What.PART, number=script.name("data loading", facts))
    script.threads[0] += [Do(What.RUN, ns=40 * MS), wait, Do(What.RUN, ns=100 * MS), Do(What.END)]
    record = simulate(script).record
    [(_, events)] = record.log.threads
    return record, int(events[1]), int(events[-1])


def child(
    begin_ns: int, *samples: tuple[tuple[str, str, int], bool], active_ns: int, each_ns: int = MS
) -> WorkerSamples:
    """Return the samples of a loader's worker, one after the other; True: it was blocked."""
    count, each = len(samples), np.ones(len(samples), np.int64)
    stacks = dict.fromkeys((LOOP, place) for place, _ in samples)
    stack = np.array([[*stacks].index((LOOP, place)) for place, _ in samples])
    time_ns = begin_ns + each_ns * np.arange(1, count + 1)
    lines = LineSamples(time_ns, each_ns * each, stack, tuple(stacks))
    state = BLOCKED * np.array([blocked for _, blocked in samples], dtype=np.int64)
    return WorkerSamples(1, lines, active_ns * each // count, state)


def told(record: ProgramRecord, *workers: WorkerSamples) -> dict[str, Any]:
    """Return the attributes of the row `data loading`, those of workers among them."""
    spans = read(replace(record, workers=workers)).spans.unnest("attributes")
    return spans.filter(name="data loading").to_dicts()[0]


def test_waiting_for_work_is_told_apart_from_work() -> None:
    record, begin_ns, end_ns = program(workers=1)
    decode = ("decode", "data.py", 3)
    samples = [*[(decode, False)] * 60, *[(SELECT, True)] * 40]
    row = told(record, child(begin_ns, *samples, active_ns=60 * MS))
    assert row["worker_functions"] == ["decode"]
    assert row["worker_lines"] == ["data.py:3"]
    assert row["worker_shares"] == pytest.approx([0.6 * 100 * MS / (end_ns - begin_ns)], rel=0.01)
    assert row["worker_waits"] == pytest.approx(0.4 * 100 * MS / (end_ns - begin_ns), rel=0.01)
    assert row["worker_samples"] == 100


def test_what_waits_in_a_data_set_is_its_work() -> None:
    record, begin_ns, _ = program(workers=1)
    lock = ("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 1)
    worker = child(begin_ns, *[(lock, True)] * 50, active_ns=0)
    mine = ("__getitem__", "data.py", 3)
    stacks = tuple((*stack[:1], mine, *stack[1:]) for stack in worker.lines.stacks)
    row = told(record, replace(worker, lines=replace(worker.lines, stacks=stacks)))
    assert row["worker_waits"] == 0
    assert sum(row["worker_shares"]) > 0


def test_time_asleep_is_what_the_system_says_of_it_however_often_it_was_sampled() -> None:
    # Python is interrupted where it falls asleep, rarely while it computes.
    record, begin_ns, end_ns = program(workers=1)
    decode, fetch = ("decode", "data.py", 3), ("fetch", "data.py", 9)
    samples = [*[(fetch, True)] * 60, *[(fetch, False)] * 30, *[(decode, False)] * 10]
    row = told(record, child(begin_ns, *samples, active_ns=80 * MS))
    parts = dict(zip(row["worker_functions"], row["worker_shares"], strict=True))
    whole = 100 * MS / (end_ns - begin_ns)
    assert parts == pytest.approx({"decode": 0.8 * whole, "fetch": 0.2 * whole}, rel=0.01)


def test_what_workers_did_while_the_program_did_not_wait_is_left_out() -> None:
    record, begin_ns, _ = program(workers=1)
    before = child(begin_ns - 30 * MS, *[(("decode", "data.py", 3), False)] * 20, active_ns=20 * MS)
    assert told(record, before).get("worker_samples") is None


def test_workers_that_cannot_be_seen_are_named() -> None:
    record, _, _ = program(workers=2)
    [said] = [w.message for w in read(record).warnings if w.code == "workers-unseen"]
    assert "2 workers" in said
    assert "fork" in said
    for other in (replace(record, forks=2), program(workers=0)[0]):
        assert "workers-unseen" not in {warning.code for warning in read(other).warnings}
