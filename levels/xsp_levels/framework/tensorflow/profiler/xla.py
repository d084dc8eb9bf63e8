"""What the profiler recorded in; what XLA's instructions were made for, and their shapes, out.

Functions with `jit_compile=True` run no nodes, but instructions that XLA made of them. The
profiler keeps the compiled programs beside the events; in these each instruction, a fusion too,
names the node that it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from xsp.xplane import read_space
from xsp_levels.framework.hlo import Instruction, Module, Shape, read_module

_PLANE, _PROGRAM = "/host:metadata", "Hlo Proto"

# The nodes, and the arrays that go in and come out as texts, by module and instruction.
Made = tuple[str, str, str]
_NONE: Made = ("", "", "")


def with_instructions(table: pl.DataFrame, space: bytes) -> pl.DataFrame:
    """Return operators with `origin`, and those of XLA with `shape` and `made`.

    Args:
        table: Operators (`operator_table`).
        space: What the profiler recorded.

    Returns:
        The operators; `origin` is the name of the node that an operator was made for, which is its
        own outside of XLA's programs; `made` are the arrays that come out, as a text.
    """
    if not (table["sort"] == "xla").any():
        made = pl.lit(None, pl.String)
        return table.with_columns(origin="node", made=made)
    known = dict(_instructions(space))
    found = [known.get(key, _NONE) for key in table.select("hlo_module", "hlo_op").iter_rows()]
    node, given, out = zip(*found, strict=True)
    columns = pl.DataFrame(
        {"node": node, "given": given, "out": out},
        dict.fromkeys(("node", "given", "out"), pl.String),
    )
    of_xla = pl.col("sort") == "xla"
    return table.with_columns(
        origin=pl.when(of_xla).then(columns["node"]).otherwise("node"),
        shape=pl.when(of_xla).then(columns["given"]).otherwise("shape"),
        made=pl.when(of_xla).then(columns["out"]),
    )


def _instructions(space: bytes) -> Iterator[tuple[tuple[str, str], Made]]:
    """Yield module and name of each instruction, and what is known of it."""
    plane = read_space(space).plane(_PLANE)
    for each in plane.metadata if plane is not None else ():
        program = each.stats.get(_PROGRAM)
        if isinstance(program, bytes):
            try:
                module = read_module(program)
            except ValueError:  # cut short
                continue
            yield from _of_module(module)


def _of_module(module: Module) -> Iterator[tuple[tuple[str, str], Made]]:
    for instructions in module.computations.values():
        for each in instructions.values():
            given = _given(each, instructions)
            yield (module.name, each.name), (each.op_name, given, _text(each.shapes))


def _given(each: Instruction, instructions: Mapping[int, Instruction]) -> str:
    operands = [instructions[number] for number in each.operands if number in instructions]
    return "".join(_text(operand.shapes) for operand in operands)


def _text(shapes: tuple[Shape, ...]) -> str:
    return "".join(f"{each.element}[{','.join(map(str, each.sizes))}]" for each in shapes)
