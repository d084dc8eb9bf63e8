"""The place where calls of functions that JAX compiles are seen, and handed to a handler.

A jitted function is an object of a class that is written in C++ (`PjitFunction`), and names that
a program gave it before hold that same object. So the class gets another `__call__` while somebody
watches: Python allows that for this class, and puts its own slot in the place of JAX's. But a class
can say that its objects are called without `__call__` (the vectorcall protocol), and CPython before
3.12 keeps to that even then. That flag of the class is therefore cleared, and set again afterwards,
in the word of memory where CPython keeps it, once it was verified that it is there.

Flax's nnx and Equinox have classes of their own around jitted functions, and functions that were
compiled ahead of time are of another one: these are plain Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]

_JITTED = (("jaxlib._jax", "PjitFunction"), ("jaxlib.xla_extension", "PjitFunction"))
_AROUND = (
    ("jax._src.stages", "Compiled"),
    ("flax.nnx.transforms.compilation", "JitWrapped"),
    ("flax.nnx.transforms.compilation", "SimpleJitWrapped"),
    ("flax.nnx.transforms.compilation", "SimpleJitPartialWrapped"),
    ("equinox._jit", "_JitWrapper"),
)
MODULES = ("jax", *dict.fromkeys(module for module, _ in _AROUND))  # whose import adds classes

_VECTORCALL = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL
_FLAGS_AT = 168  # of a type object of CPython on 64-bit machines: tp_flags


def jitted_classes() -> list[type]:
    """Return the classes of objects that run compiled code, of libraries that are imported."""
    found = (_class(*at) for at in (*_JITTED, *_AROUND))
    return [cls for cls in found if cls is not None]


def is_jitted(function: Any) -> bool:
    """Return whether an object runs compiled code when it is called; imports nothing."""
    return isinstance(function, tuple(jitted_classes()))


class Door:
    """The calls of all objects that run compiled code, while it is open.

    Args:
        handler: Is given the original `__call__`, the object, and the arguments, and makes the
            call.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._originals: dict[type, Any] = {}
        self._cleared: list[type] = []

    def open(self) -> None:
        """Take the place of `__call__` in the classes; called again, in classes imported since.

        Raises:
            RuntimeError: This build of Python does not let calls of jitted functions be seen.
        """
        for cls in jitted_classes():
            if cls not in self._originals and "__call__" in cls.__dict__:
                self._place(cls)

    def close(self) -> None:
        """Put the original functions back."""
        while self._originals:
            cls, original = self._originals.popitem()
            type.__setattr__(cls, "__call__", original)
        while self._cleared:
            _set_vectorcall(self._cleared.pop(), on=True)

    def _place(self, cls: type) -> None:
        original, handler = cls.__dict__["__call__"], self._handler

        def stand_in(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return handler(original, self, args, kwargs)

        vectorcall = bool(cls.__flags__ & _VECTORCALL)
        old = sys.version_info < (3, 12)  # newer ones turn that off by themselves
        known = vectorcall and old and _flags_are_known(cls)
        if vectorcall and old and not known:
            raise RuntimeError(
                "calls of jitted functions cannot be seen on this build of Python; mark "
                "steps with prof.step(), or use xsp.measure"
            )
        self._originals[cls] = original
        type.__setattr__(cls, "__call__", stand_in)
        if known:
            _set_vectorcall(cls, on=False)
            self._cleared.append(cls)


def _class(module: str, name: str) -> type | None:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _flags_are_known(cls: type) -> bool:
    return sys.implementation.name == "cpython" and all(
        _word(each).value == each.__flags__ for each in (int, dict, type, cls)
    )


def _set_vectorcall(cls: type, *, on: bool) -> None:
    word = _word(cls)
    word.value = word.value | _VECTORCALL if on else word.value & ~_VECTORCALL


def _word(cls: type) -> ctypes.c_ulong:
    return ctypes.c_ulong.from_address(id(cls) + _FLAGS_AT)
