"""Names of kernels as tools print them in; names that are the same in all tools out.

Tools differ in how they demangle (`float const*`, `const float *`, `T1`), and in what they leave
out (result, namespaces, template arguments, parameters).
"""

from __future__ import annotations

from functools import lru_cache

_OPENING, _CLOSING = "<([{", ">)]}"
_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}")


@lru_cache(maxsize=1 << 16)
def short_name(full: str) -> str:
    """Return the function's name without result, namespaces, template arguments, parameters.

    >>> short_name("void at::native::(anonymous namespace)::copy<4, f<int>>(int, float*)")
    'copy'
    >>> short_name("void at::native::<unnamed>::copy<(int)4, f<T1>>(T1, T2 *)")
    'copy'
    >>> short_name("ampere_sgemm_32x32")
    'ampere_sgemm_32x32'
    """
    for spelling in _ANONYMOUS:
        full = full.replace(spelling, "anonymous")
    kept, depth = [], 0
    for character in full:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    words = "".join(kept).replace(" const", "").split()
    return (words[-1].rsplit("::", 1)[-1] if words else "") or full
