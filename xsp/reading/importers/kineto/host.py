"""Makes rows of layers, operators, ranges, and runtime or driver calls from events of the host."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl

from xsp.level import Kind
from xsp.provider import ATTRIBUTE
from xsp.reading.importers.kineto.table import Sort, Tables
from xsp.text import call_name, element_type

# Marks that PyTorch and its libraries make around what they do.
_OF_A_LIBRARY = (
    r"^(\w*ccl:|(gloo|mpi|ucc):|Optimizer\.|enumerate\(DataLoader\)|## Call CompiledFxGraph|"
    r"Torch-Compiled|Pregraph|autograd::|DDP|FSDP::|c10d::)"
)
_COLLECTIVE = r"^(\w*ccl|gloo|mpi|ucc):"
_STEP = r"^ProfilerStep#?\d*$"
_CLASS = re.compile(r"_\d+$")
_MODULE = "nn.Module: "
_LIST = "TensorList"
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList", "GenericList"})
_SHAPES, _DTYPES = pl.List(pl.List(pl.Int64)), pl.List(pl.String)


def host_events(tables: Tables) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return rows of all events of the host, and of the steps that the profiler marked.

    Rows have the columns `kind`, `name`, `start_ns`, `end_ns`, `pid`, `thread`, `ordinal`,
    `sequence` and `forward` (the profiler's number of the forward operator's thread, 0 for forward
    operators), `correlation_id`, `driver` (whether it is a call of the driver), `function` (true
    of a Python function, else null), `collective` (whether it is a library's mark of a collective
    operation), and attributes.
    """
    # Who marks a range does not say whether it is around a module or around a phase.
    of_a_library = pl.col("name").str.contains(_OF_A_LIBRARY)
    kind_of_range = pl.when(of_a_library).then(pl.lit(Kind.OP.value))
    ranges = _operators(tables, Sort.RANGE).with_columns(
        kind=kind_of_range.otherwise(pl.lit(Kind.REGION.value))
    )
    given = [name for name in ranges.columns if name.startswith(ATTRIBUTE)]
    ranges = ranges.with_columns(
        pl.when(pl.col("kind") == Kind.OP.value).then(pl.col(given)).name.keep()
    )
    operators = pl.concat([_operators(tables, Sort.OP), ranges], how="diagonal").with_columns(
        collective=pl.col("name").str.contains(_COLLECTIVE)
    )
    is_step = pl.col("name").str.contains(_STEP)
    rows = [
        operators.filter(~is_step),
        _modules(tables, tables.table(Sort.MODULE)),
        _functions(tables),
        *(_calls(tables, sort) for sort in (Sort.LAUNCH, Sort.DRIVER)),
    ]
    return pl.concat(rows, how="diagonal"), operators.filter(is_step)


def _common(tables: Tables, table: pl.DataFrame, kind: Kind, name: Any = str) -> pl.DataFrame:
    return table.select(
        "start_ns",
        "end_ns",
        "pid",
        pl.col("tid").fill_null(0).alias("thread"),
        kind=pl.lit(kind.value),
        name=tables.texts.read(table["name"], name, pl.String),
    )


def _operators(tables: Tables, sort: Sort) -> pl.DataFrame:
    table = tables.table(sort)
    rows = _common(tables, table, Kind.OP).with_columns(
        table["external_id"].alias("ordinal"),
        table["sequence"].alias("sequence"),
        table["forward_thread"].alias("forward"),
    )
    if table["dims"].null_count() < table.height:
        # Shapes and element types of the tensors that each operator was given.
        given = table.select("dims", "types")
        known = given.unique(maintain_order=True)
        values = tables.texts.values
        read = [
            _tensors(
                None if dims is None else values[dims], None if types is None else values[types]
            )
            for dims, types in known.iter_rows()
        ]
        made = known.with_columns(
            pl.Series("attr.input_shapes", [shapes for shapes, _ in read], dtype=_SHAPES),
            pl.Series("attr.input_dtypes", [types for _, types in read], dtype=_DTYPES),
        )
        joined = given.join(
            made, on=["dims", "types"], how="left", nulls_equal=True, maintain_order="left"
        )
        operands = joined.select("attr.input_shapes", "attr.input_dtypes")
        rows = rows.hstack(operands)
    if sort is Sort.OP:
        rows = rows.hstack(tables.collectives(table["collective"]))
    return rows


def _modules(tables: Tables, table: pl.DataFrame) -> pl.DataFrame:
    rows = _common(tables, table, Kind.LAYER, lambda name: name.removeprefix(_MODULE))
    return rows.with_columns(
        table["python_id"].alias("ordinal"),
        pl.lit("forward").alias("attr.phase"),
        pl.Series(
            "attr.module_class",
            [_CLASS.sub("", name) for name in rows["name"]],
            dtype=pl.String,
        ),
    )


def _functions(tables: Tables) -> pl.DataFrame:
    table = tables.table(Sort.PYTHON)
    rows = _common(tables, table, Kind.OP)
    return rows.with_columns(table["python_id"].alias("ordinal"), function=pl.lit(value=True))


def _calls(tables: Tables, sort: Sort) -> pl.DataFrame:
    table = tables.table(sort)
    return _common(tables, table, Kind.LAUNCH, call_name).with_columns(
        table["correlation"].alias("correlation_id"), driver=pl.lit(sort is Sort.DRIVER)
    )


def _tensors(dims: bytes | None, types: bytes | None) -> tuple[list[Any] | None, list[Any] | None]:
    """Return the shapes and element types of tensors, those in lists too; what is none is left out.

    >>> _tensors(b"[[2, 3], [], [[4], [5]]]", b'["float", "Scalar", "TensorList"]')
    ([[2, 3], [4], [5]], ['float32', None, None])
    """
    shapes, names = _list(dims), _list(types)
    if shapes is None or names is None:
        return None, None
    tensors: list[tuple[Any, str | None]] = []
    for shape, name in zip(shapes, names, strict=False):
        if name == _LIST:
            are_shapes = isinstance(shape, list) and bool(shape) and all(map(_is_shape, shape))
            within = shape if are_shapes else None
            tensors += [(each, None) for each in within or [None]]
        elif isinstance(name, str) and name not in _NO_TENSORS and _is_shape(shape):
            tensors.append((shape, element_type(name)))
    return [shape for shape, _ in tensors], [name for _, name in tensors]


def _list(text: bytes | None) -> list[Any] | None:
    found = None if text is None else json.loads(text.decode(errors="replace"))
    return found if isinstance(found, list) else None


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and abs(n) < 1 << 63 for n in value)
