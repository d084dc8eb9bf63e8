from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import synthetic_results

from xsp.answer.zoo.comparison import matched
from xsp.answer.zoo.table import frame_of
from xsp.show.cli import app as cli
from xsp.zoo import DIFFERENCE_COLUMNS, compare_results

MS = 1e6


def result(model: str, latency_ms: float, *, batch: int = 1, **more: Any) -> dict[str, Any]:
    basis = {"host id": "0123456789", "torch": "1.0"} | {
        name: value for name, value in more.items() if name == "torch"
    }
    settings = {"batch": batch, "framework": more.get("framework", "torch")}
    row = {
        "model": model, "batch": batch, "framework": "torch", "status": "measured",
        "settings": json.dumps(settings), "machine": "01234567", "basis": json.dumps(basis),
        "latency_ns": latency_ms * MS, "latency_low_ns": 0.99 * latency_ms * MS,
        "latency_high_ns": 1.01 * latency_ms * MS,
    }  # fmt: skip
    return row | {name: value for name, value in more.items() if name != "torch"}


def test_the_ratio_of_each_result_and_their_geometric_mean() -> None:
    a = frame_of([result("x", 10), result("y", 10), result("y", 20, batch=2), result("z", 5)])
    b = frame_of([result("x", 20), result("y", 5), result("y", 10, batch=2), result("z", 5.01)])
    found = compare_results(a, b)
    assert found.table.columns == list(DIFFERENCE_COLUMNS)
    rows = {(row["model"], row["batch"]): row for row in found.table.iter_rows(named=True)}
    assert {key: row["verdict"] for key, row in rows.items()} == {
        ("x", 1): "slower",
        ("y", 1): "faster",
        ("y", 2): "faster",
        ("z", 1): "not significant",
    }
    assert rows["x", 1]["ratio"] == pytest.approx(2)
    # 1 % of the interval and 2 % for processes, of both: their squares add up.
    reach = math.sqrt(2) * math.hypot(0.01, 1.96 * 0.02)
    assert rows["x", 1]["ratio_high"] == pytest.approx(2 * math.exp(reach))
    mean = found.means.row(0, named=True)
    assert mean["models"] == 3  # a model counts once, at however many batches it was measured
    assert mean["ratio"] == pytest.approx((2 * 0.5 * 1.002) ** (1 / 3))
    assert mean["ratio_low"] < mean["ratio"] < mean["ratio_high"]
    assert (mean["faster"], mean["slower"], mean["not_significant"]) == (2, 1, 1)
    assert found.means["batch"].to_list() == [None, 1, 2]
    assert found.means["ratio_low"][2] is None  # of one model nobody knows how far others are


def test_frameworks_are_compared_by_names_that_differ_in_spelling() -> None:
    a = frame_of([result("torchvision:resnet50", 10, compiled=False), result("own", 1)])
    other: dict[str, Any] = {"framework": "tensorflow", "compiled": True, "torch": "2.0"}
    b = frame_of([result("keras:ResNet50", 20, **other), result("other", 2, **other)])
    found = compare_results(a, b, ("torch", "keras"))
    row = found.table.row(0, named=True)
    assert (row["model"], row["model_b"]) == ("torchvision:resnet50", "keras:ResNet50")
    assert (row["ratio"], row["confidence"]) == (pytest.approx(2), 0.9)
    facts = {fact: (before, after) for fact, before, after in found.basis.iter_rows()}
    assert facts["framework"] == ("torch", "tensorflow")
    assert facts["torch"] == ("1.0", "2.0")
    assert "compiled" not in facts or facts["compiled"] == ("false", "true")
    assert sorted(found.alone["model"]) == ["other", "own"]
    assert "confidence of 0.90" in found.notes[0]


def test_names_that_fit_several_models_are_matched_with_none() -> None:
    several = {"torchvision:resnet50": None, "timm:resnet50": None}
    assert matched(several, {"keras:ResNet50": None}) == {}
    found = matched({"timm:resnet50.a1_in1k": 100.0}, {"keras:ResNet50": 150.0})
    assert found == {"timm:resnet50.a1_in1k": ("keras:ResNet50", 0.35)}


def test_what_one_folder_alone_has_measured_is_told_with_the_reason() -> None:
    lost = result("y", 1) | {"status": "failed", "reason": "no weights", "latency_ns": None}
    a = frame_of([result("x", 10), result("y", 10)])
    b = frame_of([result("x", 10), lost, result("z", 3)])
    alone = compare_results(a, b).alone
    assert sorted(alone.select("model", "side", "reason").iter_rows()) == [
        ("y", "first", "no weights"),
        ("z", "second", "it has no such result"),
    ]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name, slower in (("a", 1.0), ("b", 1.2)):
        (tmp_path / name).mkdir()
        frame = synthetic_results.frame(160, slower=slower)
        frame.write_parquet(tmp_path / name / "results.parquet")
    return str(tmp_path / "a"), str(tmp_path / "b")


def test_the_command_prints_writes_and_fails(
    folders: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    command = ["zoo", "compare", *folders]
    assert cli.run([*command, "--rows", "3"]) == 0
    shown = capsys.readouterr().out
    assert "all: latency +20.0 %" in shown
    assert "largest differences" in shown
    file = tmp_path / "out.parquet"
    assert cli.run([*command, "--json", "-o", str(file), "--fail-if", "latency > 5%"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert found["means"][0]["ratio"] == pytest.approx(1.2)
    assert len(found["table"]) == pl.read_parquet(file).height
    assert cli.run([*command, "--csv", "--fail-if", "throughput < -50%"]) == 0
    assert capsys.readouterr().out.startswith(",".join(list(DIFFERENCE_COLUMNS)[:3]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--same", "x"], "FIRST=SECOND"),
        (["--fail-if", "memory > 5%"], "takes latency or throughput"),
        (["--fail-unsure"], "needs a condition"),
        (["-o", "x.txt"], "Unknown format (x.txt)"),
        (["--json", "--csv"], "exclude each other"),
    ],
    ids=["same", "condition", "unsure", "output", "forms"],
)
def test_wrong_usage_is_refused(
    folders: tuple[str, str],
    wrong: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["zoo", "compare", *folders, *wrong]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
