from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest
from samples import layer, op, pipeline, resnet, trace

from xsp.cli import app as cli

Said = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return a model before and after it became slower by a layer."""
    slower = resnet()
    slower.children[0].children.append(layer("head", "Head", own_ns=90_000_000))
    slower = pipeline("predict", layer("ResNet", "ResNet", *slower.children[0].children))
    pairs = {"before": resnet(), "after": slower}
    return [
        str(trace(root, intervals="across 3 processes").save(tmp_path / f"{name}.xsp"))
        for name, root in pairs.items()
    ]


def test_what_differs_is_printed(files: list[str], capsys: Said) -> None:
    assert cli.run(["compare", *files]) == 0
    said = capsys.readouterr().out
    assert "slower (p < 0.001)" in said
    assert "added    ResNet/head (Head)" in said


def test_other_formats_have_everything(files: list[str], capsys: Said) -> None:
    assert cli.run(["compare", *files, "--json", "--kind", "op"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["names"] == ["before", "after"]
    assert found["kind"] == "op"
    assert found["summary"][0]["verdict"] == "slower"
    assert cli.run(["compare", *files, "--csv", "--kind", "op"]) == 0
    table = pl.read_csv(io.StringIO(capsys.readouterr().out))
    assert table.height == len(found["table"]) > 300
    assert cli.run(["compare", *files, "--markdown", "--rows", "1"]) == 0
    assert capsys.readouterr().out.startswith("**before ")


@pytest.mark.parametrize(
    ("condition", "code", "said"),
    [
        ("latency > 5%", 5, "failed: latency > 5%: after +"),
        ("latency > 500%", 0, "passed: latency > 500%"),
        ("layer:fc > 5%", 0, "passed: layer:fc > 5%"),
        ("layer:head > 5%", 0, "not decided: layer:head > 5%"),
        ("device time > 5%", 0, "not decided: device time > 5%: not known of both"),
        ("layer:fcc > 5%", 3, "no trace has a layer 'fcc'; did you mean fc?"),
        ("latency > 5", 2, "The grammar"),
    ],
)
def test_conditions_decide_the_exit_code(
    files: list[str], condition: str, code: int, said: str, capsys: Said
) -> None:
    assert cli.run(["compare", *files, "--fail-if", condition]) == code
    assert said in capsys.readouterr().err


def test_one_of_several_conditions_is_enough(files: list[str], capsys: Said) -> None:
    asked = ["--fail-if", "layer:fc > 5%", "--fail-if", "latency > 1ms"]
    assert cli.run(["compare", *files, *asked]) == 5
    assert "passed: layer:fc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{a}"], "two files or more"),
        (["{a}", "{b}", "--json", "--csv"], "exclude each other"),
        (["{a}", "missing.xsp"], "missing.xsp"),
        (["{a}", "{b}", "--kind", "layers"], "layers"),
    ],
)
def test_wrong_use_says_what_to_do(
    files: list[str], arguments: list[str], said: str, capsys: Said
) -> None:
    filled = [each.format(a=files[0], b=files[1]) for each in arguments]
    assert cli.run(["compare", *filled]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_trace_is_told(files: list[str], tmp_path: Path, capsys: Said) -> None:
    bad = tmp_path / "bad.xsp"
    bad.write_text("no trace")
    assert cli.run(["compare", files[0], str(bad)]) == 3
    assert "bad.xsp" in capsys.readouterr().err


def test_a_kind_that_a_trace_lacks_is_told(files: list[str], tmp_path: Path, capsys: Said) -> None:
    bare = trace(pipeline("predict", op("aten::add"))).save(tmp_path / "bare.xsp")
    assert cli.run(["compare", files[0], str(bare), "--kind", "layer"]) == 3
    said = capsys.readouterr().err
    assert "the trace bare has no span of kind layer; what all traces have: pipeline, op" in said
