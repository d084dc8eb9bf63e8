"""Operators of code that torch.compile generated in; its calls, each with its graph, out.

Dynamo's graph knows each node's modules, and stays alive with the function that was compiled of it.
Inductor's code knows which nodes its calls compute (`compiled_code`). Both are only read, whenever
they were made. PyTorch's profiler records each call of such code, with its key, inside of a region
with the number of the graph.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

from xsp.provider import SpanRows
from xsp_levels.framework.torch.module.compiled_code import Call, Code, parse
from xsp_levels.framework.torch.module.graph import Graph, GraphCall, Operator, Path

_REGION = re.compile(r"^Torch-Compiled Region: (\S+)$")
_CALL = re.compile(r"^## Call CompiledFxGraph ((?:\w+ )?)##$")  # without a key if caches are off
_WITH_GRAPH = "aot_module_simplified.<locals>.forward"  # has methods of Dynamo's graph
_COMPILED = re.compile(r"__compiled_fn_(\d+)")  # counts all functions of a process
_ROOT = re.compile(r"^[LG]\['\w+'\]")
_SELF = "L['self']"
# Dynamo's frame around a function of PyTorch's own, such as the `forward` of an `nn.Sequential`.
_WRAPPER, _WRAPPED = "wrap_inline.<locals>.inner", "L['fn']"
_REPEATED = re.compile(r"@\d+$")  # mark of a module's second call

Home = Callable[[int, int, int], "str | None"]


class CompiledGraphs:
    """The graphs that are compiled in this process; looked for when there are other ones."""

    def __init__(self) -> None:
        self._known = (0, 0)  # modules that Inductor generated, graphs that Dynamo traced
        self._graphs: dict[str, Graph] = {}

    def now(self) -> dict[str, Graph]:
        """Return the graphs by Dynamo's number and Inductor's key; imports nothing."""
        cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        traced = counters.get("stats", {}).get("unique_graphs", 0)
        known = (len(getattr(cache, "modules", ())), traced)
        if known != self._known:
            self._known, self._graphs = known, _found()
        return self._graphs


def compiled_calls(rows: SpanRows, graphs: Mapping[str, Graph], home: Home) -> list[GraphCall]:
    """Return the calls of generated code among operators.

    Left out are calls of a function's graph in the call of a module, for nothing tells where in
    that module the graph's modules are.

    Args:
        rows: The operators.
        graphs: What `CompiledGraphs.now` returned.
        home: Returns the path of the module whose call lies closest around thread, start and end,
            or None.
    """
    columns = rows.select("name", "thread", "start_ns", "end_ns").rows() if graphs else []
    regions = [row for row in columns if _REGION.match(row[0])]
    found = []
    for name, thread, start, end in columns:
        for region in regions if _CALL.match(name) else ():
            around = region[1] == thread and region[2] <= start and end <= region[3]
            graph = graphs.get(_key(region[0], name)) if around else None
            path = home(thread, start, end) if graph else None
            if graph is not None and (graph.of_module or path is None):
                found.append(GraphCall(thread, start, end, path or "", graph))
    return found


def _key(region: str, call: str) -> str:
    return " ".join((*_REGION.findall(region), *map(str.strip, _CALL.findall(call))))


def _found() -> dict[str, Graph]:
    """Return the graphs that are alive: each of Dynamo's with the code that can be of it.

    Code without a key counts where only one graph can be made of it.
    """
    alive = gc.get_objects()
    functions = [each for each in alive if type(each) is FunctionType]
    compiled = [each for each in alive if type(each).__name__ == "CompiledFxGraph"]
    texts = {
        (getattr(c, "_fx_graph_cache_key", None) or "", getattr(c, "source_code", ""))
        for c in compiled
    }
    codes = [(key, parse(text)) for key, text in texts if text]
    traced = [
        function.named_parameters.__self__
        for function in functions
        if function.__qualname__ == _WITH_GRAPH and hasattr(function, "named_parameters")
    ]
    frames = _frames()
    found: dict[str, list[Graph]] = {}
    # `torch._dynamo.reset()` begins to number anew, and old graphs live on: the newest one counts.
    for each in sorted(traced, key=_age):
        frame = frames.get(each.meta.get("backend_id"))
        fitting: dict[str, list[Graph]] = {}
        for key, code in codes:
            if (graph := _graph(code, each.graph, frame, cached=bool(key))) is not None:
                name = f"{each.meta.get('dynamo_compile_id')} {key}"
                fitting.setdefault(name, []).append(graph)
        found |= fitting
    return {
        name: first
        for name, (first, *others) in found.items()
        if all(other == first for other in others)
    }


def _frames() -> dict[str, CodeType]:
    """Return the user's code that each of Dynamo's compiled functions was made of, by its name."""
    codes: Any = getattr(sys.modules.get("torch._dynamo.utils"), "orig_code_map", {})
    resume = sys.modules.get("torch._dynamo.resume_execution")
    resumed = getattr(resume, "ContinueExecutionCache", None)
    whole = getattr(resumed, "generated_code_metadata", {})  # of what follows a graph break
    frames: dict[str, CodeType] = {}
    for compiled in [ref() for ref in list(getattr(codes, "refs", {}).values())]:
        frame = codes.get(compiled)
        frame = getattr(whole.get(frame), "code", frame)
        frames |= dict.fromkeys(getattr(compiled, "co_names", ()), frame)
    return frames


def _age(traced: Any) -> int:
    name = _COMPILED.match(str(traced.meta.get("backend_id")))
    return int(name[1]) if name else -1


def _graph(
    code: Code, traced: Any, frame: CodeType | None = None, *, cached: bool = False
) -> Graph | None:
    """Return the graph that was compiled; None where the code is not of the traced graph.

    Args:
        code: Inductor's code.
        traced: Dynamo's graph.
        frame: The code that Dynamo traced, or None where that is not known.
        cached: Whether the code may have been made for another graph of the same operators, whose
            nodes have other names: a cache's key does not rest on names.
    """
    nodes = {node.name: node for node in traced.nodes}
    inputs = [node for node in traced.nodes if node.op == "placeholder"]
    said = {name for call in code.calls for name in (call.node, *call.nodes) if name}
    if not code.calls or len(inputs) != code.inputs:
        return None
    if not said <= nodes.keys():
        if not cached:
            return None
        code = replace(code, calls=tuple(_unnamed(call, inputs) for call in code.calls))
    (result,) = (node for node in traced.nodes if node.op == "output")
    outputs = result.args[0] if len(result.args[0]) == code.outputs else ()
    root = _root(nodes.values(), frame)
    place = {name: number for number, name in enumerate(nodes)}
    libraries = {call.node for call in code.calls}
    operators: list[Operator] = []
    classes: dict[str, str] = {}
    for call in code.calls:
        computed = _computed(call, nodes, inputs, outputs)
        main = [node for node in computed if node.name not in libraries]
        ends = _ends(main, place) if main else computed
        own = _shared([tuple(_layers(node, root)) for node in ends])
        found = {name: kind for node in computed for name, kind in _layers(node, root).items()}
        paths = dict.fromkeys(tuple(_layers(node, root)) for node in main or computed)
        others = tuple(path[-1] for path in paths if path != own[: len(path)])
        operators.append(Operator(call.name, own, others))
        classes |= found
    return Graph(tuple(operators), classes, of_module=root[1] is not None)


def _unnamed(call: Call, inputs: Sequence[Any]) -> Call:
    """Return a call without the names of nodes; a library's with the node that uses its inputs."""
    read = _reading(call, inputs) if call.node is not None else {}
    return replace(call, node=next(iter(read)) if len(read) == 1 else None, nodes=())


def _computed(
    call: Call, nodes: Mapping[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> list[Any]:
    """Return the traced nodes that a call is known to compute, wholly or in part.

    A kernel that reads an input of the graph computes what uses this input, which is known where
    all that uses it is in one module.
    """
    if call.node is not None:
        return [nodes[call.node]]
    known = {name: nodes[name] for name in call.nodes if not _is_view(nodes[name])}
    known |= _reading(call, inputs)
    for place in call.outputs if outputs else ():
        node = outputs[place]
        while _is_view(node):
            node = node.all_input_nodes[0]
        known[node.name] = node
    return list(known.values())


def _reading(call: Call, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the nodes that read what a call reads, by name, one for each input of one module."""
    found = {}
    for place in call.inputs:
        users = list(_users(inputs[place]))
        if len({tuple(_stack(node)) for node in users}) == 1:
            found[users[0].name] = users[0]
    return found


def _users(node: Any) -> Iterator[Any]:
    """Yield the nodes that compute with the result of a node."""
    for user in node.users:
        if _is_view(user):
            yield from _users(user)
        elif user.op != "output":
            yield user


def _is_view(node: Any) -> bool:
    result = node.meta.get("example_value")
    return bool(getattr(result, "_is_view", bool)())


def _ends(nodes: Sequence[Any], place: Mapping[str, int]) -> list[Any]:
    """Return those of some nodes that none of the others depends on."""
    first = min(place[node.name] for node in nodes)
    ends, before = [], set()
    for node in sorted(nodes, key=lambda node: -place[node.name]):
        if node.name not in before:
            ends.append(node)
        rest = [node]
        while rest:
            given = [each for each in rest.pop().all_input_nodes if each.name not in before]
            rest += [each for each in given if place[each.name] >= first]
            before |= {each.name for each in given}
    return ends


def _shared(paths: Iterable[Path]) -> Path:
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in levels)


def _stack(node: Any) -> list[tuple[str, str]]:
    """Return Dynamo's name and the class of each module around a node, outermost first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [(name, getattr(kind, "__name__", str(kind))) for name, kind in stack]


def _root(nodes: Iterable[Any], frame: CodeType | None) -> tuple[str, str | None]:
    """Return the variable below which the modules are, and its path in the module that is called.

    The variable is a method's own object, else the only one, else nothing. The path is None of a
    function.
    """
    names = {name for node in nodes for name, _ in _stack(node)}
    if frame is not None and frame.co_qualname == _WRAPPER:
        called = _WRAPPED in names  # by the module that torch.compile returned
        return (_WRAPPED, "_orig_mod") if called else (f"{_WRAPPED}.__self__", "")
    found = {root[0] for name in names if (root := _ROOT.match(name))}
    for own in (_own(frame), _SELF):
        if own in found:
            return own, ""
    return (found.pop() if len(found) == 1 else ""), None


def _own(frame: CodeType | None) -> str:
    """Return the variable of a method's own object, whatever it is called; of a function `self`."""
    around = frame.co_qualname.rpartition(".")[0] if frame is not None else ""
    if frame is None or not frame.co_argcount or around.endswith("<locals>") or not around:
        return _SELF
    return f"L['{frame.co_varnames[0]}']"


def _layers(node: Any, root: tuple[str, str | None]) -> dict[str, str]:
    """Return path and class of each module around a node, outermost first."""
    variable, home = root
    found = {}
    for name, kind in _stack(node):
        inside = name[len(variable) :]
        if not variable or not name.startswith(variable) or "[" in inside:
            return {}
        if path := f"{home or ''}{_REPEATED.sub('', inside)}".removeprefix("."):
            found[path] = kind
    return found
