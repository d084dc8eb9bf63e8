"""Records of module calls, with the modules' paths, classes and sizes, and the tensors' shapes.

Records hold numbers and strings only, so that rows can be made later, in another process
too, and records do not keep the model alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xsp.text import counted
from xsp_levels.framework.keras import layer_tree
from xsp_levels.framework.torch.module.graph import Graph, GraphCall, is_graph
from xsp_levels.framework.torch.module.size import Sizes, address
from xsp_levels.framework.torch.module.source_line import Place

Integers = npt.NDArray[np.int64]
Shapes = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]

COMPILED = (
    "torch.compile: compiled code calls no modules, so the tree lacks the layers inside; times "
    "are right. Measure the model without torch.compile to see them."
)
_CONTAINERS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})


@dataclass(frozen=True, slots=True)
class RawCalls:
    """The calls of one thread, as the recorder kept them.

    Attributes:
        calls: Module, start and end in ns of each call in turn, in the order of the ends.
        failed: Number of each call that raised, and the exception's class.
        notes: Shapes of inputs and of outputs of each call; empty in timed runs.
        places: The line that made each call; empty in timed runs.
    """

    thread: int
    calls: list[Any]
    failed: list[tuple[int, str]]
    notes: list[tuple[Any, Any]]
    places: list[Place | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ThreadCalls:
    """The calls of one thread by start, an enclosing call before the calls inside.

    Attributes:
        module: Index into `LayerRecords.modules`.
        outermost: Index of the module of the outermost call around each call.
        group: Ordinal of the outermost call around each call, on this thread.
        errors: Class of the exception that a call raised, by index of the call.
        notes: Shapes of inputs and of outputs by call; empty in timed runs.
        places: The line that made each call, None where unknown; empty in timed runs.
    """

    thread: int
    module: Integers
    outermost: Integers
    group: Integers
    start_ns: Integers
    end_ns: Integers
    errors: dict[int, str]
    notes: tuple[tuple[Shapes | None, Shapes | None], ...]
    places: tuple[Place | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Class and sizes of a module; sizes include the modules inside.

    Attributes:
        class_name: The class for people.
        type_name: The class with the name of the module it is from.
        framework: `keras` for a layer of Keras's on PyTorch; null for a module of PyTorch's own.
        name: Name of such a layer where it is called outermost.
        shared_parameter_bytes: Parameters that a module before it, outside of it, holds as well.
        frozen_parameter_bytes: Parameters that need no gradient.
        function: Whether the module stands for a function that torch.compile made.
    """

    class_name: str
    type_name: str
    parameters: bool
    parameter_bytes: int
    buffer_bytes: int
    shared_parameter_bytes: int | None = None
    frozen_parameter_bytes: int | None = None
    framework: str | None = None
    name: str | None = None
    function: bool = False


@dataclass(frozen=True, slots=True)
class LayerRecords:
    """Module calls of a visit.

    Attributes:
        threads: The calls, thread by thread.
        modules: Every module that was called.
        homes: The path of a module from its root, by (module of the outermost call,
            module); None where the module is not registered below the root.
        nested_roots: Modules called outermost though registered inside another root.
        dropped: Number of calls that had not ended.
        warnings: Sentences about modules whose calls could not be seen.
        owners: Paths of the modules whose parameter or buffer lies in a storage, by the storage's
            address; several where they share it. Of detail runs only.
        graphs: The graphs of exported, scripted and traced modules, by the number of the module.
    """

    threads: tuple[ThreadCalls, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    homes: dict[tuple[int, int], str | None] | None = None
    nested_roots: frozenset[int] = frozenset()
    dropped: int = 0
    warnings: tuple[str, ...] = ()
    owners: dict[int, tuple[str, ...]] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)

    def graph_calls(self) -> list[GraphCall]:
        """Calls of modules that have a graph."""
        return [
            GraphCall(thread.thread, int(thread.start_ns[i]), int(thread.end_ns[i]), home, graph)
            for thread in self.threads
            for i, module in enumerate(thread.module.tolist())
            if (graph := self.graphs.get(module)) is not None
            and (home := (self.homes or {}).get((int(thread.outermost[i]), module))) is not None
        ]


def layer_records(
    threads: Sequence[RawCalls],
    graph_of: Callable[[Any], Graph | None] | None = None,
    *,
    dropped: int = 0,
    warnings: tuple[str, ...] = (),
) -> LayerRecords:
    """Return records of the calls of all threads, with class and sizes of the modules."""
    modules: dict[int, Any] = {}
    index: dict[int, int] = {}
    for raw in threads:
        for module in raw.calls[::3]:
            if id(module) not in index:
                index[id(module)] = len(index)
                modules[index[id(module)]] = module
    calls = tuple(_thread_calls(raw, index) for raw in threads)
    pairs = {
        (int(code) // len(modules), int(code) % len(modules))
        for thread in calls
        for code in np.unique(thread.outermost * len(modules) + thread.module)
    }
    homes, nested = _homes(pairs, modules)
    graphs = {i: graph_of(each) for i, each in modules.items()} if graph_of else {}
    detail = any(raw.notes for raw in threads)
    roots = [modules[root] for root in sorted({root for root, _ in pairs} - nested)]
    sizes = Sizes((*roots, *modules.values()))
    return LayerRecords(
        threads=calls,
        modules=tuple(_facts(module, sizes) for module in modules.values()),
        homes=homes,
        nested_roots=frozenset(nested),
        dropped=dropped,
        warnings=(*warnings, *_unseen(modules.values(), roots)),
        owners=_owners(roots) if detail else {},
        graphs={i: graph for i, graph in graphs.items() if graph is not None},
    )


def class_name(module: Any) -> str:
    """Return a module's class for people; of a scripted or compiled module the original's.

    A model of Keras's has the name that the user gave to it.
    """
    if layer_tree.is_layer(module):
        return layer_tree.root_name(module)
    return str(getattr(module, "original_name", None) or type(module).__name__)


def is_function(module: Any) -> bool:
    """Return whether a module stands for a function that torch.compile made."""
    return hasattr(type(module), "xsp_optimizers")


def _thread_calls(raw: RawCalls, index: dict[int, int]) -> ThreadCalls:
    module = np.array([index[id(m)] for m in raw.calls[::3]], dtype=np.int64)
    start = np.array(raw.calls[1::3], dtype=np.int64)
    end = np.array(raw.calls[2::3], dtype=np.int64)
    order = np.lexsort((-np.arange(len(start)), -end, start))
    module, start, end = module[order], start[order], end[order]
    before = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    group = np.cumsum(start >= before[: len(start)]) - 1
    errors = dict(raw.failed)
    return ThreadCalls(
        thread=raw.thread,
        module=module,
        outermost=module[np.unique(group, return_index=True)[1]][group],
        group=group,
        start_ns=start,
        end_ns=end,
        errors={i: errors[n] for i, n in enumerate(order.tolist()) if n in errors},
        notes=tuple(raw.notes[n] for n in order) if raw.notes else (),
        places=tuple(raw.places[n] for n in order) if raw.places else (),
    )


def _homes(
    pairs: Iterable[tuple[int, int]], modules: dict[int, Any]
) -> tuple[dict[tuple[int, int], str | None], set[int]]:
    """Return the path of every called module in its root's tree, and the nested roots.

    A module called outermost may be part of the tree of another module called outermost (a
    branch run by a pool of threads, a checkpoint computed again): its root is the other.
    """
    outermost = {root for root, _ in pairs}
    names = {root: _names(modules[root]) for root in outermost}
    holders = {root for root in outermost if not is_function(modules[root])}
    parents = {
        root: next((o for o in holders - {root} if id(modules[root]) in names[o]), root)
        for root in outermost
    }
    nested = {root for root, parent in parents.items() if parent != root}
    homes: dict[tuple[int, int], str | None] = {}
    for root, module in pairs:
        homes[root, module] = names[_top(root, parents)].get(id(modules[module]))
    return homes, nested


def _top(root: int, parents: dict[int, int]) -> int:
    seen: set[int] = set()
    while root not in seen:
        seen.add(root)
        root = parents[root]
    return root


def _names(root: Any) -> dict[int, str]:
    if layer_tree.is_layer(root):  # not all of the layers inside are registered modules
        return {key: ".".join(path) for key, path in layer_tree.paths(root).items()}
    return {id(module): name for name, module in root.named_modules()}


def _owners(roots: Iterable[Any]) -> dict[int, tuple[str, ...]]:
    """Return the paths of the modules that own each storage; none where modules cannot be told."""
    owners: dict[int, set[str]] = {}
    held: dict[int, set[int]] = {}
    for root in roots:
        for path, tensors in _holders(root):
            for tensor in tensors:
                if at := address(tensor):
                    owners.setdefault(at, set()).add(path)
                    held.setdefault(at, set()).add(id(tensor))
    return {
        at: tuple(sorted(paths))
        for at, paths in owners.items()
        if len(paths) == 1 or len(held[at]) == 1
    }


def _holders(root: Any) -> Iterator[tuple[str, list[Any]]]:
    if layer_tree.is_layer(root):
        for layer, path in layer_tree.layers(root):
            yield ".".join(path), [each.value for each in layer_tree.own_variables(layer)]
        return
    for path, module in root.named_modules():
        yield path, [*module._parameters.values(), *module._buffers.values()]


def _facts(module: Any, sizes: Sizes) -> ModuleFacts:
    if layer_tree.is_layer(module):
        known = layer_tree.facts(module, {})
        return ModuleFacts(
            known.class_name,
            known.type_name,
            bool(known.parameter_bytes or known.buffer_bytes),
            known.parameter_bytes,
            known.buffer_bytes,
            framework="keras",
            name=layer_tree.root_name(module),
        )
    kind = type(module)
    found = sizes.of(module)
    return ModuleFacts(
        class_name=class_name(module),
        type_name=f"{kind.__module__}.{kind.__qualname__}",
        parameters=found.parameters,
        parameter_bytes=found.parameter_bytes,
        buffer_bytes=found.buffer_bytes,
        shared_parameter_bytes=found.shared_parameter_bytes,
        frozen_parameter_bytes=found.frozen_parameter_bytes,
        function=is_function(module),
    )


def _unseen(modules: Collection[Any], roots: Iterable[Any]) -> Iterator[str]:
    """Yield sentences about modules that were not called because other code ran instead."""
    called = set(map(id, modules))
    if any(map(is_compiled, modules)):
        yield COMPILED
    for root in roots:
        hidden = {
            id(module)
            for graph in root.modules()
            if id(graph) in called and is_graph(graph)
            for module in graph.modules()
            if id(module) not in called and class_name(module) not in _CONTAINERS
        }
        if hidden:
            name = class_name(getattr(root, "_orig_mod", root))
            count = counted(len(hidden), "module")
            yield (
                f"the tree lacks {count} of {name}, because scripted or exported code does not "
                "call them; times are right."
            )


def is_compiled(module: Any) -> bool:
    """Return whether torch.compile compiles the calls of a module."""
    wraps = "_orig_mod" in getattr(module, "_modules", ())
    return wraps or getattr(module, "_compiled_call_impl", None) is not None


def shapes(value: Any) -> Shapes:
    """Return sizes and dtypes of all tensors in `value`, in their order.

    A size that is symbolic, while a model is being traced, is given as -1: asking for
    its value would make the traced graph depend on the value.
    """
    found = list(tensors(value))
    sizes = tuple(tuple(n if type(n) is int else -1 for n in t.shape) for t in found)
    return sizes, tuple(str(t.dtype).removeprefix("torch.") for t in found)


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses."""
    import torch  # noqa: PLC0415

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))
