from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.source.library import require
from xsp.measuring.target.spec import Spec

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "predicting.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def imports_are_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("predicting", None)


@pytest.mark.parametrize(
    ("target", "kind", "name"),
    [
        ("torchvision:resnet50", "model", "resnet50"),
        ("timm:resnet18.a1_in1k", "model", "resnet18.a1_in1k"),
        ("transformers:AutoModelForCausalLM:gpt2", "model", "gpt2"),
        ("some/where/predict.py:run", "function", "run"),
        ("C:/predict.py:Model.run", "function", "Model.run"),
        ("train.py", "script", "train"),
    ],
)
def test_a_target_is_known_by_its_form(target: str, kind: str, name: str) -> None:
    spec = Spec(target)
    assert (spec.kind, spec.name) == (kind, name)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torchvison:resnet50", "did you mean torchvision"),
        ("resnet50", r"Unknown target .resnet50.\. Did you mean torchvision:resnet50\?"),
        ("torchvision:", "Unknown target"),
        ("gpu:resnet50", "Unknown target"),
    ],
)
def test_what_is_no_target_is_told_what_is_one(target: str, said: str) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        _ = Spec(target).kind


@given(
    st.builds(
        Spec,
        st.text(),
        st.lists(st.text()).map(tuple),
        st.none() | st.integers(1),
        st.none() | st.text(),
        st.booleans(),
        st.lists(st.tuples(st.text(), st.integers() | st.booleans() | st.text())).map(tuple),
        st.none() | st.text(),
        st.none() | st.booleans(),
    )
)
def test_a_specification_survives_json(spec: Spec) -> None:
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_file_can_import_its_neighbors_and_pickle_its_classes(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "xsp_test_neighbor.py").write_text("VALUE = 5\n")
    text = "import pickle\nfrom xsp_test_neighbor import VALUE\nclass C: pass\ndef run():\n"
    text += "    return VALUE, type(pickle.loads(pickle.dumps(C()))) is C\n"
    assert resolve(Spec(write(text) + ":run")).function() == (5, True)
    sys.modules.pop("xsp_test_neighbor")


def test_a_file_named_like_a_loaded_module_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def run():\n    return __name__\n")
    name = resolve(Spec(f"{tmp_path}/json.py:run")).function()
    assert sys.modules["json"] is json
    sys.modules.pop(name)


def test_batch_and_device_are_passed_to_a_function_that_has_them(write: Write) -> None:
    path = write("def run(batch=1, device='cpu'):\n    return batch, device\n")
    assert resolve(Spec(f"{path}:run")).function() == (1, "cpu")
    assert resolve(Spec(f"{path}:run", batch=8, device="cuda")).function() == (8, "cuda")


@pytest.mark.parametrize(
    ("framework", "asked", "compiled"),
    [
        ("tensorflow", None, True),
        ("jax", None, True),
        ("torch", None, False),
        ("tensorflow", False, False),
        ("torch", True, True),
    ],
)
def test_a_model_of_keras_is_compiled_where_keras_does_that(
    framework: str, asked: bool | None, compiled: bool
) -> None:
    spec = Spec("keras:ResNet50", framework=framework, compiled=asked)
    assert spec.settings["compiled"] is compiled


@pytest.mark.parametrize(
    ("text", "name", "options", "said"),
    [
        ("def run(): ...", "rn", {}, r"has no function 'rn'; did you mean run\?"),
        ("run = 3", "run", {}, "run in .* is a int, and cannot be called"),
        ("def run(x): ...", "run", {}, "cannot be called: missing .* 'x'.*wrap it in a function"),
        ("async def run(): ...", "run", {}, "coroutine function does nothing"),
        ("def run(): ...", "run", {"batch": 4}, "cannot be called with --batch"),
        ("def run(): ...", "run", {"train": True}, "--train makes a training step of a model"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(
    write: Write, text: str, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        resolve(Spec(f"{write(text)}:{name}", **options))


def test_a_file_that_is_not_there_is_named_with_its_neighbors(write: Write, tmp_path: Path) -> None:
    write("")
    with pytest.raises(UnknownTargetError, match=r"no file .*did you mean predicting\.py\?"):
        resolve(Spec(f"{tmp_path}/predictin.py:run"))


def test_an_exception_while_a_file_is_loaded_arrives_unchanged(write: Write) -> None:
    with pytest.raises(ZeroDivisionError):
        resolve(Spec(write("1 / 0") + ":run"))


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        MeasurementError, match=r"timm:x needs timm.*pip install 'xsp\[torch,zoo\]'"
    ):
        require("timm", "timm:x")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MeasurementError, match=r"pip install 'xsp\[torch\]'"):
        require("torch", "timm:x")


def test_what_xsp_wrote_is_no_target_and_is_told_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "net.xsp").write_bytes(b"PAR1 and more")
    with pytest.raises(UnknownTargetError, match=r"net\.xsp is a saved trace: xsp show .*net\.xsp"):
        _ = Spec(str(tmp_path / "net.xsp")).kind
    (tmp_path / "net.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(UnknownTargetError, match=r"net\.parquet is a table and no program"):
        _ = Spec(str(tmp_path / "net.parquet")).kind
    (tmp_path / "net.xsprec").write_bytes(b"PK\3\4 and more")
    with pytest.raises(UnknownTargetError, match=r"is a recording: xsp\.testing\.replay\('"):
        _ = Spec(str(tmp_path / "net.xsprec")).kind


def test_a_module_that_takes_an_input_is_to_be_wrapped(write: Write) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    path = write("import torch\nnet = torch.nn.Linear(2, 2)\n")
    with pytest.raises(UnknownTargetError, match=r"net is a module \(Linear\).*wrap it in a func"):
        resolve(Spec(f"{path}:net"))
