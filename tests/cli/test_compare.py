from __future__ import annotations

from pathlib import Path

import pytest
from samples import frame, layer, pipeline, resnet, trace

from xsp.show.cli import app as cli
from xsp.trace import Trace

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{a}"], "at least two files"),
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


def test_what_is_wrong_in_a_condition_is_told_before_anything_is_printed(
    files: list[str], capsys: Said
) -> None:
    assert cli.run(["compare", *files, "--fail-if", "layer:nope > 5%"]) == 3
    said = capsys.readouterr()
    assert not said.out
    assert "no trace has a layer 'nope'" in said.err


@pytest.fixture
def noisy(tmp_path: Path) -> list[str]:
    """Return a model before and after it became 50 % slower, known to 60 % of its latency."""
    pairs = {"before": 40_000_000, "after": 60_000_000}
    spans = {
        name: frame(pipeline("predict", layer("Net", "Net", own_ns=own)), margin=0.6)
        for name, own in pairs.items()
    }
    return [
        str(Trace(spans[name], {"name": name}).save(tmp_path / f"{name}.xsp")) for name in pairs
    ]


@pytest.mark.parametrize(
    ("condition", "unsure", "code", "seen"),
    [
        ("latency > 5%", False, 0, False),
        ("latency > 5%", True, 5, False),
        ("latency > 60%", True, 5, False),
        ("latency > 500%", True, 0, True),
        ("layer:Net > 5%", True, 5, False),
        ("device time > 5%", False, 0, True),
        ("device time > 5%", True, 5, True),
    ],
)
def test_a_gate_that_cannot_see_says_so_and_fails_where_that_is_asked_for(
    noisy: list[str], condition: str, unsure: bool, code: int, seen: bool, capsys: Said
) -> None:
    asked = ["--fail-if", condition, *["--fail-unsure"] * unsure]
    assert cli.run(["compare", *noisy, *asked]) == code
    said = capsys.readouterr().err
    assert ("cannot see less than 4" in said) is not seen
    assert ("measure longer, or on a quieter machine" in said) is not seen
    assert said.startswith("failed: ") is (code == 5)
