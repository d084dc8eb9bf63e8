"""Types of layer: what a layer or operator computes, whichever framework it is of. Data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final


class LayerType(StrEnum):
    """Kinds of computation of a layer or operator; the first kind found in it gives its type.

    A layer that fuses others is what its main operator is, and the order of the types, from the
    first, says which of several operators is the main one.
    """

    LOSS = "loss"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    RECURRENT = "recurrent"
    MATMUL = "matmul"
    NORMALISATION = "normalization"
    EMBEDDING = "embedding"
    POOLING = "pooling"
    ACTIVATION = "activation"
    REDUCTION = "reduction"
    PREPROCESSING = "preprocessing"
    ELEMENTWISE = "elementwise"
    DATA_MOVEMENT = "data movement"
    CONTAINER = "container"
    OTHER = "other"


MEANINGS: Final[Mapping[LayerType, str]] = {
    LayerType.LOSS: "compares outputs with targets",
    LayerType.ATTENTION: "weighs values by how queries fit keys, with the projections inside",
    LayerType.CONVOLUTION: "convolves, also transposed, depthwise, separable or locally connected",
    LayerType.RECURRENT: "steps through a sequence, with a state",
    LayerType.MATMUL: "multiplies matrices: linear layers, dense layers, products of tensors",
    LayerType.NORMALISATION: "normalizes by mean, variance or length, whatever the axes",
    LayerType.EMBEDDING: "looks rows up in a table that is learned",
    LayerType.POOLING: "takes the maximum, mean or the like of windows or of whole planes",
    LayerType.ACTIVATION: "a non-linear function between layers, softmax and gates among them",
    LayerType.REDUCTION: "sums, means, extremes, norms and their places along axes",
    LayerType.PREPROCESSING: "prepares samples: augmentation, tokens, categories",
    LayerType.ELEMENTWISE: "arithmetic, comparisons and casts of each element, dropout among it",
    LayerType.DATA_MOVEMENT: "moves, pads, cuts, joins, gathers, sorts, resizes, or only reshapes",
    LayerType.CONTAINER: "holds other layers, and computes little beside them",
    LayerType.OTHER: "none of these: no work, constants, random numbers, control flow, training "
    "steps, transforms of signals, other kinds of model",
}

# Names by type, as a framework spells them.
Table = Mapping[str, LayerType]


def table(names: Mapping[LayerType, str]) -> Table:
    """Return the type of each name, of texts with the names of each type.

    >>> table({LayerType.POOLING: "MaxPool AveragePool"})["MaxPool"].value
    'pooling'
    """
    return {name: kind for kind, text in names.items() for name in text.split()}


def main_type(kinds: Sequence[LayerType]) -> LayerType | None:
    """Return the type of what does several things at once; None for nothing.

    >>> main_type([LayerType.ACTIVATION, LayerType.CONVOLUTION]).value
    'convolution'
    """
    return min(kinds, key=list(LayerType).index, default=None)
