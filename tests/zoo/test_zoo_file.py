from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xsp.level import Level
from xsp.zoo import read_zoo
from xsp.zoo.definition.document import parse
from xsp.zoo.definition.schema import MODEL, SETTINGS, TABLES, ZOO

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


def test_each_key_and_table_has_its_line() -> None:
    text = '# one\n[zoo]\nname = "z"\n\n[[model]]\ntargets = [\n  "a",\n  "b",\n]\n'
    more = '[model.facts]\nx = 1\n[[model]]\ntarget = "c"\nset = { y = 1 }\n'
    lines = parse(text + more, "zoo.toml").lines
    assert lines == {
        ("zoo",): 2,
        ("zoo", "name"): 3,
        ("model", 0): 5,
        ("model", 0, "targets"): 6,
        ("model", 0, "facts"): 10,
        ("model", 0, "facts", "x"): 11,
        ("model", 1): 12,
        ("model", 1, "target"): 13,
        ("model", 1, "set"): 14,
        ("model", 1, "set", "y"): 14,
    }


def test_a_text_in_a_list_has_the_line_at_which_it_stands() -> None:
    document = parse('[[model]]\ntargets = [\n  "a",\n  "b",\n]\nname = "b"\n', "zoo.toml")
    assert document.place(("model", 0, "targets"), "b") == "zoo.toml, line 4"
    assert document.place(("model", 0, "targets"), "d") == "zoo.toml, line 2"


MISTAKES = {
    "key": ("[defaults]\nbatch = 1\nbugdet = 3\n", 3, "no key 'bugdet' here; did you mean budget?"),
    "key of a model": ('[[model]]\ntarget = "x"\n\nexlude = "a"\n', 4, "did you mean exclude?"),
    "table": ("[default]\n", 1, "there is no [default]; did you mean defaults?"),
    "one model": ('\n[model]\ntarget = "x"\n', 2, "write [[model]]"),
    "two defaults": ("[[defaults]]\nbatch = 1\n", 1, "write [defaults]"),
    "batch of 0": ("[defaults]\nbatch = [1, 0]\n", 2, "batch: 0 is no whole number from 1"),
    "true is no number": ("[defaults]\nruns = true\n", 2, "runs: true is no whole number from 1"),
    "text for a number": ('[defaults]\nbudget = "5"\n', 2, "budget: '5' is no number above 0"),
    "no time": ("[defaults]\ntime_limit = 0\n", 2, "time_limit: 0 is no number above 0"),
    "not a number": ("[defaults]\nbudget = nan\n", 2, "budget: nan is no number above 0"),
    "memory": ('[defaults]\nmemory_limit = "8 Gib"\n', 2, "no size of memory"),
    "no memory": ("[defaults]\nmemory_limit = 0\n", 2, "memory_limit: 0 is no whole number"),
    "precision": ('[defaults]\nprecision = ["float23"]\n', 2, "did you mean float32"),
    "framework": ('[defaults]\nframework = "pytorch"\n', 2, "no framework 'pytorch'; did you mean"),
    "level": ("[defaults]\nlevels = 9\n", 2, "there is no level 9"),
    "part of a level": (
        "[defaults]\nlevels = 1.5\n",
        2,
        "levels: takes a level or several, not 1.5",
    ),
    "compile": ("[defaults]\ncompile = 1\n", 2, "compile: 1 is neither true nor false"),
    "check": ('[defaults]\ncheck = "yes"\n', 2, "check: 'yes' is neither true nor false"),
    "set": ("[defaults]\nset = 128\n", 2, "set: 128 is no table"),
    "fact": ('[[model]]\ntarget = "x"\n[model.facts]\na = []\n', 3, "facts: a: [] is neither"),
    "accuracy": ('[[model]]\ntarget = "x"\naccuracy_pct = 761\n', 3, "761 is no percentage"),
    "no target": ('[defaults]\n[[model]]\nname = "x"\n', 2, "and here is neither"),
    "two targets": ('[[model]]\ntarget = "x"\ntargets = ["y"]\n', 1, "not both"),
    "empty target": ('[[model]]\ntarget = ""\n', 2, "target: '' is no text in quotation marks"),
    "empty list": ("[[model]]\ntargets = []\n", 2, "targets: the list is empty"),
    "unknown target": ('[[model]]\ntarget = "tochvision:vgg11"\n', 2, "did you mean torchvision?"),
    "unknown model": (
        '[[model]]\ntargets = [\n"onnx:models",\n"keras:VGG61"]\n',
        4,
        "did you mean VGG1",
    ),
    "missing folder": ('[[model]]\ntarget = "onnx:model"\n', 2, "there is no ONNX file"),
    "missing file": ('[[model]]\ntarget = "none.py:make"\n', 2, "there is no file"),
    "script": ('[[model]]\ntarget = "train.py"\n', 2, "a script is no model of a zoo"),
    "other framework": (
        '[defaults]\nframework = "torch"\n[[model]]\ntarget = "onnx:models"\n',
        2,
        "does not run on 'torch'",
    ),
    "exclude": (
        '[[model]]\ntarget = "keras:VGG*"\nexclude = ["VGG19", "VGG61"]\n',
        3,
        "'VGG61' excludes none of these; did you mean VGG1",
    ),
    "all excluded": ('[[model]]\ntarget = "onnx:models"\nexclude = "*"\n', 3, "every model is"),
    "name of several": ('[[model]]\ntarget = "keras"\nname = "k"\n', 3, "name is of one model"),
    "accuracy of several": (
        '[[model]]\ntarget = "keras:VGG*"\naccuracy_pct = 71.3\n',
        3,
        "accuracy_pct is of one model, and here are 2",
    ),
    "accuracy of none": (
        '[[model]]\ntarget = "keras:VGG*"\n[model.accuracy_pct]\nVGG16 = 71.3\nVGG61 = 1\n',
        5,
        "'VGG61' is none of these models; did you mean VGG1",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line(mistake: str, write: Write) -> None:
    text, line, said = MISTAKES[mistake]
    path = write(text)
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_zoo(path)
    assert str(raised.value).startswith(f"{path}, line {line}: ")


def test_what_is_no_toml_is_named_with_its_line(write: Write) -> None:
    path = write("[zoo]\nname = \n")
    with pytest.raises(ValueError, match=r"is no TOML file: .*line 2"):
        read_zoo(path)
    Path(path).write_bytes(b'[zoo]\nname = "\xff"\n')
    with pytest.raises(ValueError, match="it is not UTF-8"):
        read_zoo(path)


def test_a_zoo_without_a_model_is_told_what_to_add(write: Write) -> None:
    with pytest.raises(ValueError, match=r"has no model: add \[\[model\]\]"):
        read_zoo(write("[defaults]\nbatch = 1\n"))


def test_the_same_model_twice_is_refused_with_both_lines(write: Write) -> None:
    path = write('[[model]]\ntarget = "onnx:models/b.onnx"\n[[model]]\ntarget = "onnx:models"\n')
    with pytest.raises(ValueError, match=r"the model onnx:b is here, and in ") as raised:
        read_zoo(path)
    assert f"{path}, line 4: " in str(raised.value)
    assert f"{path}, line 2 as well" in str(raised.value)


def test_patterns_of_one_list_may_overlap(write: Write) -> None:
    zoo = read_zoo(write('[[model]]\ntargets = ["onnx:models/b.onnx", "onnx:models"]\n'))
    assert [task.model for task in zoo.tasks] == ["onnx:b", "onnx:a", "onnx:c"]


def test_a_file_that_is_no_zoo_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "zoo.txt").touch()
    with pytest.raises(ValueError, match=r"the name of a zoo file ends in \.toml"):
        read_zoo(str(tmp_path / "zoo.txt"))


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


def test_accuracies_of_several_models_stand_in_a_table(write: Write) -> None:
    text = '[[model]]\ntarget = "keras:VGG*"\n[model.accuracy_pct]\n"keras:VGG16" = 71.3\n'
    tasks = read_zoo(write(text)).tasks
    assert [task.facts.get("accuracy_pct") for task in tasks] == [71.3, None]


def test_what_the_command_line_says_stands_in_place_of_the_file(write: Write) -> None:
    path = write('[[model]]\ntarget = "onnx:models"\nbatch = 4\nlevels = 3\n')
    zoo = read_zoo(path, overrides={"batch": "1,2", "budget": 1}, only=("*b", "onnx:c"))
    assert [task.model for task in zoo.tasks] == ["onnx:b", "onnx:c"]
    assert [point.spec.batch for point in zoo.tasks[0].points] == [1, 2]
    assert (zoo.tasks[0].plan.budget_s, len(zoo.tasks[0].plan.levels)) == (1.0, 3)
    with pytest.raises(ValueError, match=r"--batch: '0' is no whole number from 1"):
        read_zoo(path, overrides={"batch": "0"})
    with pytest.raises(ValueError, match=r"--time-limit: -1 is no number above 0"):
        read_zoo(path, overrides={"time_limit": -1})
    with pytest.raises(ValueError, match="no model that 'resnet'"):
        read_zoo(path, only=("resnet",))


def test_paths_of_a_zoo_file_begin_in_its_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (task, _, _) = read_zoo(write('[[model]]\ntarget = "onnx:models/"\n')).tasks
    assert task.points[0].spec.target == f"onnx:{tmp_path}/models/a.onnx"
    assert task.model == "onnx:a"


def documented(heading: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


@pytest.mark.parametrize("table", TABLES)
def test_the_documented_keys_are_those_of_the_schema(table: str) -> None:
    headings = {
        "zoo": ("`[zoo]`", ZOO),
        "defaults": ("`[defaults]`, and in a `[[model]]`", SETTINGS),
        "model": ("`[[model]]`", MODEL),
    }
    heading, keys = headings[table]
    assert documented(heading) == list(keys)
