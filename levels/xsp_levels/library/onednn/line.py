"""Parses lines of oneDNN's verbose mode into a table with a row per primitive. Pure.

A line is a list of fields between commas. Versions 2 and 3 of oneDNN differ in the first
fields (a marker, from 3.5 on a version of the format, a timestamp if asked for, from 3.1 on
the word `primitive`). A header names the fields after those (oneDNN, "Verbose Mode",
developer guide, and src/common/verbose.cpp):

    onednn_verbose,v1,primitive,info,template:timestamp,operation,engine,primitive,…
    onednn_verbose,v1,1795165457754.960938,primitive,exec,cpu,convolution,jit:avx2,…,1.18
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

_START = r"(?:onednn|dnnl)_verbose,(?:v\d+,)?"
_STAMP = r"(?:\d+(?:\.\d+)?,)?"
_OPERATION = r"(?:exec|create(?:_\w+)?)(?::\w+)?"
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"

# A line that another print cut short has no duration at its end: the line stays in the user's
# output, lest some of the output is taken with the line. oneDNN prints errors in any mode, so
# lines about errors are the user's.
LINE = re.compile(
    (
        f"{_START}{_STAMP}"
        rf"(?:(?:primitive,)?{_OPERATION}(?:,[^,\n]*){{8}}[^\n]*,{_NUMBER}(?:,[^\n]*)?"
        rf"|(?:primitive,)?{_OPERATION},[^\n]*(?:,sdpa,|unknown)[^\n]*,{_NUMBER}"
        rf"|graph,(?:exec|compile)[^\n]*,{_NUMBER}"
        r"|(?:\w+,)?(?:info|warn|debuginfo|create:dispatch)(?:,[^\n]*)?)\n"
    ).encode()
)

# Names of the fields after `operation`, unless a header names others.
FIELDS = (
    "engine",
    "primitive",
    "implementation",
    "prop_kind",
    "memory_descriptors",
    "attributes",
    "auxiliary",
    "problem_desc",
    "exec_time",
)
# Primitives whose lines have fewer fields than the header says.
_SHORT = ("sdpa",)
_HEADER = re.compile(rf"^{_START}(?:primitive,)?info,(?:prim_)?template:(.+)$", re.MULTILINE)
_VERSION = re.compile(rf"^{_START}info,oneDNN v(\d+\.\d+\.\d+)", re.MULTILINE)
_THREADS = re.compile(rf"^{_START}info,cpu,runtime:.*\bnthr:(\d+)", re.MULTILINE)
_IS_OPERATION = f"^{_OPERATION}$"
# Lines of a graph's partition: the partition's primitives have lines of their own.
_IS_GRAPH = "^graph$"
# Lines that say why an implementation was not taken or an argument not used.
_IS_REMARK = ":(dispatch|check)$"
_MARKERS = (b"onednn_verbose,", b"dnnl_verbose,")
_WIDEST = 64  # fields of a line that are read


@dataclass(frozen=True, slots=True)
class Header:
    """oneDNN's header, printed once, before the first line of a primitive.

    Attributes:
        version: Such as `3.7.1`; None if the header was not seen.
        threads: Count of threads on the CPU; None if the header was not seen.
        fields: Names of the fields after `operation` in a line.
    """

    version: str | None = None
    threads: int | None = None
    fields: tuple[str, ...] = FIELDS


def parse_header(lines: bytes, known: Header | None = None) -> Header:
    """Return the header among lines; fields without a line are as in `known`."""
    known = known or Header()
    text = lines.decode("utf-8", "replace")
    version, threads = _VERSION.search(text), _THREADS.search(text)
    template = _HEADER.search(text)
    return Header(
        version[1] if version else known.version,
        int(threads[1]) if threads else known.threads,
        _fields(template[1]) if template else known.fields,
    )


def _fields(template: str) -> tuple[str, ...]:
    names = [name.strip() for name in template.split(",")]
    after = names.index("operation") + 1 if "operation" in names else 0
    fields = tuple(names[after:])
    return fields if {"primitive", "exec_time"} <= set(fields) else FIELDS


def parse_lines(lines: bytes, fields: tuple[str, ...] = FIELDS) -> tuple[pl.DataFrame, int]:
    r"""Return a row per primitive created or executed, and the count of unreadable lines.

    Args:
        lines: Lines of oneDNN, each with its newline; other lines are passed over.
        fields: Names of the fields after `operation`, see `Header`.

    Returns:
        Columns `wall_us` (Int64, microseconds since 1970, null without timestamps),
        `duration_us` (Int64), `operation` (`exec`, `create:cache_miss`, …), and as
        strings the columns of `FIELDS` but the last, null where a line lacks the field.

    >>> frame, lost = parse_lines(
    ...     b"onednn_verbose,1693533460272.416992,exec,cpu,reorder,simple:any,undef,"
    ...     b"src_f32::blocked:a:f0 dst_f32::blocked:a:f0,,,16,0.0520020\n")
    >>> frame.select("wall_us", "duration_us", "primitive", "problem_desc").rows(), lost
    ([(1693533460272417, 52, 'reorder', '16')], 0)
    """
    table = _split([line for line in lines.split(b"\n") if line.startswith(_MARKERS)])
    frame = pl.concat([_lines_at(table, at, fields) for at in range(1, 5)]).sort("row")
    frame = frame.with_columns(
        # oneDNN took both in whole microseconds, and printed them with less precision.
        wall_us=(pl.col("ms") * 1000).round().cast(pl.Int64, strict=False),
        duration_us=(_number("exec_time") * 1000).round().cast(pl.Int64, strict=False),
    )
    whole = frame.filter(
        (pl.col("more") >= 0) | pl.col("primitive").is_in(_SHORT),
        pl.col("duration_us").is_between(0, 1 << 50),
        pl.col("primitive").str.len_bytes() > 0,
    )
    columns = ["wall_us", "duration_us", "operation", *FIELDS[:-1]]
    return whole.select(columns), frame.height - whole.height


def _split(lines: list[bytes]) -> pl.DataFrame:
    """Return the fields of every line as columns `0`, `1`, …, with `row`, `width`, `last`."""
    widths = [line.count(b",") + 1 for line in lines]
    width = min(max(widths, default=1), _WIDEST)
    # polars takes the number of columns from the first line, so a full line is put first.
    text = b"\n".join([b"," * (width - 1) + b"-", *lines])
    table = pl.read_csv(
        text,
        has_header=False,
        new_columns=[str(at) for at in range(width)],
        infer_schema=False,
        quote_char=None,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
    ).slice(1)
    missing = [pl.lit("").alias(str(at)) for at in range(width, 5)]
    return table.with_columns(
        *missing,
        row=pl.int_range(pl.len()),
        width=pl.Series(widths, dtype=pl.Int64),
        last=pl.Series([line.rpartition(b",")[2].decode("latin-1") for line in lines]),
    )


def _lines_at(table: pl.DataFrame, at: int, fields: tuple[str, ...]) -> pl.DataFrame:
    """Return the lines whose operation is field number `at`, with the fields after it by name.

    If a line has another number of fields than the header says, only the first three fields,
    which never changed, and the last, the duration, are read.
    """
    before = [str(i) for i in range(1, at)]
    found = table.filter(
        _is(_IS_OPERATION, str(at)),
        ~_is(_IS_REMARK, str(at)),
        *(~_is(f"{_IS_OPERATION}|{_IS_GRAPH}", name) for name in before),
    )
    more = pl.col("width") - (at + 1 + len(fields))
    columns = {"last": pl.col("last")}
    for i, name in enumerate(fields):
        if (column := str(at + 1 + i)) in table.columns:
            columns[name] = pl.when((more == 0) | (i < 3)).then(column)
    nothing = pl.lit(None, dtype=pl.String)
    return found.select(
        "row",
        more=more,
        operation=pl.col(str(at)),
        ms=pl.coalesce(pl.lit(None, dtype=pl.Float64), *(_number(name) for name in before)),
        exec_time=pl.coalesce(columns.get("exec_time", nothing), "last"),
        **{name: columns.get(name, nothing) for name in FIELDS[:-1]},
    )


def _is(pattern: str, column: str) -> pl.Expr:
    return pl.col(column).str.contains(pattern).fill_null(value=False)


def _number(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Float64, strict=False)
