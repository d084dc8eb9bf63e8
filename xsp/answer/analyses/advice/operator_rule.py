"""Finds operators to fuse, slow operators, overhead, and attention that is written out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from xsp.answer.analyses.advice.finding import Case, Finding, named, reach_of
from xsp.answer.analyses.structure.sums import Bools, calls
from xsp.answer.analyses.work import dispatching
from xsp.level import Kind
from xsp.text import counted, duration, percent

# Operators that read and write each element once, so that a chain of them is as fast as one.
_POINTWISE = (
    r"^(aten::)?(abs|add|addcdiv|addcmul|clamp|clamp_max|clamp_min|cos|div|dropout|elu|eq|erf|exp|"
    r"ge|gelu|gt|hardsigmoid|hardswish|hardtanh|le|leaky_relu|lerp|log|lt|masked_fill|maximum|"
    r"minimum|mish|mul|ne|neg|pow|reciprocal|relu|relu6|rsqrt|rsub|sigmoid|silu|sin|softplus|sqrt|"
    r"square|sub|tanh|threshold|where)_?$"
)
# In inference its numbers are constants, and it is one of them; in training it is a reduction.
_NORMALISATION = r"^aten::batch_norm$"
# Operators that only make another view of memory, or provide it.
_NO_WORK = (
    r"^(aten::)?(alias|as_strided|detach|diagonal|empty|empty_like|empty_strided|expand|expand_as|"
    r"flatten|lift_fresh|narrow|permute|reshape|_reshape_alias|resize|resolve_conj|resolve_neg|"
    r"result_type|select|slice|split|squeeze|t|transpose|unbind|unflatten|_unsafe_view|unsqueeze|"
    r"view|view_as)_?$"
)
_PRODUCT = r"^aten::(matmul|bmm|baddbmm|mm|einsum|linear|addmm)$"
_SOFTMAX = r"^aten::_?softmax$"


def fusible_operators(case: Case) -> Iterator[Finding]:
    """Find chains of element-wise operators, which read and write the same elements in turns."""
    chains = _chains(case)
    if chains.is_empty():
        return
    time, gain = float(chains["time"].sum()), float((chains["time"] - chains["longest"]).sum())
    steps = chains["part_of_step"].any()
    what = "the optimizer's fused=True, or " if steps else ""
    count = int(chains["count"].sum())
    # The chains that take most, of those with equal operators together.
    short = pl.when(pl.col("length") > 6).then(
        pl.col("name").str.split(" → ").list.head(5).list.join(" → ") + " → …"
    )
    longest = named(chains.select(name=short.otherwise("name"), time="time"), 2)
    yield Finding(
        "element-wise operators to fuse",
        f"Fuse element-wise operators: {what}torch.compile.",
        f"{counted(count, 'operator')} in chains of two and more on tensors of one shape take "
        f"{duration(time)}, {percent(time / case.whole_ns)}: {longest}",
        gain,
        reach_of(chains["reach"]),
        "each chain takes as long as its longest operator"
        + (" on the device" if case.has_device else ""),
        "xsp.compare(trace, xsp.measure(torch.compile(model), x, levels=3))",
    )


def _chains(case: Case) -> pl.DataFrame:
    """Return chains of element-wise operators that follow each other, on tensors of one shape."""
    tree = case.tree
    operators = case.is_of(Kind.OP)
    rows = np.flatnonzero(operators & (case.above(Kind.OP) < 0))
    time, reach = case.work_ns()
    shapes = tree.attribute("input_shapes", pl.List(pl.List(pl.Int64)))[rows]
    names = tree.spans["name"][rows]
    fusible = case.is_named(_POINTWISE)[rows]
    if not case.trains:
        fusible |= case.is_named(_NORMALISATION)[rows]
    around = case.above(Kind.REGION)[rows]
    frame = pl.DataFrame(
        {
            "name": names,
            "fusible": fusible,
            "shape": shapes.list.first().cast(pl.List(pl.String)).list.join("×"),
            "around": around,
            "start": tree.spans["start_ns"][rows],
            "thread": tree.spans["thread"][rows],
            "time": time[rows],
            "reach": reach[rows],
            "count": calls(tree)[rows],
            "step": case.is_named("optimizer")[np.maximum(around, 0)],
        }
    ).sort("thread", "start", maintain_order=True)
    key = pl.struct("fusible", "shape", "around", "thread")
    return (
        frame.with_columns(chain=key.ne_missing(key.shift()).fill_null(value=True).cum_sum())
        .filter("fusible")
        .group_by("chain", maintain_order=True)
        .agg(
            pl.col("name").str.replace("^aten::", "").str.join(" → ").alias("name"),
            pl.sum("time", "count"),
            pl.col("reach").fill_nan(None).sum().replace(0.0, None),
            pl.max("time").alias("longest"),
            pl.col("step").any().alias("part_of_step"),
            pl.len().alias("length"),
        )
        .filter(pl.col("length") > 1)
    )


def slow_operators(case: Case) -> Iterator[Finding]:
    """Find operators that the framework computes itself, where others make library calls."""
    tree = case.tree
    operators, library = case.is_of(Kind.OP), case.is_of(Kind.CALL)
    if case.has_device or not library.any():
        return
    leaves = operators & ~_bookkeeping(case) & ~case.is_named(_POINTWISE)
    called = case.above(Kind.OP)[library]
    leaves[called[called >= 0]] = False
    rows = np.flatnonzero(leaves)
    if not len(rows):
        return
    time, reach = case.own(rows, Kind.OP)
    own = case.self_times(Kind.OP)["own_ns"][rows]
    yield Finding(
        "operators without a library call",
        "Look for a form of these operators that a library computes, or for torch.compile.",
        f"{counted(int(calls(tree)[rows].sum()), 'operator')} that make no library call take "
        f"{duration(time)}, {percent(time / case.whole_ns)}: "
        f"{named(pl.DataFrame({'name': tree.spans['name'][rows], 'time': own}))}",
        time,
        reach,
        "at most: as if these operators took no time",
        "xsp analyze FILE attribution; then xsp.compare(trace, measured after the change)",
    )


def framework_overhead(case: Case) -> Iterator[Finding]:
    """Find models in which Python and the framework's bookkeeping take more than computing."""
    tree = case.tree
    operators = case.is_of(Kind.OP)
    if case.has_device or not operators.any():
        return
    # A region in a layer is none of its own time: the layer compiles there, say.
    kinds = (Kind.REGION, Kind.LAYER, Kind.OP, Kind.CALL)
    inside = case.is_of(Kind.LAYER, Kind.OP, Kind.CALL)
    idle = inside & (case.is_of(Kind.LAYER) | dispatching(tree))
    spent, reach = case.own(np.flatnonzero(idle), *kinds)
    computed, _ = case.own(np.flatnonzero(inside & ~idle), *kinds)
    if spent <= computed:
        return
    count = int(calls(tree)[operators].sum())
    each = (spent + computed) / count
    yield Finding(
        "framework overhead",
        "Do more in each operator: a larger batch, or torch.compile.",
        f"layers and operators that do no work themselves take {duration(spent)}, "
        f"{percent(spent / case.whole_ns)}, computing {duration(computed)}; "
        f"{counted(count, 'operator')}, {duration(each)} each",
        spent,
        reach,
        "at most: as if nothing but computing were left",
        "xsp.compare(trace, xsp.measure(torch.compile(model), x, levels=3)); "
        "xsp sweep TARGET --batch 1,2,4,8",
    )


def _bookkeeping(case: Case) -> Bools:
    """Return which operators do no work of their own: views, and those that call another."""
    operators = case.is_of(Kind.OP)
    above = case.above(Kind.OP)
    calling = np.zeros(len(operators), dtype=np.bool_)
    work = operators & ~case.is_named(_NO_WORK)
    inside = above[work]
    calling[inside[inside >= 0]] = True
    has_call = case.above(Kind.OP)[case.is_of(Kind.CALL)]
    calling[has_call[has_call >= 0]] = False
    bookkeeping: Bools = operators & (calling | ~work)
    return bookkeeping


def eager_attention(case: Case) -> Iterator[Finding]:
    """Find attention that is written out: products and a softmax whose scores go to memory."""
    tree = case.tree
    operators, layers = case.is_of(Kind.OP), case.is_of(Kind.LAYER)
    names = tree.spans["name"]
    helps = tree.attribute("module_class").is_in(["Softmax", "Dropout"]).fill_null(value=False)
    layer = tree.nearest(layers & ~helps.to_numpy())
    rows = np.flatnonzero(operators & (case.above(Kind.OP) < 0) & (layer >= 0))
    time, reach = case.work_ns()
    frame = pl.DataFrame(
        {
            "layer": layer[rows],
            "name": names[rows],
            "product": case.is_named(_PRODUCT)[rows],
            "softmax": case.is_named(_SOFTMAX)[rows],
            "time": time[rows],
            "reach": reach[rows],
        }
    )
    written_out = (pl.col("product").sum() >= 2) & pl.col("softmax").any()
    found = frame.filter(written_out.over("layer"))
    if found.is_empty():
        return
    rest = found.filter(~pl.col("product"))
    attention = float(found["time"].sum())
    yield Finding(
        "attention written out",
        "Use scaled_dot_product_attention, which does not write the scores to memory.",
        f"{counted(found['layer'].n_unique(), 'layer')} with softmax between matrix products take "
        f"{duration(attention)} for attention, {percent(attention / case.whole_ns)}; "
        f"of it {named(rest)}",
        float(rest["time"].sum()),
        reach_of(rest["reach"]),
        "at most: as if all but the matrix products took no time",
        'from_pretrained(…, attn_implementation="sdpa"), measured the same way',
    )
