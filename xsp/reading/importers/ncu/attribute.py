"""Makes columns of attributes from metrics, one row per kernel.

Every metric is an attribute under its own name: `ncu.`, the name, and the unit where that is a
time, a size, a frequency or a share: `ncu.l2_hit_rate_pct`, `ncu.gpu__time_duration.sum_ns`. Names
of counters stay as they are; those of the details page are made of small letters. What xsp has a
name for (`achieved_occupancy_pct`) has that name besides, from whichever page it comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import polars as pl

from xsp.provider import ATTRIBUTE

PREFIX = f"{ATTRIBUTE}ncu."

# Columns with names of xsp, and the attributes that each is: the first that is there.
_NAMED: Mapping[str, Sequence[str]] = {
    "duration_ns": ("duration_ns", "gpu__time_duration.sum_ns"),
    "attr.registers": ("registers_per_thread", "launch__registers_per_thread"),
    "attr.static_shared_bytes": (
        "static_shared_memory_per_block_bytes",
        "launch__shared_mem_per_block_static_bytes",
    ),
    "attr.dynamic_shared_bytes": (
        "dynamic_shared_memory_per_block_bytes",
        "launch__shared_mem_per_block_dynamic_bytes",
    ),
    "attr.occupancy_pct": ("theoretical_occupancy_pct", "sm__maximum_warps_per_active_cycle_pct"),
    "attr.achieved_occupancy_pct": (
        "achieved_occupancy_pct",
        "sm__warps_active.avg.pct_of_peak_sustained_active_pct",
    ),
    "attr.dram_read_bytes": ("dram__bytes_read.sum_bytes", "dram__bytes_op_read.sum_bytes"),
    "attr.dram_write_bytes": ("dram__bytes_write.sum_bytes", "dram__bytes_op_write.sum_bytes"),
}

# Counters of instructions by threads whose predicate was on. What they count is one operation,
# of a fused multiply-add two; so the roofline sections of Nsight Compute have it.
_OPERATIONS = {
    f"{width}{name}": operations
    for width in "dfh"
    for name, operations in (("add", 1), ("mul", 1), ("fma", 2))
}
_SASS = ("smsp__sass", "sm__sass")
_TENSOR = re.compile(r"sm__ops_path_tensor_src_(?:fp|bf|tf)\w+?\.sum")


def attribute_name(metric: str, unit_name: str) -> str:
    """Return the name of a metric's attribute, without a prefix.

    >>> attribute_name("L1/TEX Hit Rate", "pct"), attribute_name("# SMs", "")
    ('l1_tex_hit_rate_pct', 'sms')
    >>> attribute_name("dram__bytes_read.sum", "bytes")
    'dram__bytes_read.sum_bytes'
    """
    if "__" not in metric:
        metric = re.sub(r"[^0-9a-z]+", "_", metric.lower()).strip("_") or "unnamed"
    told = not unit_name or metric.endswith((f"_{unit_name}", f".{unit_name}"))
    return metric if told else f"{metric}_{unit_name}"


def named(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return metrics with the names of their attributes, and numbers in xsp's units.

    Args:
        metrics: Columns of `table.METRIC_SCHEMA`, all metrics of a file.

    Returns:
        Columns `kernel`, `name`, `text`, `value` and `state`: `number`, `text` (of a metric that
        has no numbers), `empty`, or why there is no value; null where `state` is not `number`.
        A kernel has a metric at most once with one of the first two states.
    """
    read = numbers(metrics["text"])
    # Nanoseconds are whole: their marks stand between thousands in any language.
    whole = pl.col("ambiguous") & pl.col("unit").is_in(_NANOSECONDS)
    thousands = pl.col("text").str.replace_all(r"[.,]", "").cast(pl.Float64, strict=False)
    told = metrics.with_columns(
        value=read.values, ambiguous=read.ambiguous, unknown=read.unknown
    ).with_columns(
        value=pl.when(whole).then(thousands).otherwise("value"),
        ambiguous=pl.col("ambiguous") & ~whole,
    )
    told = told.join(_names(metrics), on=["metric", "unit"], how="left", maintain_order="left")
    told = told.with_columns(value=pl.col("value") * pl.col("factor")).with_columns(state=_state())
    told = _once(told)
    value = pl.when(pl.col("state") == "number").then("value")
    return told.with_columns(value=value).select("kernel", "name", "text", "value", "state")


def _names(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the factor, the name and the number of the name of each metric with each unit."""
    pairs = metrics.select("metric", "unit").unique(maintain_order=True)
    units = [unit(text) for text in pairs["unit"]]
    names = [
        attribute_name(metric, own) for metric, (_, own) in zip(pairs["metric"], units, strict=True)
    ]
    factors = pl.Series([factor for factor, _ in units], dtype=pl.Float64)
    named_ = pairs.with_columns(factor=factors, name=pl.Series(names, dtype=pl.String))
    return named_.with_columns(number=pl.col("name").rank("dense").cast(pl.Int64))


def _state() -> pl.Expr:
    value, text = pl.col("value"), pl.col("text")
    numeric = value.is_not_null().any().over("name")
    negative = pl.col("name").is_in(_NAMED["duration_ns"]) & (value < 0)
    return (
        pl.when(text == "").then(pl.lit("empty"))
        .when("unknown").then(pl.lit("not-measured"))
        .when("ambiguous").then(pl.lit("ambiguous-number"))
        .when(negative).then(pl.lit("negative-duration"))
        .when(value.is_not_null()).then(pl.lit("number"))
        .when(numeric).then(pl.lit("unreadable-number"))
        .otherwise(pl.lit("text"))
    )  # fmt: skip


def _once(told: pl.DataFrame) -> pl.DataFrame:
    """Return metrics without those that a kernel has before; other values of these are marked."""
    valued = pl.col("state").is_in(["number", "text"])
    many = pl.col("number").max() + 1
    key = pl.when(valued).then(pl.col("kernel") * many + pl.col("number"))
    told = told.with_columns(key=pl.coalesce(key, -1 - pl.int_range(pl.len())))
    told = told.with_columns(first=pl.col("key").is_first_distinct())
    if told["first"].all():
        return told
    texts = told.filter("first").select("key", before="text")
    told = told.join(texts, on="key", how="left", maintain_order="left")
    told = told.filter(pl.col("first") | (pl.col("text") != pl.col("before")))
    return told.with_columns(state=pl.when("first").then("state").otherwise(pl.lit("told-twice")))


def attributes(metrics: pl.DataFrame, kernels: int) -> pl.DataFrame:
    """Return one row per kernel: `duration_ns`, and attributes under names that begin with `attr.`.

    Args:
        metrics: What `named` returns.
        kernels: How many kernels there are; metrics have their numbers from 0.
    """
    valued = metrics.filter(pl.col("state").is_in(["number", "text"]))
    columns: dict[str, pl.Series] = {}
    for (name, state), own in valued.partition_by("name", "state", as_dict=True).items():
        column = own["value" if state == "number" else "text"]
        none = pl.Series(name, [None], dtype=column.dtype).new_from_index(0, kernels)
        columns[str(name)] = none.scatter(own["kernel"], column)
    own_names = [values.alias(PREFIX + name) for name, values in columns.items()]
    return pl.DataFrame([*_known(columns, kernels), *own_names])


def flops(counters: Mapping[str, pl.Series]) -> pl.Series | None:
    """Return how many floating-point operations each kernel made; None if that is not counted.

    All nine counters of additions, multiplications and fused multiply-adds in half, single and
    double precision must be there. Those of tensor cores are added where they were counted.

    Args:
        counters: Values of counters, one per kernel, by the counters' names.
    """
    for unit_of in _SASS:
        parts = {
            f"{unit_of}_thread_inst_executed_op_{name}_pred_on.sum": operations
            for name, operations in _OPERATIONS.items()
        }
        if parts.keys() <= counters.keys():
            tensor = [values for name, values in counters.items() if _TENSOR.fullmatch(name)]
            cores = [counters[name] * operations for name, operations in parts.items()]
            return sum((*cores[1:], *tensor), start=cores[0])
    return None


def counts_tensor_cores(names: Sequence[str]) -> bool:
    """Tell whether operations of tensor cores are among counters, or attributes, of some names."""
    return any(_TENSOR.fullmatch(name.removeprefix(PREFIX)) for name in names)


def _known(columns: Mapping[str, pl.Series], kernels: int) -> list[pl.Series]:
    """Return the columns that xsp has a name for; always `duration_ns`."""
    numeric = {name: values for name, values in columns.items() if values.dtype == pl.Float64}
    none = pl.Series([None], dtype=pl.Float64).new_from_index(0, kernels)
    found = {"duration_ns": none}
    for name, metrics in _NAMED.items():
        there = [numeric[metric] for metric in metrics if metric in numeric]
        found |= {name: there[0]} if there else {}
    found |= {"attr.flops": total} if (total := flops(numeric)) is not None else {}
    return [
        (values if name.endswith("pct") else values.round().cast(pl.Int64, strict=False)).alias(
            name
        )
        for name, values in found.items()
    ]


# Finds the factor and the unit of xsp for a unit that Nsight Compute writes.

_NANOSECONDS = ("ns", "nsec", "nsecond")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1e9),
    **dict.fromkeys(("ms", "msec", "msecond"), 1e6),
    **dict.fromkeys(("us", "usec", "usecond", "\u00b5s", "\u03bcs"), 1e3),
    **dict.fromkeys(_NANOSECONDS, 1.0),
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNTED = re.compile(
    r"([kmgtp]?)(byte|bit|hz|cycle|inst|thread|warp|block|sector|request|sample|op)s?"
)
_WORDS = {"byte": "bytes", "hz": "hz", "%": "pct"}


@cache
def unit(text: str) -> tuple[float, str]:
    """Return the factor by which a number is multiplied, and the name of the unit it then has.

    The name ends names of attributes: `ns`, `bytes`, `hz`, `pct`, what is measured per second
    with `per_s`; it is empty for counts. What is measured per block, cycle and the like has the
    unit of what is measured.

    >>> [unit(text) for text in ("Kbyte", "usecond", "%", "register/thread", "")]
    [(1000.0, 'bytes'), (1000.0, 'ns'), (1.0, 'pct'), (1.0, ''), (1.0, '')]
    >>> [unit(text) for text in ("Gbyte/second", "cycle/nsecond", "Kbyte/block")]
    [(1000000000.0, 'bytes_per_s'), (1000000000.0, 'per_s'), (1000.0, 'bytes')]
    """
    above, _, below = text.strip().lower().partition("/")
    factor, name = _part(above)
    if below in _SECONDS:
        return factor * (1e9 / _SECONDS[below]), f"{name}_per_s".lstrip("_")
    return factor / _part(below)[0], name


def _part(word: str) -> tuple[float, str]:
    if word in _SECONDS:
        return _SECONDS[word], "ns"
    counted = _COUNTED.fullmatch(word)
    if counted is None:
        return 1.0, _WORDS.get(word, "")
    return _PREFIXES[counted[1]], _WORDS.get(counted[2], "")


# Reads the numbers of one file, in whatever locale Nsight Compute wrote them.

# Marks between groups of digits that are never the mark before decimals: spaces of all widths,
# apostrophes, and the underscore.
_SPACES = "[ \u00a0\u2007\u2008\u2009\u202f'\u2019_]"
_SPACED = rf"(\d){_SPACES}(\d)"
# A metric of several instances: the value, and in parentheses the value of each instance.
_INSTANCES = r"^(\S[^(]*?)\s*\([^()]*;[^()]*\)$"
_UNKNOWN = ("", "n/a", "nan", "-nan", "nan(ind)", "-nan(ind)", "inf", "-inf", "+inf", "none")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that texts stand for.

    Attributes:
        values: Float64, one per text; null where the text is no number, or an ambiguous one.
        ambiguous: Whether each text can be read in two ways, and no other text tells which.
        unknown: Whether each text says that there is no number (`n/a`, `nan`).
    """

    values: pl.Series
    ambiguous: pl.Series
    unknown: pl.Series


def numbers(texts: pl.Series | Sequence[str | None]) -> Numbers:
    """Return the numbers that texts of one file stand for.

    Args:
        texts: Texts of one locale, in any order; null stands for "no number".

    >>> numbers(["1,500", "2,345.5"]).values.to_list()
    [1500.0, 2345.5]
    >>> numbers(["1,500", "2.345,5"]).values.to_list()
    [1.5, 2345.5]
    >>> numbers(["1,500"]).ambiguous.to_list()
    [True]
    """
    text = pl.Series("text", texts, dtype=pl.String).fill_null("").str.strip_chars()
    # Texts without instances, and without marks that only stand between groups.
    value = pl.col("text").str.replace(_INSTANCES, "$1")
    # Twice: of two marks with one digit between them, the first replacement misses one.
    bare = value.str.replace_all(_SPACED, "$1$2").str.replace_all(_SPACED, "$1$2")
    told = text.to_frame().unique().with_columns(bare=bare)
    point, comma = _fits(".", ","), _fits(",", ".")
    lower = pl.col("text").str.to_lowercase()
    told = told.with_columns(point=point, comma=comma, unknown=lower.is_in(_UNKNOWN))
    told = told.with_columns(
        as_point=_number("point", ".", ","),
        as_comma=_number("comma", ",", "."),
    )
    open_ = pl.col("as_point") != pl.col("as_comma")
    mark = _mark(told.filter("point"), told.filter("comma"))
    chosen = {".": pl.col("as_point"), ",": pl.col("as_comma"), "": pl.lit(None, pl.Float64)}[mark]
    told = told.with_columns(ambiguous=open_.fill_null(value=False) & pl.lit(not mark))
    told = told.with_columns(
        value=pl.when(open_).then(chosen).otherwise(pl.coalesce("as_point", "as_comma"))
    )
    found = text.to_frame().join(told, on="text", how="left", maintain_order="left")
    return Numbers(found["value"], found["ambiguous"], found["unknown"])


def _fits(mark: str, between: str) -> pl.Expr:
    """Tell which texts are numbers where `mark` is before decimals, `between` between groups.

    A number has one mark between groups: in `1 234,567` the comma stands before decimals. Digits
    are grouped by threes; in India the groups above are of two.
    """
    tail = rf"(\{mark}\d*)?([eE][+-]?\d+)?$"
    grouped = rf"[1-9]\d{{0,2}}(\{between}\d{{2,3}})*\{between}\d{{3}}"
    spaced = pl.col("text").str.contains(_SPACED)
    plain = pl.col("bare").str.contains(rf"^[+-]?\d+{tail}")
    return plain | (~spaced & pl.col("bare").str.contains(rf"^[+-]?{grouped}{tail}"))


def _number(fits: str, mark: str, between: str) -> pl.Expr:
    plain = pl.col("bare").str.replace_all(between, "", literal=True)
    plain = plain.str.replace(mark, ".", literal=True)
    value = pl.when(fits).then(plain).cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _mark(point: pl.DataFrame, comma: pl.DataFrame) -> str:
    """Return the mark before decimals that all unambiguous texts agree on; empty if none does."""
    says_point = point["comma"].not_().any()
    says_comma = comma["point"].not_().any()
    return "" if says_point == says_comma else "." if says_point else ","
