"""The stack of calls in which an operator was traced in; the modules' calls in it, as layers, out.

Flax's nnx and Equinox open no scope around each module. But JAX keeps for each operator where it
was traced, and there the calls of modules stand: `MLP.__call__`, and in it `Linear.__call__`,
which the line `self.l1(x)` made.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass

from xsp_levels.framework.hlo import Frame

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
    inside = _inside(stack, function)
    found = []
    for number, frame in enumerate(inside):
        called = _CALL.match(frame.function)
        if called is None or _is_machinery(frame.file, libraries):
            continue
        caller = _caller(inside[:number], libraries)
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


def _inside(stack: Sequence[Frame], function: str) -> Sequence[Frame]:
    """Return the frames in a function: those after the last that has its name."""
    names = [frame.function.rpartition(".")[2].strip("<>") for frame in stack]
    wanted = function.strip("<>_")
    at = max((n for n, name in enumerate(names) if name.strip("_") == wanted), default=-1)
    return stack[max(at, 0) :]


def _caller(before: Sequence[Frame], libraries: str) -> Frame | None:
    """Return the frame that made a call: the innermost that is of no library's machinery."""
    calling = (frame for frame in reversed(before) if not _is_machinery(frame.file, libraries))
    return next(calling, None)


def _is_machinery(file: str, libraries: str) -> bool:
    within = file.removeprefix(libraries)
    return _of_libraries(file, libraries) and within.startswith(_MACHINERY)


def _of_libraries(file: str, libraries: str) -> bool:
    return bool(libraries) and file.startswith(libraries)
