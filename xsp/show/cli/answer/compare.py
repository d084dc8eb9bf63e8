"""`xsp compare` prints the differences between traces, with an exit code for a gate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xsp.show.cli import exit_code, terminal
from xsp.show.cli.reading import FILE, names_of, read

if TYPE_CHECKING:
    from xsp.answer.comparison import Comparison, Condition, Outcome

_TABLES = (
    "summary",
    "settings",
    "by_layer_type",
    "by_primitive",
    "by_device",
    "table",
)  # of the JSON
_KINDS = ("region", "layer", "op", "call", "kernel")

_HELP = """Compare traces with the first of them: what became slower, and is it chance?

FILES are traces that xsp saved, or recordings of other tools (see xsp import).
Spans are aligned by path and type: those that were added, removed, renamed,
moved, replaced or fused are told. Rows are sorted by what they cost; of all
rows that are called slower or faster 5 % are expected to be chance. Where
devices worked, their time is compared by layer, kernel, operator and shapes.
"""

_EPILOG = """\b
Conditions of --fail-if:
  QUANTITY > AMOUNT    it grew by more than that
  QUANTITY < -AMOUNT   it fell by more than that
  QUANTITY is latency, device time, throughput, memory, layer:NAME,
  layer:NAME device time, kernel:NAME or operator:NAME (their device time)
  AMOUNT is 5%, of times also 2ms, of memory 10MiB, of throughput 100/s
The command then ends with 5 where a condition holds and the difference is
significant. A warning says where the measurements are too inexact to see such
a difference, and what cannot be decided; with --fail-unsure that is 5 as well.

\b
Examples:
  xsp compare before.xsp after.xsp
  xsp compare before.xsp after.xsp --kind op --rows 40
  xsp compare before.xsp after.xsp --markdown >> "$GITHUB_STEP_SUMMARY"
  xsp compare main.xsp branch.xsp --fail-if "latency > 5%" --fail-if "layer:fc > 1ms"
  xsp compare before.json.gz after.json.gz --fail-if "kernel:flash_fwd > 5%"
  xsp compare batch1.xsp batch8.xsp batch32.xsp --csv > layers.csv
"""


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    help="Deepest kind of span to compare.  [default: layer, or what all traces have]",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most rows of each table.  [default: 20; in Markdown 10]",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--brief", is_flag=True, help="Print what differs significantly, as short JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table of all spans as CSV.")
@click.option("--markdown", is_flag=True, help="Print a summary for a pull request.")
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
    help="End with exit code 5 also where a condition could not be decided, or not seen.",
)
def compare(
    files: tuple[Path, ...],
    kind: str | None,
    rows: int | None,
    conditions: tuple[str, ...],
    *,
    fail_unsure: bool,
    **formats: bool,
) -> int:
    """Print what differs between traces."""
    if len(files) < 2:
        raise click.UsageError("compare needs at least two files: xsp compare before.xsp after.xsp")
    if sum(formats.values()) > 1:
        raise click.UsageError(
            "--json, --brief, --csv and --markdown exclude each other. Give one."
        )
    if fail_unsure and not conditions:
        raise click.UsageError("--fail-unsure needs a condition. Add --fail-if CONDITION.")
    asked = _parsed(conditions)
    from xsp.answer.comparison import compare as compare_traces  # noqa: PLC0415

    traces = [read([file]) for file in files]
    found = compare_traces(*traces, kind=kind, names=names_of(files))
    outcomes = [outcome for each in asked for outcome in each.outcomes(found)]
    _show(found, rows, **formats)
    return _judge(outcomes, fail_unsure=fail_unsure)


def _parsed(conditions: Iterable[str]) -> list[Condition]:
    """Return conditions, before anything is read."""
    from xsp.answer.comparison import parse_condition  # noqa: PLC0415

    try:
        return [parse_condition(each) for each in conditions]
    except ValueError as error:
        raise click.UsageError(f"--fail-if {error}") from error


def _show(
    found: Comparison,
    rows: int | None,
    *,
    as_json: bool,
    brief: bool,
    as_csv: bool,
    markdown: bool,
) -> None:
    if brief:
        from xsp.show.agent import difference  # noqa: PLC0415

        terminal.write(json.dumps(difference(found)))
    elif as_json:
        terminal.show(_json(found))
    elif as_csv:
        # The table as CSV, which has no lists: several paths are joined by a semicolon.
        import polars as pl  # noqa: PLC0415

        lists = pl.col(pl.List(pl.String)).list.join("; ")
        flat = found.table.with_columns(lists).write_csv()
        terminal.show(flat.rstrip("\n"))
    elif markdown:
        terminal.show(found.markdown(rows=rows or 10).rstrip("\n"))
    else:
        terminal.show(found.text(rows=rows or 20))


def _json(found: Comparison) -> str:
    """Return everything of a comparison as one JSON object."""
    import json  # noqa: PLC0415

    names, notes = json.dumps(found.names), json.dumps(found.notes)
    tables = {name: getattr(found, name) for name in _TABLES}
    parts = [f'"{name}": {table.write_json()}' for name, table in tables.items()]
    return f'{{"names": {names}, "kind": "{found.kind}", "notes": {notes}, {", ".join(parts)}}}'


def _judge(outcomes: Iterable[Outcome], *, fail_unsure: bool) -> int:
    """Say whether each condition holds, and whether that is sure, and return the exit code."""
    words = {True: "failed", False: "passed", None: "not decided"}
    code = exit_code.OK
    for outcome in outcomes:
        fails = outcome.holds or (fail_unsure and not outcome.is_sure)
        terminal.say(f"{words[fails or outcome.holds]}: {outcome.text}")
        if outcome.unseen:
            terminal.say(f"warning: {outcome.unseen}")
        code = exit_code.WORSE if fails else code
    return code
