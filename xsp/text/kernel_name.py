"""Demangles and shortens the names of kernels and of the calls that launch them.

The C++ runtime, which every framework has loaded, demangles. Without a C++ runtime, names
stay mangled.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache, lru_cache
from typing import Any

_OPENING, _CLOSING = "<([{", ">)]}"
_DESCRIPTOR = ".kd"  # AMD's files call a kernel by its descriptor
# Ends of a call's name, for its version and for per-thread default streams.
_SUFFIX = re.compile(r"(_v\d+|R\d{4})?(_ptsz|_ptds|_spt)?(_v\d+)?$")
# CUTLASS has one function for all kernels; what that runs is its template argument.
_WRAPPED = re.compile(r"\bcutlass\w*::Kernel2?<(\w+)>\(")
_LENGTH = re.compile(r"[1-9]\d{0,3}")  # before each identifier of a mangled name


@lru_cache(maxsize=1 << 16)
def full_name(mangled: str) -> str:
    """Return a name demangled, with template arguments and parameters; others unchanged.

    >>> full_name("triton_poi_fused_relu_0"), full_name("Im3d2Col.kd")
    ('triton_poi_fused_relu_0', 'Im3d2Col')
    """
    mangled = mangled.removesuffix(_DESCRIPTOR)
    demangle = _demangler() if mangled.startswith("_Z") else None
    if demangle is None:
        return mangled
    status = ctypes.c_int()
    result = demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not result:
        return mangled
    try:
        return ctypes.string_at(result).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(result))


@lru_cache(maxsize=1 << 16)
def short_name(full: str) -> str:
    """Return the function's name without result, namespaces, template arguments, parameters.

    >>> short_name("void at::native::(anonymous namespace)::copy<4, f<int>>(int, float*)")
    'copy'
    """
    if wrapped := _WRAPPED.search(full):
        return wrapped[1]
    if full.startswith("_Z"):
        return _last_identifier(full)
    text = full.replace("(anonymous namespace)", "anonymous")
    kept, depth = [], 0
    for character in text:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    bare = "".join(kept)
    if "operator" in bare:
        return bare.strip() or full
    words = bare.replace(" const", "").split()
    return (words[-1].rsplit("::", 1)[-1] if words else "") or full


@lru_cache(maxsize=1 << 12)
def call_name(name: str) -> str:
    """Return the name of a call of CUDA or HIP as programs write the name.

    >>> call_name("cudaLaunchKernel_ptsz_v7000"), call_name("hipGetDevicePropertiesR0600")
    ('cudaLaunchKernel', 'hipGetDeviceProperties')
    """
    return _SUFFIX.sub("", name)


def _last_identifier(mangled: str) -> str:
    """Return the function's name in a name that could not be demangled, all of it if none is found.

    >>> _last_identifier("_ZN7ck_tile6kentryILi1EDF16bEvv")
    'kentry'
    """
    at, name = 2 + mangled.startswith("_ZN"), ""
    while length := _LENGTH.match(mangled, at):
        at = length.end() + int(length[0])
        name = mangled[length.end() : at]
    return name or mangled


@cache
def _demangler() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return function
