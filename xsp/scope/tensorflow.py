"""Finds the layers that the scopes in the name of a TensorFlow node stand for."""

from __future__ import annotations

import re

CALL = re.compile(r"^(?:Stateful)?PartitionedCall(?:_\d+)?$")
# Scopes that TensorFlow's and Keras's own functions open inside of a layer.
_INNER = re.compile(
    r"^(?:Reshape|Tensordot|batchnorm|cond|convolution|dropout|einsum|embedding_lookup|moments"
    r"|random_uniform|while|[A-Z_]\w*)(?:_\d+)?(?:/|$)"
)
_GRADIENT = "gradient_tape"  # outermost scope of what a gradient is computed by


def layer_scopes(scopes: list[str]) -> tuple[str, ...]:
    """Return the first of some scopes that are a layer's, outermost first.

    >>> layer_scopes(["net_1", "fc_1", "Tensordot", "MatMul"])
    ('net_1', 'fc_1')
    """
    while scopes and CALL.match(scopes[0]):
        scopes = scopes[1:]
    inner = next((at for at, scope in enumerate(scopes) if _INNER.match(scope)), len(scopes))
    return tuple(scopes[:inner])


def node_layers(node: str) -> tuple[tuple[str, ...], bool]:
    """Return the layers around a node, and whether it computes a gradient.

    >>> node_layers("gradient_tape/net/fc/MatMul/MatMul_1")
    (('net', 'fc'), True)
    """
    scopes = node.split("/")[:-1]
    while scopes and CALL.match(scopes[0]):
        scopes = scopes[1:]
    backward = bool(scopes) and scopes[0] == _GRADIENT
    return layer_scopes(scopes[backward:]), backward
