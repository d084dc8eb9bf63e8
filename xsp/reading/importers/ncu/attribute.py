"""Makes columns of attributes from metrics, one row per kernel.

Every metric is an attribute under its own name: `ncu.`, the name, and the unit where that is a
time, a size, a frequency or a share: `ncu.l2_hit_rate_pct`, `ncu.gpu__time_duration.sum_ns`. Names
of counters stay as they are; those of the details page are made of small letters. What xsp has a
name for (`achieved_occupancy_pct`) has that name besides, from whichever page it comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from xsp.provider import ATTRIBUTE
from xsp.reading.importers.ncu.number import numbers
from xsp.reading.importers.ncu.unit import NANOSECONDS, unit

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
    whole = pl.col("ambiguous") & pl.col("unit").is_in(NANOSECONDS)
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
    for prefix in _SASS:
        parts = {
            f"{prefix}_thread_inst_executed_op_{name}_pred_on.sum": operations
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
