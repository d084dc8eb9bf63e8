from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xsp.errors import UnknownTargetError
from xsp.level import parse_levels
from xsp.measuring.target import Spec, find, measure_here
from xsp.measuring.target.resolution import check, resolve
from xsp.record.session import Settings
from xsp.zoo import read_zoo, template

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


def test_a_module_with_its_inputs_is_called_in_inference_mode(file: str) -> None:
    spec = Spec(f"{file}:make_models[mlp]", batch=5, inputs=(("width", 32),), precision="bfloat16")
    check(spec)
    subject = resolve(spec)
    assert subject.kind == "model"
    output = subject()
    assert (tuple(output.shape), output.dtype) == ((5, 32), torch.bfloat16)
    assert output.is_inference()
    assert torch.equal(output, resolve(spec)())  # the same weights and inputs each time


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


@pytest.mark.slow
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
