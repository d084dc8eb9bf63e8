"""Functions that ran, in; the shapes that their graphs state of what each node makes, out."""

from __future__ import annotations

import functools
from typing import Any

from xsp_levels.framework.tensorflow.profiler.parameter import definition, functions


def stated_shapes(space: bytes) -> dict[str, dict[str, str]]:
    """Return the arrays that each node makes, by the function and the node's name.

    Args:
        space: What the profiler recorded, which names the functions.

    Returns:
        Element types and sizes, such as `float32[8,6,6,64]`, one behind the other; nodes of which
        an array's shape is not known before the function runs are left out.
    """
    return {name: shapes for name in functions(space) if (shapes := _stated(name))}


@functools.lru_cache(maxsize=64)
def _stated(function: str) -> dict[str, str]:
    found = definition(function)
    if found is None:
        return {}
    from tensorflow.python.framework.errors_impl import OpError  # noqa: PLC0415
    from tensorflow.python.framework.function_def_to_graph import (  # noqa: PLC0415
        function_def_to_graph,
    )

    try:
        graph = function_def_to_graph(found)
    except (OpError, ValueError):  # it calls functions that are gone
        return {}
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
