"""Tables of a zoo: those of the paper XSP (arXiv 1908.06869), as pure functions of the results.

`TABLES` lists them as the command line names them. Every column says what it means, and bears its
unit at the end of its name, as in docs/analyses.md. An entry is what differs in its batch alone: a
model with its settings on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import polars as pl

from xsp.answer.zoo.row import COLUMNS, MEASURED, THIRDS, TYPES, UNTYPED
from xsp.answer.zoo.table import THRESHOLD_PCT, without_batch
from xsp.answer.zoo.task import changes


@dataclass(frozen=True, slots=True)
class ZooTable:
    """A function from the frame of results to a table.

    Attributes:
        name: Name on the command line.
        question: The question that the table answers.
        columns: What each column means, in the table's order.
        make: Makes the table of a frame of results.
        paper: The table of the paper XSP (arXiv 1908.06869) that it has the shape of, if any.
    """

    name: str
    question: str
    columns: Mapping[str, str]
    make: Callable[[pl.DataFrame], pl.DataFrame]
    paper: str = ""

    def __call__(self, results: pl.DataFrame) -> pl.DataFrame:
        """Return the table of a frame of results."""
        return self.make(results).select(*self.columns)


def _of_results(*names: str) -> dict[str, str]:
    return {name: COLUMNS[name].meaning for name in names}


# An entry is known by these; a column that says the same of all entries may be left out.
IDENTITY = {
    **_of_results(
        *("model", "family", "framework", "precision", "compiled", "device", "threads", "train")
    ),
    "variant": "All settings but the batch, as JSON.",
    **_of_results("host", "machine"),
}
# Settings apart from these are in `variant` alone.
TOLD = ("framework", "precision", "compiled", "device", "threads", "train", "machine")

_KEY = ("model", "target", "machine", "variant")


def entry_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return the results with the number of their entry, sorted by entry and batch.

    Args:
        results: The frame of results, or what this function made of one: tables and pictures take
            either, and a page makes it once.

    Returns:
        The columns of the results; `variant`; `entry`, from 0 in the order of the results; the
        setting's values as known of any row of the entry; and `best`, whether the row is the one
        that stands for its entry.
    """
    if "entry" in results.columns:
        return results
    rows = results.with_columns(variant=without_batch())
    numbers = rows.select(_KEY).unique(maintain_order=True).with_row_index("entry")
    rows = rows.join(numbers, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    for name in [name for name in IDENTITY if name not in _KEY and rows[name].null_count()]:
        rows = _known(rows, name)
    rows = rows.sort("entry", "batch", maintain_order=True)
    # Which rows stand for their entries: the best batch, or else the largest measured.
    numbered = rows.select("entry", "batch", "optimal_batch", "status").with_row_index("row")
    measured = numbered.filter(is_measured())
    optimal = measured.filter(pl.col("batch") == pl.col("optimal_batch"))
    chosen = pl.concat([measured, optimal]).unique("entry", keep="last")
    is_best = numbered["row"].is_in(chosen["row"].implode())
    return rows.with_columns(best=is_best)


def best_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return the row of each entry at its best batch, of those that were measured."""
    return entry_rows(results).filter("best")


def labels_of(table: pl.DataFrame) -> pl.Series:
    """Return the name of each entry: its model, and those settings in which entries differ.

    Args:
        table: Columns of `IDENTITY`.
    """
    differing = [name for name in varying(table) if name != "machine"]
    parts = [pl.col("model"), *(pl.col(name).cast(pl.String) for name in differing)]
    said = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    return table.select(label=said).to_series()


def varying(table: pl.DataFrame) -> list[str]:
    """Return the settings in which entries differ, machines by the names of their hosts first.

    Args:
        table: Columns of `IDENTITY`.
    """
    names = ["host", *(name for name in TOLD if name != "machine")]
    if table["host"].n_unique() < table["machine"].n_unique():
        names.insert(1, "machine")
    return [name for name in names if table[name].drop_nulls().n_unique() > 1]


def roofs(results: pl.DataFrame) -> pl.DataFrame:
    """Return the peaks of machines: `host`, of several all, operations and bytes per second."""
    known = ["peak_flops_per_s", "peak_bytes_per_s", "roof_source"]
    rows = results.select("host", *known).drop_nulls(known[:2])
    hosts = pl.col("host").unique(maintain_order=True).str.join(", ")
    return rows.group_by(known[:2], maintain_order=True).agg(hosts, pl.first("roof_source"))


def is_measured() -> pl.Expr:
    """Return whether a row of the results has numbers."""
    return pl.col("status") == MEASURED


# What follows takes whole columns: an expression for each of 100,000 entries takes seconds.
def _known(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return rows with the first value that is known of each entry in a column."""
    known = first_of(rows.select("entry", name).drop_nulls(name))
    return rows.drop(name).join(known, on="entry", how="left", maintain_order="left")


def first_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first row of each entry."""
    return rows.unique("entry", keep="first", maintain_order=True)


_CURVE: Final = ("entry", "basis")
_UNSURE = (
    "the best batch is not sure: the intervals of the throughputs, or missing ones of single runs, "
    "allow another"
)


def sure_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return whether the best batch of each entry is sure: `entry`, and `optimal_batch_sure`.

    It is where each doubling below it raises the throughput by more than 5 % and the next one by no
    more, whichever values within their intervals the throughputs have.

    Args:
        rows: What `entry_rows` returned.
    """
    low, high = pl.col("throughput_low_per_s"), pl.col("throughput_high_per_s")
    batch, best = pl.col("batch"), pl.col("optimal_batch")
    known = rows.filter(is_measured(), best.is_not_null()).select(
        "entry",
        _place=batch - best,
        _least=_gain(high, low),
        _most=_gain(low, high),
        _last=batch.shift(-1).over(_CURVE).is_null(),
    )
    place = pl.col("_place")
    sure = (
        pl.when(place < 0)
        .then(pl.col("_least") > THRESHOLD_PCT)
        .when(place == 0)
        .then(pl.col("_last") | (pl.col("_most") <= THRESHOLD_PCT))
        .otherwise(pl.lit(value=True))
    )
    return known.group_by("entry").agg(optimal_batch_sure=sure.fill_null(value=False).all())


def doubts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return sentences on entries: `model`, and `reason`.

    Args:
        rows: What `entry_rows` returned.
    """
    unsure = sure_of(rows).filter(~pl.col("optimal_batch_sure"))
    models = rows.select("entry", "model").unique("entry", keep="first", maintain_order=True)
    named = models.join(unsure, on="entry", how="semi", maintain_order="left")
    # In what the bases of measurements differ that are of one entry.
    bases = (
        rows.filter(is_measured())
        .sort("started", maintain_order=True)
        .group_by("entry", maintain_order=True)
        .agg(pl.first("model"), pl.col("basis").unique(maintain_order=True))
        .filter(pl.col("basis").list.len() > 1)
    )
    said = [_differing(found[0], found[-1]) for found in bases["basis"].to_list()]
    mixed = bases.select("model", reason=pl.Series(said, dtype=pl.String))
    return pl.concat([named.select("model", reason=pl.lit(_UNSURE)), mixed])


def _gain(before: pl.Expr, after: pl.Expr) -> pl.Expr:
    """Return by how much a doubling of the batch raises the throughput, in percent."""
    doublings = (pl.col("batch").shift(-1) / pl.col("batch")).log(2)
    return (100 * ((after.shift(-1) / before).pow(1 / doublings) - 1)).over(_CURVE)


@cache
def _differing(before: str, now: str) -> str:
    what = "; ".join(changes(json.loads(before), json.loads(now)))
    return f"its batches were not measured alike, and no best one spans them: {what}"


# What the thirds are compared by: the name in columns, and in words.
QUANTITIES: Final = {
    "latency": "latency",
    "allocated": "allocated memory",
    "flops": "operations",
    "accessed": "memory accesses",
}

_THIRDS_COLUMNS = {
    **IDENTITY,
    "batch": "The best batch, or the only one.",
    **{
        f"{third}_{name}_pct": f"Share of the {third} third of the layers in the {said}."
        for name, said in QUANTITIES.items()
        for third in THIRDS
    },
}
_QUANTITY_COLUMNS = {
    "quantity": "What the thirds are compared by.",
    **{f"{third}_models": f"Models whose {third} third has most of it." for third in THIRDS},
    "unknown_models": "Models of which that is not known.",
}


def most_of(quantity: str) -> pl.Expr:
    """Return which third has most of a quantity; null where none is known."""
    shares = [pl.col(f"{third}_{quantity}_pct") for third in THIRDS]
    most = pl.max_horizontal(shares)
    chosen: pl.Expr = pl.lit(None, dtype=pl.String)
    for third, share in reversed([*zip(THIRDS, shares, strict=True)]):
        chosen = pl.when(share == most).then(pl.lit(third)).otherwise(chosen)
    return chosen


def _counts(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    rows = []
    for name, said in QUANTITIES.items():
        most = best.select(most_of(name)).to_series()
        counts = {f"{third}_models": int((most == third).sum()) for third in THIRDS}
        rows.append({"quantity": said, **counts, "unknown_models": most.null_count()})
    schema = dict.fromkeys(_QUANTITY_COLUMNS, pl.Int64) | {"quantity": pl.String}
    return pl.DataFrame(rows, schema=schema)


thirds = ZooTable("thirds", "Which third of the layers needs most?", _THIRDS_COLUMNS, best_rows)
thirds_by_quantity = ZooTable(
    "thirds-by-quantity",
    "In how many models is which third the heaviest?",
    _QUANTITY_COLUMNS,
    _counts,
)


# Of a row at the best batch.
WORK = _of_results(
    *("flops", "read_bytes", "write_bytes", "occupancy_pct", "flops_per_byte", "flops_per_s"),
    "bound",
)
SURE = {
    "optimal_batch_sure": "Whether the intervals of the throughputs allow no other best batch; of "
    "single runs, which have none, it is not sure.",
}
_AT_BEST = {
    name: f"{meaning[:-1]}, at the best batch."
    for name, meaning in _of_results(
        *("convolution_pct", "kernel_pct", "peak_memory_bytes", "peak_device_memory_bytes"),
        *("parameter_bytes", "layers", "flops", "flops_per_byte", "flops_per_s", "bound"),
        *("overhead_pct", "energy_j", "energy_low_j", "energy_high_j"),
    ).items()
}
_FIRST = ("accuracy_pct", "optimal_batch", "reason")
_ONLINE = ("latency_ns", "latency_low_ns", "latency_high_ns")
_RATE = ("throughput_per_s", "throughput_low_per_s", "throughput_high_per_s")

_MODEL_COLUMNS = {
    **IDENTITY,
    "accuracy_pct": "Accuracy of the model, where the zoo gives one.",
    "online_latency_ns": "Latency at batch 1, or of a target that takes no batch.",
    "online_latency_low_ns": "Lower end of its 95 % interval.",
    "online_latency_high_ns": "Upper end of its 95 % interval.",
    "max_throughput_per_s": "Most samples per second of the batches measured.",
    "max_throughput_low_per_s": "Lower end of its 95 % interval.",
    "max_throughput_high_per_s": "Upper end of its 95 % interval.",
    "optimal_batch": "Best batch: the smallest measured of which a doubling raises the throughput "
    "by no more than 5 %; null where one batch alone was tried.",
    **SURE,
    **_AT_BEST,
    "warnings": "What to know before trusting the numbers: how many sentences, of all batches.",
    "measured": "Batches with numbers.",
    "failed": "Batches without.",
    "reason": "Why the first of them has none.",
}


def _models(results: pl.DataFrame) -> pl.DataFrame:
    rows = entry_rows(results)
    measured = rows.filter(is_measured())
    alone = measured.filter(pl.col("batch").fill_null(1) == 1)
    quickest = measured.drop_nulls(_RATE[0]).sort(_RATE[0], descending=True, maintain_order=True)
    parts = [
        alone.select("entry", **{f"online_{name}": name for name in _ONLINE}),
        quickest.select("entry", **{f"max_{name}": name for name in _RATE}),
        *(rows.select("entry", name).drop_nulls(name) for name in _FIRST),
        rows.filter("best").select("entry", *_AT_BEST),
    ]
    table = first_of(rows.select("entry", *IDENTITY))
    counts = rows.group_by("entry").agg(
        warnings=pl.col("warnings").list.len().sum().cast(pl.Int64),
        measured=is_measured().sum().cast(pl.Int64),
        failed=(~is_measured()).sum().cast(pl.Int64),
    )
    for part in [*map(first_of, parts), sure_of(rows), counts]:
        table = table.join(part, on="entry", how="left", maintain_order="left")
    return table


models = ZooTable("models", "How does each model do?", _MODEL_COLUMNS, _models, "Table VIII")


_THROUGHPUT = {
    **IDENTITY,
    **_of_results("batch", *_ONLINE, *_RATE, "gain_pct", "kernel_ns", "kernel_pct"),
    **WORK,
    **_of_results("runs"),
    "best": "Whether it is the best batch of the model with its settings.",
}

_BATCH = {
    **IDENTITY,
    "optimal_batch": "Best batch; null where one batch alone was tried, which the row is about.",
    **SURE,
    **_of_results(*_ONLINE, "kernel_ns", "kernel_pct"),
    **WORK,
    **{
        f"{name}_third": f"Which third of the layers has most {said}: first, middle or last."
        for name, said in QUANTITIES.items()
    },
}


def _batch(results: pl.DataFrame) -> pl.DataFrame:
    rows = best_rows(results).join(
        sure_of(entry_rows(results)), on="entry", how="left", maintain_order="left"
    )
    return rows.with_columns(most_of(name).alias(f"{name}_third") for name in QUANTITIES)


throughput = ZooTable(
    "throughput",
    "What does each batch size give?",
    _THROUGHPUT,
    lambda results: entry_rows(results).filter(is_measured()),
    "Table VI",
)
batch = ZooTable("batch", "What does the best batch need, and where?", _BATCH, _batch, "Table IX")


_VARIANTS_COLUMNS = {
    **IDENTITY,
    "differs": "What differs from the model's first entry.",
    "online_latency_ratio": "Latency at batch 1, relative to that of the model's first entry.",
    "max_throughput_ratio": "Most throughput, relative to that of the model's first entry.",
    "optimal_batch": "Best batch; null where one batch alone was tried.",
    **_of_results("kernel_pct"),
    **WORK,
}


def _variants(results: pl.DataFrame) -> pl.DataFrame:
    rows = models.make(results).filter(pl.len().over("model") > 1)
    ratios = [
        (pl.col(name) / pl.col(name).first().over("model")).alias(f"{ratio}_ratio")
        for name, ratio in (
            ("online_latency_ns", "online_latency"),
            ("max_throughput_per_s", "max_throughput"),
        )
    ]
    missing = [name for name in WORK if name not in rows.columns]
    work = best_rows(results).select("entry", *missing)
    first = rows.select(pl.col("variant").first().over("model")).to_series()
    further = [_further(*pair) for pair in zip(rows["variant"], first, strict=True)]
    rows = rows.with_columns(*ratios, further=pl.Series(further, dtype=pl.String))
    return rows.with_columns(differs=_difference()).join(
        work, on="entry", how="left", maintain_order="left"
    )


def _difference() -> pl.Expr:
    """Return in words what differs from the model's first entry; empty of the first itself."""
    told = []
    for name in ("host", *(name for name in TOLD if name != "machine")):
        value = pl.col(name).cast(pl.String)
        other = value.ne_missing(value.first().over("model"))
        told.append(pl.when(other).then(pl.format(name + " {}", value.fill_null("as is"))))
    return pl.concat_str([*told, pl.col("further")], separator=", ", ignore_nulls=True)


def _further(variant: str, other: str) -> str | None:
    """Return the settings without a column of their own that differ from those of another."""
    now, first = _settings(variant), _settings(other)
    names = [name for name in {**now, **first} if now.get(name) != first.get(name)]
    told = [f"{name} {now.get(name, 'as is')}" for name in names if name not in TOLD]
    return ", ".join(told) or None


@cache
def _settings(variant: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(variant)
    return found


variants = ZooTable(
    "variants",
    "How do frameworks, settings and machines compare?",
    _VARIANTS_COLUMNS,
    _variants,
    "Table X",
)


_SHARES_COLUMNS = {
    **IDENTITY,
    "batch": "The best batch, or the only one.",
    "part": "The type of layer, or the library primitive.",
    "share_pct": "Its share of the latency, at the best batch.",
}
_PRIMITIVES = pl.Schema({"entry": pl.UInt32, "part": pl.String, "share_pct": pl.Float64})


def _by_type(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    names = {one: one.removeprefix("time.").removesuffix("_pct") for one in (*TYPES, UNTYPED)}
    shares = best.select("entry", **{said.replace("_", " "): one for one, said in names.items()})
    long = shares.unpivot(index="entry", variable_name="part", value_name="share_pct")
    return _named(long.filter(pl.col("share_pct") > 0), best)


def _primitive_latency(results: pl.DataFrame) -> pl.DataFrame:
    best = best_rows(results)
    texts = best.select("entry", "primitives").drop_nulls()
    rows = [
        (entry, part, share)
        for entry, text in texts.iter_rows()
        for part, share in json.loads(text).items()
    ]
    long = pl.DataFrame(rows, schema=_PRIMITIVES, orient="row")
    return _named(long, best)


def _named(long: pl.DataFrame, best: pl.DataFrame) -> pl.DataFrame:
    """Return shares with what their entries are, the largest of each entry first."""
    ordered = long.sort("entry", "share_pct", descending=[False, True], maintain_order=True)
    entries = best.select("entry", "batch", *IDENTITY)
    return ordered.join(entries, on="entry", how="left", maintain_order="left")


layer_types = ZooTable(
    "layer-types", "Which types of layer take the time?", _SHARES_COLUMNS, _by_type
)
primitives = ZooTable(
    "primitives", "Which library primitives take the time?", _SHARES_COLUMNS, _primitive_latency
)


_NAMED = 5  # models that a row names
_FAILURES_COLUMNS = {
    "status": "What became of them: `failed`, `out-of-memory`, `time-out`, `crashed`, `skipped`.",
    "reason": "Why, the first line; numbers that differ within the group are `…`.",
    "measurements": "How many have no numbers for this reason.",
    "models": "How many models these are of.",
    "named": f"The first {_NAMED} of these.",
}
_WARNING_COLUMNS = {
    "problem": "What to know before trusting the numbers; numbers that differ are `…`.",
    "measurements": "How many say so; what is said of all batches of a model counts once.",
    "models": "How many models these are of.",
    "named": f"The first {_NAMED} of these.",
}
_NUMBER = r"\d+(?:[.,]\d+)*"


def _failures(results: pl.DataFrame) -> pl.DataFrame:
    reason = pl.col("reason").fill_null("no reason is known").str.split("\n").list.first()
    return _grouped(results.filter(~is_measured()), reason.alias("reason"), "status")


def _warnings(results: pl.DataFrame) -> pl.DataFrame:
    sentences = results.select("model", reason="warnings").explode("reason").drop_nulls()
    sentences = pl.concat([sentences, doubts(entry_rows(results))])
    return _grouped(sentences, pl.col("reason")).rename({"reason": "problem"})


def _grouped(rows: pl.DataFrame, said: pl.Expr, *within: str) -> pl.DataFrame:
    """Return rows by what is said of them, whatever the numbers in that, by frequency."""
    models = pl.col("model").unique(maintain_order=True)
    first = models.head(_NAMED).str.join(", ")
    one = pl.col("reason").n_unique() == 1
    return (
        rows.with_columns(said)
        .with_columns(said=pl.col("reason").str.replace_all(_NUMBER, "…"))
        .with_columns(alike=pl.col("said"))
        .group_by(*within, "alike", maintain_order=True)
        .agg(
            pl.when(one).then(pl.first("reason")).otherwise(pl.first("said")).alias("reason"),
            pl.len().cast(pl.Int64).alias("measurements"),
            pl.col("model").n_unique().cast(pl.Int64).alias("models"),
            pl.when(models.len() > _NAMED)
            .then(pl.format("{} and {} more", first, models.len() - _NAMED))
            .otherwise(first)
            .first()
            .alias("named"),
        )
        .sort("measurements", descending=True, maintain_order=True)
    )


failures = ZooTable("failures", "What failed, and why?", _FAILURES_COLUMNS, _failures)
warnings = ZooTable(
    "warnings", "What should be known before trusting a number?", _WARNING_COLUMNS, _warnings
)


_ALL = (models, throughput, batch, variants, thirds, layer_types, primitives, failures, warnings)
TABLES: Mapping[str, ZooTable] = {table.name: table for table in _ALL}
