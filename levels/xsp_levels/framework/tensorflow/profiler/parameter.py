"""Finds the nodes of a function's graph that depend on no data of the model's.

The executor runs a node as soon as the inputs of the node are there. Reading a weight and drawing
random numbers wait for nothing, so that a graph begins with those of all its layers, and with what
is computed from these alone. These operators are no sign of when a layer ran.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

_FUNCTION = re.compile(rb"__(?:inference|forward|backward)_[^\x00-\x20:\"]+?_\d+")
_RESOURCE = 20  # DataType of a variable, or an iterator
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_MAKES_DATA = re.compile("Iterator|Optional|PyFunc|Multinomial|TensorList")
_DRAWS = "Random"


def parameter_nodes(space: bytes) -> dict[str, dict[str, str]]:
    """Return the nodes, of each function that ran, that depend on no data.

    Args:
        space: What the profiler recorded, which names the functions.

    Returns:
        By the function and the node: the node that drew the random numbers which the node depends
        on; empty where it depends on parameters and constants alone.
    """
    return {name: nodes for name in functions(space) if (nodes := _parameter_nodes(name))}


def functions(space: bytes) -> tuple[str, ...]:
    """Return the names, in TensorFlow's runtime, of the functions that ran."""
    return tuple(sorted({name.decode(errors="replace") for name in _FUNCTION.findall(space)}))


def definition(function: str) -> Any:
    """Return the definition of a function by its name in the runtime; None if it is gone."""
    from tensorflow.python.eager import context  # noqa: PLC0415
    from tensorflow.python.framework.errors_impl import OpError  # noqa: PLC0415

    try:
        return context.context().get_function_def(function)
    except (OpError, ValueError):
        return None


@functools.lru_cache(maxsize=256)
def _parameter_nodes(function: str) -> dict[str, str]:
    found = definition(function)
    if found is None:
        return {}
    given = {arg.name: "" for arg in found.signature.input_arg if arg.type == _RESOURCE}
    return dict(_walk(found, given, ""))


def _walk(function: Any, given: Mapping[str, str | None], around: str) -> Iterator[tuple[str, str]]:
    """Yield such nodes of a function and of those that it calls, by their names once inlined.

    Args:
        function: Definition of the function.
        given: For each argument of the function that depends on no data, what it depends on.
        around: Scopes that the names begin with.
    """
    alone = dict(given)
    for node in _in_order(function):
        inputs = [alone.get(source_of(each)) for each in node.input if each[0] != "^"]
        if None not in inputs and not _MAKES_DATA.search(node.op):
            drawn = around + node.name if _DRAWS in node.op else next(filter(None, inputs), "")
            alone[node.name] = drawn
            yield around + node.name, drawn
        called = definition(node.attr["f"].func.name) if node.op in CALLS else None
        if called is not None:
            names = [arg.name for arg in called.signature.input_arg]
            yield from _walk(
                called, dict(zip(names, inputs, strict=False)), f"{around}{node.name}/"
            )


def _in_order(function: Any) -> Iterator[Any]:
    """Yield nodes, each after those that its inputs come from, as far as there is such an order."""
    nodes = {node.name: node for node in function.node_def}
    seen: set[str] = set()
    for name in nodes:
        rest = [name]
        while rest:
            missing = [
                source
                for each in nodes[rest[-1]].input
                if (source := source_of(each)) in nodes and source not in seen
            ]
            missing = [] if len(rest) > len(nodes) else missing
            if missing and missing[0] not in rest:
                rest.append(missing[0])
                continue
            done = rest.pop()
            if done not in seen:
                seen.add(done)
                yield nodes[done]


def source_of(given: str) -> str:
    """Return the node or argument that an input comes from.

    >>> source_of("dense/MatMul:product:0"), source_of("^init")
    ('dense/MatMul', 'init')
    """
    return given.removeprefix("^").split(":", 1)[0]
