"""Replays what root recorded of a program whose doings are known (`root.py.txt` beside it)."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from xsp.provider import Records, unpack
from xsp_levels.system.linux.provider import LinuxSystem

FILE = Path(__file__).parents[3] / "data" / "system" / "root.records"
SYSTEM = LinuxSystem()


@pytest.fixture(scope="module")
def records() -> Records:
    return unpack(SYSTEM, FILE.read_bytes())


def test_calls_are_those_of_the_program(records: Records) -> None:
    rows = SYSTEM.spans(records)
    (main,) = [
        t.number for t in records.data.threads if records.data.names[t.number] == "MainThread"
    ]
    own = rows.filter(thread=records.data.pythons[main])
    counts = dict(own["name"].value_counts().rows())
    assert {name: counts[name] for name in ("pwrite64", "pread64", "read", "write")} == {
        "pwrite64": 10,
        "pread64": 10,
        "read": 8,
        "write": 8,
    }
    assert own.filter(name="pwrite64")["attr.bytes"].to_list() == [4096] * 10
    assert own.filter(name="pread64")["attr.bytes"].to_list() == [1000] * 10
    missing = own.filter(pl.col("attr.error") == "ENOENT")
    assert missing["name"].to_list() == ["newfstatat"] * 5
    (worker,) = rows["attr.process_name"].drop_nulls().unique()
    assert worker.startswith("pt_data_worker ")
    sent = rows.filter(pl.col("attr.process_name") == worker, name="write")
    assert sent["attr.bytes"].to_list() == [300] * 3


def test_waits_have_causes_and_wakers(records: Records) -> None:
    found = SYSTEM.accounts(records)
    (echo,) = [number for number, name in records.data.names.items() if name == "echo"]
    own = found.filter(thread=records.data.pythons[echo])
    sleeps = own.filter(what="blocked", cause="clock_nanosleep")
    assert sleeps.height == 5
    assert sleeps["amount"].min() >= 1e6  # type: ignore[operator]
    assert own.filter(what="woken", cause="interrupt").height == 5
    (main,) = [number for number, name in records.data.names.items() if name == "MainThread"]
    woken = found.filter(thread=records.data.pythons[main], what="woken")["cause"]
    assert woken.to_list().count("echo") == 5
    assert any(cause.startswith("pt_data_worker ") for cause in woken)


def test_times_in_states_are_those_that_the_kernel_counted(records: Records) -> None:
    found = SYSTEM.accounts(records)
    length = records.data.end_ns - records.data.begin_ns
    for each in records.data.threads:
        named = records.data.pythons.get(each.number, -each.number)
        off = found.filter(pl.col("what").is_in(["runnable", "blocked"]), thread=named)
        # Events are on somewhat longer than the visit: from switching them on until off.
        assert length - off["amount"].sum() == pytest.approx(each.ran_ns, abs=0.01 * length)
