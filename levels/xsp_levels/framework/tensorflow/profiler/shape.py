"""Functions that ran, in; the shapes that their graphs state of what each node makes, out."""

from __future__ import annotations

import gc
from typing import Any

from xsp_levels.framework.tensorflow.profiler.parameter import functions


def stated_shapes(space: bytes) -> dict[str, dict[str, str]]:
    """Return the arrays that each node makes, by the function and the node's name.

    Args:
        space: What the profiler recorded, which names the functions.

    Returns:
        Element types and sizes, such as `float32[8,6,6,64]`, one behind the other; nodes of which
        an array's shape is not known before the function runs are left out.
    """
    names = set(functions(space))
    return {name: _shapes(graph) for name, graph in _graphs() if name in names} if names else {}


def _graphs() -> list[tuple[str, Any]]:
    """Return the graphs of all functions that were traced, by their names in the runtime.

    The runtime's own definitions do not say of what shape a variable is.
    """
    from tensorflow.python.eager.polymorphic_function.concrete_function import (  # noqa: PLC0415
        ConcreteFunction,
    )

    found = [each for each in gc.get_objects() if type(each) is ConcreteFunction]
    return [(_name(each), each.graph) for each in found]


def _name(function: Any) -> str:
    name = function.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _shapes(graph: Any) -> dict[str, str]:
    texts = {node.name: _text(node.outputs) for node in graph.get_operations()}
    return {name: text for name, text in texts.items() if text}


def _text(outputs: Any) -> str:
    known = [each for each in outputs if each.shape.is_fully_defined()]
    if len(known) < len(outputs):
        return ""
    return "".join(
        f"{each.dtype.name}[{','.join(str(size) for size in each.shape.as_list())}]"
        for each in known
        if each.dtype.name != "resource"
    )
