from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import synthetic_results
from samples import Node, layer, op, pipeline, trace

from xsp.answer.zoo.folder import (
    JOURNAL,
    TABLE,
    Journal,
    opened,
    read_results,
)
from xsp.answer.zoo.row import COLUMNS, FACT, row_of, row_without
from xsp.answer.zoo.task import Point, Task
from xsp.errors import ExportError, TraceFormatError
from xsp.measuring.target.spec import Spec
from xsp.trace.document import Trace

BASIS = {"host id": "0123456789abcdef", "cpu": "Fast", "usable cores": "4.0", "torch": "1.0"}
MS = 1_000_000


def task_of(*batches: int, model: str = "net", **facts: Any) -> Task:
    points = tuple(Point(Spec("torchvision:resnet18", batch=size)) for size in batches)
    return Task(model, points, facts=facts)


def measured(batch: int, latency_ns: int, *inside: Node) -> Trace:
    root = pipeline("predict", *inside, own_ns=latency_ns)
    return trace(root, settings={"batch": batch})


def row(task: Task, number: int = 0, latency_ns: int = 10 * MS, **basis: str) -> dict[str, Any]:
    point = task.points[number]
    found = measured(point.spec.batch or 1, latency_ns)
    return row_of(task, point, found, took_s=2.0, basis=BASIS | basis)


def test_a_row_says_of_a_trace_what_its_analyses_say() -> None:
    body = (
        layer("a", "Conv2d", op("aten::conv2d", own_ns=0), own_ns=60 * MS),
        layer("b", "Linear", own_ns=25 * MS),
        layer("c", "Concat", own_ns=10 * MS, layer_type="data movement"),
    )
    whole = measured(4, 5 * MS, *body)
    task = replace(task_of(4, family="ResNet", accuracy_pct=76.1, depth=18))
    found = row_of(task, task.points[0], whole, took_s=2.5, basis=BASIS)
    assert found["latency_ns"] == pytest.approx(100 * MS, rel=1e-4)
    assert found["throughput_per_s"] == pytest.approx(40, rel=1e-4)
    assert found["throughput_high_per_s"] == pytest.approx(40 / 0.99, rel=1e-4)
    assert found["convolution_pct"] == found["time.convolution_pct"] == pytest.approx(60, rel=1e-4)
    assert found["time.data_movement_pct"] == pytest.approx(10, rel=1e-4)
    assert found["time.attention_pct"] == 0  # it is known that there is none
    assert found["layers"] == 3
    assert found["first_latency_pct"] == pytest.approx(100 * 60 / 95)
    assert (found["family"], found["accuracy_pct"], found[f"{FACT}depth"]) == ("ResNet", 76.1, 18)
    assert (found["model"], found["batch"], found["framework"]) == ("net", 4, "torch")
    assert (found["machine"], found["status"]) == ("01234567", "measured")
    assert not set(found) - set(COLUMNS) - {f"{FACT}depth"}


def test_results_are_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    task = task_of(1, 2, 4)
    with opened(tmp_path) as folder:
        for number in (0, 1):
            found = tmp_path / "scratch.xsp"
            measured(number + 1, 10 * MS).save(found)
            kept = folder.keep(row(task, number), found)
            assert not found.exists()
            assert (tmp_path / kept["trace"]).is_file()
        folder.keep(row_without(task, task.points[2], "crashed", "signal", took_s=1, basis=BASIS),
                    None)  # fmt: skip
    with opened(tmp_path) as folder:
        assert [folder.kept(task, point, [BASIS]) is not None for point in task.points] == [
            True,
            True,
            False,  # what crashed is tried again
        ]
        assert folder.frame().columns == list(COLUMNS)
        assert folder.notes == ()


def test_a_change_of_what_a_result_rests_on_measures_again_and_says_so(tmp_path: Path) -> None:
    task = task_of(1)
    point, other = task.points[0], BASIS | {"host id": "fedcba98"}
    with opened(tmp_path) as folder:
        folder.keep(row(task), None)
        now = BASIS | {"torch": "2.0"}
        assert folder.kept(task, point, [now]) is None
        assert folder.why_again(task, point, [now]) == "torch was 1.0 and is 2.0"
        assert folder.kept(task, point, [now, BASIS]) is not None  # any of several machines
        assert folder.why_again(task, point, [BASIS]) == ""
        assert folder.kept(task, point, [other]) is None
        assert folder.why_again(task, task_of(2).points[0], [BASIS]) == ""


def test_the_trace_of_a_row_that_gave_way_is_deleted_and_a_missing_one_measured_again(
    tmp_path: Path,
) -> None:
    task = task_of(1)
    files = []
    with opened(tmp_path) as folder:
        for version in ("1.0", "2.0"):
            scratch = tmp_path / "scratch.xsp"
            measured(1, MS).save(scratch)
            files.append(tmp_path / folder.keep(row(task, torch=version), scratch)["trace"])
        assert [file.exists() for file in files] == [False, True]
        now = BASIS | {"torch": "2.0"}
        assert folder.kept(task, task.points[0], [now]) is not None
        files[1].unlink()
        assert folder.kept(task, task.points[0], [now]) is None
        assert "is missing" in folder.why_again(task, task.points[0], [now])


def test_a_run_killed_while_it_kept_a_result_again_leaves_the_old_row_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, scratch = task_of(1), tmp_path / "scratch.xsp"
    with opened(tmp_path) as folder:
        measured(1, MS).save(scratch)
        kept = tmp_path / folder.keep(row(task), scratch)["trace"]
        before = kept.read_bytes()
        measured(1, 2 * MS).save(scratch)
        monkeypatch.setattr(Journal, "append", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            folder.keep({**row(task), "took_s": 3.0}, scratch)
        assert len(list((tmp_path / "traces").iterdir())) == 2
    with opened(tmp_path):
        assert [each.read_bytes() for each in (tmp_path / "traces").iterdir()] == [before]
    assert (tmp_path / read_results(tmp_path)["trace"][0]) == kept


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_only_one_run_writes_into_a_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(ExportError, match="another run writes into"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path):
        pass


def test_a_line_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    task = task_of(1, 2)
    line = json.dumps(row(task)).encode()
    (tmp_path / JOURNAL).write_bytes(line + b"\n" + line[:100])
    assert read_results(tmp_path).height == 1
    with opened(tmp_path) as folder:
        assert folder.notes == ()
        folder.keep(row(task, 1), None)
        assert read_results(tmp_path).height == 2  # while the run is under way
    assert read_results(tmp_path).height == 2


_KEEPING = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from pathlib import Path
import xsp.answer.zoo.folder as folders
from synthetic_results import rows
folders._FEWEST, folders._PART = 5, 10**9  # the table is written often
made = rows(400)
with folders.opened(Path(sys.argv[1])) as folder:
    done = {(r["model"], r["settings"]) for r in folder.frame().iter_rows(named=True)}
    print("begin", flush=True)
    for row in made:
        if (row["model"], row["settings"]) not in done:
            scratch = Path(sys.argv[1]) / "scratch"
            scratch.write_bytes(b"trace")
            folder.keep(row, scratch)
            print(row["model"], row["batch"], flush=True)
"""


@pytest.mark.slow
def test_a_killed_run_loses_no_row_that_was_kept(tmp_path: Path) -> None:
    paths = f"{Path(__file__).parent}:{Path(__file__).parent.parent}"
    told: set[str] = set()
    for count in (0, 1, 4, 8, 2):
        command = [sys.executable, "-c", _KEEPING, str(tmp_path), paths]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            read = [process.stdout.readline() for _ in range(count)]
            os.kill(process.pid, signal.SIGKILL)
            lines = "".join([*read, process.stdout.read()]).split("\n")[:-1]
        told |= set(lines)
        found = read_results(tmp_path)
        kept = [f"{model} {batch}" for model, batch in found.select("model", "batch").iter_rows()]
        assert len(set(kept)) == len(kept)
        assert told <= set(kept)
        assert len(kept) <= len(told) + 5  # one for each kill, told or not
        assert all((tmp_path / name).is_file() for name in found["trace"])
    assert told


@pytest.mark.parametrize("what", ["journal", "table", "trace"])
def test_a_full_disk_is_an_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    task = task_of(1, 2)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(*_: object) -> int:
        raise full

    with opened(tmp_path) as folder:
        folder.keep(row(task), None)
        scratch = tmp_path / "scratch.xsp"
        measured(2, MS).save(scratch)
        with monkeypatch.context() as patched:
            call = {"journal": "fdatasync", "table": "fsync", "trace": "replace"}[what]
            patched.setattr(os, call, refuse)
            write = folder.write if what == "table" else partial(folder.keep, row(task, 1), scratch)
            with pytest.raises(ExportError, match=r"No space left|no room"):
                write()
        assert read_results(tmp_path)["batch"].to_list() == [1]
        folder.keep(row(task, 1), None)
    assert read_results(tmp_path)["batch"].to_list() == [1, 2]


def test_a_row_that_ctrl_c_cut_off_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    task = task_of(1, 2)
    with opened(tmp_path) as folder:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                folder.keep(row(task), None)
        folder.keep(row(task, 1), None)
        assert read_results(tmp_path)["batch"].to_list() == [2]


@pytest.mark.parametrize("content", [b"no table", b"PAR1", b""])
def test_a_damaged_table_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TABLE).write_bytes(content)
    with pytest.raises(TraceFormatError, match="delete the file to measure all models again"):
        read_results(tmp_path)


def test_a_table_is_read_by_itself_and_by_pandas(tmp_path: Path) -> None:
    synthetic_results.frame(24).write_parquet(tmp_path / "zoo.parquet")
    found = read_results(str(tmp_path / "zoo.parquet"))
    assert found.shape == (24, len(COLUMNS))
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.read_parquet(tmp_path / "zoo.parquet")
    assert list(table.columns) == list(COLUMNS)
    assert table["latency_ns"].tolist() == found["latency_ns"].to_list()


@pytest.mark.timing
def test_many_results_are_kept_and_read_quickly(tmp_path: Path) -> None:
    many = synthetic_results.frame(100_000)
    (tmp_path / "traces").mkdir()
    many.write_parquet(tmp_path / TABLE)
    task = task_of(1, 2, 4, 8)
    with opened(tmp_path) as folder:
        began = time.process_time()
        for number in range(4):
            folder.keep(row(task, number), None)
        assert (time.process_time() - began) / 4 < 0.5  # rows are appended; nothing is rewritten
    began = time.process_time()
    assert read_results(tmp_path).height == 100_004
    assert time.process_time() - began < 10
