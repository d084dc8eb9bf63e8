"""Pairing: two tables of results in, the results of the same model and settings beside each other.

Settings in which one folder has one value and the other another (`framework`, say) are what is
compared, and do not keep results apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from xsp.zoo.comparison.name import matched
from xsp.zoo.results import MEASURED, SET

_SETTINGS = ("batch", "threads", "framework", "precision", "compiled", "device", "train")


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
    settings = [name for name in dict.fromkeys([*a.columns, *b.columns]) if _is_setting(name)]
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
    return Pairing(
        joined.filter(*done),
        _alone(joined, on, done),
        compared,
        tuple(notes),
    )


def _is_setting(name: str) -> bool:
    return name in _SETTINGS or name.startswith(SET)


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
    found = matched(_sizes(a), _sizes(b), given)
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


def _sizes(results: pl.DataFrame) -> dict[str, float | None]:
    """Return the size of each model's parameters."""
    sizes = results.group_by("model", maintain_order=True).agg(pl.max("parameter_bytes"))
    return dict(sizes.iter_rows())


def _alone(joined: pl.DataFrame, on: list[str], done: list[pl.Expr]) -> pl.DataFrame:
    """Return what one folder alone has measured, with the other's reason."""
    sides = []
    for side, (mine, others, why) in {
        "first": (done[0], done[1], "reason_b"),
        "second": (done[1], done[0], "reason"),
    }.items():
        reason = pl.coalesce(why, pl.lit("it has no such result"))
        sides.append(joined.filter(mine, ~others).select(*on, side=pl.lit(side), reason=reason))
    return pl.concat(sides)
