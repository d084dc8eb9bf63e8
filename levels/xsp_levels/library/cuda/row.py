"""Calls of cuBLAS, cuBLASLt and cuDNN in, one row per call out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp_levels.library.cuda.call import CudaCall
from xsp_levels.native import thread

BY_START, BY_ENDS = "start", "ends"

_SIZES = ("m", "n", "k", "batchCount", "dimA", "filterDimA", "padA", "filterStrideA", "dilationA")
_TYPE = re.compile(r"[A-Za-z]*[tT]ype\w*|\w+desc|mathPrec")
_COMPLEX = re.compile(r"cublas[CZ]|\w+ (?:CUDA_)?C_")
_FIELD = re.compile(r"(\w+)=([^\s\]]+)")
_LT_TYPES = {f"{name}desc": name for name in "ABCD"}
_VERSION = re.compile(r"_v2(_64)?$|_64$")


def call_rows(calls: Sequence[CudaCall], threads: Mapping[int, int]) -> SpanRows:
    """Return one row per call; the end is null for most calls, whose start alone is known.

    Args:
        calls: The calls.
        threads: Identifiers of Python's threads, by the kernel's numbers.
    """
    if not calls:
        return no_rows()
    return span_rows(
        {
            "kind": Kind.CALL.value,
            "name": [_VERSION.sub("", call.function) for call in calls],
            "start_ns": [call.start_ns for call in calls],
            "end_ns": pl.Series([call.end_ns for call in calls], dtype=pl.Int64),
            "thread": thread.named(np.array([call.thread for call in calls]), threads),
            "attr.library": [call.library for call in calls],
            "attr.algorithm": _texts([call.values.get("algo") for call in calls]),
            "attr.problem": _texts([problem(call) for call in calls]),
            "attr.formats": _texts([formats(call) for call in calls]),
            "attr.flops": pl.Series([flops(call) for call in calls], dtype=pl.Int64),
            "attr.cuda_stream": _texts([_stream(call.stream) for call in calls]),
            "attr.placement": [BY_ENDS if call.end_ns else BY_START for call in calls],
        }
    )


def problem(call: CudaCall) -> str | None:
    """Return the sizes of a call in the library's own notation, None if there are none.

    >>> problem(CudaCall("cuBLAS 13", "cublasSgemm_v2", 0, 1, values={
    ...     "transa": "CUBLAS_OP_N", "transb": "CUBLAS_OP_T", "m": "8", "n": "4", "k": "2"}))
    'm8 n4 k2 NT'
    """
    values = _product(call) or call.values
    parts = [
        f"{name.removesuffix('.dimA')}{value}"
        for name, value in values.items()
        if name.rsplit(".", 1)[-1] in _SIZES
    ]
    turned = [values.get(name, "")[-1:] for name in ("transa", "transb")]
    return " ".join([*parts, "".join(turned)]).strip() or None


def formats(call: CudaCall) -> str | None:
    """Return the data types among a call's values, as `name:type`; None if there are none."""
    if product := _product(call):
        return product["formats"] or None
    found = [
        f"{name}:{value}"
        for name, value in call.values.items()
        if _TYPE.fullmatch(name.rsplit(".", 1)[-1])
    ]
    return " ".join(found) or None


def flops(call: CudaCall) -> int | None:
    """Return the operations of a matrix product: 2 m n k for each product of a batch.

    None for complex products, which take more operations, and for all other functions.
    """
    product = _product(call)
    values = product or call.values
    kind = values.get("Atype", "")
    if product is None and "gemm" not in call.function.lower():
        return None
    if _COMPLEX.match(f"{call.function} {kind}"):
        return None
    try:
        m, n, k = (int(values[name]) for name in "mnk")
        return 2 * m * n * k * int(values.get("batchCount", "1"))
    except (KeyError, ValueError):
        return None


def _product(call: CudaCall) -> dict[str, str] | None:
    """Return sizes and types of a product of cuBLASLt in cuBLAS's words; None for other calls.

    cuBLASLt tells the matrices as they lie in memory: op(A) is m x k, and D is m x n.

    >>> _product(CudaCall("cuBLASLt", "cublasLtMatmul", 0, 1, values={
    ...     "Adesc": "[type=R_16F rows=2 cols=8]", "Ddesc": "[type=R_16F rows=8 cols=4]",
    ...     "computeDesc": "[computeType=COMPUTE_32F transa=OP_T]"}))["k"]
    '2'
    """
    if call.function != "cublasLtMatmul":
        return None
    told = {name: dict(_FIELD.findall(text)) for name, text in call.values.items()}
    a, d = told.get("Adesc", {}), told.get("Ddesc", {})
    compute = told.get("computeDesc", {})
    turned = {name: compute.get(name, "OP_N") for name in ("transa", "transb")}
    k = a.get("cols", "") if turned["transa"] == "OP_N" else a.get("rows", "")
    types = {short: told.get(name, {}).get("type") for name, short in _LT_TYPES.items()}
    types["computeType"] = compute.get("computeType")
    sizes = {"m": d.get("rows", ""), "n": d.get("cols", ""), "k": k}
    sizes |= {"batchCount": d["batchCount"]} if "batchCount" in d else {}
    return {
        **({name: size for name, size in sizes.items() if size}),
        **turned,
        "Atype": types["A"] or "",
        "formats": " ".join(f"{name}:{kind}" for name, kind in types.items() if kind),
    }


def _stream(address: int | None) -> str | None:
    return None if address is None else hex(address)


def _texts(values: Sequence[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.String)
