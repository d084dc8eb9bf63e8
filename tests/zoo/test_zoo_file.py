from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xsp.answer.zoo.definition import ModelKeys, SettingKeys, ZooKeys
from xsp.level import Level
from xsp.zoo import read_zoo

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a zoo file beside three ONNX files, which nothing opens."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b", "c"):
        (models / f"{name}.onnx").touch()

    def written(text: str) -> str:
        (tmp_path / "zoo.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "zoo.toml")

    return written


MISTAKES = {
    "key": (
        "[defaults]\nbatch = 1\nbugdet = 3\n",
        "defaults",
        "no key 'bugdet' here; did you mean budget?",
    ),
    "key of a model": (
        '[[model]]\ntarget = "x"\n\nexlude = "a"\n',
        "model[0]",
        "did you mean exclude?",
    ),
    "table": ("[default]\n", "", "there is no key 'default' here; did you mean defaults?"),
    "one model": ('\n[model]\ntarget = "x"\n', "model", "write [[model]]"),
    "batch of 0": ("[defaults]\nbatch = [1, 0]\n", "defaults.batch[1]", "Expected `int` >= 1"),
    "true is no number": (
        "[defaults]\nruns = true\n",
        "defaults.runs",
        "Expected `int`, got `bool`",
    ),
    "memory": (
        '[defaults]\nmemory_limit = "8 Gib"\n',
        "defaults.memory_limit",
        "no size of memory",
    ),
    "precision": (
        '[defaults]\nprecision = ["float23"]\n',
        "defaults.precision",
        "did you mean float32",
    ),
    "framework": (
        '[defaults]\nframework = "pytorch"\n',
        "defaults.framework",
        "no framework 'pytorch'; did you mean",
    ),
    "level": ("[defaults]\nlevels = 9\n", "defaults.levels", "Unknown level"),
    "accuracy": (
        '[[model]]\ntarget = "x"\naccuracy_pct = 761\n',
        "model[0].accuracy_pct",
        "Expected `float` <= 100.0",
    ),
    "no target": ('[defaults]\n[[model]]\nname = "x"\n', "model[0]", "and here is neither"),
    "two targets": ('[[model]]\ntarget = "x"\ntargets = ["y"]\n', "model[0]", "not both"),
    "empty target": ('[[model]]\ntarget = ""\n', "model[0].target", "length >= 1"),
    "unknown target": (
        '[[model]]\ntarget = "tochvision:vgg11"\n',
        "model[0]",
        "did you mean torchvision?",
    ),
    "unknown model": (
        '[[model]]\ntargets = [\n"onnx:models",\n"keras:VGG61"]\n',
        "model[0]",
        "did you mean VGG1",
    ),
    "missing folder": ('[[model]]\ntarget = "onnx:model"\n', "model[0]", "there is no ONNX file"),
    "script": ('[[model]]\ntarget = "train.py"\n', "model[0]", "a script is no model of a zoo"),
    "other framework": (
        '[defaults]\nframework = "torch"\n[[model]]\ntarget = "onnx:models"\n',
        "model[0].framework",
        "does not run on 'torch'",
    ),
    "exclude": (
        '[[model]]\ntarget = "keras:VGG*"\nexclude = ["VGG19", "VGG61"]\n',
        "model[0].exclude",
        "'VGG61' is none of these models; did you mean VGG1",
    ),
    "accuracy of several": (
        '[[model]]\ntarget = "keras:VGG*"\naccuracy_pct = 71.3\n',
        "model[0].accuracy_pct",
        "accuracy_pct is of one model, and here are 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place(mistake: str, write: Write) -> None:
    text, place, said = MISTAKES[mistake]
    path = write(text)
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_zoo(path)
    assert str(raised.value).startswith(f"{path}: {place}: " if place else f"{path}: ")


def test_what_is_no_toml_is_named_with_its_line(write: Write) -> None:
    path = write("[zoo]\nname = \n")
    with pytest.raises(ValueError, match=r"is no TOML file: .*line 2"):
        read_zoo(path)
    Path(path).write_bytes(b'[zoo]\nname = "\xff"\n')
    with pytest.raises(ValueError, match="it is not UTF-8"):
        read_zoo(path)


def test_the_same_model_twice_is_refused_with_both_places(write: Write) -> None:
    path = write('[[model]]\ntarget = "onnx:models/b.onnx"\n[[model]]\ntarget = "onnx:models"\n')
    with pytest.raises(ValueError, match=r"the model onnx:b is here, and in ") as raised:
        read_zoo(path)
    assert f"{path}: model[1]: " in str(raised.value)
    assert f"{path}: model[0] as well" in str(raised.value)


def test_settings_are_the_models_else_the_defaults_else_those_of_xsp(write: Write) -> None:
    zoo = read_zoo(
        write(
            """
            [zoo]
            name = "three"
            [defaults]
            batch = "1..4"
            budget = 2
            memory_limit = "8 GiB"
            check = true
            [[model]]
            target = "keras:VGG16"
            [[model]]
            target = "onnx:models/a.onnx"
            name = "mine"
            batch = []
            levels = 1
            runs = 3
            time_limit = 60
            check = false
            family = "files"
            accuracy_pct = 50
            facts = { year = 2020 }
            """
        )
    )
    first, second = zoo.tasks
    assert zoo.name == "three"
    assert [point.spec.batch for point in first.points] == [1, 2, 4]
    assert first.plan.levels == {Level.MODEL, Level.FRAMEWORK}
    assert (first.plan.budget_s, first.plan.runs, first.check) == (2.0, None, True)
    assert (first.limits.time_s, first.limits.memory_bytes) == (600.0, 8 * 2**30)
    assert second.model == "mine"
    assert [point.spec.batch for point in second.points] == [None]
    assert second.plan.levels == {Level.MODEL}
    assert second.plan.runs == 3
    assert (second.limits.time_s, second.check) == (60.0, False)
    facts = {"family": "files", "accuracy_pct": 50.0, "year": 2020, "zoo": second.facts["zoo"]}
    assert second.facts == facts


def test_lists_are_measured_in_all_combinations_a_task_each(write: Write) -> None:
    zoo = read_zoo(
        write(
            """
            [[model]]
            target = "keras:VGG16"
            batch = [8, 1]
            threads = [1, 2]
            framework = ["tensorflow", "torch"]
            precision = "float32,bfloat16"
            compile = [true, false]
            device = "cpu"
            set = { jit_compile = [true, false] }
            """
        )
    )
    assert len(zoo.tasks) == 2**5
    assert len({point.key for task in zoo.tasks for point in task.points}) == 2**6
    first = zoo.tasks[0].points
    assert [point.spec.batch for point in first] == [1, 8]
    assert first[1].common == (
        "threads 1, jit_compile True, framework tensorflow, precision float32, device cpu, compiled"
    )


def test_what_the_command_line_says_stands_in_place_of_the_file(write: Write) -> None:
    path = write('[[model]]\ntarget = "onnx:models"\nbatch = 4\nlevels = 3\n')
    zoo = read_zoo(path, overrides={"batch": "1,2", "budget": 1}, only=("*b", "onnx:c"))
    assert [task.model for task in zoo.tasks] == ["onnx:b", "onnx:c"]
    assert [point.spec.batch for point in zoo.tasks[0].points] == [1, 2]
    assert (zoo.tasks[0].plan.budget_s, len(zoo.tasks[0].plan.levels)) == (1.0, 3)
    with pytest.raises(ValueError, match=r"--batch: '0' is no whole number from 1"):
        read_zoo(path, overrides={"batch": "0"})
    with pytest.raises(ValueError, match="--time-limit: Expected `float` > 0"):
        read_zoo(path, overrides={"time_limit": -1})
    with pytest.raises(ValueError, match="no model that 'resnet'"):
        read_zoo(path, only=("resnet",))


def documented(heading: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_the_documented_keys_are_those_of_the_schema() -> None:
    assert documented("`[zoo]`") == list(ZooKeys.__struct_fields__)
    settings = list(SettingKeys.__struct_fields__)
    assert documented("`[defaults]`, and in a `[[model]]`") == settings
    assert documented("`[[model]]`") == list(ModelKeys.__struct_fields__[len(settings) :])
