"""A loaded library that holds a oneDNN without its C interface in; the mode's variables out.

TensorFlow and JAX link oneDNN and leave out `dnnl_set_verbose`, which they never call. Their
symbol tables still tell where the two variables lie that this function would set: the mode, and
whether lines have timestamps, each with a flag that says that the environment has been asked.
What the mode's bits mean has been the same from oneDNN 3.2 to 3.13 (src/common/verbose.hpp);
in other versions nothing is set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from xsp_levels.native.symbol import Local, local

_ERROR, _CREATION, _EXECUTION = 1 << 2, 1 << 5, 1 << 7  # bits of the mode
_FIRST, _LAST = (3, 2), (3, 13)  # versions whose bits these are
_MODE = ("_ZN4dnnl4implL7verboseE.0", "_ZN4dnnl4implL7verboseE.1")
_STAMP = ("_ZN4dnnl4implL17verbose_timestampE.0", "_ZN4dnnl4implL17verbose_timestampE.1")
_VERSION = "dnnl_version"
_SIZES = {_MODE[0]: 4, _MODE[1]: 1, _STAMP[0]: 1, _STAMP[1]: 1}  # bytes


class _Version(ctypes.Structure):
    """The beginning of what `dnnl_version` returns."""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


@dataclass(frozen=True, slots=True)
class HiddenSetting:
    """The verbose mode of a copy of oneDNN, as variables of the library that holds the copy.

    Attributes:
        version: Version of the copy, such as `3.7.3`.
        set_verbose: Sets the mode (0: as it was before it was first set; 2: creation and
            execution, with timestamps); returns True.
    """

    version: str
    set_verbose: Callable[[int], bool]


def hidden_setting(path: str) -> HiddenSetting | None:
    """Return the setting of the copy in a loaded library; None if it is not there or not known."""
    found = local(path, (*_SIZES, _VERSION))
    if any(name not in found or found[name].size != size for name, size in _SIZES.items()):
        return None
    version = _version(found.get(_VERSION))
    if version is None or not _FIRST <= version[:2] <= _LAST:
        return None
    variables = [_variable(found[name]) for name in (*_MODE, *_STAMP)]
    if any(variable.value > 1 for variable in variables[1:]):  # flags, if these are they
        return None
    return HiddenSetting(".".join(map(str, version)), _switch(variables))


def has_hidden_setting(path: str) -> bool:
    """Tell whether the setting of the copy in a file could be found were the file loaded."""
    found = local(path, _SIZES, loaded=False)
    return all(name in found and found[name].size == size for name, size in _SIZES.items())


def _version(function: Local | None) -> tuple[int, int, int] | None:
    if function is None:
        return None
    told = ctypes.CFUNCTYPE(ctypes.POINTER(_Version))(function.address)().contents
    return told.major, told.minor, told.patch


def _variable(place: Local) -> ctypes.c_uint32 | ctypes.c_uint8:
    kind = ctypes.c_uint32 if place.size == 4 else ctypes.c_uint8
    return kind.from_address(place.address)


def _switch(variables: list[ctypes.c_uint32 | ctypes.c_uint8]) -> Callable[[int], bool]:
    before: list[int] = []

    def put(values: Iterable[int]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value = value

    def set_verbose(level: int) -> bool:
        if level and not before:
            before.extend(variable.value for variable in variables)
            put((before[0] | _ERROR | _CREATION | _EXECUTION, 1, 1, 1))
        elif not level and before:
            put(before)
            before.clear()
        return True

    return set_verbose
