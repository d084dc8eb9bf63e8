from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import MeasurementError, TargetFailedError, UnknownTargetError
from xsp.session.settings import settings_of
from xsp.sweep import Point, grid_of
from xsp.sweep.basis import basis_of, changes
from xsp.sweep.grid import LARGEST
from xsp.target.spec import Spec

FUNCTIONS = """
def work(batch=1, layers=2): ...
def plain(): ...
def strict(batch, width): ...
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(FUNCTIONS)
    return f"{tmp_path}/job.py"


def test_the_grid_is_the_product_of_all_settings_with_a_curve_of_batches_each(job: str) -> None:
    spec = Spec(f"{job}:work")
    grid = grid_of(spec, (1, 8), threads=(1, 2), inputs={"layers": (2, 4)})
    assert [[str(point) for point in curve] for curve in grid.curves] == [
        ["batch 1, threads 1, layers 2", "batch 8, threads 1, layers 2"],
        ["batch 1, threads 2, layers 2", "batch 8, threads 2, layers 2"],
        ["batch 1, threads 1, layers 4", "batch 8, threads 1, layers 4"],
        ["batch 1, threads 2, layers 4", "batch 8, threads 2, layers 4"],
    ]
    assert not grid.doubling
    assert grid.points[0].settings == {"threads": 1, "batch": 1, "layers": 2}


def test_without_batches_they_double_if_the_target_takes_a_batch(job: str) -> None:
    grid = grid_of(Spec(f"{job}:work"), None, inputs={})
    assert grid.doubling
    assert [point.spec.batch for point in grid.points][:4] == [1, 2, 4, 8]
    assert grid.points[-1].spec.batch == LARGEST
    grid = grid_of(Spec(f"{job}:plain"), None, threads=(1, 2), inputs={})
    assert not grid.doubling
    assert [str(point) for point in grid.points] == ["threads 1", "threads 2"]
    assert len(grid_of(Spec(f"{job}:strict"), None, inputs={"width": (3,)}).points) > 2


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        ("plain", {"batches": (1,)}, UnknownTargetError, "cannot be called with --batch"),
        ("work", {"inputs": {"seq": (1,)}}, UnknownTargetError, "with --batch --set seq"),
        ("work", {"precisions": ("float16",)}, UnknownTargetError, "--precision"),
        ("work", {"compiled": (True,)}, UnknownTargetError, "--compile"),
        ("wrk", {}, UnknownTargetError, "did you mean work"),
        ("strict", {}, UnknownTargetError, "missing a required argument"),
    ],
)
def test_what_a_function_does_not_take_is_refused_before_anything_is_measured(
    job: str, name: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    chosen = {"batches": None, "inputs": {}} | options
    if "inputs" in options:
        chosen["batches"] = (1,)
    with pytest.raises(error, match=said):
        grid_of(Spec(f"{job}:{name}"), chosen.pop("batches"), **chosen)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("raise KeyError('x')", TargetFailedError, "the target raised KeyError"),
        ("import os\nos._exit(3)", MeasurementError, "its process ended with code 3"),
        ("import time\nprint('loud')\ndef work(batch): ...", None, ""),
    ],
    ids=["raises", "exits", "prints"],
)
def test_a_file_is_imported_in_a_process_of_its_own(
    tmp_path: Path, text: str, error: type[Exception] | None, said: str
) -> None:
    (tmp_path / "job.py").write_text(text)
    if error is None:
        assert grid_of(Spec(f"{tmp_path}/job.py:work"), (1,), inputs={}).points
        return
    with pytest.raises(error, match=said):
        grid_of(Spec(f"{tmp_path}/job.py:work"), (1,), inputs={})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "inputs", "said"),
    [
        ("transformers:bert", {"sequence": (128, 600)}, "a bert takes texts of 512 tokens at most"),
        ("transformers:vit", {"sequence": (8,)}, "takes pixel_values, and no text"),
        ("transformers:bert", {"sequence": ("long",)}, "sequence='long' is no length"),
        ("torchvision:resnet18", {"sequence": (8,)}, "takes no setting 'sequence'"),
        ("torchvision:resnet19", {}, "did you mean resnet18"),
    ],
)
def test_what_a_model_does_not_take_is_refused_before_anything_is_measured(
    target: str, inputs: dict[str, Any], said: str
) -> None:
    pytest.importorskip(target.partition(":")[0], reason="needs models: pip install 'xsp[zoo]'")
    with pytest.raises(UnknownTargetError, match=said):
        grid_of(Spec(target), None, inputs=inputs)


def test_a_files_name_says_what_was_set() -> None:
    model = Spec("torchvision:resnet18", batch=8, inputs=(("sequence", 128),), precision="bfloat16")
    assert Point(model, 2).file_name == "resnet18.b8.t2.sequence128.bfloat16.xsp"
    assert Point(Spec("timm:a", batch=1, compiled=True, train=True)).file_name == (
        "a.b1.compiled.training.xsp"
    )
    assert Point(Spec("job.py:work")).file_name == "work.xsp"


@given(st.text(), st.text())
def test_names_of_files_are_plain_and_differ_where_settings_differ(one: str, other: str) -> None:
    names = [
        Point(Spec("job.py:work", inputs=(("mode", text),))).file_name for text in (one, other)
    ]
    assert (names[0] == names[1]) == (one == other)
    assert all(name.isascii() and "/" not in name and len(name) < 150 for name in names)


def test_the_basis_changes_with_the_file_and_the_plan(job: str) -> None:
    spec = Spec(f"{job}:work")
    before = basis_of(spec, settings_of(1, budget=5))
    assert changes(before, basis_of(spec, settings_of(1, budget=5))) == []
    (said,) = changes(before, basis_of(spec, settings_of(1, budget=6)))
    assert said == "budget was 5 s and is 6 s"
    Path(job).write_text(FUNCTIONS + "\n")
    (said,) = changes(before, basis_of(spec, settings_of(1, budget=5)))
    assert said.startswith("file was ")
