"""Makes rows of operators and of their layers from records of JAX's profiler. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from xsp.level import Kind
from xsp.provider import SpanRows, no_rows, span_rows
from xsp.scope import layered
from xsp.xplane import Shape, inputs_of, read_space
from xsp_levels.framework.jax.profiler.anchor import find_anchors
from xsp_levels.framework.jax.profiler.program import (
    Operator,
    Program,
    phase_of,
    shared_path,
)
from xsp_levels.framework.jax.profiler.session import HOST, OperatorRecords
from xsp_levels.framework.keras.index import LayerIndex
from xsp_levels.native.alignment import align

FRAMEWORK = "jax"

_STATS = {
    **dict.fromkeys(("hlo_op", "hlo_module"), pl.String),
    **dict.fromkeys(("program_id", "run_id", "_p", "_c"), pl.Int64),
}
_NUMBER = re.compile(r"\.\d+$")  # tells instructions of a program apart: `add.3`
_SHAPES, _TEXTS = pl.List(pl.List(pl.Int64)), pl.List(pl.String)
_UNKNOWN = Operator("")


def operator_rows(records: OperatorRecords) -> SpanRows:
    """Return a row for each operator that XLA ran, in rows of the layers that they make.

    Operators lie in the layers of their jitted function. Those of JAX's own functions, one of
    which each operator of eager JAX is, lie in whatever their thread had open.
    """
    plane = read_space(records.space).plane(HOST) if records.space else None
    if plane is None:
        return no_rows()
    events = plane.events(_STATS).frame
    anchors = find_anchors(events)
    alignment = align(records.readings, anchors)
    is_end = pl.col("name").str.starts_with(END)
    ops = events.filter(pl.col("hlo_op").is_not_null() & ~is_end)
    if alignment is None or not ops.height:
        return no_rows()
    programs = {program.number: program for program in records.programs}
    found = [_found(programs, *at) for at in ops.select("program_id", "hlo_op").rows()]
    caller = anchors.threads()
    ended = ends(ops, events.filter(is_end), [operator.users for _, operator in found])
    # Python's number of each operator's thread; of XLA's own threads the profiler's.
    line = ops["line_id"]
    threads = line.replace_strict(caller, default=line, return_dtype=pl.Int64)
    operands = {program.number: program.operands for program in records.programs}
    rows = _rows(ops, found, caller).with_columns(
        inputs_of(ops.select("program_id", "hlo_op"), operands),
        start_ns=pl.Series(alignment.convert(ops["start_ns"].to_numpy())),
        end_ns=pl.Series(alignment.convert(ended)),
        thread=lanes(ops, threads, ended),
    )
    names = ops["hlo_module"].to_list()
    scopes = [_layers(*each, records.keras) for each in zip(found, names, strict=True)]
    inside = layered(
        rows,
        pl.Series(scopes, dtype=_TEXTS),
        steps=ops["run_id"].rank("dense").cast(pl.Int64),
        phases=rows["attr.phase"],
        describe=_describer(records.programs, records.keras),
    )
    # Rows in which functions are on the thread of the step, where their parent is.
    outermost = (pl.col("kind") == Kind.LAYER.value) & pl.col("parent_id").is_null()
    return inside.with_columns(thread=pl.when(~outermost).then("thread"))


def _found(
    programs: Mapping[int, Program], number: int | None, name: str
) -> tuple[Program | None, Operator]:
    program = programs.get(number) if number is not None else None
    return program, program.operators.get(name, _UNKNOWN) if program is not None else _UNKNOWN


def _layers(
    found: tuple[Program | None, Operator], module: str | None, keras: LayerIndex
) -> list[str] | None:
    """Return the layers around an operator; at least the jitted function that it is of."""
    program, operator = found
    if program is not None and program.own:
        return None
    function, *inside = operator.layers or ((module or "").removeprefix("jit_"),)
    return [function] if operator.early else [function, *_of_keras(operator, inside, keras)]


def _of_keras(operator: Operator, inside: Sequence[str], keras: LayerIndex) -> Sequence[str]:
    """Return the layers of Keras that an operator lies in, or those given where there are none.

    A model that is asked for its results without being called (`stateless_call`) opens no scope.
    """
    if not keras.layers:
        return inside
    named = ["/".join(inside)] if inside else [p.replace(".", "/") for p in operator.fused_layers]
    paths = [path for name in named if (path := keras.path(f"{name}/"))]
    return shared_path(paths) or inside


def _rows(
    ops: pl.DataFrame,
    found: Sequence[tuple[Program | None, Operator]],
    caller: Mapping[int, int],
) -> SpanRows:
    operators = [operator for _, operator in found]
    # What is of no layer and ran on XLA's own threads is of the step.
    astray = [
        0 if program is not None and program.own and number not in caller else None
        for (program, _), number in zip(found, ops["line_id"].to_list(), strict=True)
    ]
    return span_rows(
        {
            "kind": Kind.OP.value,
            "name": ops["hlo_op"].str.replace(_NUMBER.pattern, ""),
            "start_ns": ops["start_ns"],
            "end_ns": ops["end_ns"],
            "parent_id": pl.Series(astray, dtype=pl.Int64),
            "attr.framework": FRAMEWORK,
            "attr.hlo_op": ops["hlo_op"],
            "attr.hlo_module": ops["hlo_module"],
            **_facts(operators),
        }
    )


def _facts(operators: Sequence[Operator]) -> dict[str, pl.Series]:
    def column(of: Callable[[Operator], Any], dtype: Any) -> pl.Series:
        return pl.Series([of(operator) or None for operator in operators], dtype=dtype)

    return {
        "attr.scope": column(_scope, pl.String),
        "attr.source_ops": column(lambda each: ", ".join(each.primitives), pl.String),
        "attr.fused_layers": column(lambda each: list(each.fused_layers), _TEXTS),
        "attr.phase": column(phase_of, pl.String),
        "attr.input_shapes": column(lambda each: _sizes(each.inputs), _SHAPES),
        "attr.input_dtypes": column(lambda each: _elements(each.inputs), _TEXTS),
        "attr.output_shapes": column(lambda each: _sizes(each.outputs), _SHAPES),
        "attr.output_dtypes": column(lambda each: _elements(each.outputs), _TEXTS),
        "attr.flops": pl.Series([operator.flops for operator in operators], dtype=pl.Int64),
        "attr.caller_function": column(lambda each: each.caller[0], pl.String),
        "attr.caller_file": column(lambda each: each.caller[1], pl.String),
        "attr.caller_line": column(lambda each: each.caller[2], pl.Int64),
    }


def _scope(operator: Operator) -> str:
    return "/".join(filter(None, (*operator.layers, operator.primitive)))


def _sizes(shapes: Sequence[Shape]) -> list[list[int]]:
    return [list(shape.sizes) for shape in shapes]


def _elements(shapes: Sequence[Shape]) -> list[str]:
    return [shape.element for shape in shapes]


def _describer(
    programs: Sequence[Program], keras: LayerIndex
) -> Callable[[tuple[str, ...]], Mapping[str, Any] | None]:
    layers = {path: layer for program in programs for path, layer in program.layers.items()}

    def described(path: tuple[str, ...]) -> Mapping[str, Any]:
        known = keras.describe(path[1:]) if path[1:] else None
        if known is not None:
            return known
        layer = layers.get("/".join(path))
        if layer is None:
            return {"framework": FRAMEWORK, "module_path": ""}
        return {
            "framework": FRAMEWORK,
            "module_class": layer.cls or None,
            "module_path": layer.path,
            "parameter_bytes": layer.parameter_bytes,
        }

    return described


# Finds when each operator of XLA ended, and on which thread the operator ran.

END = "end: "

Integers = npt.NDArray[np.int64]


def ends(ops: pl.DataFrame, marks: pl.DataFrame, users: Sequence[Sequence[str]]) -> Integers:
    """Return the end of each operator, in the profiler's nanoseconds.

    Args:
        ops: Operators: `hlo_op`, `run_id`, `start_ns`, `end_ns`, and `_p`, the number by which
            their end is marked.
        marks: The marks of ends: `_c`, the number, and `start_ns`.
        users: Names of the operators that take the result of each operator.
    """
    marked = dict(marks.select("_c", "start_ns").drop_nulls().rows())
    begins: Mapping[tuple[int | None, str], list[int]] = defaultdict(list)
    rows = ops.select("run_id", "hlo_op", "start_ns", "end_ns", "_p").rows()
    for run, name, start, _, _ in rows:
        begins[run, name].append(start)
    for starts in begins.values():
        starts.sort()
    found = []
    for (run, _, _, end, number), taken in zip(rows, users, strict=True):
        told = marked.get(number)
        if number is None or (told is not None and told <= end):
            found.append(end)
            continue
        next_ones = [after for user in taken for after in _first(begins.get((run, user), ()), end)]
        found.append(min(next_ones, default=end if told is None else told))
    return np.array(found, np.int64)


def lanes(ops: pl.DataFrame, thread: pl.Series, end_ns: Integers) -> pl.Series:
    """Return the thread of each operator; a number below 0 for those that the pool ran.

    Only operators that overlap what their thread did meanwhile are moved: nothing tells which
    threads of the pool ran them.

    Args:
        ops: Operators with `start_ns` and `end_ns`, as they were recorded.
        thread: The thread that recorded each operator.
        end_ns: When it really ended.
    """
    found, starts = thread.to_list(), ops["start_ns"].to_list()
    begins: dict[int, list[int]] = defaultdict(list)
    for own, start in sorted(zip(found, starts, strict=True)):
        begins[own].append(start)
    recorded = ops["end_ns"].to_list()
    moved = [
        at
        for at, end in enumerate(end_ns.tolist())
        if any(recorded[at] <= each < end for each in _first(begins[found[at]], recorded[at]))
    ]
    free: list[int] = []  # when each lane is free again
    for at in sorted(moved, key=starts.__getitem__):
        lane = next((n for n, until in enumerate(free) if until <= starts[at]), len(free))
        free[lane : lane + 1] = [int(end_ns[at])]
        found[at] = -1 - lane
    return pl.Series(found, dtype=pl.Int64)


def _first(starts: Sequence[int], since: int) -> Sequence[int]:
    """Return the first of sorted times that is not before another; none if there is none."""
    at = bisect_left(starts, since)
    return starts[at : at + 1]
