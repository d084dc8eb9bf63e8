from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.part import is_of_memory
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.source import pytorch, zoo
from xsp.measuring.target.spec import Spec

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install transformers"
)
pytest.importorskip("torchvision", reason="needs torchvision: pip install torchvision")
pytest.importorskip("timm", reason="needs timm: pip install timm")


@pytest.mark.parametrize(
    ("target", "shapes"),
    [
        ("torchvision:resnet18", [(2, 3, 224, 224)]),
        ("timm:resnet10t", [(2, 3, 176, 176)]),
        ("transformers:electra", [(2, 128)]),
        ("transformers:mobilenet_v2", [(2, 3, 224, 224)]),
    ],
)
def test_a_model_is_called_in_inference_mode(target: str, shapes: list[tuple[int, ...]]) -> None:
    subject = resolve(Spec(target, batch=2))
    assert [tuple(tensor.shape) for tensor in subject.args] == shapes
    assert subject.kind == "model"
    assert not subject.function.training  # type: ignore[attr-defined]
    with subject.mode():
        assert torch.is_inference_mode_enabled()
        assert subject.function(*subject.args) is not None


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("inception_v3", [(1, 3, 299, 299)]),
        ("vit_h_14", [(1, 3, 224, 224)]),  # its weights take 518 pixels, and change the model
        ("raft_small", [(1, 3, 368, 496), (1, 3, 368, 496)]),
        ("r3d_18", [(1, 3, 16, 112, 112)]),
        ("lraspp_mobilenet_v3_large", [(1, 3, 520, 520)]),
    ],
)
def test_inputs_suit_the_task(name: str, shapes: list[tuple[int, ...]]) -> None:
    with torch.device("meta"):
        built = zoo.build("torchvision", name, batch=1)
    assert [tuple(tensor.shape) for tensor in built.inputs] == shapes


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("whisper", [(2, 80, 3000), None, (2, 16)]),
        ("clip", [(2, 77), (2, 3, 224, 224)]),
        ("wav2vec2", [(2, 16000)]),
    ],
)
def test_a_transformer_gets_what_its_forward_takes(
    name: str, shapes: list[tuple[int, ...] | None]
) -> None:
    config = transformers.AutoConfig.for_model(name)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    inputs = zoo._transformers_inputs(model, config, 2)
    assert [None if each is None else tuple(each.shape) for each in inputs] == shapes


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torchvision:resnet5", r"torchvision .* has no model 'resnet5'; did you mean resnet"),
        ("timm:resnett18", r"timm .* has no model 'resnett18'; did you mean resnet18"),
        ("transformers:bertt", r"transformers .* has no model 'bertt'; did you mean bert"),
        ("transformers:BertForMask", r"not a model there; did you mean BertForMaskedLM"),
        ("transformers:AutoModel", r"an Auto class needs a type: transformers:AutoModel:bert"),
        ("transformers:AutoModelForCausalLM:vit", r"no AutoModelForCausalLM for .*'vit'"),
        ("transformers:AutoModul:bert", r"not an Auto class there; did you mean AutoModel"),
    ],
)
def test_an_unknown_model_is_answered_with_close_names(target: str, said: str) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        resolve(Spec(target))


def test_a_model_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(available=1e6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(MeasurementError, match=r"0\.1 GB of weights, and 0\.0 GB of memory"):
        resolve(Spec("transformers:electra"))


def test_an_unknown_device_is_wrong_usage_and_an_absent_one_cannot_be_measured() -> None:
    with pytest.raises(UnknownTargetError, match="Unknown device 'tpu9'"):
        resolve(Spec("torchvision:resnet18", device="tpu9"))
    if not torch.cuda.is_available():
        with pytest.raises(MeasurementError, match="found no CUDA device"):
            resolve(Spec("torchvision:resnet18", device="cuda"))


def test_a_training_step_changes_the_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    before = model[0].weight.detach().clone()
    model[0].weight.data.mul_(1e3)
    step = pytorch.training_step(zoo.ModelWithInputs(model, (torch.rand(8, 4),)))
    scaled = model[0].weight.detach().clone()
    step()
    assert model.training
    assert model[0].weight.grad is not None
    assert not torch.equal(before, scaled)
    assert step.__name__ == "Sequential training step"


def test_weights_and_inputs_have_the_precision_asked_for_but_tokens_stay_whole_numbers() -> None:
    subject = resolve(Spec("torchvision:squeezenet1_1", precision="bfloat16"))
    assert {weight.dtype for weight in subject.function.parameters()} == {torch.bfloat16}  # type: ignore[attr-defined]
    assert subject.args[0].dtype == torch.bfloat16
    texts = (("sequence", 32),)
    subject = resolve(Spec("transformers:electra", batch=2, precision="float64", inputs=texts))
    (tokens,) = subject.args
    assert (tokens.dtype, tuple(tokens.shape)) == (torch.int64, (2, 32))
    with subject.mode():
        assert subject.function(*subject.args)[0].dtype == torch.float64


# Dynamo counts what it has compiled, whatever then makes code of its graphs.
COMPILED = """
import functools
import sys
import torch

torch.compile = functools.partial(torch.compile, backend="eager")
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.spec import Spec

subject = resolve(Spec("torchvision:squeezenet1_1", compiled=True, train=sys.argv[1] == "training"))
frames = torch._dynamo.utils.counters["frames"]
compiled = frames["ok"]
with subject.mode():
    subject.function(*subject.args)
print(compiled, frames["ok"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prediction", "training"])
def test_a_compiled_model_is_compiled_before_its_first_evaluation(phase: str) -> None:
    # In a process of its own: compiling leaves threads behind.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, phase], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split()[-2:])
    assert before == after > 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MeasurementError("too large", out_of_memory=True), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("not enough memory"), False),
    ],
    ids=["python", "torch", "xsp", "other", "words alone"],
)
def test_errors_of_memory_are_told_from_others(error: Exception, expected: bool) -> None:
    assert is_of_memory(error) is expected
