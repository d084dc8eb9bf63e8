"""Translates names of element types from PyTorch's profiler to PyTorch's own names."""

from __future__ import annotations

# Of element types that the profiler names otherwise.
_NAMES = {
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}


def element_type(name: str) -> str:
    """Return PyTorch's name of an element type; other names (`Scalar`) are returned unchanged.

    >>> element_type("c10::BFloat16"), element_type("long int"), element_type("c10::Float8_e5m2")
    ('bfloat16', 'int64', 'float8_e5m2')
    """
    if name.startswith("c10::Float"):
        return name.removeprefix("c10::").lower()
    return _NAMES.get(name, name)
