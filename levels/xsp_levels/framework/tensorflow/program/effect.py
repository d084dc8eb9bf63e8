"""Finds the side effects of running a TensorFlow function or graph."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Begins of the names of operators.
_WRITE = (
    *("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter"),
    *("ResourceStridedSliceAssign", "SparseApply", "Apply"),
    *("RngReadAndSkip", "RngSkip", "StatefulRandomBinomial", "StatefulStandardNormal"),
    *("LookupTableInsert", "LookupTableImport", "LookupTableRemove"),
)
_CONSUME = ("IteratorGetNext", "Queue", "ReaderRead")
_PYTHON = ("PyFunc", "EagerPyFunc")
_GRADIENT = ("gradient_tape/", "gradients/")


@dataclass(frozen=True, slots=True)
class Effect:
    """Side effects of running a graph.

    Attributes:
        writes: Whether it writes to variables, or to what lives as long.
        consumes: Whether it takes its input out of an iterator or a queue.
        calls_python: Whether it calls functions of Python's, of which nothing is known.
        differentiates: Whether it computes gradients.
    """

    writes: bool = False
    consumes: bool = False
    calls_python: bool = False
    differentiates: bool = False

    @property
    def trains(self) -> bool:
        """Whether it looks like a training step."""
        return self.writes and self.differentiates


class Effects:
    """The effects of functions, each looked at once after each time that it was traced."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, Effect]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, function: Any) -> Effect:
        """Return the effect of a `tf.function`, as far as it was traced, or of one trace."""
        count, known = traces(function), self._known.get(function)
        if known is None or known[0] != count:
            known = count, effect(_nodes(concrete_functions(function)))
            self._known[function] = known
        return known[1]


def traces(function: Any) -> int:
    """Return how often a `tf.function` has been traced; 1 for a trace, or one from a file."""
    count = getattr(function, "experimental_get_tracing_count", None)
    made = int(count()) if count is not None else 1
    return max(made, 1) if hasattr(function, "concrete_functions") else made


def traced_anew(name: str) -> str:
    """Return the sentence about a function that was traced after it had been called."""
    return (
        f"TensorFlow traced {name} again during the measurement, for other shapes, types or Python "
        "values; that call took longer. Use fixed shapes, or an input_signature."
    )


def concrete_functions(function: Any) -> list[Any]:
    """Return the traces of a `tf.function`; of a single trace that trace.

    TensorFlow's own lists trace a function that has not been traced yet, and are not asked.
    """
    listed = getattr(function, "concrete_functions", None)  # of a function from a file
    if listed is None:
        cache = getattr(function, "_function_cache", None)
        listed = [function] if cache is None else cache.values()
    return list(listed)


def effect(nodes: Iterable[tuple[str, str]]) -> Effect:
    """Return the effect of nodes of a graph: their names and types.

    >>> effect([("gradient_tape/mlp/MatMul", "MatMul"), ("AssignSub", "AssignSubVariableOp")])
    Effect(writes=True, consumes=False, calls_python=False, differentiates=True)
    """
    found = list(nodes)
    types = {kind for _, kind in found}
    return Effect(
        writes=any(kind.startswith(_WRITE) for kind in types),
        consumes=any(kind.startswith(_CONSUME) for kind in types),
        calls_python=any(kind.startswith(_PYTHON) for kind in types),
        differentiates=any(any(g in name for g in _GRADIENT) for name, _ in found),
    )


def _nodes(traces: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for trace in traces:
        graph = trace.graph
        yield from ((operator.name, operator.type) for operator in graph.get_operations())
        for inner in graph._functions.values():
            yield from ((node.name, node.op) for node in inner.definition.node_def)
