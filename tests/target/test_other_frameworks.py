"""Targets of Keras, ONNX Runtime, TensorFlow and JAX, on tiny models."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target import measure_isolated
from xsp.measuring.target.resolution import check, prepare, resolve
from xsp.measuring.target.source.size import Declared, random_inputs
from xsp.measuring.target.spec import FRAMEWORKS, Spec, known_frameworks
from xsp.record.session import settings_of

onnx = pytest.importorskip("onnx", reason="needs ONNX: pip install onnx")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install xsp[onnxruntime]")
# Sets variables of the environment, for good, when it is imported.
pytest.importorskip("jax", reason="needs JAX: pip install xsp[jax]")


@pytest.fixture
def product(tmp_path: Path) -> str:
    """A model in a file: a product of texts of free length, and a sum over a fixed size."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    given = [
        helper.make_tensor_value_info("tokens", floats, ["batch", "length", 4]),
        helper.make_tensor_value_info("weights", floats, [4, 3]),
    ]
    made = [helper.make_tensor_value_info("made", floats, ["batch", "length", 3])]
    node = helper.make_node("MatMul", ["tokens", "weights"], ["made"], name="/layer/MatMul")
    graph = helper.make_graph([node], "product", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "product.onnx"
    onnx.save(model, path)
    return str(path)


@pytest.fixture(autouse=True)
def path_is_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("jitting", None)


@pytest.mark.parametrize(
    ("target", "kind", "name", "runs_on"),
    [
        ("keras:ResNet50", "model", "ResNet50", "tensorflow"),
        ("onnx:some/where/net.v2.onnx", "model", "net.v2", "onnxruntime"),
        ("tf-saved-model:some/model/", "model", "model", "tensorflow"),
        ("jax:some/predict.py:Model.run", "function", "Model.run", "jax"),
        ("some/predict.py:run", "function", "run", ""),
    ],
)
def test_a_target_of_another_framework_is_known_by_its_form(
    target: str, kind: str, name: str, runs_on: str
) -> None:
    spec = Spec(target)
    assert (spec.kind, spec.name, spec.runs_on) == (kind, name, runs_on)


@pytest.mark.parametrize("source", sorted(FRAMEWORKS))
def test_a_framework_that_cannot_run_a_target_is_answered_with_those_that_can(source: str) -> None:
    for framework in known_frameworks():
        spec = Spec(f"{source}:x.py:x", framework=framework)
        if framework in FRAMEWORKS[source]:
            assert spec.runs_on == framework
        else:
            choice = f"--framework {' or '.join(FRAMEWORKS[source])}"
            with pytest.raises(UnknownTargetError, match=choice):
                prepare(spec)


def test_a_session_gets_inputs_of_the_sizes_that_the_model_declares(product: str) -> None:
    subject = resolve(Spec(f"onnx:{product}", batch=2, inputs=(("length", 5),)))
    (made,) = subject()
    assert made.shape == (2, 5, 3)
    _, feeds = subject.args
    assert {name: value.dtype for name, value in feeds.items()} == {
        "tokens": np.float32,
        "weights": np.float32,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"dynamic input sizes \(tokens \(float32, batch×length×4\).*--set length=…"),
        ({"inputs": (("lenght", 5),)}, "takes no setting 'lenght'; did you mean length"),
        ({"inputs": (("length", 0),)}, "length=0 is no size"),
        ({"inputs": (("batch", 3),)}, "batch is the batch: --batch 3"),
        ({"train": True}, "takes no --train: ONNX Runtime's sessions predict"),
        ({"compiled": True}, "takes no --compile: ONNX Runtime optimizes every model"),
        ({"precision": "float16"}, "takes no --precision: element types are a part of the file"),
        ({"device": "gpu"}, "there is no device 'gpu'; try cpu or cuda"),
        (
            {"inputs": (("provider", "CUDAExecutionProvidr"),)},
            "no execution provider 'CUDAExecutionProvidr'; did you mean CUDAExecutionProvider",
        ),
    ],
)
def test_what_a_model_in_a_file_does_not_take_is_refused(
    product: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        resolve(Spec(f"onnx:{product}", **options))


def test_an_execution_provider_that_is_not_there_is_answered_with_those_that_are(
    product: str,
) -> None:
    import onnxruntime  # noqa: PLC0415

    absent = next(
        name
        for name in onnxruntime.get_all_providers()
        if name not in onnxruntime.get_available_providers()
    )
    spec = Spec(f"onnx:{product}", inputs=(("provider", absent), ("length", 2)))
    with pytest.raises(
        MeasurementError, match=f"no execution provider {absent}.*CPUExecutionProvider"
    ):
        check(spec)


def test_a_fixed_batch_is_taken_as_it_is_and_no_other() -> None:
    fixed = [Declared("image", "float32", (2, 3))]
    assert random_inputs(Spec("onnx:x"), fixed)["image"].shape == (2, 3)
    assert random_inputs(Spec("onnx:x", batch=2), fixed)["image"].shape == (2, 3)
    with pytest.raises(UnknownTargetError, match="has a fixed batch of 2, so it takes no --batch"):
        random_inputs(Spec("onnx:x", batch=3), fixed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "there is no folder|there is no saved_model.pb in"),
        ({"train": True}, "there is no"),
    ],
)
def test_a_folder_that_is_no_saved_model_is_refused_before_tensorflow_is_imported(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UnknownTargetError, match=said):
            prepare(Spec(f"tf-saved-model:{folder}", **options))


JITTING = """
import jax, jax.numpy as jnp
weights = jnp.ones((3, 3))
traced = []
def plain(batch=2):
    traced.append(batch)
    return jnp.ones((batch, 3)) @ weights
compiled = jax.jit(lambda: jnp.ones((2, 3)) @ weights)
def reads():
    return float(plain().sum())
"""


@pytest.fixture
def jitting(tmp_path: Path) -> str:
    (tmp_path / "jitting.py").write_text(JITTING)
    return f"jax:{tmp_path}/jitting.py"


def test_a_function_is_compiled_with_the_arrays_that_it_closes_over_as_arguments(
    jitting: str,
) -> None:
    subject = resolve(Spec(f"{jitting}:plain", batch=4))
    results = [np.asarray(subject()[0]) for _ in range(3)]
    assert [result.shape for result in results] == [(4, 3)] * 3
    assert [array.shape for array in subject.args] == [(3, 3)]
    assert sys.modules["jitting"].traced == [4]
    assert hasattr(subject.function, "lower")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("reads", {}, "cannot be compiled by jax.jit .*measure path.py:function"),
        ("plian", {}, "has no function 'plian'; did you mean plain"),
        ("plain", {"train": True}, "--train makes a training step of a model"),
    ],
)
def test_a_function_that_jax_cannot_compile_is_refused(
    jitting: str, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownTargetError, match=said):
        resolve(Spec(f"{jitting}:{name}", **options))


# What Keras does on each back end, in a process that imports that one alone.
KERAS = """
import json, sys
from xsp.errors import XspError
from xsp.measuring.target.resolution import check, resolve
from xsp.measuring.target.spec import Spec

def said(**options):
    try:
        check(Spec(options.pop("target", "keras:MobileNet"), framework=sys.argv[1], **options))
    except XspError as error:
        return str(error)

refused = [
    said(target="keras:MobileNett"),
    said(inputs=(("weights", "imagenet"),)),
    said(inputs=(("width", 3),)),
    said(device="cuda:7"),
]
import keras
keras.applications.Tiny = lambda weights: keras.Sequential(
    [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")])
made = {}
for options in ({}, {"compiled": False}, {"train": True}, {"precision": "bfloat16"}):
    subject = resolve(Spec("keras:Tiny", batch=2, framework=sys.argv[1], **options))
    made[str(options)] = [subject.kind, list(getattr(subject(), "shape", ()))]
    if not options:
        called_as_it_is = isinstance(subject.function, keras.Model)
print(json.dumps([refused, made, keras.config.backend(), called_as_it_is]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["tensorflow", "torch", "jax"])
def test_a_keras_model_predicts_and_trains_on_each_back_end(framework: str) -> None:
    if not importlib.util.find_spec("keras") or not importlib.util.find_spec(framework):
        pytest.skip(f"needs Keras and {framework}")
    done = subprocess.run(
        [sys.executable, "-c", KERAS, framework], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, made, back_end, called_as_it_is = json.loads(done.stdout.splitlines()[-1])
    sentences = ("did you mean MobileNet", "random weights", "no setting 'width'", "found no CUDA")
    for sentence, words in zip(refused, sentences, strict=True):
        assert words in sentence
    assert dict(made.values()) == {"model": [2, 3], "training": []}
    assert back_end == framework
    assert called_as_it_is == (framework == "torch")


@pytest.mark.slow
def test_a_model_of_pytorch_runs_on_onnx_runtime_without_pytorch(tmp_path: Path) -> None:
    # Not imported: with TensorFlow, which other tests import, that would end the process.
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision: pip install xsp[torch,zoo]")
    spec = Spec("torchvision:squeezenet1_1", batch=2, framework="onnxruntime")
    before = dict(os.environ)
    trace = measure_isolated(spec, settings_of(1, runs=2), progress=False)
    assert trace.metadata["settings"]["framework"] == "onnxruntime"
    assert set(trace.metadata["environment"]["frameworks"]) == {"onnxruntime"}
    assert (trace.root.latency_ns or 0) > 0
    assert dict(os.environ) == before
    with pytest.raises(UnknownTargetError, match="takes no --train"):
        measure_isolated(
            Spec(spec.target, train=True, framework="onnxruntime"), settings_of(1), progress=False
        )
