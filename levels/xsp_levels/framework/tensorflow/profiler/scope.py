"""Nodes of graphs in; the layers that their scopes name, where no layer of Keras is known, out.

A SavedModel is loaded without the Keras model that it was made of. Its functions call that model's,
so that the nodes are named `StatefulPartitionedCall/net_1/conv_1/Conv2D` once these are inlined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Path = tuple[str, ...]

_CALL = re.compile(r"^(?:Stateful)?PartitionedCall(?:_\d+)?$")
_NUMBERED = re.compile(r"^(.+)_\d+$")
# Scopes that TensorFlow's and Keras's own functions open inside of a layer.
_INNER = re.compile(
    r"^(?:Reshape|Tensordot|batchnorm|cond|convolution|dropout|einsum|embedding_lookup|moments"
    r"|while|[A-Z]\w*)(?:_\d+)?(?:/|$)"
)


class Scopes:
    """The layers that the scopes of some nodes name.

    Args:
        nodes: Names of all nodes, those too that lie in none.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        found = {node: _scopes(node) for node in nodes}
        # TensorFlow makes the names of Keras's layers unique by a number at the end of each.
        numbered = all(_NUMBERED.match(scope) for path in found.values() for scope in path)
        self._paths = {
            node: tuple(map(_plain, path)) if numbered else path for node, path in found.items()
        }
        outermost = {path[0] for path in self._paths.values() if path}
        self._rooted = len(outermost) == 1

    def path(self, node: str) -> Path:
        """Return the layers around a node, outermost first."""
        return self._paths.get(node, ())

    def describe(self, path: Sequence[str]) -> Mapping[str, Any]:
        """Return the attributes of a layer; paths begin inside the model, where there is one."""
        return {
            "framework": "tensorflow",
            "module_path": ".".join(path[1:] if self._rooted else path),
        }


def _scopes(node: str) -> Path:
    """Return the scopes of a node that was inlined, up to the first that is no layer's.

    >>> _scopes("StatefulPartitionedCall/net_1/fc_1/Tensordot/MatMul"), _scopes("net_1/fc_1/MatMul")
    (('net_1', 'fc_1'), ())
    """
    call, *scopes = node.split("/")[:-1] or [""]
    if not _CALL.match(call):
        return ()
    while scopes and _CALL.match(scopes[0]):
        scopes = scopes[1:]
    inner = next((at for at, scope in enumerate(scopes) if _INNER.match(scope)), len(scopes))
    return tuple(scopes[:inner])


def _plain(scope: str) -> str:
    found = _NUMBERED.match(scope)
    return found[1] if found else scope
