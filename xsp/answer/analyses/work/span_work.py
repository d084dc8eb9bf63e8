"""Computes the operations and bytes of each span itself, every piece of work once.

Counters are believed first, then the sizes of library calls and copies, then the operators'
shapes. What a span below has done is not done again by the span above: an operator that calls
another, or a library call whose sizes are known, has no work of its own (0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.analyses.kept import once_per_trace
from xsp.answer.analyses.tree import Floats, Tree
from xsp.answer.analyses.work.formula import CONVOLUTIONS, Shape
from xsp.answer.analyses.work.graph_formula import graph_flops, names
from xsp.answer.analyses.work.operator_kind import ARITHMETIC, ELEMENT_BYTES, IDLE
from xsp.answer.analyses.work.operator_work import Work, operator_work
from xsp.level import Kind
from xsp.matching import Ints

_SHAPES, _TEXTS = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
_TRANSPOSED = "conv.*transpose"
_NEXT = 8  # operators in which the result of a convolution is looked for


@once_per_trace
def work_of(tree: Tree) -> pl.DataFrame:
    """Return the work of each span of a tree itself, without the work of the spans inside.

    So the work of a layer is the sum over its subtree (`subtree_sum`). Rows that stand for several
    `calls` have the work of all of them. Layers and the like do nothing themselves: null.

    Returns:
        A row per span with `flops`, `read_bytes` and `write_bytes` (Int64, null where not known),
        and `work_source`: `counted` by the device, `library` (from the sizes of a library call
        or a copy), `analytical` (from an operator's shapes), null where nothing is known.
    """
    work = _operators(tree)
    # A copy or set beside kernels does work of its own, such as clearing a workspace; what the
    # operator's shapes say is of the kernels.
    kernels = around(tree, tree.is_of(Kind.KERNEL))
    beside_kernels = (tree.is_of(Kind.MEMCPY) | tree.is_of(Kind.MEMSET)) & (
        tree.nearest(tree.is_of(Kind.OP) & kernels) == tree.nearest(tree.is_of(Kind.OP))
    )
    for better, source in ((stated(tree), "library"), (counted(tree), "counted")):
        # The work with better numbers in it, and nothing in the spans around these.
        # A span around keeps its operations where those below have none: a reorder is not the
        # product.
        computing = (better["flops"].fill_null(0) > 0).to_numpy()
        moving = better.select(pl.any_horizontal("read_bytes", "write_bytes").is_not_null())
        moving = moving.to_series().to_numpy() & ~beside_kernels
        known = better.select(pl.any_horizontal(pl.col(*NUMBERS).is_not_null())).to_series()
        within = around(tree, computing), around(tree, moving)
        done = dict(zip(NUMBERS, (within[0], within[1], within[1]), strict=True))
        work = work.with_columns(
            pl.when(known)
            .then(better[name])
            .when(pl.Series(done[name]) & pl.col(name).is_not_null())
            .then(0)
            .otherwise(pl.col(name))
            .alias(name)
            for name in NUMBERS
        ).with_columns(
            work_source=pl.when(known).then(pl.lit(source)).otherwise(pl.col("work_source"))
        )
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    return work.with_columns(pl.col(name) * calls for name in NUMBERS)


def unknown_calls(tree: Tree) -> pl.Series:
    """Count the calls of operators whose operations nothing tells; null without operators."""
    operators, known = tree.is_of(Kind.OP), work_of(tree)["flops"].is_not_null().to_numpy()
    below = around(tree, known & ~operators)  # a device or library counted
    calls = tree.attribute("calls", pl.Int64).fill_null(1)
    counted = calls * pl.Series(operators & ~known & ~below)
    recorded = pl.Series(np.full(len(known), operators.any()))
    return counted.set(~recorded, None).alias("unknown_operators")


def subtree_sum(tree: Tree, values: Floats) -> Floats:
    """Return of each span the sum of its own value and of those of all spans inside.

    >>> subtree_sum(Tree(pl.DataFrame(), np.array([-1, 0, 1, 0])), np.array([0.0, 1, 2, 4]))
    array([7., 3., 2., 4.])
    """
    total = values.copy()
    # The rows below the root, those of each depth together, from the outermost.
    depth = np.zeros(len(tree.parent), np.int64)
    at = tree.parent.copy()
    while (on := at >= 0).any():
        depth[on] += 1
        at[on] = tree.parent[at[on]]
    order = np.argsort(depth, kind="stable")
    generations = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]
    for rows in reversed(generations):
        np.add.at(total, tree.parent[rows], total[rows])
    return total


def around(tree: Tree, which: Mask) -> Mask:
    """Return which spans have one of some spans inside, not counting themselves."""
    found = np.zeros(len(which), np.bool_)
    at = tree.parent[which]
    while len(at := at[at >= 0]):
        now = np.zeros(len(which), np.bool_)
        now[at] = True
        now &= ~found
        found |= now
        at = tree.parent[now]
    return found


def dispatching(tree: Tree) -> Mask:
    """Return which operators do nothing themselves, so that their self time is the framework's.

    These look at tensors otherwise or make room (`aten::view`, `aten::empty`), or their work is
    in the operators and library calls that they call. An operator that computes and calls one of
    the former is none of them: `aten::mkldnn_convolution` calls `aten::empty`.
    """
    operators = tree.is_of(Kind.OP)
    work = work_of(tree).select(pl.sum_horizontal(*NUMBERS, ignore_nulls=False) == 0).to_series()
    nothing = work.fill_null(value=False).to_numpy() & around(tree, operators)
    idle = tree.spans["name"].is_in(list(IDLE)).to_numpy()
    found: Mask = operators & (nothing | idle | around(tree, tree.is_of(Kind.CALL)))
    return found


def _operators(tree: Tree) -> pl.DataFrame:
    """Return the work that the shapes of operators imply: of the innermost that has a formula.

    Operators without a formula that call such as act have no work of their own.
    """
    rows = tree.rows(Kind.OP)
    found = spread(tree.spans.height, rows, each(_asked(tree, rows), _operator_work))
    told = tree.attribute("flops", pl.Int64).set(pl.Series(~tree.is_of(Kind.OP)), None)
    # What a formula of the user's says of his operator holds for all that the operator calls.
    own = told.is_not_null() & tree.spans["name"].str.contains("::")
    own &= ~tree.spans["name"].str.starts_with("aten::")
    within = pl.Series(tree.nearest(own.to_numpy()) >= 0)
    found = found.with_columns(
        flops=pl.when(within).then(0).otherwise(pl.coalesce(told, found["flops"]))
    )
    computing = (found["flops"].fill_null(0) > 0).to_numpy()
    called = tree.spans["name"]
    acting = tree.is_of(Kind.OP) & ~called.is_in(list(IDLE)).to_numpy()
    # Sums that a product makes besides, of biases, are not the product.
    product = computing & ~called.str.strip_suffix("_").is_in(list(ARITHMETIC)).to_numpy()
    inner = np.where(computing, around(tree, computing), around(tree, acting))
    calling = acting & np.where(product, around(tree, product), inner)
    work = found.with_columns(
        pl.when(pl.Series(calling)).then(0).otherwise(pl.col(name)).alias(name) for name in NUMBERS
    )
    known = pl.any_horizontal(pl.col(*NUMBERS).is_not_null())
    return work.with_columns(work_source=pl.when(known).then(pl.lit("analytical")))


def _operator_work(
    framework: str | None,
    made_shapes: Sequence[Shape | None] | None,
    made_types: Sequence[str | None] | None,
    sources: str | None,
    **torch: Any,
) -> Work:
    """Return the work of an operator, by the formulas of its framework."""
    if framework is None:
        return operator_work(**torch)
    given = torch["shapes"], torch["element_types"]
    return graph_work(torch["name"], framework, given, (made_shapes, made_types), sources)


def _asked(tree: Tree, rows: Ints) -> pl.DataFrame:
    """Tabulate the facts behind operators' work: a column for each argument of `_operator_work`."""
    operators = pl.Series(tree.is_of(Kind.OP))
    kept = tree.attribute("allocated_bytes", pl.Int64) - tree.attribute("freed_bytes", pl.Int64)
    transposed = tree.is_of(Kind.OP) & tree.spans["name"].str.contains(_TRANSPOSED).to_numpy()
    return pl.DataFrame(
        {
            "name": tree.spans["name"][rows],
            "shapes": tree.attribute("input_shapes", _SHAPES).filter(operators),
            "element_types": tree.attribute("input_dtypes", _TEXTS).filter(operators),
            "kept_bytes": kept[rows],
            "seen": _seen(tree, rows),
            "framework": tree.attribute("framework")[rows],
            "made_shapes": tree.attribute("output_shapes", _SHAPES).filter(operators),
            "made_types": tree.attribute("output_dtypes", _TEXTS).filter(operators),
            "sources": tree.attribute("source_ops")[rows],
            "transposed": (tree.nearest(transposed) >= 0)[rows],
        }
    )


def _seen(tree: Tree, rows: Ints) -> pl.Series:
    """Return the shape that came out of each convolution, as the trace shows it elsewhere.

    It is what came out of the layer around, else what one of the next operators was given first:
    the first shape of as many axes that has the batch of the input and the channels of the weights.
    Null of convolutions that call another, for that is one of the next.
    """
    convolving = tree.spans["name"].is_in(list(CONVOLUTIONS)).to_numpy()
    at = np.flatnonzero((convolving & ~around(tree, convolving))[rows])
    given = tree.attribute("input_shapes", _SHAPES)
    own = given[rows[at]]
    first, weights = (own.list.get(place, null_on_oob=True) for place in (0, 1))
    layers = tree.nearest(tree.is_of(Kind.LAYER))[rows[at]]
    out = tree.attribute("output_shapes", _SHAPES)[layers].list.get(0, null_on_oob=True)
    found = pl.Series([None], dtype=first.dtype).new_from_index(0, len(at))
    for step in range(_NEXT + 1):
        following = given[rows[np.minimum(at + step, len(rows) - 1)]]
        shape = following.list.get(0, null_on_oob=True) if step else out
        fits = shape.list.len() == first.list.len()
        fits &= _size(shape, 0) == _size(first, 0)
        fits &= _size(shape, 1) == _size(weights, 0)
        fits &= pl.Series(at + step < len(rows))
        found = shape.zip_with(fits.fill_null(value=False) & found.is_null(), found)
    places = np.full(len(rows), len(at), np.int64)
    places[at] = np.arange(len(at))
    return pl.concat([found, pl.Series([None], dtype=first.dtype)])[places]


def _size(shapes: pl.Series, axis: int) -> pl.Series:
    return shapes.list.get(axis, null_on_oob=True)


# Computes the operations and bytes of operators of TensorFlow, ONNX and XLA.

Shapes = Sequence[Shape | None] | None
Types = Sequence[str | None] | None

# What looks at tensors otherwise, or hands them on.
_IDLE = names(
    """
    Reshape Squeeze Unsqueeze ExpandDims Flatten Identity IdentityN Shape Const Constant NoOp
    ReadVariableOp bitcast reshape get-tuple-element tuple parameter constant StopGradient
    """
)
# Of a large table only the rows asked for are read.
_GATHERING = frozenset(("Gather", "GatherV2", "ResourceGather", "GatherND", "gather"))


def graph_work(
    name: str,
    framework: str,
    given: tuple[Shapes, Types],
    made: tuple[Shapes, Types],
    sources: str | None = None,
) -> Work:
    """Return the work of one call of an operator, from the tensors put in and what came out.

    Args:
        name: Type of the operator.
        framework: `tensorflow`, `onnxruntime` or `jax`.
        given: Shapes and element types of the tensors put in.
        made: Shapes and element types of what came out.
        sources: Operators that were fused into it, joined by commas.

    >>> f = ["float32"]
    >>> graph_work("MatMul", "onnxruntime", ([[2, 3], [3, 5]], f * 2), ([[2, 5]], f))
    Work(flops=60, read_bytes=84, write_bytes=40)
    """
    if name in _IDLE:
        return Work(0, 0, 0)
    written = _bytes(made, given)
    read = _bytes(given, given)
    if name in _GATHERING and given[0] is not None:
        indices = _bytes((given[0][1:], (given[1] or ())[1:]), given)
        read = None if written is None or indices is None else written + indices
    if given[0] is None or made[0] is None or None in given[0] or None in made[0]:
        return Work(None, read, written)
    shapes, results = (
        [shape for shape in side if shape is not None] for side in (given[0], made[0])
    )
    return Work(graph_flops(name, framework, shapes, results, sources), read, written)


def _bytes(tensors: tuple[Shapes, Types], given: tuple[Shapes, Types]) -> int | None:
    """Return the size of some tensors; of what came out without element types, by that put in."""
    shapes, types = tensors
    if not shapes or None in shapes:
        return None
    known = list(types or ()) or [(given[1] or [None])[0]] * len(shapes)
    sizes = [ELEMENT_BYTES.get(each or "") for each in known]
    if len(sizes) != len(shapes) or None in sizes:
        return None
    pairs = zip(shapes, sizes, strict=True)
    return sum(math.prod(shape or ()) * (size or 0) for shape, size in pairs)


# Reads operations and bytes from devices' counters and from sizes of library calls and copies.

NUMBERS = ("flops", "read_bytes", "write_bytes")
Mask = NDArray[np.bool_]


def counted(tree: Tree) -> pl.DataFrame:
    """Return the counts of a device: of kernels, or of launches where these alone have counts.

    Returns:
        A row per span with the columns `NUMBERS`, null where nothing was counted.
    """
    names = ("flops", "dram_read_bytes", "dram_write_bytes")
    columns = [tree.attribute(name, pl.Int64) for name in names]
    seen = np.logical_or.reduce([column.is_not_null().to_numpy() for column in columns])
    kernels, launches = seen & tree.is_of(Kind.KERNEL), seen & tree.is_of(Kind.LAUNCH)
    ties = tree.spans["correlation_id"]
    twice = ties.is_in(ties.filter(pl.Series(kernels)).drop_nulls().implode())
    return _where(columns, kernels | (launches & ~twice.fill_null(value=False).to_numpy()))


def stated(tree: Tree) -> pl.DataFrame:
    """Return the work that sizes of library calls and copies imply, columns as of `counted`."""
    flops = tree.attribute("flops", pl.Int64)
    moved = spread(len(flops), tree.rows(Kind.CALL), _moved(tree))
    size = tree.attribute("transfer_bytes", pl.Int64)
    ways = tree.attribute("direction")
    copied, set_ = tree.is_of(Kind.MEMCPY), tree.is_of(Kind.MEMSET)
    transfers = (copied | set_) & size.is_not_null().to_numpy()
    # A device reads its memory unless the host sends, and writes there unless the host receives.
    reads = copied & ~ways.str.starts_with("Hto").fill_null(value=False).to_numpy()
    writes = ~ways.str.ends_with("toH").fill_null(value=False).to_numpy()
    nothing = pl.Series([0]).new_from_index(0, len(flops))
    on = pl.Series(transfers)
    columns = [
        nothing.zip_with(on, flops),
        size.zip_with(pl.Series(reads), nothing).zip_with(on, moved["read_bytes"]),
        size.zip_with(pl.Series(writes), nothing).zip_with(on, moved["write_bytes"]),
    ]
    return _where(columns, tree.is_of(Kind.CALL) | transfers)


def each(asked: pl.DataFrame, work: Callable[..., Sequence[int | None]]) -> pl.DataFrame:
    """Return the work of each row, computed once for equal rows.

    Args:
        asked: What the function takes, a column for each argument of that name.
        work: Returns operations, bytes read and bytes written.
    """
    alike = asked.with_row_index("row").group_by(asked.columns, maintain_order=True).agg("row")
    found = [work(**row) for row in alike.drop("row").iter_rows(named=True)]
    numbers = pl.DataFrame(found, schema=dict.fromkeys(NUMBERS, pl.Int64), orient="row")
    return alike.select("row").hstack(numbers).explode("row").sort("row").drop("row")


def spread(height: int, rows: Ints, found: pl.DataFrame) -> pl.DataFrame:
    """Return a table of a height with the values of some rows, null in all others."""
    empty = pl.Series([None], dtype=pl.Int64).new_from_index(0, height)
    return pl.DataFrame({name: empty.clone().scatter(rows, found[name]) for name in NUMBERS})


def _moved(tree: Tree) -> pl.DataFrame:
    rows = tree.rows(Kind.CALL)
    columns: dict[str, Any] = {"name": tree.spans["name"][rows]}
    for name in ("problem", "formats", "propagation"):
        columns[name] = tree.attribute(name)[rows]
    columns["tensor_bytes"] = tree.attribute("tensor_bytes", pl.Int64)[rows]
    return each(pl.DataFrame(columns), _call_work)


def _call_work(**call: Any) -> tuple[int | None, ...]:
    return None, *call_bytes(**call)


def _where(columns: Sequence[pl.Series], known: Mask) -> pl.DataFrame:
    mask = pl.Series(known)
    frame = pl.DataFrame(
        [column.alias(name) for name, column in zip(NUMBERS, columns, strict=True)]
    )
    return frame.select(pl.when(mask).then(pl.col(name)).alias(name) for name in NUMBERS)


# Computes the bytes that a library call reads and writes from sizes in the library's notation.

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
    # The bytes of an element of each tensor, by the tensor's name.
    words = [words for tensor in formats.split(", ") if len(words := tensor.split()) > 1]
    element_bytes = {name: _ONEDNN_BYTES[kind] for name, kind, *_ in words if kind in _ONEDNN_BYTES}
    written = _written(name, problem, element_bytes, propagation or "")
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
