"""Comparison of zoos: finds the same models and settings in two tables, and judges differences.

Models are paired by name, results by settings; settings in which one folder has one value and the
other another (`framework`, say) are what is compared, and do not keep results apart. Differences
are judged as `xsp compare` does it: halves of intervals add up as squares, the assumed spread of
processes is in them (a zoo measures in one process), and p-values are corrected for the number of
results.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import polars as pl
from numpy.typing import NDArray

from xsp.answer.comparison import FALSE_DISCOVERY_RATE, Differences, Estimates, corrected
from xsp.answer.zoo.row import MEASURED, SET, TYPES, UNTYPED
from xsp.errors import AnalysisError
from xsp.matching import student
from xsp.text import suggest

_NO_LETTER = re.compile(r"[^a-z0-9]")
_FILE = (".onnx", ".tflite", ".pb")
_UNLIKE = 0.05  # of the parameters' size: what two builds of one model differ by at most

Pairs = dict[str, tuple[str, float]]

_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")
# Facts of a basis that say what was measured, and not on what.
_BESIDE = ("target", "file", "host id")
_MANY = 4  # values of a fact that are told

DIFFERENCE_COLUMNS = {
    "model": "Name of the model, in the first folder.",
    "model_b": "Its name in the second.",
    "confidence": "How sure it is that they are the same model, from 0 to 1, by their names.",
    "settings": "The settings in common, besides the batch size.",
    "batch": "Batch size.",
    "latency_a_ns": "Latency in the first folder.",
    "latency_a_low_ns": "Lower end of its 95 % interval, the spread of processes in it.",
    "latency_a_high_ns": "Upper end of its 95 % interval.",
    "latency_b_ns": "Latency in the second folder.",
    "latency_b_low_ns": "Lower end of its 95 % interval, the spread of processes in it.",
    "latency_b_high_ns": "Upper end of its 95 % interval.",
    "difference_ns": "The second less the first.",
    "difference_high_ns": "Upper end of its 95 % interval.",
    "ratio": "The second over the first: less than 1 is faster.",
    "ratio_low": "Lower end of its 95 % interval.",
    "ratio_high": "Upper end of its 95 % interval.",
    "p_value": "Chance of a difference as large or larger, were there none.",
    "corrected_p_value": "The same, corrected for the number of rows (Benjamini-Hochberg).",
    "verdict": "`slower` or `faster` where the corrected chance is at most 5 %, else `not "
    "significant`; `unknown` where an interval is missing.",
    "rank_a": "Rank of the model in the first folder, quickest first, among those at this batch "
    "and these settings that both have.",
    "rank_b": "The same in the second folder.",
    "moved_pct": "How much of the latency is of another type of layer: half of the sum of all "
    "differences of shares.",
    "moved_from": "Type of layer whose share fell most.",
    "moved_to": "Type of layer whose share rose most.",
}
_ENDS = ("latency_ns", "latency_low_ns", "latency_high_ns")
_SHARES = (*TYPES, UNTYPED)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ZooComparison:
    """The differences between two folders of results.

    Attributes:
        names: What the folders are called.
        table: A row for each result that both have; `DIFFERENCE_COLUMNS` says what its columns are.
        means: Geometric mean of the ratios, of all and of each batch, with its 95 % interval over
            models: `batch` (null: all), `models`, `ratio`, `ratio_low`, `ratio_high`, `faster`,
            `slower`, `not_significant`, `unknown` (numbers of results).
        by_layer_type: Mean share of each type of layer in both: `layer_type`, `share_a_pct`,
            `share_b_pct`, `difference_pct`.
        basis: Versions, machines and settings that differ: `fact`, `a`, `b`.
        alone: What only one folder has measured: `model`, settings, `side`, `reason`.
        notes: What to know before trusting the differences.
    """

    names: tuple[str, str]
    table: pl.DataFrame
    means: pl.DataFrame
    by_layer_type: pl.DataFrame
    basis: pl.DataFrame
    alone: pl.DataFrame
    notes: tuple[str, ...]


def compare_results(
    first: pl.DataFrame,
    second: pl.DataFrame,
    names: tuple[str, str] = ("first", "second"),
    *,
    same: Mapping[str, str] | None = None,
) -> ZooComparison:
    """Compare the results of two zoos: of two machines, versions or frameworks.

    Args:
        first: Results, as `read_results` returns them.
        second: The results that are compared with them.
        names: What they are called.
        same: Models of the second by those of the first that are known to be the same, though
            their names are not alike.

    Raises:
        AnalysisError: They have no measured result in common, or no model that `same` names.
    """
    given = same or {}
    for asked, models in ((given.keys(), first["model"]), (given.values(), second["model"])):
        known = models.unique(maintain_order=True).to_list()
        for name in asked:
            if name not in known:
                close = suggest(name, known)
                raise AnalysisError(f"there are no results of a model {name}{close}")
    found = paired(first, second, names, same)
    if not found.pairs.height:
        raise AnalysisError(
            f"{names[0]} and {names[1]} have no measured result of the same model and settings in "
            "common: --same FIRST=SECOND says that two models are the same"
        )
    compared = {name for name, *_ in found.compared}
    settings = [name for name in _settings(found.pairs) if name not in compared]
    table = differences(found.pairs, settings)
    batches = table["batch"].unique().sort().to_list()
    rows = [_mean(table, None)]
    if len(batches) > 1:
        rows += [_mean(table.filter(pl.col("batch").eq_missing(size)), size) for size in batches]
    means = pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"batch": pl.Int64})
    return ZooComparison(
        names,
        table,
        means,
        _by_layer_type(found.pairs),
        _basis(first, second, found),
        found.alone,
        (*found.notes, *_notes(table, names)),
    )


def _settings(pairs: pl.DataFrame) -> list[str]:
    """Return the settings in the columns of paired results, without the batch."""
    usual = ("threads", "framework", "precision", "compiled", "device", "train")
    more = [name for name in pairs.columns if name.startswith("set.") and not name.endswith("_b")]
    known = [name for name in (*usual, *more) if name in pairs.columns]
    # What is the same in all rows tells none of them apart.
    varied = [name for name in known if pairs[name].n_unique() > 1]
    return [*varied, *(["machine"] if "machine_b" not in pairs.columns else [])]


def _mean(table: pl.DataFrame, batch: int | None) -> dict[str, float | int | None]:
    """Return the geometric mean of the ratios: of the models, each of which counts once.

    Results of one model are no independent ones. The interval is that of a mean over models like
    these (Student's t on the logarithms).
    """
    logs = (
        table.drop_nulls("ratio")
        .group_by("model", maintain_order=True)
        .agg(pl.col("ratio").log().mean())["ratio"]
        .to_numpy()
    )
    verdicts = table["verdict"].to_list()
    count = {name.replace(" ", "_"): verdicts.count(name)
             for name in ("faster", "slower", "not significant", "unknown")}  # fmt: skip
    if not len(logs):
        return {"batch": batch, "models": 0, "ratio": None, "ratio_low": None, "ratio_high": None,
                **count}  # fmt: skip
    mean = float(np.mean(logs))
    half = math.nan
    if len(logs) > 1:
        half = student(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    low, high = (None if math.isnan(half) else math.exp(mean + sign * half) for sign in (-1, 1))
    return {"batch": batch, "models": len(logs), "ratio": math.exp(mean), "ratio_low": low,
            "ratio_high": high, **count}  # fmt: skip


def _by_layer_type(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the mean share of each type of layer on both sides, what moved most first."""
    known = pairs.drop_nulls([f"{TYPES[0]}", f"{TYPES[0]}_b"])
    rows = [
        {
            "layer_type": _type_of(name),
            "share_a_pct": known[name].mean(),
            "share_b_pct": known[f"{name}_b"].mean(),
        }
        for name in _SHARES
    ]
    schema = {"layer_type": pl.String, "share_a_pct": pl.Float64, "share_b_pct": pl.Float64}
    table = pl.DataFrame(rows, schema=schema).with_columns(
        difference_pct=pl.col("share_b_pct") - pl.col("share_a_pct")
    )
    there = (pl.col("share_a_pct") > 0) | (pl.col("share_b_pct") > 0)
    return table.filter(there).sort(
        pl.col("difference_pct").abs(), descending=True, maintain_order=True
    )


def _basis(first: pl.DataFrame, second: pl.DataFrame, found: Pairing) -> pl.DataFrame:
    """Return a row for each fact of machine, versions and settings that differs."""
    sides = [_facts(each) for each in (first, second)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [
        {"fact": name, "a": _told(sides[0].get(name, {})), "b": _told(sides[1].get(name, {}))}
        for name in names
        if sides[0].get(name, {}).keys() != sides[1].get(name, {}).keys()
    ]
    settings = [{"fact": name, "a": a, "b": b} for name, a, b in found.compared]
    return pl.DataFrame([*settings, *rows], schema=dict.fromkeys(("fact", "a", "b"), pl.String))


def _facts(results: pl.DataFrame) -> dict[str, dict[str, None]]:
    facts: dict[str, dict[str, None]] = {}
    for machine in results["machine"].drop_nulls().unique(maintain_order=True).to_list():
        facts.setdefault("machine", {})[machine] = None
    for text in results["basis"].drop_nulls().unique(maintain_order=True).to_list():
        for name, value in json.loads(text).items():
            if name not in _BESIDE:
                facts.setdefault(name, {})[str(value)] = None
    return facts


def _told(values: Mapping[str, None]) -> str | None:
    names = list(values)
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return ", ".join(names[:_MANY]) + more if names else None


def _notes(table: pl.DataFrame, names: tuple[str, str]) -> list[str]:
    unsure = table.filter(pl.col("confidence") < 1)
    models = unsure.unique("model", maintain_order=True)
    if not models.height:
        return []
    least = float(models["confidence"].to_numpy().min())
    return [
        f"{models.height} models of {names[0]} and {names[1]} are taken for the same by names that "
        f"differ in their spelling, with a confidence of {least:.2f} or more"
    ]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Results of two folders, side by side.

    Attributes:
        pairs: Measured results, columns with `_a` and `_b`, with `model`, the settings in
            common, `confidence`.
        alone: What one of the folders has not measured: `model`, settings, `side` that measured,
            and `reason` why the other did not.
        compared: Settings that differ throughout: name, the first folder's, the second's.
        notes: What to know of the pairs, a sentence each.
    """

    pairs: pl.DataFrame
    alone: pl.DataFrame
    compared: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


def paired(
    first: pl.DataFrame,
    second: pl.DataFrame,
    names: tuple[str, str],
    given: Mapping[str, str] | None = None,
) -> Pairing:
    """Return the results of two folders side by side.

    Args:
        first: Results of the first folder.
        second: Results of the second.
        names: What the folders are called.
        given: Models of the second by those of the first that are known to be the same.
    """
    a, b = first.drop("trace"), second.drop("trace")
    machines = _machines(a) & _machines(b)
    by_machine = bool(machines) and max(len(_machines(a)), len(_machines(b))) > 1
    notes = [] if by_machine else [*_several(a, names[0]), *_several(b, names[1])]
    if not by_machine:
        a, b = _of_one_machine(a), _of_one_machine(b)
    names_of_both = dict.fromkeys([*a.columns, *b.columns])
    settings = [name for name in names_of_both if name in _SETTINGS or name.startswith(SET)]
    a, b = (_with_all(each, settings) for each in (a, b))
    compared = tuple(_compared(a, b, settings))
    keys = [name for name in settings if name not in {each for each, *_ in compared}]
    keys += ["machine"] * by_machine
    a, b = _with_models(a, b, given)
    on = ["model", *keys]
    joined = (
        a.with_columns(_in_a=True)
        .join(b.with_columns(_in_b=True), on=on, how="full", coalesce=True, nulls_equal=True,
              suffix="_b")
        .with_columns(confidence=pl.coalesce("confidence", "confidence_b"))
        .sort(on, maintain_order=True)
    )  # fmt: skip
    joined = joined.rename({"called": "model_b"})
    done = [(pl.col(f"status{end}") == MEASURED).fill_null(value=False) for end in ("", "_b")]
    # The results that one folder alone has measured, with the other's reason.
    sides = []
    for side, (mine, others, why) in {
        "first": (done[0], done[1], "reason_b"),
        "second": (done[1], done[0], "reason"),
    }.items():
        reason = pl.coalesce(why, pl.lit("it has no such result"))
        sides.append(joined.filter(mine, ~others).select(*on, side=pl.lit(side), reason=reason))
    alone = pl.concat(sides)
    return Pairing(
        joined.filter(*done),
        alone,
        compared,
        tuple(notes),
    )


def _machines(results: pl.DataFrame) -> set[str]:
    return set(results["machine"].drop_nulls().to_list())


def _several(results: pl.DataFrame, name: str) -> Iterator[str]:
    machines = _machines(results)
    if len(machines) > 1:
        kept = _most(results)
        yield (
            f"{name} has results of {len(machines)} machines: those of {kept}, which has most, are "
            "compared"
        )


def _most(results: pl.DataFrame) -> str | None:
    """Return the machine with most measured results."""
    measured = results.filter(pl.col("status") == MEASURED)["machine"].drop_nulls()
    counts = measured.value_counts(sort=True).sort("count", "machine", descending=[True, False])
    return None if counts.is_empty() else str(counts["machine"][0])


def _of_one_machine(results: pl.DataFrame) -> pl.DataFrame:
    """Return the results of one machine, and those of which no machine is known."""
    machine = _most(results)
    if machine is None:
        return results
    return results.filter(pl.col("machine").is_null() | (pl.col("machine") == machine))


def _with_all(results: pl.DataFrame, settings: list[str]) -> pl.DataFrame:
    """Return results with all settings, as text, so that values of any type can be compared."""
    missing = [pl.lit(None, dtype=pl.String).alias(n) for n in settings if n not in results.columns]
    texts = [
        pl.col(name).cast(pl.String)
        for name in settings
        if name in results.columns and name != "batch"
    ]
    return results.with_columns(*missing, *texts)


def _compared(
    a: pl.DataFrame, b: pl.DataFrame, settings: list[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that have one value in each folder, and not the same."""
    for name in settings:
        values = [each[name].drop_nulls().unique().to_list() for each in (a, b)]
        if all(len(each) == 1 for each in values) and values[0] != values[1]:
            yield name, str(values[0][0]), str(values[1][0])


def _with_models(
    a: pl.DataFrame, b: pl.DataFrame, given: Mapping[str, str] | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables with the first folder's names of the models that both have."""
    sizes = [
        dict(each.group_by("model", maintain_order=True).agg(pl.max("parameter_bytes")).iter_rows())
        for each in (a, b)
    ]
    found = matched(sizes[0], sizes[1], given)
    names = {other: (name, sure) for name, (other, sure) in found.items()}
    own = pl.col("model")
    called = own.replace({other: name for other, (name, _) in names.items()})
    sure = own.replace_strict(
        {other: sure for other, (_, sure) in names.items()}, default=None, return_dtype=pl.Float64
    )
    # A model of the second folder alone may have a name that the first gives to another.
    taken = own.is_in(list(found)) & ~own.is_in(list(names))
    alone = pl.when(taken).then(own + " (second)").otherwise(called)
    confidence = own.replace_strict(
        {name: sure for name, (_, sure) in found.items()}, default=None, return_dtype=pl.Float64
    )
    return (
        a.with_columns(confidence=confidence),
        b.with_columns(called=own, model=alone, confidence=sure),
    )


def matched(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    given: Mapping[str, str] | None = None,
) -> Pairs:
    """Return for each model of the first zoo the same one of the second, with a confidence.

    The confidence is 1 where names are equal or were given, 0.9 where their spelling differs, and
    0.7 where one has the name of its weights behind a point; half of that where the sizes of the
    parameters differ by more than 5 %. A name that fits several is matched with none.

    Args:
        first: Size of the parameters of each model of the first zoo; None where it is not known.
        second: The same of the second.
        given: Models of the second by those of the first, where they are known to be the same.

    >>> matched({"torchvision:resnet50": 102.2e6}, {"keras:ResNet50": 102.5e6})
    {'torchvision:resnet50': ('keras:ResNet50', 0.9)}
    """
    found: Pairs = {
        name: (other, 1.0)
        for name, other in (given or {}).items()
        if name in first and other in second
    }
    steps: tuple[tuple[Callable[[str], str], float], ...] = (
        (str, 1.0), (_spelled, 0.9), (_without_weights, 0.7)
    )  # fmt: skip
    for key, confidence in steps:
        taken = {other for other, _ in found.values()}
        left = _unique((name for name in first if name not in found), key)
        right = _unique((name for name in second if name not in taken), key)
        for each in left.keys() & right.keys():
            pair = left[each], right[each]
            one, other = first[pair[0]] or 0.0, second[pair[1]] or 0.0
            unlike = one and other and abs(one - other) > _UNLIKE * max(one, other)
            found[pair[0]] = (pair[1], confidence / 2 if unlike and confidence < 1 else confidence)
    return {name: found[name] for name in first if name in found}


def _unique(names: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Return names by their keys, without those of which several have the same."""
    by_name = {name: key(name) for name in names}
    often = Counter(by_name.values())
    return {each: name for name, each in by_name.items() if often[each] == 1}


def _spelled(name: str) -> str:
    """Return a name without its source, and without how it is spelled.

    >>> _spelled("torchvision:efficientnet_b0"), _spelled("keras:EfficientNetB0")
    ('efficientnetb0', 'efficientnetb0')
    """
    bare = name.rpartition(":")[2]
    path = PurePath(bare)
    bare = path.stem if path.suffix in _FILE else bare
    return _NO_LETTER.sub("", bare.lower())


def _without_weights(name: str) -> str:
    path = PurePath(name.rpartition(":")[2])
    return _spelled(name) if path.suffix in _FILE else _spelled(path.name.partition(".")[0])


def differences(pairs: pl.DataFrame, settings: list[str]) -> pl.DataFrame:
    """Return the columns of `DIFFERENCE_COLUMNS`, those that changed most first.

    Args:
        pairs: Results side by side, as `paired` returns them.
        settings: The settings in common, without the batch.
    """
    words = pl.concat_str(
        [pl.format(name + " {}", pl.col(name)) for name in settings] or [pl.lit("")],
        separator=", ",
        ignore_nulls=True,
    )
    # How much of the latency is of another type of layer, and of which.
    by = [pl.col(f"{name}_b") - pl.col(name) for name in _SHARES]
    half = pl.sum_horizontal(each.abs() for each in by) / 2
    known = pl.all_horizontal(each.is_not_null() for each in by)
    changed = known & (half > 0)
    names = pl.lit(pl.Series([_type_of(name) for name in _SHARES]).implode())
    both = pl.concat_list(by)
    moved = [
        pl.when(known).then(half).alias("moved_pct"),
        pl.when(changed).then(names.list.get(both.list.arg_min())).alias("moved_from"),
        pl.when(changed).then(names.list.get(both.list.arg_max())).alias("moved_to"),
    ]
    table = pairs.with_columns(settings=words).with_columns(*_judged(pairs), *moved)
    ranks = [
        pl.col(f"latency_{side}_ns").rank("ordinal").over("batch", "settings").cast(pl.Int64)
        .alias(f"rank_{side}")
        for side in "ab"
    ]  # fmt: skip
    log = pl.col("ratio").log().abs()
    return (
        table.with_columns(ranks)
        .select(*DIFFERENCE_COLUMNS)
        .sort(log, "model", "batch", descending=[True, False, False], nulls_last=True)
    )


def _judged(pairs: pl.DataFrame) -> list[pl.Series]:
    a, b = _estimates(pairs, ""), _estimates(pairs, "_b")
    found = Differences.between(a, b)
    p = corrected(found.p)
    ratio = b.value / a.value
    reach = np.exp(np.hypot(a.half / a.value, b.half / b.value))
    columns = {
        **{f"latency_{s}_ns": each.value for s, each in (("a", a), ("b", b))},
        **{f"latency_{s}_low_ns": each.low for s, each in (("a", a), ("b", b))},
        **{f"latency_{s}_high_ns": each.high for s, each in (("a", a), ("b", b))},
        "difference_ns": found.value,
        "difference_high_ns": found.value + found.half,
        "ratio": ratio,
        "ratio_low": ratio / reach,
        "ratio_high": ratio * reach,
        "p_value": found.p,
        "corrected_p_value": p,
    }
    verdicts = pl.Series("verdict", found.verdicts(p, FALSE_DISCOVERY_RATE), dtype=pl.String)
    return [*(pl.Series(name, each).fill_nan(None) for name, each in columns.items()), verdicts]


def _estimates(pairs: pl.DataFrame, side: str) -> Estimates:
    """Return latencies, with the spread of processes in their intervals."""
    ends: list[Floats] = [
        pairs[f"{end}{side}"].cast(pl.Float64).fill_null(np.nan).to_numpy() for end in _ENDS
    ]
    return Estimates(*ends).widened(np.ones(pairs.height, np.bool_))


def _type_of(column: str) -> str:
    return column.removeprefix("time.").removesuffix("_pct").replace("_", " ")
