from __future__ import annotations

from pathlib import Path

import pytest

from xsp.answer.zoo.row import row_without
from xsp.answer.zoo.task import basis_of
from xsp.show.cli import app as cli
from xsp.show.cli import exit_code
from xsp.zoo import Folder, Task, Zoo, opened, read_zoo, template

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a zoo of two ONNX files that nothing opens."""
    monkeypatch.chdir(tmp_path)
    for name in ("small", "large"):
        (tmp_path / f"{name}.onnx").touch()
    text = '[zoo]\nname = "two"\n[defaults]\nbatch = [1, 8]\nbudget = 2\ncheck = false\n'
    (tmp_path / "zoo.toml").write_text(f'{text}[[model]]\ntarget = "onnx:."\n', encoding="utf-8")
    return tmp_path


def listed(said: Said, *arguments: str) -> list[str]:
    assert cli.run(["zoo", "list", *arguments]) == exit_code.OK
    return [" ".join(line.split()) for line in said.readouterr().out.splitlines()]


def keep(folder: Folder, task: Task, number: int, status: str, **changed: str) -> None:
    """Keep a result that took 4 s, of a point of a task."""
    basis = {**basis_of(task.points[0].spec, task.plan), **changed}
    row = row_without(task, task.points[number], status, "a test", took_s=4.0, basis=basis)
    folder.keep(row, None)


def zoo() -> Zoo:
    return read_zoo("zoo.toml")


def test_init_writes_the_template_and_never_overwrites(tmp_path: Path, capsys: Said) -> None:
    assert cli.run(["zoo", "init", "first.toml"]) == exit_code.OK
    assert (tmp_path / "first.toml").read_text(encoding="utf-8") == template()
    (tmp_path / "first.toml").write_text("mine", encoding="utf-8")
    assert cli.run(["zoo", "init", "first.toml"]) == exit_code.USAGE
    assert "exists. Choose another name" in capsys.readouterr().err
    assert (tmp_path / "first.toml").read_text(encoding="utf-8") == "mine"


def test_list_says_what_is_complete_and_what_is_measured_again_and_why(
    tmp_path: Path, capsys: Said
) -> None:
    large, small = zoo().tasks
    with opened(tmp_path / "results") as folder:
        keep(folder, large, 0, "out-of-memory")
        keep(folder, small, 0, "out-of-memory", python="3.0")
        keep(folder, small, 1, "failed")
    lines = listed(capsys, "zoo.toml", "-o", "results")
    assert lines[0] == (
        "two: 2 models, 4 points; 2 complete; 1 to be measured again; 1 to do; about 8 s"
    )
    assert lines[1] == "onnx:large batch 1, 8 complete"  # above what fits no batch is measured
    assert lines[2].startswith(
        "onnx:small batch 1 again, about 4 s, because python was 3.0 and is "
    )
    assert lines[3] == "onnx:small batch 8 to do, about 4 s"


def test_list_looks_where_run_would_keep_the_results(tmp_path: Path, capsys: Said) -> None:
    with opened(tmp_path / "two-zoo") as folder:
        keep(folder, zoo().tasks[0], 0, "out-of-memory")
    assert listed(capsys, "zoo.toml")[1] == "onnx:large batch 1, 8 complete"


def test_several_zoos_are_one_and_options_stand_in_place_of_the_files(capsys: Said) -> None:
    lines = listed(
        capsys,
        *("zoo.toml", "keras:VGG16", "--only", "*small", "--only", "VGG*", "--batch", "2..4"),
        *("--budget", "1", "--precision", "float32,bfloat16", "--threads", "2"),
    )
    assert lines == [
        "two, keras:VGG16: 2 models, 8 points; 8 to do; about 1 min 12 s",
        "onnx:small batch 2, 4, threads 2, precision float32 to do, about 18 s",
        "onnx:small batch 2, 4, threads 2, precision bfloat16 to do, about 18 s",
        "keras:VGG16 batch 2, 4, threads 2, precision float32 to do, about 18 s",
        "keras:VGG16 batch 2, 4, threads 2, precision bfloat16 to do, about 18 s",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zoo.toml", "--batch", "0"], "--batch: '0' is no whole number from 1"),
        (["zoo.toml", "--memory-limit", "much"], "--memory-limit: 'much' is no size of memory"),
        (["zoo.toml", "--time-limit", "0"], "--time-limit: Expected `float` > 0"),
        (["zoo.toml", "--levels", "9"], "--levels: Unknown level"),
        (["zoo.toml", "--framework", "torch"], "onnx:"),
        (["zoo.toml", "zoo.toml"], "zoo.toml: model[0]: the model onnx:large is here, and in zoo"),
        (["bert"], "bert: Unknown target 'bert'"),
        (["none.toml"], "there is no zoo file none.toml: xsp zoo init none.toml"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_is_told_what_is_wrong(arguments: list[str], said: str, capsys: Said) -> None:
    assert cli.run(["zoo", "list", *arguments]) == exit_code.USAGE
    assert said in capsys.readouterr().err
