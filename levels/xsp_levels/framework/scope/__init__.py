"""Derives calls of layers from the operators of a graph, and puts the operators inside the calls.

Code that was compiled to a graph calls no layers: what is left of a layer are the operators that
bear its name. `layered` (in `layer`) makes layers of them. `nesting` finds operators inside
operators, `path` numbers the layers' paths, `occurrence` tells the calls of one layer apart.
"""

from xsp_levels.framework.scope.layer import layered

__all__ = ["layered"]
