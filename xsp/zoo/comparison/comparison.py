"""The comparison of two zoos: their results in, tables of what differs, and sentences, out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from xsp.errors import AnalysisError
from xsp.evaluation import student
from xsp.text import suggest
from xsp.zoo.comparison.difference import differences
from xsp.zoo.comparison.pairing import Pairing, paired
from xsp.zoo.results import TYPES, UNTYPED

# Facts of a basis that say what was measured, and not on what.
_BESIDE = ("target", "file", "host id")
_MANY = 4  # values of a fact that are told


@dataclass(frozen=True, slots=True)
class ZooComparison:
    """What differs between two folders of results.

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
    for name, models in (
        *((one, first["model"]) for one in (same or {})),
        *((other, second["model"]) for other in (same or {}).values()),
    ):
        _check_there(name, models)
    found = paired(first, second, names, same)
    if not found.pairs.height:
        raise AnalysisError(
            f"{names[0]} and {names[1]} have no measured result of the same model and settings in "
            "common: --same FIRST=SECOND says that two models are the same"
        )
    compared = {name for name, *_ in found.compared}
    settings = [name for name in _settings(found.pairs) if name not in compared]
    table = differences(found.pairs, settings)
    return ZooComparison(
        names,
        table,
        _means(table),
        _by_layer_type(found.pairs),
        _basis(first, second, found),
        found.alone,
        (*found.notes, *_notes(table, names)),
    )


def _check_there(name: str, models: pl.Series) -> None:
    known = models.unique(maintain_order=True).to_list()
    if name not in known:
        raise AnalysisError(f"there are no results of a model {name}{suggest(name, known)}")


def _settings(pairs: pl.DataFrame) -> list[str]:
    """Return the settings in the columns of paired results, without the batch."""
    usual = ("threads", "framework", "precision", "compiled", "device", "train")
    more = [name for name in pairs.columns if name.startswith("set.") and not name.endswith("_b")]
    known = [name for name in (*usual, *more) if name in pairs.columns]
    # What is the same in all rows tells none of them apart.
    varied = [name for name in known if pairs[name].n_unique() > 1]
    return [*varied, *(["machine"] if "machine_b" not in pairs.columns else [])]


def _means(table: pl.DataFrame) -> pl.DataFrame:
    batches = table["batch"].unique().sort().to_list()
    rows = [_mean(table, None)]
    if len(batches) > 1:
        rows += [_mean(table.filter(pl.col("batch").eq_missing(size)), size) for size in batches]
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides={"batch": pl.Int64})


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
            "layer_type": name.removeprefix("time.").removesuffix("_pct").replace("_", " "),
            "share_a_pct": known[name].mean(),
            "share_b_pct": known[f"{name}_b"].mean(),
        }
        for name in (*TYPES, UNTYPED)
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
    """Return the values of each fact that results rest on."""
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
