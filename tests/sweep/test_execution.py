from __future__ import annotations

import dataclasses
import errno
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sweeping import BASIS, Machine, grid, swept

import xsp
from xsp.errors import ExportError, MeasurementError, TargetFailedError
from xsp.problem import Problem
from xsp.sweep import COLUMNS, TABLE, Status, curves_of, opened, table
from xsp.target.spec import Spec

MS = 1_000_000


def saturating(spec: Spec) -> int:
    """Latency of a machine that works on four samples at once."""
    return 10 * MS * max(1, (spec.batch or 1) // 4)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, saturating)


def test_every_point_has_a_trace_and_a_row(tmp_path: Path, machine: Machine) -> None:
    results, watched, _ = swept(tmp_path, grid(1, 2, threads=(1, 2)))
    assert machine.measured == [1, 2, 1, 2]
    assert len(results) == 4
    rows = pl.read_parquet(tmp_path / TABLE)
    assert rows["batch"].to_list() == [1, 2, 1, 2]
    assert rows["threads"].to_list() == [1, 1, 2, 2]
    assert rows["throughput_per_s"].to_list() == pytest.approx([100.0, 200.0] * 2)
    low, high = rows["throughput_low_per_s"][0], rows["throughput_high_per_s"][0]
    assert (low, high) == pytest.approx((100 / 1.01, 100 / 0.99))
    assert rows["peak_memory_bytes"].to_list() == [1 << 20] * 4
    loaded = xsp.load(tmp_path / "work.b2.t2.xsp")
    assert dict(loaded.metadata["settings"]) == {"batch": 2, "threads": 2}
    assert watched.told[:3] == [
        "began batch 1, threads 1",
        "progress",
        "measured batch 1, threads 1",
    ]


def test_doubling_ends_when_throughput_has_risen_no_more_twice(
    tmp_path: Path, machine: Machine
) -> None:
    points = grid(*(1 << power for power in range(11)), doubling=True)
    results, watched, folder = swept(tmp_path, points)
    assert machine.measured == [1, 2, 4, 8, 16]
    assert watched.told[-1] == "left out 6: throughput has risen no more in two doublings"
    (curve,) = curves_of(points.curves, results, folder)
    assert curve.batch == 4
    assert "optimal batch: 4, the smallest" in curve.sentences[0]
    assert "no more than 5 % (+0.0 %)" in curve.sentences[0]


def test_the_same_sweep_measures_nothing_again(tmp_path: Path, machine: Machine) -> None:
    before, _, _ = swept(tmp_path, grid(1, 2))
    after, watched, _ = swept(tmp_path, grid(1, 2, 4))
    assert machine.measured == [1, 2, 4]
    assert after[:2] == before
    assert watched.told[:2] == ["kept batch 1", "kept batch 2"]


def test_a_change_of_versions_measures_again_and_says_so(tmp_path: Path, machine: Machine) -> None:
    swept(tmp_path, grid(1))
    _, watched, _ = swept(tmp_path, grid(1), BASIS | {"torch": "2.0"})
    assert machine.measured == [1, 1]
    assert watched.told[0] == "began batch 1 again: torch was 1.0 and is 2.0"


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_trace_that_cannot_be_read_is_measured_again(
    tmp_path: Path, machine: Machine, damage: str
) -> None:
    swept(tmp_path, grid(1))
    file = tmp_path / "work.b1.xsp"
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:-40])
    _, watched, _ = swept(tmp_path, grid(1))
    assert machine.measured == [1, 1]
    assert "again: its trace cannot be read" in watched.told[0]


@pytest.mark.parametrize(
    "error",
    [
        TargetFailedError("the target raised MemoryError", "", out_of_memory=True),
        MeasurementError("its process was ended by SIGKILL", out_of_memory=True),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=["raised", "killed", "no process"],
)
def test_out_of_memory_is_a_result_and_larger_batches_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(monkeypatch, failing(above=2, error=error))
    points = grid(1, 2, 4, 8, threads=(1, 2))
    results, _, folder = swept(tmp_path, points)
    states = [result.status for result in results]
    assert [str(state) for state in states[:4]] == [
        "measured", "measured", "out-of-memory", "skipped",
    ]  # fmt: skip
    assert machine.measured == [1, 2, 4, 1, 2, 4]  # the other curve is measured all the same
    assert results[2].reason == str(error)
    assert results[3].reason == "batch 4 ran out of memory, and this one is larger"
    first, _ = curves_of(points.curves, results, folder)
    assert (first.name, first.batch) == ("threads 1", 2)
    assert first.sentences[0].endswith("and batch 4 runs out of memory")
    swept(tmp_path, points)
    assert len(machine.measured) == 6


def test_a_point_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = TargetFailedError("the target raised ValueError: odd", "")
    machine = Machine(monkeypatch, failing(above=1, error=error, until=4))
    results, _, _ = swept(tmp_path, grid(1, 2, 4))
    assert [result.status for result in results] == [
        Status.MEASURED,
        Status.FAILED,
        Status.MEASURED,
    ]
    assert pl.read_parquet(tmp_path / TABLE)["reason"][1] == "the target raised ValueError: odd"
    swept(tmp_path, grid(1, 2, 4))
    assert machine.measured == [1, 2, 4, 2]  # what failed is tried again


def test_doubling_ends_after_two_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, failing(above=0, error=TargetFailedError("no", "")))
    _, watched, _ = swept(tmp_path, grid(1, 2, 4, 8, doubling=True))
    assert machine.measured == [1, 2]
    assert watched.told[-1] == "left out 2: two batches in a row failed"


def test_an_error_that_says_nothing_of_the_target_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, failing(above=1, error=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many open files"):
        swept(tmp_path, grid(1, 2))
    assert pl.read_parquet(tmp_path / TABLE).height == 1


def test_no_point_begins_after_the_total_budget(tmp_path: Path, machine: Machine) -> None:
    swept(tmp_path, grid(1))
    results, watched, _ = swept(tmp_path, grid(1, 2, 4), total_s=1e-9)
    assert machine.measured == [1]
    assert [result.settings["batch"] for result in results] == [1]
    assert watched.told == ["kept batch 1", "left out 2: the total budget is over"]


@pytest.mark.parametrize("when", ["raised", "told"])
def test_interrupted_it_keeps_what_is_complete_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    machine = Machine(monkeypatch, failing(above=1, error=KeyboardInterrupt()))
    if when == "told":  # a trace of the runs so far, which is not what was asked for
        machine.work = lambda spec: MS
        measure = machine._measure

        def interrupted(spec: Spec, *rest: Any) -> xsp.Trace:
            whole = measure(spec, *rest)
            problems = [{"code": "interrupted", "message": "."}] if spec.batch == 2 else []
            return xsp.Trace(whole.spans, {**whole.metadata, "problems": problems})

        monkeypatch.setattr("xsp.sweep.measuring.measure_isolated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, grid(1, 2, 4))
    assert pl.read_parquet(tmp_path / TABLE)["batch"].to_list() == [1]
    machine = Machine(monkeypatch, saturating)
    results, _, _ = swept(tmp_path, grid(1, 2, 4))
    assert machine.measured == [2, 4]
    assert len(results) == 3


def test_the_time_left_is_estimated_from_the_points_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(spec: Spec) -> int:
        time.sleep(0.05)
        return MS

    Machine(monkeypatch, slow)
    _, watched, _ = swept(tmp_path, grid(1, 2, 4, 8))
    assert watched.left[0] == pytest.approx(4 * (1.0 + 8.0))  # the budget, and loading
    assert 0.15 < watched.left[1] < 3
    assert watched.left[1] > watched.left[3] > 0.05


def test_the_table_documents_all_its_columns(tmp_path: Path, machine: Machine) -> None:
    swept(tmp_path, grid(1))
    assert pl.read_parquet(tmp_path / TABLE).columns == list(COLUMNS)
    text = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")
    for name, meaning in COLUMNS.items():
        assert f"| `{name}` | {meaning} |" in text


def test_the_table_gives_the_results_back(tmp_path: Path, machine: Machine) -> None:
    results, _, _ = swept(tmp_path, grid(1, 2))
    assert table.read(tmp_path) == results


def test_a_folder_takes_the_sweep_of_one_target_alone(tmp_path: Path, machine: Machine) -> None:
    swept(tmp_path, grid(1))
    with pytest.raises(ExportError, match=r"holds a sweep of job\.py:work, and not of other\.py:f"):
        swept(tmp_path, grid(1), {"target": "other.py:f"})


def test_two_sweeps_into_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    with (
        opened(tmp_path, BASIS),
        pytest.raises(ExportError, match="another sweep writes into"),
        opened(tmp_path, BASIS),
    ):
        pass
    with opened(tmp_path, BASIS):  # afterwards the folder is free again
        pass


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", None], ids=["empty", "cut", "other"])
def test_a_table_that_is_none_of_a_sweep_is_told(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        pl.DataFrame({"a": [1]}).write_parquet(tmp_path / TABLE)
    else:
        (tmp_path / TABLE).write_bytes(content)
    with pytest.raises(xsp.TraceFormatError, match="no table of a sweep"), opened(tmp_path, BASIS):
        pass


def test_a_trace_outside_of_the_folder_is_not_read(tmp_path: Path, machine: Machine) -> None:
    results, _, folder = swept(tmp_path, grid(1))
    with pytest.raises(xsp.TraceFormatError, match="has no trace"):
        folder.trace(dataclasses.replace(results[0], trace="../work.b1.xsp"))


def test_problems_of_a_trace_are_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    said = Problem("wide-interval", "hardly known")
    measure = machine._measure

    def troubled(spec: Spec, *rest: Any) -> xsp.Trace:
        whole = measure(spec, *rest)
        problems = [{"code": said.code, "message": said.message}]
        return xsp.Trace(whole.spans, {**whole.metadata, "problems": problems})

    monkeypatch.setattr("xsp.sweep.measuring.measure_isolated", troubled)
    swept(tmp_path, grid(1))
    assert pl.read_parquet(tmp_path / TABLE)["problems"].to_list() == [["hardly known"]]


def failing(*, above: int, error: BaseException, until: int = 1 << 30) -> Any:
    """Return work that raises for batches above one, and below another."""

    def work(spec: Spec) -> int:
        if above < (spec.batch or 1) < until:
            raise error
        return 10 * MS

    return work
