"""Finds the layer type of a class of layers, or of an operator, by its name in a framework.

The framework's own table is asked first. A class that stands in none, as one that transformers or
a program defines, is told by words in its name; a fused operator of XLA by the operators in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from xsp.layer_type import jax, keras, onnx, pytorch, tensorflow
from xsp.layer_type.kind import LayerType, Table, main_type

# By heading of docs/layer-types.md.
TABLES: Final[Mapping[str, Table]] = {
    "PyTorch modules": pytorch.MODULES,
    "PyTorch operators": pytorch.OPERATORS,
    "Keras layers": keras.LAYERS,
    "TensorFlow operators": tensorflow.OPERATORS,
    "ONNX operators": onnx.OPERATORS,
    "Flax and Equinox modules": jax.MODULES,
    "JAX primitives and HLO operators": jax.OPERATORS,
}
_OF: Mapping[str, Sequence[Table]] = {
    "pytorch": (pytorch.MODULES, pytorch.OPERATORS),
    "keras": (keras.LAYERS,),
    "tensorflow": (tensorflow.OPERATORS, keras.LAYERS),
    "onnxruntime": (onnx.OPERATORS,),
    "jax": (jax.MODULES, jax.OPERATORS),
}
# What a class is, by words in its name; the first that is found counts.
_WORDS: Final = (
    (re.compile(r"rotary", re.I), LayerType.ELEMENTWISE),
    (re.compile(r"loss(?!less)|crossentropy", re.I), LayerType.LOSS),
    (re.compile(r"attention|attn", re.I), LayerType.ATTENTION),
    (re.compile(r"conv(?!ert)", re.I), LayerType.CONVOLUTION),
    (re.compile(r"lstm|gru(?!p)|(?<![a-z])RNN|RNN(?![a-z])"), LayerType.RECURRENT),
    (re.compile(r"LSTM|GRU"), LayerType.RECURRENT),
    (re.compile(r"linear|dense(?!net)|matmul|gemm(?!a)", re.I), LayerType.MATMUL),
    (re.compile(r"norm(?!al(?!i[sz]))", re.I), LayerType.NORMALISATION),
    (re.compile(r"embed", re.I), LayerType.EMBEDDING),
    (re.compile(r"pool", re.I), LayerType.POOLING),
    (
        re.compile(r"relu|gelu|silu|swish|swiglu|sigmoid|softmax|tanh|mish|activation", re.I),
        LayerType.ACTIVATION,
    ),
    (re.compile(r"dropout|drop_?path|layer_?scale", re.I), LayerType.ELEMENTWISE),
    (
        re.compile(r"flatten|reshape|permute|transpose|pad(?:ding)?\dd$|upsampl|concat", re.I),
        LayerType.DATA_MOVEMENT,
    ),
)
# Classes with such names are of their type although layers are in them.
_WHOLE: Final = re.compile(r"attention(?!mlp)|attn$|(?<!conv)norm(?:alization)?(?:\dd)?$", re.I)
_PREFIXES: Final = re.compile(r"^_?(?:MklNative|MklEager|Mkl|Quantized|_?XlaHost)_?")
_NUMBER: Final = re.compile(r"(?:\.\d+|\.clone|\.remat\d*)+$")
_AROUND: Final = re.compile(r"^.*[:/.]")  # modules, scopes and nodes before the name itself
_FUSION: Final = re.compile(
    r"^(?:wrapped|loop|input|output|custom|parallel|small|ynn|onednn)?_|_?fusion$"
)


@cache
def layer_type(
    name: str, framework: str | None = None, *, holds_layers: bool = False
) -> LayerType | None:
    """Return the type of a class of layers, or of an operator; None where nothing tells it.

    Args:
        name: Class of the layer (`Conv2d`, also with the module that it is from), or type of the
            operator (`aten::mm`, `_FusedConv2D`, `add_fusion.3`).
        framework: `keras`, `tensorflow`, `onnxruntime` or `jax`; None: PyTorch, or not known.
        holds_layers: Whether there are layers in it. A class in no table is a container then,
            unless its name says that all of it is a normalization or an attention.

    >>> layer_type("_MklFusedConv2D", "tensorflow").value, layer_type("LlamaRMSNorm").value
    ('convolution', 'normalization')
    >>> layer_type("Sum", "onnxruntime").value, layer_type("Sum", "tensorflow").value
    ('elementwise', 'reduction')
    >>> layer_type("Bottleneck", holds_layers=True).value, layer_type("Bottleneck")
    ('container', None)
    """
    bare = _NUMBER.sub("", name)
    known = _known(bare, framework)
    if known is None and "::" not in bare:
        known = _known(_AROUND.sub("", bare), framework)
    return known or _told(bare, holds_layers=holds_layers)


def _known(name: str, framework: str | None) -> LayerType | None:
    """Look a name up in the tables, else the name that it is a variant of."""
    tables = _OF.get(framework or "")
    if tables is not None:
        found = _first(name, tables)
        if found is None and framework == "tensorflow":
            found = _first(_PREFIXES.sub("", name), tables)
        # The type of what XLA fused, whose name lists operators: `broadcast_add_fusion`.
        is_fused = name == name.lower() and ("fusion" in name or name.startswith("wrapped_"))
        if found is None and framework == "jax" and is_fused:
            words = _FUSION.sub("", _FUSION.sub("", name))
            words = words.replace("reduce_window", "reduce-window")
            parts = [jax.OPERATORS.get(word, LayerType.OTHER) for word in words.split("_")]
            found = main_type([kind for kind in parts if kind is not LayerType.OTHER])
        return found
    return _first(name, _OF["pytorch"]) or _agreed(name)


def _first(name: str, tables: Sequence[Table]) -> LayerType | None:
    return next((kind for each in tables if (kind := each.get(name)) is not None), None)


def _agreed(name: str) -> LayerType | None:
    """Find the layer type on which all frameworks with the name agree; None if they differ."""
    kinds = {kind for framework in _OF if framework != "pytorch"
             for kind in [_known(name, framework)] if kind is not None}  # fmt: skip
    return kinds.pop() if len(kinds) == 1 else None


def _told(name: str, *, holds_layers: bool) -> LayerType | None:
    """Guess a layer type from the words in a class's name."""
    last = name.rpartition(".")[2]
    if holds_layers and not _WHOLE.search(last):
        return LayerType.CONTAINER
    if "::" in name or not last[:1].isupper():  # operators, functions and scopes are no classes
        return LayerType.CONTAINER if holds_layers else None
    return next((kind for words, kind in _WORDS if words.search(last)), None)
