"""Counts operations and bytes of a oneDNN primitive from the fields of its line. Pure.

Operations are counted as PyTorch's `torch.utils.flop_counter` does: a multiplication and an
addition are two operations, also where a convolution's kernel lies over padding (oneDNN's
own benchdnn leaves those out: tests/benchdnn/*/*.hpp, `count_ops`); biases and fused
operations (post-ops) are not counted. Bytes are those of the tensors, each read or written
once, without padding: the least that has to be moved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Bytes of oneDNN's data types (dnnl_types.h).
_BYTES = {
    "f64": 8.0,
    "s64": 8.0,
    "f32": 4.0,
    "s32": 4.0,
    "tf32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "s8": 1.0,
    "u8": 1.0,
    "f8_e5m2": 1.0,
    "f8_e4m3": 1.0,
    "e8m0": 1.0,
    "boolean": 1.0,
    "s4": 0.5,
    "u4": 0.5,
    "f4_e2m1": 0.5,
    "f4_e3m0": 0.5,
}
_TYPES = "|".join(sorted(_BYTES, key=len, reverse=True))
# `src:f32:a:blocked:acdb::f0` from 3.6 on, `src_f32:a:blocked:acdb::f0` before.
_TENSOR = re.compile(rf"^(?P<name>\w+?)[_:](?P<type>{_TYPES}|undef):")
_SIZES = re.compile(r"([a-z]+)(\d+)")
_GATES = {"vanilla_rnn": 1, "vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3}
_GATES |= {"vanilla_augru": 3, "lbr_augru": 3}
_SPATIAL = "dhw"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one execution of a primitive.

    Attributes:
        flops: Floating-point (or integer) operations; None where no count is agreed on.
        tensor_bytes: Bytes of all the primitive's tensors; None if a shape is unknown.
    """

    flops: int | None = None
    tensor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Operations, and the number of elements of each tensor, by the tensor's name."""

    flops: int | None
    elements: Mapping[str, int]


def work(
    primitive: str, problem: str, tensors: str, auxiliary: str = "", propagation: str = ""
) -> Work:
    """Return the work of one execution; an unknown number is None, never 0.

    Args:
        primitive: Kind of the primitive, such as `convolution`.
        problem: Problem descriptor, in benchdnn's format.
        tensors: Memory descriptors, separated by blanks.
        auxiliary: Algorithm and further settings.
        propagation: Kind of propagation, such as `forward_inference` or `backward`.

    >>> work("matmul", "8x16:16x4", "src:f32::blocked:ab::f0 wei:f32::blocked:ab::f0 "
    ...      "dst:f32::blocked:ab::f0")
    Work(flops=1024, tensor_bytes=896)
    """
    shape_of = _SHAPES.get(primitive)
    if shape_of is None:
        return Work()
    try:
        shape = shape_of(problem, auxiliary)
    except (ValueError, KeyError, IndexError):  # runtime dimensions (`*`), a newer format
        return Work()
    # Other backward passes are two primitives, for data and weights; an RNN's is one.
    times = 2 if (primitive, propagation) == ("rnn", "backward") else 1
    flops = None if shape.flops is None else times * shape.flops
    return Work(flops, _tensor_bytes(tensors, shape.elements))


def _tensor_bytes(tensors: str, elements: Mapping[str, int]) -> int | None:
    total = 0.0
    counted: dict[str, int] = {}
    for tensor in tensors.split():
        match = _TENSOR.match(tensor)
        if match is None:
            return None
        name, dtype = match["name"], match["type"]
        if dtype == "undef":  # the tensor is absent, such as a bias
            continue
        counted[name] = counted.get(name, 0) + 1
        size = elements.get(f"{name}{counted[name] - 1}", elements.get(name))
        if size is None:
            return None
        total += size * _BYTES[dtype]
    return math.ceil(total) if counted else None


def _sizes(problem: str) -> dict[str, int]:
    """Return the numbers of a descriptor such as `mb8_ic64oc64_ih56oh56kh3`."""
    return {name: int(number) for name, number in _SIZES.findall(problem)}


def _space(sizes: Mapping[str, int], prefix: str) -> int:
    return math.prod(sizes.get(f"{prefix}{axis}", 1) for axis in _SPATIAL)


def _dims(text: str) -> list[int]:
    return [int(number) for number in text.split("x")]


def _convolution(problem: str, auxiliary: str) -> _Shape:
    """2 · mb · oc · output · (ic / g) · kernel: flop_counter.conv_flop_count."""
    n = _sizes(problem)
    groups, kernel = n.get("g", 1), _space(n, "k")
    weights = n["oc"] * n["ic"] // groups * kernel
    flops = 2 * n["mb"] * _space(n, "o") * weights
    return _Shape(flops, _convolved(n, weights))


def _deconvolution(problem: str, auxiliary: str) -> _Shape:
    """2 · mb · ic · input · (oc / g) · kernel: flop_counter.conv_flop_count, transposed."""
    n = _sizes(problem)
    weights = n["oc"] * n["ic"] // n.get("g", 1) * _space(n, "k")
    flops = 2 * n["mb"] * _space(n, "i") * weights
    return _Shape(flops, _convolved(n, weights))


def _convolved(n: Mapping[str, int], weights: int) -> dict[str, int]:
    elements = {
        "src": n["mb"] * n["ic"] * _space(n, "i"),
        "wei": weights,
        "bia": n["oc"],
        "dst": n["mb"] * n["oc"] * _space(n, "o"),
    }
    return elements | {f"diff_{name}": size for name, size in elements.items()}


def _matmul(problem: str, auxiliary: str) -> _Shape:
    """2 · batch · m · n · k: flop_counter.bmm_flop, batches broadcast (oneDNN, "MatMul")."""
    left, right = (_dims(part) for part in problem.split(":")[:2])
    batch = math.prod(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    rows, inner, columns = left[-2], left[-1], right[-1]
    elements = {
        "src": math.prod(left),
        "src_a": math.prod(left),
        "wei": math.prod(right),
        "src_b": math.prod(right),
        "bia": columns,  # a mask may say otherwise; commonly one number per column
        "dst": batch * rows * columns,
    }
    return _Shape(2 * batch * rows * inner * columns, elements)


def _inner_product(problem: str, auxiliary: str) -> _Shape:
    """2 · mb · oc · ic · input: a matrix product over all elements of an image."""
    n = _sizes(problem)
    inner = n["ic"] * _space(n, "i")
    elements = {
        "src": n["mb"] * inner,
        "wei": n["oc"] * inner,
        "bia": n["oc"],
        "dst": n["mb"] * n["oc"],
    }
    elements |= {f"diff_{name}": size for name, size in elements.items()}
    return _Shape(2 * n["mb"] * n["oc"] * inner, elements)


def _rnn(problem: str, auxiliary: str) -> _Shape:
    """2 · layers · directions · steps · mb · gates · dhc · (slc + sic): two matrix products.

    Not counted with a projection, a third product whose sizes only some versions tell.
    """
    n = _sizes(problem)
    if n.get("dic", n["dhc"]) != n["dhc"]:
        return _Shape(None, {})
    cell = re.search(r"alg:(\w+)", auxiliary)
    both = 2 if "bidirectional" in auxiliary else 1
    gates = _GATES[cell[1] if cell else ""]
    products = n["mb"] * gates * n["dhc"] * (n["slc"] + n["sic"])
    return _Shape(2 * n["l"] * both * n["t"] * products, {})


def _pooling(problem: str, auxiliary: str) -> _Shape:
    """One operation per element under the kernel, for every output."""
    n = _sizes(problem)
    source, result = (n["mb"] * n["ic"] * _space(n, side) for side in "io")
    elements = {"src": source, "dst": result, "ws": result}
    elements |= {"diff_src": source, "diff_dst": result}
    return _Shape(result * _space(n, "k"), elements)


def _binary(problem: str, auxiliary: str) -> _Shape:
    """One operation per element of the result."""
    left, right = (_dims(part) for part in problem.split(":")[:2])
    result = math.prod(max(pair) for pair in zip(left, right, strict=True))
    sources = {"src0": math.prod(left), "src1": math.prod(right)}
    return _Shape(result, sources | {"dst": result})


def _sum(problem: str, auxiliary: str) -> _Shape:
    """Not counted: the problem does not tell the number of summands, only the tensors do."""
    size = math.prod(_dims(problem))
    return _Shape(None, {"src": size, "dst": size})


def _moved(problem: str, auxiliary: str) -> _Shape:
    """Nothing is computed: reorder, shuffle."""
    size = math.prod(_dims(problem))
    return _Shape(0, dict.fromkeys(("src", "dst", "data", "diff"), size))


def _concat(problem: str, auxiliary: str) -> _Shape:
    """Nothing is computed; each source has its own shape."""
    sizes = [math.prod(_dims(part)) for part in problem.split(":")]
    return _Shape(0, {f"src{at}": size for at, size in enumerate(sizes)} | {"dst": sum(sizes)})


def _elementwise(problem: str, auxiliary: str) -> _Shape:
    """Not counted: there is no agreed cost of a logistic or a softmax per element."""
    size = math.prod(_dims(problem)) if "x" in problem[1:] else _described(problem)
    names = ("src", "dst", "data", "diff", "diff_src", "diff_dst")
    return _Shape(None, dict.fromkeys(names, size))


def _described(problem: str) -> int:
    """Return the elements of `mb8ic64ih56iw56`, or of a vector, `16` or `x16`."""
    n = _sizes(problem)
    if "mb" in n:
        return n["mb"] * n["ic"] * _space(n, "i")
    return int(problem.removeprefix("x"))


_SHAPES: dict[str, Callable[[str, str], _Shape]] = {
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "matmul": _matmul,
    "gemm": _matmul,
    "gemm_api": _matmul,
    "inner_product": _inner_product,
    "rnn": _rnn,
    "pooling": _pooling,
    "binary": _binary,
    "sum": _sum,
    "reorder": _moved,
    "shuffle": _moved,
    "concat": _concat,
    "eltwise": _elementwise,
    "softmax": _elementwise,
    "batch_normalization": _elementwise,
    "group_normalization": _elementwise,
    "lrn": _elementwise,
}


def formats(tensors: str) -> str | None:
    """Return a short text of every tensor's type and memory format; None without tensors.

    >>> formats("src:f32:a:blocked:aBcd16b::f0 bia:undef::undef::: dst_f32::blocked:abcd:f0")
    'src f32 aBcd16b, dst f32 abcd'
    """
    found = []
    for tensor in tensors.split():
        match = _TENSOR.match(tensor)
        if match is not None and match["type"] != "undef":
            kind, tag = [*tensor[match.end() :].split(":"), "", "", ""][1:3]
            found.append(f"{match['name']} {match['type']} {tag or kind}".strip())
    return ", ".join(found) or None
