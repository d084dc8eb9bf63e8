"""Modules that torch.compile's Inductor generated in; their C++ kernels as operators out.

A generated module calls its kernels by global names of its own. While operators are recorded,
functions that mark the call for PyTorch's profiler stand in the kernels' place; code that is
compiled already needs no second compilation, and none of it is changed otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

_PREFIX = "cpp_"  # the names of all C++ kernels begin with it
_LOADED = "torch._inductor.runtime.compile_tasks."
_FUSED = re.compile(r"cpp_fused_(?P<operators>\w+)_\d+")

_Globals = dict[str, Any]


class GeneratedKernels:
    """Marks the calls of generated kernels for PyTorch's profiler between `start` and `stop`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[_Globals, str, Any, Any]] = []

    def start(self, *, detail: bool) -> None:
        """Put marking functions in the place of the kernels that are loaded now.

        Args:
            detail: Whether the profiler is told which tensors a kernel is given.
        """
        self._replaced = [
            (names, name, kernel, _marked(name, kernel, detail=detail))
            for names in _generated_modules()
            for name, kernel in list(names.items())
            if name.startswith(_PREFIX) and callable(kernel)
        ]
        for names, name, _, marked in self._replaced:
            names[name] = marked

    def stop(self) -> dict[str, str]:
        """Put the kernels back, and return what is known of the operators in each, by its name."""
        replaced, self._replaced = self._replaced, []
        for names, name, kernel, marked in replaced:
            if names.get(name) is marked:
                names[name] = kernel
        return dict(_sources(name for _, name, _, _ in replaced))


def source_operators(kernel: str) -> str | None:
    """Return the operators that a kernel was fused from, which its name lists in order.

    None where the name can be read in several ways, or in none.

    >>> source_operators("cpp_fused_add_native_layer_norm_2")
    'aten.add, aten.native_layer_norm'
    """
    fused = _FUSED.fullmatch(kernel)
    ways = _splits(fused["operators"], "") if fused else ()
    return ", ".join(f"aten.{name}" for name in ways[0]) if len(ways) == 1 else None


def _generated_modules() -> Iterator[_Globals]:
    """Yield the global names of every module that Inductor generated, without importing it."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    if cache is None:
        return
    kept = list(getattr(cache, "modules", ()))
    # With its caches off Inductor forgets a module that it made, but Python does not.
    loaded = [each for name, each in list(sys.modules.items()) if name.startswith(_LOADED)]
    for module in {id(each): each for each in kept + loaded}.values():
        yield vars(module)


def _marked(name: str, kernel: Callable[..., Any], *, detail: bool) -> Callable[..., Any]:
    import torch  # noqa: PLC0415

    mark = torch._C._profiler._RecordFunctionFast

    def call(*args: Any) -> Any:
        with mark(name):
            return kernel(*args)

    def call_in_detail(*args: Any) -> Any:
        tensors = tuple(given for given in args if isinstance(given, torch.Tensor))
        with mark(name, tensors):
            return kernel(*args)

    return call_in_detail if detail else call


def _sources(kernels: Iterable[str]) -> Iterator[tuple[str, str]]:
    for kernel in kernels:
        operators = source_operators(kernel)
        if operators is not None and _named_after_operators():
            yield kernel, operators


def _named_after_operators() -> bool:
    """Return whether Inductor is set to name kernels after operators, as it is by default."""
    cpp = getattr(sys.modules.get("torch._inductor.config"), "cpp", None)
    return getattr(cpp, "descriptive_names", None) == "original_aten"


@lru_cache(maxsize=1 << 14)
def _splits(names: str, before: str) -> tuple[tuple[str, ...], ...]:
    """Return up to two ways to read joined names of operators, sorted and each once."""
    if not names:
        return ((),)
    found: list[tuple[str, ...]] = []
    ends = [i for i, letter in enumerate(names) if letter == "_"] + [len(names)]
    for end in ends:
        name = names[:end]
        if name > before and name in _operators():
            rest = _splits(names[end + 1 :], name) if end < len(names) else ((),)
            found += [(name, *more) for more in rest]
    return tuple(found[:2])


@lru_cache(maxsize=1)
def _operators() -> frozenset[str]:
    """Return the names of PyTorch's own operators, without their namespace and overload."""
    import torch  # noqa: PLC0415

    names = (name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))
