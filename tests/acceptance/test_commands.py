"""Promises of README.md about the command line: targets, sweeps, zoos, the doctor, exit codes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import polars as pl
import pytest
from small import answer, command

import xsp
from xsp.testing import replay

JOB = """
import xsp

def total(batch=1):
    with xsp.span("add up"):
        return sum(range(1000 * batch))

def make_models():
    return {"adder": lambda batch=1: lambda: total(batch)}

def fails():
    raise ValueError("mine")
"""

SCRIPT = """
import sys
print("arguments", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""

ZOO = """
[zoo]
name = "sums"

[defaults]
budget = 0.5
levels = 1

[[model]]
target = "job.py:make_models"
batch = [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "zoo.toml").write_text(ZOO)
    return tmp_path


QUICK = ("--levels", "1", "--runs", "3", "--budget", "0.5")


def test_profile_measures_a_function_and_saves_its_trace(folder: Path) -> None:
    done = command(folder, "profile", "job.py:total", *QUICK, "-o", "total.xsp")
    assert done.returncode == 0, done.stderr
    assert "add up" in done.stdout
    trace = xsp.load(folder / "total.xsp")
    assert trace.name == "total"
    assert trace.spans["name"].to_list() == ["total", "add up"]


def test_profile_shows_the_columns_that_show_shows(folder: Path) -> None:
    columns = ("--errors", "--overhead", "--warnings")
    done = command(folder, "profile", "job.py:total", *QUICK, "--no-isolate", *columns)
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer(folder, "show", "total.xsp", *columns).stdout
    head = next(line for line in done.stdout.splitlines() if line.endswith("what"))
    assert "overhead" in head


def test_a_function_is_given_the_batch_that_it_has_a_parameter_for(folder: Path) -> None:
    words = ("--batch", "4", "-o", "total.xsp", "--no-isolate")
    done = command(folder, "profile", *QUICK, *words, "job.py:total")
    assert done.returncode == 0, done.stderr
    assert dict(xsp.load(folder / "total.xsp").metadata["settings"]) == {"batch": 4}


def test_what_the_target_raises_is_exit_code_1(folder: Path) -> None:
    done = command(folder, "profile", "job.py:fails", *QUICK)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("job.py:totl", "did you mean total?"),
        ("jobb.py:total", "job.py"),
        ("torchvison:resnet50", "did you mean torchvision?"),
    ],
)
def test_a_target_that_there_is_not_names_the_nearest(folder: Path, target: str, said: str) -> None:
    done = command(folder, "profile", target, *QUICK)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not list(folder.glob("*.xsp"))


@pytest.mark.slow
def test_a_script_has_its_own_arguments_output_and_exit_code(folder: Path) -> None:
    done = command(folder, "profile", "script.py", "7", "--levels")
    assert done.returncode == 7
    assert done.stdout == "arguments ['7', '--levels']\n"


@pytest.mark.slow
def test_records_of_one_machine_make_the_trace_on_another(folder: Path) -> None:
    done = command(folder, "record", "job.py:total", "--levels", "1", "-o", "total.xsprec")
    assert done.returncode == 0, done.stderr
    trace = replay(folder / "total.xsprec")
    assert trace.spans["name"].to_list() == ["total", "add up"]


@pytest.mark.slow
def test_the_doctor_says_which_levels_there_are_and_why_others_are_not(folder: Path) -> None:
    done = command(folder, "doctor", "--verbose")
    assert done.returncode == 0
    for level in ("model", "framework", "library", "kernel"):
        assert level in done.stdout
    said = json.loads(command(folder, "doctor", "--json").stdout)
    assert "disturbances" in said
    assert "levels" in said


def test_a_dry_run_of_a_sweep_lists_its_points_and_measures_nothing(folder: Path) -> None:
    done = command(folder, "sweep", "job.py:total", "--batch", "1..4", "--dry-run")
    assert done.returncode == 0
    assert [line.split(":")[0].strip() for line in done.stdout.splitlines()[1:]] == [
        "batch 1",
        "batch 2",
        "batch 4",
    ]
    assert not list(folder.glob("*-sweep"))


@pytest.mark.slow
def test_a_sweep_keeps_a_table_and_goes_on_where_it_was(folder: Path) -> None:
    words = ("sweep", "job.py:total", "--runs", "3", "--budget", "0.5", "-o", "out", "--batch")
    first = command(folder, *words, "1,2")
    assert first.returncode == 0, first.stderr
    table = pl.read_parquet(folder / "out" / "results.parquet")
    assert table["batch"].to_list() == [1, 2]
    assert xsp.load(folder / "out" / table["trace"][0]).name == "total"
    second = command(folder, *words, "1,2,4")
    assert "3 measurements, 2 complete from before" in second.stderr
    after = pl.read_parquet(folder / "out" / "results.parquet")
    assert after["latency_ns"].to_list()[:2] == table["latency_ns"].to_list()


def test_zoo_init_writes_a_file_to_begin_with_and_never_over_one(folder: Path) -> None:
    assert command(folder, "zoo", "init", "first.toml").returncode == 0
    written = (folder / "first.toml").read_text(encoding="utf-8")
    assert tomllib.loads(written)["model"]
    again = command(folder, "zoo", "init", "first.toml")
    assert again.returncode != 0
    assert "first.toml" in again.stderr
    assert (folder / "first.toml").read_text(encoding="utf-8") == written


def test_zoo_list_says_what_a_run_would_do(folder: Path) -> None:
    done = command(folder, "zoo", "list", "zoo.toml")
    assert done.returncode == 0, done.stderr
    assert "sums: 1 model, 2 points; 2 to do" in done.stdout


@pytest.mark.slow
def test_zoo_run_measures_all_into_one_table_and_goes_on_where_it_was(folder: Path) -> None:
    done = command(folder, "zoo", "run", "zoo.toml", "-o", "results")
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(folder / "results" / "results.parquet")
    assert sorted(table["status"]) == ["measured", "measured"]
    listed = command(folder, "zoo", "list", "zoo.toml", "-o", "results")
    assert "2 points; 2 complete" in listed.stdout


def test_the_version_is_that_of_the_package(folder: Path) -> None:
    assert xsp.__version__ in command(folder, "--version").stdout


def test_help_lists_every_command_and_the_exit_codes(folder: Path) -> None:
    said = command(folder, "--help").stdout
    for name in ("profile", "sweep", "zoo", "import", "show", "analyze", "report", "compare"):
        assert f"xsp {name} " in said
    for code in (0, 1, 2, 3, 4, 5, 130):
        assert f"{code}  " in said
