"""One small network in PyTorch, Keras and ONNX Runtime: the same work, and layers that are found.

Each framework has a process of its own, as which back end Keras runs on is decided when it is
imported, and as TensorFlow and PyTorch cannot be in one.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import xsp
from xsp.analyses import model_roofline
from xsp.trace import Trace

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[3]
BATCH, SIZE, WIDTHS, CLASSES = 2, 24, (3, 16, 64, 64), 10

COMMON = f"""
import sys
import numpy as np
BATCH, SIZE, WIDTHS, CLASSES = {BATCH}, {SIZE}, {WIDTHS}, {CLASSES}
pairs = list(enumerate(zip(WIDTHS, WIDTHS[1:]), 1))
"""

TORCH = """
import torch, xsp
from torch import nn
layers = {}
for at, (given, made) in pairs:
    layers |= {f"conv{at}": nn.Conv2d(given, made, 3, padding=1), f"relu{at}": nn.ReLU()}
net = nn.Sequential()
for name, layer in layers.items():
    net.add_module(name, layer)
net.add_module("flat", nn.Flatten())
net.add_module("head", nn.Linear(SIZE * SIZE * WIDTHS[-1], CLASSES))
with torch.no_grad():
    trace = xsp.measure(net.eval(), torch.rand(BATCH, 3, SIZE, SIZE), levels=2, runs=5)
trace.save(sys.argv[1])
"""

KERAS = """
import keras
from xsp.record.session import settings_of
from xsp.measuring.target import measure_here
from xsp.measuring.target.spec import Spec

def small(weights):
    layers = [keras.Input((SIZE, SIZE, 3))]
    for at, (_, made) in pairs:
        layers.append(keras.layers.Conv2D(made, 3, padding="same", name=f"conv{at}"))
        layers.append(keras.layers.ReLU(name=f"relu{at}"))
    layers += [keras.layers.Flatten(name="flat"), keras.layers.Dense(CLASSES, name="head")]
    return keras.Sequential(layers, name="small")

keras.applications.Small = small
spec = Spec("keras:Small", batch=BATCH, framework=keras.config.backend())
measure_here(spec, settings_of(2, runs=5)).save(sys.argv[1])
"""

ONNX = """
import onnxruntime, xsp
from onnx import helper
from onnx_models import model_bytes
random, nodes, weights, last = np.random.default_rng(0), [], {}, "x"
for at, (given, made) in pairs:
    weights[f"w{at}"] = random.standard_normal((made, given, 3, 3)).astype(np.float32)
    weights[f"b{at}"] = np.zeros(made, np.float32)
    nodes += [
        helper.make_node("Conv", [last, f"w{at}", f"b{at}"], [f"c{at}"], name=f"/conv{at}/Conv",
                         pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [f"c{at}"], [f"r{at}"], name=f"/relu{at}/Relu"),
    ]
    last = f"r{at}"
weights["w"] = random.standard_normal((SIZE * SIZE * WIDTHS[-1], CLASSES)).astype(np.float32)
weights["b"] = np.zeros(CLASSES, np.float32)
nodes += [
    helper.make_node("Flatten", [last], ["f"], name="/flat/Flatten"),
    helper.make_node("Gemm", ["f", "w", "b"], ["y"], name="/head/Gemm"),
]
content = model_bytes(nodes, weights, {"x": [BATCH, 3, SIZE, SIZE]}, ["y"], name="small")
session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
x = random.random((BATCH, 3, SIZE, SIZE), np.float32)
xsp.measure(session.run, None, {"x": x}, levels=2, runs=5).save(sys.argv[1])
"""

SCRIPTS = {
    "torch": TORCH,
    "keras on tensorflow": KERAS,
    "keras on jax": KERAS,
    "onnxruntime": ONNX,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small")


@cache
def measured(framework: str, folder: Path) -> Trace:
    """Return a trace of the network, measured in a process of its own."""
    for needed in framework.split(" on "):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}")
    path = folder / f"{framework.replace(' ', '-')}.xsp"
    ran = subprocess.run(
        [sys.executable, "-c", COMMON + SCRIPTS[framework], str(path)],
        env=os.environ
        | {"KERAS_BACKEND": framework.rpartition(" ")[2], "TF_CPP_MIN_LOG_LEVEL": "3"}
        | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return xsp.load(path)


@pytest.mark.parametrize("framework", list(SCRIPTS))
def test_a_network_has_as_many_operations_in_every_framework(framework: str, folder: Path) -> None:
    pixels = BATCH * SIZE * SIZE
    convolved = sum(2 * 9 * given * made * pixels for given, made in pairwise(WIDTHS))
    expected = convolved + 2 * pixels * WIDTHS[-1] * CLASSES
    [found] = model_roofline(measured(framework, folder))["flops"].to_list()
    assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("framework", [name for name in SCRIPTS if name != "torch"])
def test_a_network_is_compared_across_frameworks_by_layer_type(
    framework: str, folder: Path
) -> None:
    one, other = measured("torch", folder), measured(framework, folder)
    found = xsp.compare(one, other, names=("torch", framework))
    assert found.across == (framework,)
    [whole] = found.table.filter(path_a=one.root.path).to_dicts()
    assert whole["verdict"] in ("faster", "slower", "not significant")
    assert "convolution" in found.by_layer_type["layer_type"].to_list()
