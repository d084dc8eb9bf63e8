"""Gives classes of layers and operators a layer type that is the same for all frameworks.

A table for each framework (pytorch.py, keras.py, tensorflow.py, onnx.py, jax.py) says what its
classes and operators are; name.py asks them, and reads the names of all others.
docs/layer-types.md shows the tables.
"""

from xsp.layer_type.kind import MEANINGS, LayerType, main_type
from xsp.layer_type.name import TABLES, layer_type

__all__ = ["MEANINGS", "TABLES", "LayerType", "layer_type", "main_type"]
