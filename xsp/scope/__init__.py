"""Derives calls of layers from the operators of a graph, and puts the operators inside the calls.

Code that was compiled to a graph calls no layers: what is left of a layer are the operators that
bear its name. `layered` (in `layer`) makes layers of them. `nesting` finds operators inside
operators, `path` numbers the layers' paths, `occurrence` tells the calls of one layer apart.
`tensorflow` knows which scopes in the name of a node are layers.
"""

from xsp.scope.layer import layered
from xsp.scope.tensorflow import CALL, layer_scopes, node_layers

__all__ = ["CALL", "layer_scopes", "layered", "node_layers"]
