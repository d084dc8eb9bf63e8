"""Parses the name that JAX gives an operator of XLA into layers, primitive and pass.

A name is a path: `jit(step)/transpose(jvp(CNN))/Block_0/Conv_0/conv_general_dilated`. Its parts
are functions that were jitted, transformations of JAX, scopes of `jax.named_scope` (which Flax
opens around its modules, and Equinox around some of its), and the primitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

BACKWARD = "backward"
GRADIENT = "transpose(jvp("  # in the names of operators that compute gradients

_TRANSFORMED = re.compile(r"([\w.]+)\((.*)\)$")
# Parts that JAX writes by itself for control flow and derivatives: no layer of the program.
_OWN_PARTS = re.compile(
    r"(while|body|cond|scan|closed_call|core_call|pjit|checkpoint|remat\d?|shard_map|"
    r"rematted_computation|custom_(jvp|vjp)_call(_jaxpr)?|custom_lin|branch_\d+_fun|main)$"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Function, layers, primitive and pass in the name of an operator.

    Attributes:
        function: The jitted function that the program was compiled of; empty where not named.
        layers: Scopes and jitted functions in it that the operator is in, outermost first.
        primitive: Primitive of JAX that the operator was made for; empty where not named.
        backward: Whether the operator is of a derivative's backward pass.
        derived: Whether the operator is of what a derivative was taken of.
    """

    function: str = ""
    layers: tuple[str, ...] = ()
    primitive: str = ""
    backward: bool = False
    derived: bool = False


def parse(op_name: str, is_own: Callable[[str], bool] = lambda _: False) -> Scope:
    """Return the parts of an operator's name; of several joined names, those of the first.

    Args:
        op_name: The name.
        is_own: Tells whether a function is one of JAX's own, such as `relu`: these are no layers.

    >>> parse("jit(step)/transpose(jvp(CNN))/Conv_0/jit(relu)/max", {"relu"}.__contains__)
    Scope(function='step', layers=('CNN', 'Conv_0'), primitive='max', backward=True, derived=True)
    """
    parts = _parts(op_name.partition(";")[0])
    if not parts or (len(parts) == 1 and not parts[0].startswith("jit(")):
        return Scope(primitive=parts[0] if parts else "")
    function, layers, backward, derived = "", [], False, False
    *around, primitive = parts if _TRANSFORMED.match(parts[-1]) is None else [*parts, ""]
    for number, part in enumerate(around):
        transformations, name = _unwrapped(part)
        backward = backward or "transpose" in transformations
        derived = derived or "jvp" in transformations
        if "jit" in transformations and number == 0:
            function = name
        elif (
            name and not _OWN_PARTS.match(name) and not ("jit" in transformations and is_own(name))
        ):
            layers.append(name)
    return Scope(function, tuple(layers), primitive, backward, derived)


def _parts(path: str) -> list[str]:
    """Return the parts of a path; a slash in parentheses divides nothing.

    >>> _parts("jit(f)/vmap(a/b)/add")
    ['jit(f)', 'vmap(a/b)', 'add']
    """
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(path):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(path[begin:at])
            begin = at + 1
    return [part for part in (*parts, path[begin:]) if part]


def _unwrapped(part: str) -> tuple[set[str], str]:
    """Return the transformations around a scope, and the scope.

    >>> sorted(_unwrapped("transpose(jvp(CNN))")[0]), _unwrapped("jvp()")[1]
    (['jvp', 'transpose'], '')
    """
    transformations: set[str] = set()
    while found := _TRANSFORMED.match(part):
        transformations.add(found[1])
        part = found[2]
    return transformations, part
