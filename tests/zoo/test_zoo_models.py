from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xsp.errors import UnknownTargetError
from xsp.level import parse_levels
from xsp.session import Settings
from xsp.target import Spec, find, measure_here
from xsp.target.resolution import check, resolve
from xsp.zoo import read_zoo, template
from xsp.zoo.definition.entry import read_entries
from xsp.zoo.work.repetition import compared

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

MODELS = """
def mlp(batch=1, width=16):
    import torch
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU()), torch.rand(batch, 8)

def fixed():
    import torch
    return torch.nn.Linear(8, 2), (torch.rand(3, 8),)

def counting(batch=1):
    return lambda: sum(range(1000 * batch))

def offline():
    raise OSError("no route to host")

def make_models():
    return {"mlp": mlp, "fixed": fixed, "counting": counting, "offline": offline,
            "wrong": lambda: 3}

def ready():
    import torch
    return {"pair": (torch.nn.Linear(8, 2), torch.rand(3, 8))}

def yielding():
    yield "small:8", lambda batch=1: mlp(batch, 8)
    yield "large", lambda batch=1: mlp(batch, 64)

def evaluation():
    return 0.5

def twice():
    yield "a", mlp
    yield "a", fixed

def nameless():
    return [mlp]

def broken():
    raise KeyError("weights")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a file with functions that make models; afterwards nothing of it is imported."""
    path = tmp_path / "own_models.py"
    path.write_text(MODELS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield str(path)
    for name in [name for name in sys.modules if name.endswith("own_models")]:
        del sys.modules[name]


FOUND = {
    "make_models": ("mlp", "fixed", "counting", "offline", "wrong"),
    "make_models[*ed]": ("fixed",),
    "yielding": ("small:8", "large"),
}
REFUSED = {
    "evaluation": "returned a float: a function that makes models returns a dictionary",
    "twice": "makes two models of the name 'a'",
    "nameless": "for a model: a function that makes models returns a dictionary",
    "broken": "the target raised KeyError: 'weights'",
    "make_modles": "has no function 'make_modles'; did you mean make_models?",
    "make_models[mpl]": "has no model 'mpl'; did you mean mlp?",
    "make_models[v*]": "has no model that 'v*' matches",
}


def test_models_that_a_function_makes_are_found_by_name_and_pattern(file: str) -> None:
    names = (*FOUND, *REFUSED)
    found = dict(zip(names, find([f"{file}:{name}" for name in names]), strict=True))
    for name, models in FOUND.items():
        function = name.partition("[")[0]
        assert found[name].targets == tuple(f"{file}:{function}[{model}]" for model in models)
    for name, said in REFUSED.items():
        assert found[name].targets == ()
        assert said in str(found[name].error)


@pytest.mark.parametrize(("target", "name"), [("f.py:make[a:b]", "a:b"), ("f.py:make", "make")])
def test_a_made_model_has_its_own_name(target: str, name: str) -> None:
    spec = Spec(target)
    assert (spec.kind, spec.name, spec.file) == ("function", name, Path("f.py"))


def test_a_module_with_its_inputs_is_called_in_inference_mode(file: str) -> None:
    spec = Spec(f"{file}:make_models[mlp]", batch=5, inputs=(("width", 32),), precision="bfloat16")
    check(spec)
    subject = resolve(spec)
    assert subject.kind == "model"
    output = subject()
    assert (tuple(output.shape), output.dtype) == ((5, 32), torch.bfloat16)
    assert output.is_inference()
    assert torch.equal(output, resolve(spec)())  # the same weights and inputs each time


@pytest.mark.parametrize("train", [False, True])
def test_autocast_computes_in_bfloat16_and_keeps_the_weights(file: str, train: bool) -> None:
    spec = Spec(f"{file}:make_models[mlp]", precision="autocast", train=train)
    subject = resolve(spec)
    seen: list[Any] = []

    def note(module: Any, args: object, output: Any) -> None:
        seen.extend((module.weight.dtype, output.dtype))

    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda *call: note(*call) if isinstance(call[0], torch.nn.Linear) else None
    )
    try:
        subject()
    finally:
        hook.remove()
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("name", ["make_models[fixed]", "ready[pair]"])
def test_a_model_may_have_its_own_batch(file: str, name: str) -> None:
    assert tuple(resolve(Spec(f"{file}:{name}"))().shape) == (3, 2)
    with pytest.raises(UnknownTargetError, match="takes no batch: "):
        resolve(Spec(f"{file}:{name}", batch=8))


def test_a_module_is_trained_and_a_function_is_not(file: str) -> None:
    subject = resolve(Spec(f"{file}:make_models[mlp]", train=True))
    assert subject.kind == "training"
    subject()
    with pytest.raises(UnknownTargetError, match="no module of PyTorch with its inputs"):
        resolve(Spec(f"{file}:make_models[counting]", train=True))


def test_a_function_is_called_as_it_is(file: str) -> None:
    assert resolve(Spec(f"{file}:make_models[counting]", batch=2))() == sum(range(2000))
    with pytest.raises(UnknownTargetError, match="takes no precision"):
        resolve(Spec(f"{file}:make_models[counting]", precision="float16"))


def test_one_model_that_cannot_be_made_is_that_model_s_failure(file: str) -> None:
    with pytest.raises(OSError, match="no route to host"):
        resolve(Spec(f"{file}:make_models[offline]"))
    with pytest.raises(UnknownTargetError, match="returned a int: return a PyTorch module"):
        resolve(Spec(f"{file}:make_models[wrong]"))
    assert resolve(Spec(f"{file}:make_models[mlp]"))() is not None


def test_a_made_model_is_measured(file: str) -> None:
    zoo = read_zoo(f"{file}:make_models[mlp]", overrides={"batch": "4"})
    ((point,),) = [task.points for task in zoo.tasks]
    assert zoo.tasks[0].model == "mlp"
    plan = Settings(parse_levels(2), runs=3, budget_s=2.0)
    trace = measure_here(point.spec, plan)
    assert trace.metadata["settings"]["batch"] == 4
    assert {"0", "1"} <= set(trace.spans["name"]), trace.spans["name"].to_list()


def test_outputs_of_pytorch_are_compared_in_their_own_type() -> None:
    outputs = [torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2**53])]
    others = [outputs[0], torch.tensor([2**53 + 1])]
    assert compared(lambda: outputs) == (True, [])
    both = iter([outputs, others])
    assert compared(lambda: next(both))[0] is False


def test_the_template_and_every_shorthand_of_a_library_are_found(tmp_path: Path) -> None:
    for library in ("torchvision", "timm", "transformers"):
        pytest.importorskip(library, reason=f"needs {library}: pip install {library}")
    path = tmp_path / "zoo.toml"
    path.write_text(template(), encoding="utf-8")
    more = ("torchvision:vgg*", "timm:vit_tiny*,vit_small_patch16_224", "transformers:bert,gpt2")
    zoo = read_zoo(str(path), "torchvision:vit_b_16", *more)
    tasks = {task.model: task for task in zoo.tasks}
    assert {"torchvision:resnet50", "a small ResNet", "transformers:gpt2"} <= set(tasks)
    assert {"timm:vit_tiny_patch16_224", "timm:vit_small_patch16_224"} <= set(tasks)
    assert "torchvision:resnet152" not in tasks
    assert len([name for name in tasks if name.startswith("torchvision:vgg")]) == 8
    assert tasks["torchvision:resnet18"].facts["accuracy_pct"] == 69.8
    assert [point.spec.batch for point in tasks["a small ResNet"].points] == [1, 2, 4, 8, 16]
    assert [point.spec.batch for point in tasks["transformers:bert"].points] == [1]


def test_every_line_of_the_template_that_is_commented_out_is_valid(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = |\[\[model)", r"\1", template(), flags=re.MULTILINE)
    path = tmp_path / "zoo.toml"
    path.write_text(text, encoding="utf-8")
    name, entries = read_entries(str(path))
    said: dict[str, Any] = dict(entries[-1].said)
    assert name == "first zoo"
    assert len(entries) == 7
    assert said["memory_limit"] == 8 * 2**30
    assert said["compile"] == (False, True)


def test_the_models_of_keras_are_listed_without_its_back_end() -> None:
    (found,) = find(["keras:ResNet*"])
    assert "keras:ResNet50V2" in found.targets
