"""`xsp counters`: which kernels are counted, how `ncu` is asked, and where the counters go."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import xsp
from xsp.answer.counters import SETS, chosen, command
from xsp.measuring.target import Spec
from xsp.measuring.target.single_step import run_marked
from xsp.show.cli.app import run as run_cli

FAKE = Path(__file__).with_name("fake_ncu.py")
DEMO = Path(xsp.__file__).with_name("show") / "cli" / "demo.xsp"
Fake = Callable[..., Path]


@pytest.fixture
def demo() -> xsp.Trace:
    return xsp.load(DEMO)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put an `ncu` on the PATH that counts what it is told to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.chdir(tmp_path)

    def play(launches: list[dict[str, Any]], mode: str = "count") -> Path:
        job = tmp_path / "job.json"
        job.write_text(json.dumps({"launches": launches, "mode": mode}))
        monkeypatch.setenv("FAKE_NCU", str(job))
        return job

    return play


def launches_of(trace: xsp.Trace, **counters: float) -> list[dict[str, Any]]:
    """Write a launch for each kernel of a trace, all with the same counters."""
    fields = trace.spans.filter(kind="kernel")["attributes"].struct.unnest()
    return [
        {"name": name, "grid": grid, "block": block, "counters": counters}
        for name, grid, block in fields.select("full_name", "grid", "block").iter_rows()
    ]


ROOFLINE = {
    "gpu__time_duration.sum": 2000,
    "dram__bytes_read.sum": 4096,
    "dram__bytes_write.sum": 1024,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 42.5,
} | {
    f"smsp__sass_thread_inst_executed_op_{width}{name}_pred_on.sum": 100
    for width in "dfh"
    for name in ("add", "mul", "fma")
}


def test_the_slowest_kernels_are_chosen_until_they_make_the_share(demo: xsp.Trace) -> None:
    table = chosen(demo, top=100, until_pct=50)
    time = table["latency_ns"]
    whole = float(table["latency_ns"].sum())
    taken = table["chosen"].sum()
    assert table["chosen"].to_list() == [place < taken for place in range(table.height)]
    assert time.is_sorted(descending=True)
    assert time[:taken].sum() >= whole / 2 > time[: taken - 1].sum()
    assert table["share_pct"].sum() == pytest.approx(100)
    assert chosen(demo)["chosen"].sum() == 5


def test_kernels_that_wait_for_other_gpus_are_never_chosen(demo: xsp.Trace) -> None:
    name = pl.when(pl.col("name") == "reduce_kernel").then(pl.lit("ncclDevKernel_AllReduce_Sum"))
    spans = demo.spans.with_columns(name.otherwise("name").alias("name"))
    table = chosen(xsp.Trace(spans, demo.metadata), top=100, until_pct=100)
    refused = table.filter(pl.col("kernel").str.starts_with("nccl"))
    assert refused["chosen"].to_list() == [False]
    assert "would never end" in refused["reason"].item()


def test_kernels_that_may_not_be_chosen_do_not_fill_the_share(demo: xsp.Trace) -> None:
    first = chosen(demo)["kernel"][0]
    name = pl.when(pl.col("name") == first).then(pl.lit("ncclDevKernel_AllReduce_Sum"))
    spans = demo.spans.with_columns(name.otherwise("name").alias("name"))
    share = chosen(demo)["share_pct"][0]
    table = chosen(xsp.Trace(spans, demo.metadata), until_pct=share)
    assert table["chosen"].sum() >= 1


def test_a_trace_without_a_device_says_what_to_do() -> None:
    trace = xsp.measure(lambda: sum(range(100)), levels=1, runs=2)
    with pytest.raises(xsp.AnalysisError, match="levels=4"):
        chosen(trace)


@pytest.mark.parametrize("counters", list(SETS))
def test_the_command_names_the_kernels_alone(counters: str) -> None:
    line = command(["a+b", "c"], 7, ["python", "x.py"], counters=counters)
    assert line[line.index("--kernel-name") + 1] == r"regex:^(a\+b|c)$"
    assert line[line.index("--launch-count") + 1] == "7"
    assert line[-2:] == ["python", "x.py"]
    assert "--profile-from-start" not in line
    assert "--profile-from-start" in command(["a"], 1, ["x"], counters=counters, marked=True)


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="roofline"):
        command(["a"], 1, ["x"], counters="everything")
    with pytest.raises(ValueError, match="--top"):
        command([], 1, ["x"])


def test_counters_join_every_equal_kernel(
    demo: xsp.Trace, ncu: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    ncu(launches_of(demo, **ROOFLINE))
    program = [sys.executable, "-c", "print('of the program')"]
    assert run_cli(["counters", "--top", "3", str(DEMO), *program]) == 0
    assert "of the program" not in capfd.readouterr().out
    joined = xsp.load("demo-counters.xsp")
    names = chosen(demo, top=3).filter("chosen")["kernel"].to_list()
    kernels = xsp.analyses.kernel_information(joined).filter(
        pl.col("kernel").is_in(names), pl.col("work_source").is_not_null()
    )
    assert kernels.height == chosen(demo, top=3).filter("chosen")["launches"].sum()
    assert kernels["flops"].unique().to_list() == [1200]
    assert kernels["read_bytes"].unique().to_list() == [4096]
    assert kernels["occupancy_pct"].unique().to_list() == [42.5]
    others = xsp.analyses.kernel_information(joined).filter(~pl.col("kernel").is_in(names))
    assert 4096 not in others["read_bytes"].to_list()
    times = demo.spans.drop("attributes")
    assert joined.spans.drop("attributes").equals(times)
    again = chosen(joined, top=3)
    assert again.filter(pl.col("kernel").is_in(names))["chosen"].to_list() == [False] * 3


def test_the_launch_of_median_duration_stands_for_equal_ones(demo: xsp.Trace, ncu: Fake) -> None:
    (name,) = chosen(demo, top=1).filter("chosen")["kernel"]
    first = next(one for one in launches_of(demo) if name in one["name"])
    ncu(
        [
            first | {"counters": ROOFLINE | {"gpu__time_duration.sum": ns, "x__y.sum": ns}}
            for ns in (900, 100, 500)
        ]
    )
    assert run_cli(["counters", "--top", "1", str(DEMO), "true"]) == 0
    joined = xsp.load("demo-counters.xsp")
    assert (
        joined.spans["attributes"].struct.field("ncu.x__y.sum").drop_nulls().unique().item() == 500
    )
    (warning,) = [each for each in joined.warnings if each.code == "unmeasured-kernels"]
    assert name in warning.message


def test_counters_of_other_sizes_are_refused(
    demo: xsp.Trace, ncu: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    ncu([one | {"grid": [1, 2, 3]} for one in launches_of(demo, **ROOFLINE)])
    assert run_cli(["counters", str(DEMO), "true"]) == 3
    assert "with the same sizes" in capfd.readouterr().err.replace("\n", " ")
    assert run_cli(["counters", str(DEMO), "--limit", "5", "true"]) == 2
    assert "Options stand before" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mode", "program", "reason"),
    [
        ("refuse", ["true"], "ERR_NVGPUCTRPERM"),
        ("hang", ["true"], "did not end within 1 s"),
        ("count", ["true"], "launched none of the chosen kernels"),
    ],
)
def test_refusals_say_what_to_do(
    ncu: Fake, capfd: pytest.CaptureFixture[str], mode: str, program: list[str], reason: str
) -> None:
    ncu([], mode)
    assert run_cli(["counters", "--limit", "1", str(DEMO), *program]) == 3
    assert reason in capfd.readouterr().err
    assert not Path("demo-counters.xsp").exists()


def test_without_ncu_the_command_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_cli(["counters", str(DEMO)]) == 0
    assert "ncu --csv" in capfd.readouterr().out
    assert run_cli(["counters", str(DEMO), "true"]) == 3
    assert "not installed" in capfd.readouterr().err
    assert run_cli(["counters", "train.py"]) == 2
    assert "xsp profile --levels 4 train.py" in capfd.readouterr().err


def test_a_target_marks_one_step_after_warming_up(tmp_path: Path) -> None:
    code = tmp_path / "steps.py"
    log = tmp_path / "log"
    code.write_text(
        f"def step():\n    with open({str(log)!r}, 'a') as f:\n        f.write('step ')\n"
    )

    def note(word: str) -> Callable[[], int]:
        def call() -> int:
            with log.open("a") as file:
                file.write(f"{word} ")
            return 0

        return call

    driver = SimpleNamespace(
        cuCtxSynchronize=note("wait"), cuProfilerStart=note("start"), cuProfilerStop=note("stop")
    )
    run_marked(Spec(f"{code}:step"), driver)
    assert log.read_text().split() == [
        *("step", "step", "step", "wait", "start", "step", "wait", "stop")
    ]
    driver.cuProfilerStart = lambda: 201
    with pytest.raises(xsp.MeasurementError, match="--device cuda"):
        run_marked(Spec(f"{code}:step"), driver)
