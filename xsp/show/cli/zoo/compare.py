"""`xsp zoo compare`: prints the differences between two folders of results, and gates on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.answer.table import drawn
from xsp.show.cli.option import output_option

if TYPE_CHECKING:
    import polars as pl

    from xsp.answer.comparison import Condition
    from xsp.answer.zoo import ZooComparison

_SHOWN = (
    "model", "batch", "settings", "latency_a_ns", "latency_a_low_ns", "latency_a_high_ns",
    "latency_b_ns", "latency_b_low_ns", "latency_b_high_ns", "change", "verdict", "ranks", "moved",
)  # fmt: skip
_TABLES = ("means", "basis", "by_layer_type", "alone", "table")  # of the JSON
_LEAST_PCT = 0.05  # of the latency, that is shown to have moved
_SAVED = (".csv", ".parquet", ".json")

_HELP = """Compare the results of two zoos: two machines, versions or frameworks.

FIRST and SECOND are folders that xsp zoo run wrote, or tables copied from
them. Models are the same if their names are, or are but for their spelling
(torchvision:resnet50, keras:ResNet50); settings that differ throughout are
what is compared. Of all results that are called slower or faster 5 % are
expected to be chance.
"""

_EPILOG = """\b
Conditions of --fail-if, for each result that both have:
  latency > AMOUNT      it grew by more than that (5%, 2ms)
  throughput < -AMOUNT  it fell by more than that (5%, 100/s)
The command then ends with 5 where a condition holds and the difference is
significant; with --fail-unsure also where that cannot be decided.

\b
Examples:
  xsp zoo compare old/ new/
  xsp zoo compare torch/ keras/ --same timm:resnet50d=keras:ResNet50
  xsp zoo compare a100/ h100/ -o ratios.parquet
  xsp zoo compare main/ branch/ --fail-if "latency > 5%"
"""


@click.command(name="compare", help=_HELP, epilog=_EPILOG)
@click.argument("first", type=click.Path(exists=True, path_type=Path))
@click.argument("second", type=click.Path(exists=True, path_type=Path))
@click.option("--same", multiple=True, metavar="FIRST=SECOND", help="Two names of one model.")
@click.option(
    "--rows", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="Most rows of each table.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table of all results as CSV.")
@output_option("Write the table of all results: .csv, .parquet or .json.")
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help='End with exit code 5 where this holds, as "latency > 5%"; repeatable.',
)
@click.option(
    "--fail-unsure",
    is_flag=True,
    help="End with exit code 5 also where a condition could not be decided.",
)
def compare(  # noqa: PLR0913  # a parameter for each option
    first: Path,
    second: Path,
    same: tuple[str, ...],
    rows: int,
    output: Path | None,
    conditions: tuple[str, ...],
    *,
    as_json: bool,
    as_csv: bool,
    fail_unsure: bool,
) -> int:
    """Print what differs between two zoos."""
    forms = as_json + as_csv
    if forms > 1:
        raise click.UsageError("--json and --csv exclude each other. Give one.")
    if fail_unsure and not conditions:
        raise click.UsageError("--fail-unsure needs a condition. Add --fail-if CONDITION.")
    if output is not None and output.suffix not in _SAVED:
        raise click.UsageError(f"Unknown format ({output}). Use {', '.join(_SAVED)}.")
    asked = _parsed(conditions)
    found, notes = _compared(first, second, _pairs(same))
    if output is not None:
        from xsp.machine import replacing  # noqa: PLC0415

        with replacing(output) as file:
            if output.suffix == ".csv":
                found.table.write_csv(file)
            elif output.suffix == ".json":
                file.write(found.table.write_json().encode())
            else:
                found.table.write_parquet(file)
        terminal.say(f"wrote {output}")
    if as_json:
        terminal.show(_json(found, notes))
    elif as_csv:
        terminal.show(found.table.write_csv().rstrip("\n"))
    else:
        terminal.show("\n\n".join(_paragraphs(found, notes, rows)))
    # Say which results a condition holds for, and return the exit code.
    code = exit_code.OK
    for condition in asked:
        outcomes = [condition.outcome(_row(row, condition)) for row in found.table.to_dicts()]
        failed = [each for each in outcomes if each.holds or (fail_unsure and not each.is_sure)]
        for outcome in failed:
            terminal.say(f"{'failed' if outcome.holds else 'not decided'}: {outcome.text}")
        held = sum(bool(each.holds) for each in outcomes)
        unsure = sum(not each.is_sure for each in outcomes)
        count = (
            f"{condition.text}: holds for {held} of {len(outcomes)} results; {unsure} could not be "
            "decided, or are too inexact to see that"
        )
        terminal.say(count)
        code = exit_code.WORSE if failed else code
    return code


def _pairs(same: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in same:
        one, equals, other = text.partition("=")
        if not (one and equals and other):
            raise click.UsageError(
                f"--same needs FIRST=SECOND, two names of a model (got {text!r})."
            )
        pairs[one.strip()] = other.strip()
    return pairs


def _parsed(conditions: Iterable[str]) -> list[Condition]:
    """Return conditions, before anything is read."""
    from xsp.answer.comparison import parse_condition  # noqa: PLC0415

    try:
        found = [parse_condition(each) for each in conditions]
    except ValueError as error:
        raise click.UsageError(f"--fail-if {error}") from error
    for condition in found:
        if condition.quantity not in ("latency_ns", "throughput_per_s") or condition.name:
            raise click.UsageError(f"--fail-if takes latency or throughput ({condition.text}).")
    return found


def _compared(
    first: Path, second: Path, same: dict[str, str]
) -> tuple[ZooComparison, tuple[str, ...]]:
    from xsp.answer.zoo import compare_results, noted_results  # noqa: PLC0415

    (a, notes_a), (b, notes_b) = noted_results(first), noted_results(second)
    names = (str(first), str(second))
    found = compare_results(a, b, names, same=same)
    return found, (*notes_a, *notes_b, *found.notes)


def _json(found: ZooComparison, notes: tuple[str, ...]) -> str:
    import json  # noqa: PLC0415

    tables = (f'"{name}": {getattr(found, name).write_json()}' for name in _TABLES)
    said = f'"names": {json.dumps(found.names)}, "notes": {json.dumps(notes)}'
    return f"{{{said}, {', '.join(tables)}}}"


def _paragraphs(found: ZooComparison, notes: tuple[str, ...], rows: int) -> Iterator[str]:
    """Yield the mean, what differs in the basis, and tables of the largest differences."""
    yield "\n".join(_sentences(found))
    if notes:
        yield "\n".join(f"! {note}" for note in notes)
    if found.basis.height:
        lines = [f"  {fact}: {a or '—'} → {b or '—'}" for fact, a, b in found.basis.iter_rows()]
        yield "\n".join(["what differs:", *lines])
    sides = f"a is {found.names[0]}, b is {found.names[1]}"
    yield f"largest differences ({sides}):\n" + drawn(_shown(found.table).head(rows))
    moved = found.by_layer_type.filter(abs(found.by_layer_type["difference_pct"]) >= _LEAST_PCT)
    if moved.height:
        yield "mean share of the latency:\n" + drawn(moved.head(rows))
    if found.alone.height:
        yield "measured by one alone:\n" + drawn(found.alone.head(rows))


def _sentences(found: ZooComparison) -> Iterator[str]:
    from xsp.answer.comparison import percent  # noqa: PLC0415

    for row in found.means.iter_rows(named=True):
        of = "all" if row["batch"] is None else f"batch {row['batch']}"
        ends = [percent(row[end]) for end in ("ratio_low", "ratio_high")]
        reach = f" ({ends[0]} to {ends[1]})" if row["ratio_low"] is not None else ""
        yield (
            f"{of}: latency {percent(row['ratio'])}{reach}, the geometric mean of {row['models']} "
            f"models; results: {row['faster']} faster, {row['slower']} slower, "
            f"{row['not_significant']} without significant difference, {row['unknown']} unknown"
        )


def _shown(table: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that people read, with some of them put into words."""
    import polars as pl  # noqa: PLC0415

    from xsp.answer.comparison import percent  # noqa: PLC0415

    change = [percent(ratio) for ratio in table["ratio"]]
    moved = pl.format("{} → {} ({} %)", "moved_from", "moved_to", pl.col("moved_pct").round(1))
    return table.with_columns(
        pl.Series("change", change, dtype=pl.String),
        pl.format("{} → {}", "rank_a", "rank_b").alias("ranks"),
        moved.alias("moved"),
    ).select(_SHOWN)


def _row(row: dict[str, Any], condition: Condition) -> dict[str, Any]:
    """Return a result as a condition reads it; throughput is the batch over the latency."""
    name = ", ".join(filter(None, (row["model"], f"batch {row['batch']}", row["settings"])))
    found = {"trace": name, "verdict": row["verdict"]}
    if condition.quantity == "latency_ns":
        ends = {"difference": row["difference_ns"], "difference_high": row["difference_high_ns"]}
        return found | ends | {"a": row["latency_a_ns"], "ratio": row["ratio"]}
    if row["ratio"] is None:
        rates = dict.fromkeys(("a", "difference", "difference_high", "ratio"))
    else:
        rate = 1e9 * (row["batch"] or 1) / row["latency_a_ns"]
        highest = row["ratio_low"] or row["ratio"]
        rates = {
            "a": rate,
            "ratio": 1 / row["ratio"],
            "difference": rate * (1 / row["ratio"] - 1),
            "difference_high": rate * (1 / highest - 1),
        }
    return found | rates
