"""Every class and operator of the frameworks has a type."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import onnx
import pytest
import torch

from xsp.layer_type import TABLES, LayerType, layer_type, main_type

# Prints the classes of modules, in a process of its own: some frameworks change the environment.
LISTED = """
import importlib, inspect, sys
name, *modules = sys.argv[1:]
for module in map(importlib.import_module, modules):
    owner, _, bare = name.rpartition(".")
    base = getattr(importlib.import_module(owner) if owner else module, bare)
    found = [one for one in vars(module).values() if inspect.isclass(one)]
    print(*sorted({one.__name__ for one in found if issubclass(one, base)}))
"""


def classes(module: ModuleType, base: type) -> list[str]:
    found = [one for one in vars(module).values() if inspect.isclass(one)]
    return sorted({one.__name__ for one in found if issubclass(one, base)})


def missing(names: list[str], heading: str) -> list[str]:
    return [name for name in names if name not in TABLES[heading]]


def test_no_module_of_pytorch_is_unknown() -> None:
    assert missing(classes(torch.nn, torch.nn.Module), "PyTorch modules") == []


def test_no_operator_of_onnx_is_unknown() -> None:
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
    assert missing(names, "ONNX operators") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "modules", "base"),
    [
        ("Keras layers", ["keras.layers"], "Layer"),
        ("Flax and Equinox modules", ["flax.linen", "flax.nnx"], "Module"),
        ("Flax and Equinox modules", ["equinox.nn"], "equinox.Module"),
    ],
    ids=["keras", "flax", "equinox"],
)
def test_no_layer_of_other_frameworks_is_unknown(
    heading: str, modules: list[str], base: str
) -> None:
    if find_spec(modules[0].partition(".")[0]) is None:
        pytest.skip(f"{modules[0]} is not installed")
    environment = os.environ | {"KERAS_BACKEND": "torch"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LISTED, base, *modules],
        capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    names = ran.stdout.split()
    assert len(names) > 30
    assert missing(names, heading) == []


@pytest.mark.parametrize(
    ("name", "framework", "kind"),
    [
        ("torch.nn.modules.conv.Conv2d", None, "convolution"),
        ("Conv2D", "keras", "convolution"),
        ("_FusedConv2D", "tensorflow", "convolution"),
        ("_MklNativeFusedConv2D", "tensorflow", "convolution"),
        ("_MklMaxPool", "tensorflow", "pooling"),
        ("block1_conv/Conv2D:Conv2D", "tensorflow", "convolution"),
        ("NhwcFusedConv", "onnxruntime", "convolution"),
        ("convolution.12", "jax", "convolution"),
        ("broadcast_add_fusion.3", "jax", "elementwise"),
        ("convolution_add_fusion", "jax", "convolution"),
        ("wrapped_reduce-window", "jax", "pooling"),
        ("transpose_copy_fusion.clone.1", "jax", "data movement"),
        ("Sum", "tensorflow", "reduction"),
        ("Sum", "onnxruntime", "elementwise"),
        ("Sum", None, None),
        ("Gemm", None, "matmul"),
        ("aten::_softmax", None, "activation"),
        ("mine::thing", None, None),
        ("GemmaRMSNorm", None, "normalization"),
        ("LlamaRotaryEmbedding", None, "elementwise"),
        ("NewGELUActivation", None, "activation"),
        ("ConvBnReLU2d", None, "convolution"),
        ("DenseNet", None, None),
        ("Convert", None, None),
    ],
)
def test_name_tells_the_type(name: str, framework: str | None, kind: str | None) -> None:
    found = layer_type(name, framework)
    assert (found and found.value) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ResNet", "container"),
        ("ConvNormAct", "container"),
        ("SomeConvBlock", "container"),
        ("LinearReLU", "container"),
        ("BertSelfAttention", "attention"),
        ("LayerNorm2dOfMine", "container"),
        ("MyBatchNorm", "normalization"),
    ],
)
def test_class_that_holds_layers_is_a_container_unless_its_name_says_more(
    name: str, kind: str
) -> None:
    assert layer_type(name, holds_layers=True) == kind


def test_what_fuses_several_is_what_its_main_operator_is() -> None:
    kinds = [LayerType.ELEMENTWISE, LayerType.MATMUL, LayerType.ACTIVATION]
    assert main_type(kinds) is LayerType.MATMUL
    assert main_type([]) is None
