"""Sums library calls, their times and rates by primitive and implementation."""

from __future__ import annotations

import polars as pl

from xsp.answer.analyses.contract import Need, analysis
from xsp.answer.analyses.structure.sums import calls, grouped, on_host, share_pct
from xsp.answer.analyses.tree import Tree
from xsp.level import Kind
from xsp.trace import Trace

_COLUMNS = {
    "library": "The library, with its version where it is known.",
    "primitive": "Name of the call: a primitive, or a routine.",
    "implementation": "Which of its implementations the library chose; null where it says none.",
    "reference": "Whether that is a reference implementation, made to be right and not fast.",
    "calls": "How often it was called.",
    "own_ns": "Latency less that of the library calls inside: these sum to the calls' time.",
    "own_low_ns": "Lower end of its 95 % interval.",
    "own_high_ns": "Upper end of its 95 % interval.",
    "share_pct": "Self time as a share of the trace's latency.",
    "latency_ns": "Latency with the library calls inside.",
    "latency_low_ns": "Lower end of its 95 % interval.",
    "latency_high_ns": "Upper end of its 95 % interval.",
    "flops": "Operations that the sizes of the calls imply, a multiplication and an addition two.",
    "flops_per_s": "These by the latency of the calls whose operations are known.",
    "tensor_bytes": "Size of the tensors read or written, each once for each call.",
    "bytes_per_s": "These by the latency of the calls whose tensors are known.",
}


@analysis("Which library primitives take the time, in which implementation?", _COLUMNS,
          needs=(Need.CALLS,))  # fmt: skip
def primitive_latency(trace: Trace) -> pl.DataFrame:
    """Return the library calls by library, primitive and implementation, most self time first.

    Args:
        trace: A trace with library calls.

    Raises:
        AnalysisError: The trace has no library calls.
    """
    tree = on_host(Tree.of(trace))
    by = (
        tree.attribute("library"),
        tree.spans["name"].alias("primitive"),
        tree.attribute("implementation"),
    )
    # Operations and bytes of each call, and its latency where they are known.
    often, latency = calls(tree), pl.Series(tree.latency_ns()).fill_nan(None)
    flops, moved = (
        (tree.attribute(name, pl.Int64) * pl.Series(often)).alias(name)
        for name in ("flops", "tensor_bytes")
    )
    worked = [
        flops,
        moved,
        latency.set(flops.is_null(), None).alias("computing_ns"),
        latency.set(moved.is_null(), None).alias("moving_ns"),
    ]
    table = grouped(tree, tree.is_of(Kind.CALL), by, *worked)
    return (
        table.with_columns(
            reference=is_reference(pl.col("implementation")),
            share_pct=share_pct("own_ns", tree.latency_ns()[0]),
            flops_per_s=1e9 * pl.col("flops") / pl.col("computing_ns"),
            bytes_per_s=1e9 * pl.col("tensor_bytes") / pl.col("moving_ns"),
        )
        .with_columns(
            # A reorder computes nothing: 0 operations are no rate.
            pl.when(pl.col("flops") > 0).then(pl.col("flops_per_s")),
        )
        .sort("own_ns", descending=True, nulls_last=True, maintain_order=True)
        .select(*_COLUMNS)
    )


def is_reference(implementation: pl.Expr) -> pl.Expr:
    """Return whether implementations are oneDNN's reference ones, such as `ref:any`.

    >>> names = pl.DataFrame({"name": ["ref:any", "gemm:ref", "jit:avx2", "prefix:any", None]})
    >>> names.select(is_reference(pl.col("name")))["name"].to_list()
    [True, True, False, False, None]
    """
    return implementation.str.contains(r"(^|[:_])ref([:_]|$)")
