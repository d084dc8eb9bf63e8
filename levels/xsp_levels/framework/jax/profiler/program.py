"""Describes the operators of a program that XLA compiled, and the layers around them."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile
from operator import or_

from xsp.xplane import Frame, Instruction, Module, Shape, operands_of
from xsp_levels.framework.hlo_work import flops, main_flops
from xsp_levels.framework.jax.profiler.scope import BACKWARD, Scope, parse

Path = tuple[str, ...]

OPTIMIZER = "optimizer"  # the layer of what updates weights

_NO_WORK = ("bitcast", "get-tuple-element", "tuple")  # nothing runs for these
_KEYS = re.compile(r"\['([^']+)'\]|\.([A-Za-z_]\w*)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a compiled program.

    Attributes:
        opcode: What XLA calls it: `fusion`, `convolution`.
        primitive: Primitive of JAX that it was made for; of a fusion that of its last part.
        layers: Layers around it, outermost first: the jitted function, then its modules or scopes.
        backward: Whether it is of a backward pass.
        primitives: Primitives that were fused into it, each once.
        fused_layers: Other layers whose operators were fused into it, as dotted paths.
        inputs: Arrays that it takes.
        outputs: Arrays that it makes.
        users: Names of the operators that take its result.
        flops: Floating-point operations, a multiplication and an addition being two; None: unknown.
        early: Whether it prepares weights of its layer, before anything that the layer is given is
            there.
        caller: The user's function, file and line that it was traced in; empty where unknown.
    """

    opcode: str
    primitive: str = ""
    layers: Path = ()
    backward: bool = False
    primitives: tuple[str, ...] = ()
    fused_layers: tuple[str, ...] = ()
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    users: tuple[str, ...] = ()
    flops: int | None = None
    early: bool = False
    caller: tuple[str, str, int] = ("", "", 0)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a compiled program.

    Attributes:
        cls: Class of the module; empty for a plain scope.
        path: Dotted path from the root module, empty for the root itself.
        parameter_bytes: Size of its parameters, with those of the modules in it; None: unknown.
    """

    cls: str
    path: str
    parameter_bytes: int | None


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program.

    Attributes:
        number: XLA's number of it.
        name: XLA's name of it: `jit_f`.
        own: Whether it is one of JAX's own functions, as each operator of eager JAX is.
        operators: Its operators by name.
        layers: Its layers, by their paths with a slash between the parts.
        operands: Names of the instructions whose results each instruction takes.
    """

    number: int
    name: str
    own: bool = False
    operators: Mapping[str, Operator] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)
    operands: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """Scope of an instruction, with the layers around it and their classes."""

    scope: Scope
    path: Path
    classes: tuple[str, ...]


def describe(
    number: int, module: Module, is_own: Callable[[str], bool], libraries: str = ""
) -> Program:
    """Return the operators and layers of a compiled program.

    Args:
        number: XLA's number of it.
        module: The program.
        is_own: Tells whether a function is one of JAX's own, such as `relu`.
        libraries: Folder of the installed libraries, whose lines are not the user's.
    """
    function = module.name.removeprefix("jit_")
    own = is_own(function)
    places = _places(module, "" if own else function, is_own, libraries)
    update = _update(module, places)
    places |= {name: _in_optimizer(places[name]) for name in update}
    operators = {}
    for key, around in module.computations.items():
        users = _users(around)
        early = _early(module, around, places) if key == module.entry else frozenset()
        for each in around.values():
            known = _operator(module, around, each, places, libraries)
            is_early = each.name in early
            operators[each.name] = replace(known, users=users[each.name], early=is_early)
    layers = _layers(module, places.values())
    return Program(number, module.name, own, operators, layers, operands_of(module))


def _places(
    module: Module, function: str, is_own: Callable[[str], bool], libraries: str
) -> dict[str, _Place]:
    """Return where each instruction was written, by the instruction's name."""
    found = {}
    for around in module.computations.values():
        for each in around.values():
            scope = parse(each.op_name, is_own)
            stack = module.stack(each.frame)
            calls = module_calls(stack, scope.function or function, libraries)
            found[each.name] = _place(scope, calls, function)
    return found


def _place(scope: Scope, calls: tuple[ModuleCall, ...], function: str) -> _Place:
    """Return names and classes of the layers around an operator.

    Flax's linen opens a scope for each module, so that scopes and calls are pairs. Where calls
    outnumber the scopes and account for all of them, the calls are the layers (nnx, Equinox);
    else the scopes are, without classes.
    """
    root = (scope.function or function,) if function else ()
    # The class that the name of a scope tells, as Equinox's `eqx.nn.Linear` does.
    names, classes = (
        scope.layers,
        tuple(
            (name.rpartition(".")[2] if name.startswith("eqx.nn.") else "") for name in scope.layers
        ),
    )
    if len(calls) == len(names):
        classes = tuple(call.cls for call in calls)
        names = tuple(
            ((c.name or c.cls) if n.startswith("eqx.nn.") else n)
            for n, c in zip(names, calls, strict=True)
        )
    elif len(calls) > len(names) and _accounts(calls, names):
        names = tuple(call.name or call.cls for call in calls)
        classes = tuple(call.cls for call in calls)
    return _Place(scope, (*root, *names), (*("" for _ in root), *classes))


def _accounts(calls: tuple[ModuleCall, ...], names: Path) -> bool:
    """Return whether every scope is that of one of the calls, in their order."""
    rest = iter(call.cls for call in calls)
    return all(any(cls == name.rpartition(".")[2] for cls in rest) for name in names)


def _operator(
    module: Module,
    around: Mapping[int, Instruction],
    each: Instruction,
    places: Mapping[str, _Place],
    libraries: str,
) -> Operator:
    place = places[each.name]
    fused = [places[part.name] for part in _fused(module, each) if part.op_name]
    # The layers around all products and convolutions of a fusion; () if it has but one.
    # A fusion that does the work of several layers is of none of them.
    paths = [
        places[part.name].path
        for number in (each.called if each.opcode == "fusion" else ())
        for part in module.computations.get(number, {}).values()
        if part.opcode in ("convolution", "dot")
    ]
    shared = shared_path(paths) if len(set(paths)) > 1 else ()
    path = shared or place.path
    others = (".".join(part.path[1:]) for part in fused if part.path != path)
    line = user_line(module.stack(each.frame), libraries)
    primitives = (part.scope.primitive for part in fused)
    return Operator(
        opcode=each.opcode,
        primitive=place.scope.primitive,
        layers=path,
        backward=place.scope.backward,
        primitives=tuple(dict.fromkeys(filter(None, primitives))),
        fused_layers=tuple(dict.fromkeys(filter(None, others))),
        inputs=tuple(shape for o in each.operands if o in around for shape in around[o].shapes),
        outputs=each.shapes,
        flops=flops(module, around, each),
        caller=(line.function, line.file, line.line) if line is not None else ("", "", 0),
    )


def _early(
    module: Module, around: Mapping[int, Instruction], places: Mapping[str, _Place]
) -> frozenset[str]:
    """Return the operators that take nothing of other layers, in layers that are given such.

    These compute from weights alone, such as the scale of a normalization, and XLA runs them long
    before their layer, when the program begins. What follows a product or a convolution is none.
    """
    numbers: dict[tuple[Path, bool], int] = {}

    def bits(each: Instruction) -> int:
        parts = [each, *_fused(module, each)] if each.opcode not in _NO_WORK else []
        found = {places[part.name] for part in parts if part.op_name}
        keys = {(place.path, place.scope.backward) for place in found}
        return sum(1 << numbers.setdefault(key, len(numbers)) for key in keys)

    seen: dict[int, int] = {}  # bits of the layers whose operators each instruction depends on
    after: set[int] = set()  # what follows a product or a convolution
    fed, alone = 0, []
    for number, each in around.items():
        given = reduce(or_, (seen.get(operand, 0) for operand in each.operands), 0)
        own = 0 if each.opcode in ("parameter", "constant") else bits(each)
        seen[number] = given | own
        if main_flops(module, around, each) or not after.isdisjoint(each.operands):
            after.add(number)
        if given & ~own:
            fed |= own
        elif own and number not in after:
            alone.append((each.name, own))
    return frozenset(name for name, own in alone if not own & ~fed)


def _update(module: Module, places: Mapping[str, _Place]) -> list[str]:
    """Return the instructions that take gradients, and are no part of what has a gradient.

    These update weights, in a training step that is one jitted function.
    """
    around = module.computations.get(module.entry, {})
    after: set[int] = set()
    found = []
    for number, each in around.items():
        scopes = [places[part.name].scope for part in (each, *_fused(module, each))]
        if any(scope.backward for scope in scopes) or not after.isdisjoint(each.operands):
            after.add(number)
            own = scopes[0]
            if each.op_name and not (own.backward or own.derived):
                found.append(each.name)
    return found


def _in_optimizer(place: _Place) -> _Place:
    inside = OPTIMIZER in place.path or place.path[1:]
    return place if inside else replace(place, path=(*place.path, OPTIMIZER), classes=("", ""))


def _users(around: Mapping[int, Instruction]) -> dict[str, tuple[str, ...]]:
    """Return the operators that take the result of each instruction of a computation."""
    taking: dict[int, list[int]] = {}
    for number, each in around.items():
        for operand in each.operands:
            taking.setdefault(operand, []).append(number)

    def users(number: int) -> Iterable[str]:
        for user in taking.get(number, ()):
            if around[user].opcode in _NO_WORK:
                yield from users(user)
            else:
                yield around[user].name

    return {each.name: tuple(dict.fromkeys(users(n))) for n, each in around.items()}


def _fused(module: Module, each: Instruction) -> Iterable[Instruction]:
    """Yield the instructions that were fused into one, but those that compute nothing."""
    if each.opcode != "fusion":
        return
    for number in each.called:
        for part in module.computations.get(number, {}).values():
            if part.opcode not in ("parameter", "constant", "broadcast", "bitcast"):
                yield part


def _layers(module: Module, places: Iterable[_Place]) -> dict[str, Layer]:
    """Return the layers, with class, path from the root module, and size of the parameters."""
    classes: dict[Path, Counter[str]] = {}
    for place in places:
        for depth in range(1, len(place.path) + 1):
            counted = classes.setdefault(place.path[:depth], Counter())
            counted[place.classes[depth - 1]] += 1
    parameters, root = _parameters(module), _root(classes)
    holder = _holder(parameters, [path[len(root) :] for path in classes])
    return {
        "/".join(path): _layer(path, root, _likely_class(counted), (parameters, holder))
        for path, counted in classes.items()
    }


def _root(classes: Mapping[Path, Counter[str]]) -> Path:
    """Return the path of the root module: the one layer right in the function, if it is one."""
    tops = [path for path in classes if len(path) == 2 and path[1] != OPTIMIZER]
    only = tops[0] if len(tops) == 1 else ()
    return only if only and _likely_class(classes[only]) else tops[0][:1] if tops else ()


def _likely_class(counted: Counter[str]) -> str:
    return next((cls for cls, _ in counted.most_common() if cls), "")


def _layer(
    path: Path, root: Path, cls: str, known: tuple[Mapping[Path, int], Path | None]
) -> Layer:
    inside = path[len(root) :]
    return Layer(cls, ".".join(inside), _parameter_bytes(inside, *known))


def _parameter_bytes(
    inside: Path, parameters: Mapping[Path, int], holder: Path | None
) -> int | None:
    """Return the size of the parameters below a path; None where it cannot be known."""
    if holder is None:
        return None
    within = (*holder, *inside)
    sizes = [size for keys, size in parameters.items() if keys[: len(within)] == within]
    return sum(sizes) if sizes else None


def _holder(parameters: Mapping[Path, int], layers: Iterable[Path]) -> Path | None:
    """Return the keys by which a program is given its weights: before those of its layers.

    An optimizer's state has the keys of the layers too, but is given later.
    """
    names = {path[:1] for path in layers if path}
    for keys in parameters:
        for at in range(len(keys) - 1):
            if keys[at : at + 1] in names:
                return keys[:at]
    return None


def _parameters(module: Module) -> dict[Path, int]:
    """Return the sizes of the arrays that a program is given in containers, by their keys."""
    entry = module.computations.get(module.entry, {}).values()
    given = sorted((e for e in entry if e.opcode == "parameter"), key=lambda e: e.parameter)
    keyed = ((tuple(map("".join, _KEYS.findall(e.op_name))), e.shapes) for e in given)
    return {keys: sum(shape.nbytes or 0 for shape in shapes) for keys, shapes in keyed if keys}


def shared_path(paths: Iterable[Path]) -> Path:
    """Return the layers around all of some paths.

    >>> shared_path([("net", "tower", "first"), ("net", "tower", "second")])
    ('net', 'tower')
    """
    alike = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in alike)


def phase_of(operator: Operator) -> str | None:
    """Return the phase of an operator, as its row has it."""
    return BACKWARD if operator.backward else None


# Finds calls of modules, as layers, on the stack of calls in which an operator was traced.

_CALL = re.compile(r"(?:.*\.)?(\w+)\.__call__$")
_ATTRIBUTE = re.compile(r"\s*(?!jax\.|nnx\.|nn\.|eqx\.)\w+((?:\.\w+)+)\(")
# In the folder of libraries: what lies between a program and its modules.
_MACHINERY = (
    "jax/",
    "jaxlib/",
    "flax/nnx/transforms/",
    "flax/nnx/pytreelib.py",
    "equinox/_",
    "equinox/internal/",
    "keras/",
)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module on a stack.

    Attributes:
        cls: Class of the module.
        name: Attribute by which it was called, as in `self.l1(x)`; empty where it was otherwise.
    """

    cls: str
    name: str


def module_calls(stack: Sequence[Frame], function: str, libraries: str) -> tuple[ModuleCall, ...]:
    """Return the calls of modules that were made while a function was traced.

    Args:
        stack: The frames, outermost first.
        function: The jitted function; frames before its own were there before.
        libraries: Folder of the installed libraries.
    """
    # The frames in a function: those after the last that has its name.
    names = [frame.function.rpartition(".")[2].strip("<>") for frame in stack]
    wanted = function.strip("<>_")
    at = max((n for n, name in enumerate(names) if name.strip("_") == wanted), default=-1)
    inside = stack[max(at, 0) :]
    found = []
    for number, frame in enumerate(inside):
        called = _CALL.match(frame.function)
        if called is None or _is_machinery(frame.file, libraries):
            continue
        # The frame that made a call: the innermost that is of no library's machinery.
        before = inside[:number]
        calling = (frame for frame in reversed(before) if not _is_machinery(frame.file, libraries))
        caller = next(calling, None)
        place = (caller.file, caller.line, caller.column) if caller is not None else ("", 0, 0)
        found.append(ModuleCall(called[1].lstrip("_"), attribute_at(*place)))
    return tuple(found)


def user_line(stack: Sequence[Frame], libraries: str) -> Frame | None:
    """Return the innermost frame of the user's own code.

    Args:
        stack: The frames, outermost first.
        libraries: Folder of the libraries, whose functions are not the user's.
    """
    own = (frame for frame in reversed(stack) if not _of_libraries(frame.file, libraries))
    return next(own, None)


def attribute_at(file: str, line: int, column: int) -> str:
    """Return the attribute that is called at a place of a file; empty where none is named there."""
    text = linecache.getline(file, line) if line else ""
    # Columns are counted in bytes of UTF-8.
    found = _ATTRIBUTE.match(text.encode()[column:].decode(errors="ignore"))
    return found[1].removeprefix(".") if found else ""


def _is_machinery(file: str, libraries: str) -> bool:
    within = file.removeprefix(libraries)
    return _of_libraries(file, libraries) and within.startswith(_MACHINERY)


def _of_libraries(file: str, libraries: str) -> bool:
    return bool(libraries) and file.startswith(libraries)
