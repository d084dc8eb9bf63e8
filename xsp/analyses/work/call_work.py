"""Bytes of library calls: sizes in the library's own notation in, bytes read and written out.

oneDNN's calls say how large all their tensors are, and their sizes say how large the written one
is; a matrix product of BLAS says its sizes alone. Every tensor is taken once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_SIZES = re.compile(r"([a-z]+)(\d+)")
_ONEDNN_BYTES = {
    **dict.fromkeys(("f64", "s64"), 8.0),
    **dict.fromkeys(("f32", "s32", "tf32"), 4.0),
    **dict.fromkeys(("f16", "bf16"), 2.0),
    **dict.fromkeys(("s8", "u8", "f8_e5m2", "f8_e4m3", "boolean"), 1.0),
    **dict.fromkeys(("s4", "u4"), 0.5),
}
_PRODUCTS = ("matmul", "gemm_api")
_BLAS_BYTES = {"S": 4, "D": 8, "C": 8, "Z": 16}
_BLAS_PRODUCT = re.compile(
    r"(?:cublas)?([SDCZ])GEMM(?:_v2)?(?:_?strided_?batched|_batch\w*|3M)?$", re.I
)

_Bytes = tuple[int | None, int | None]


def call_bytes(
    name: str,
    problem: str | None,
    *,
    formats: str | None = None,
    propagation: str | None = None,
    tensor_bytes: int | None = None,
) -> _Bytes:
    """Return the bytes that a call reads and writes; None, None where its sizes do not tell.

    Args:
        name: Primitive or routine, such as `convolution` or `SGEMM`.
        problem: Its sizes, in the library's notation.
        formats: Element type and layout of each tensor.
        propagation: What a primitive of oneDNN computes, such as `backward_data`.
        tensor_bytes: Size of all its tensors.

    >>> call_bytes("SGEMM", "TN m10 n4 k8")
    (448, 160)
    >>> call_bytes("convolution", "mb1_ic3oc64_ih8oh4kh3_iw8ow4kw3", tensor_bytes=11776,
    ...            formats="src f32 abcd, wei f32 Acdb16a, dst f32 aBcd16b")
    (7680, 4096)
    """
    if problem is None:
        return None, None
    if product := _BLAS_PRODUCT.match(name):
        return _product(_sizes(problem), _BLAS_BYTES[product[1].upper()])
    if tensor_bytes is None or formats is None:
        return None, None
    written = _written(name, problem, _element_bytes(formats), propagation or "")
    return (None, None) if written is None else (tensor_bytes - written, written)


def _sizes(problem: str) -> Mapping[str, int]:
    return {name: int(size) for name, size in _SIZES.findall(problem)}


def _product(sizes: Mapping[str, int], element_bytes: int) -> _Bytes:
    """A result that is not added to anything (beta = 0) is written and not read."""
    if not {"m", "n", "k"} <= sizes.keys():
        return None, None
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    times = element_bytes * sizes.get("batch", sizes.get("batchCount", 1))
    return (m * k + k * n) * times, m * n * times


def _element_bytes(formats: str) -> Mapping[str, float]:
    """Return the bytes of an element of each tensor, by the tensor's name."""
    words = [words for tensor in formats.split(", ") if len(words := tensor.split()) > 1]
    return {name: _ONEDNN_BYTES[kind] for name, kind, *_ in words if kind in _ONEDNN_BYTES}


def _written(
    primitive: str, problem: str, element_bytes: Mapping[str, float], propagation: str
) -> int | None:
    """Return the bytes of the tensors that oneDNN writes, None where their sizes are not told."""
    backward = propagation.startswith("backward")
    names = ("diff_src", "diff_wei", "diff_bia") if backward else ("dst", "ws")
    sizes = _sizes(problem)
    total = 0.0
    for name in names:
        if name in element_bytes:
            elements = _described(sizes, name) if "mb" in sizes else _shaped(primitive, problem)
            if elements is None:
                return None
            total += elements * element_bytes[name]
    return math.ceil(total) or None


def _shaped(primitive: str, problem: str) -> int | None:
    """Return the elements of the result of a problem that is a shape, or several.

    >>> _shaped("gemm_api", "8x16:16x4"), _shaped("reorder", "64x3x7x7")
    (32, 9408)
    >>> _shaped("binary", "8x4:1x4")
    32
    """
    parts = [part.split("x") for part in problem.split(":")]
    if not all(size.isdigit() for part in parts for size in part):
        return None
    shapes = [[int(size) for size in part] for part in parts]
    if primitive == "concat":
        return sum(math.prod(shape) for shape in shapes)
    if len(shapes) == 1:
        return math.prod(shapes[0])
    left, right = shapes[:2]
    pairs = zip(left, right, strict=False)
    if primitive in _PRODUCTS:
        pairs = zip([*left[:-2], left[-2], 1], [*right[:-2], 1, right[-1]], strict=False)
    return math.prod(max(pair) for pair in pairs)


def _described(sizes: Mapping[str, int], tensor: str) -> int | None:
    """Return the elements of a tensor of a problem such as `mb8_ic64oc64_ih56oh56kh3`."""
    channels, results = sizes.get("ic", 1), sizes.get("oc", sizes.get("ic", 1))
    if tensor == "diff_bia":
        return results
    if tensor == "diff_wei":
        kernel = _space(sizes, "k") if "kw" in sizes else _space(sizes, "i")
        return results * channels // sizes.get("g", 1) * kernel
    if tensor == "diff_src":
        return sizes["mb"] * channels * _space(sizes, "i")
    same = "oc" not in sizes and not {"od", "oh", "ow"} & sizes.keys()
    return sizes["mb"] * results * _space(sizes, "i" if same else "o")


def _space(sizes: Mapping[str, int], prefix: str) -> int:
    return math.prod(sizes.get(f"{prefix}{axis}", 1) for axis in "dhw")
