"""Promises of docs/compare.md: what became slower, whether that is chance, and what is new."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from small import answer, measured, network
from torch import nn

import xsp


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with traces of a network, of one with a layer more, and of a huge one."""
    folder = tmp_path_factory.mktemp("compared")
    measured().save(folder / "before.xsp")
    measured(network(16, nn.GELU())).save(folder / "more.xsp")
    huge = nn.Sequential(nn.Linear(8, 3000), nn.Linear(3000, 3000), nn.Linear(3000, 4)).eval()
    measured(huge).save(folder / "huge.xsp")
    return folder


def load(folder: Path, name: str) -> xsp.Trace:
    return xsp.load(folder / f"{name}.xsp")


def test_a_trace_is_as_quick_as_itself(folder: Path) -> None:
    before = load(folder, "before")
    found = xsp.compare(before, before)
    assert set(found.table["change"]) == {"same"}
    assert (found.table["difference_ns"] == 0).all()
    assert not {"slower", "faster"} & set(found.table["verdict"])


def test_a_layer_that_is_new_is_told(folder: Path) -> None:
    table = xsp.compare(load(folder, "before"), load(folder, "more")).table
    (added,) = table.filter(change="added").to_dicts()
    assert (added["type_b"], added["path_a"]) == ("GELU", None)
    (removed,) = xsp.compare(load(folder, "more"), load(folder, "before")).table.filter(
        change="removed"
    )["path_a"]
    assert removed == added["path_b"]


def test_the_root_comes_first_and_then_what_costs_most(folder: Path) -> None:
    table = xsp.compare(load(folder, "before"), load(folder, "more")).table
    assert table["path_a"][0] == "predict"
    sizes = table["own_difference_ns"].abs().to_list()[1:]
    assert sizes == sorted(sizes, reverse=True)


def test_the_whole_is_summed_up(folder: Path) -> None:
    summary = xsp.compare(load(folder, "before"), load(folder, "huge")).summary
    assert {"latency_ns", "throughput_per_s", "peak_bytes"} <= set(summary["quantity"])
    memory = summary.row(by_predicate=pl.col("quantity") == "peak_bytes", named=True)
    assert memory["b"] > memory["a"]


def test_compare_prints_both_sides_and_ends_well(folder: Path) -> None:
    done = answer(folder, "compare", "before.xsp", "more.xsp")
    assert done.returncode == 0, done.stderr
    assert "before" in done.stdout
    assert "added" in done.stdout
    assert "GELU" in done.stdout


def test_a_condition_that_holds_ends_with_its_own_code(folder: Path) -> None:
    grown = answer(folder, "compare", "before.xsp", "huge.xsp", "--fail-if", "memory > 1KiB")
    assert grown.returncode == 5, grown.stderr
    assert "failed: memory > 1KiB" in grown.stderr
    same = answer(folder, "compare", "before.xsp", "before.xsp", "--fail-if", "memory > 1KiB")
    assert same.returncode == 0
    assert "passed: memory > 1KiB" in same.stderr


def test_a_condition_on_a_layer_that_is_not_there_is_an_error(folder: Path) -> None:
    done = answer(folder, "compare", "before.xsp", "more.xsp", "--fail-if", "layer:nowhere > 5%")
    assert done.returncode == 3
    assert "nowhere" in done.stderr
    assert done.stdout == ""


def test_the_comparison_as_json_and_markdown(folder: Path) -> None:
    said = json.loads(answer(folder, "compare", "before.xsp", "more.xsp", "--json").stdout)
    assert "added" in json.dumps(said)
    marked = answer(folder, "compare", "before.xsp", "more.xsp", "--markdown").stdout
    assert "| " in marked
    assert marked.count("GELU")
