"""`xsp analyze` prints the table of an analysis of traces."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xsp.show.cli import terminal
from xsp.show.cli.answer.table import drawn, flat, print_table
from xsp.show.cli.option import output_option
from xsp.show.cli.reading import read

if TYPE_CHECKING:
    import polars as pl

    from xsp.answer.analyses import Analysis
    from xsp.trace import Trace

_HELP = """Answer one question about the traces in FILES by a table.

FILES are traces that xsp saved, or recordings of other tools (see xsp import).
NAME may stand before or after them. Without a NAME xsp prints its advice, and
the questions that these traces can answer; without FILES, all questions.
"""

_EPILOG = """\b
Examples:
  xsp analyze resnet50.xsp                           advice, and all questions
  xsp analyze resnet50.xsp --json                    the brief, for programs and agents
  xsp analyze layer-latency resnet50.xsp
  xsp analyze layer-latency resnet50.xsp --rows 10 --sort own_ns
  xsp analyze layer-latency resnet50.xsp --csv > layers.csv
  xsp analyze layer-latency resnet50.xsp -o layers.html      its picture
  xsp analyze kernel-by-name trace.json.gz -o kernels.parquet
  xsp analyze operator-roofline trace.json.gz --peak flops=800T,bandwidth=3T
"""

_FORMATS = (".csv", ".json", ".parquet", ".html")


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("arguments", nargs=-1, metavar="[NAME] FILES...")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Print the first N rows.")
@click.option("--sort", metavar="COLUMN", help="Largest values of this column first, as latency.")
@click.option(
    "--peak",
    metavar="PEAK",
    help="Peak of the device, as flops=990T,bandwidth=3.3T; either alone too.",
)
@click.option("--csv", "form", flag_value="csv", help="Print the whole table as CSV.")
@click.option("--json", "form", flag_value="json", help="Print the whole table as JSON.")
@click.option("--parquet", "form", flag_value="parquet", help="Write it as Parquet, into a pipe.")
@output_option("Save the whole table: .csv, .json or .parquet, or its picture: .html.")
def analyze(
    arguments: tuple[str, ...],
    rows: int | None,
    sort: str | None,
    peak: str | None,
    output: Path | None,
    form: str | None,
) -> None:
    """Print what one analysis says of traces."""
    from xsp.answer.analyses import ALL  # noqa: PLC0415
    from xsp.text import printable_lines  # noqa: PLC0415

    if not arguments:
        terminal.write(f"{printable_lines(_possible([], []))}\n\n{_ORDER}")
        return
    files, name = _parted(arguments)
    if output is not None and output.suffix not in _FORMATS:
        raise click.UsageError(
            f"Unknown format ({output}). End it in .csv, .json, .parquet or .html."
        )
    rates = {} if peak is None else _peak(peak)
    traces = [read([file]) for file in files]
    if rates:
        from xsp.answer.analyses import with_peak  # noqa: PLC0415

        traces = [with_peak(trace, **rates) for trace in traces]
    if name is None and form == "json":
        from xsp.show.agent import brief  # noqa: PLC0415

        briefs = [brief(trace, file=str(file)) for trace, file in zip(traces, files, strict=True)]
        terminal.write(json.dumps(briefs[0] if len(briefs) == 1 else briefs))
        return
    if name is None:
        terminal.write(f"{_advice(traces)}\n\n{printable_lines(_possible(traces, files))}")
        return
    analysis = next(analysis for analysis in ALL if name in _names(analysis))
    if len(traces) > 1 and not analysis.several:
        raise click.UsageError(
            f"{analysis.name} takes one trace (you gave {len(traces)}). {_joining(files)}"
        )
    table = analysis(*traces)
    by = None if sort is None else _column(table, sort)
    table = table if by is None else table.sort(by, descending=True, nulls_last=True)
    table = table if rows is None else table.head(rows)
    if output is not None and output.suffix == ".html":
        # Write the picture of a table to a file.
        from xsp.show.plot import picture_of  # noqa: PLC0415

        picture = picture_of(analysis)
        if picture is None:
            raise click.UsageError(f"{analysis.name} has no picture. Save its table: -o FILE.csv")
        picture.of(table).save(output)
    elif output is not None:
        _save(table, output)
    elif form is not None:
        print_table(table, form)
    elif analysis.name == "advice":
        terminal.write(advised(table))
    else:
        terminal.show(drawn(table, by))


_RATE = re.compile(r"(flops|bandwidth)\s*=\s*(\d+(?:\.\d*)?)\s*([kMGTP]?)")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NAMES = {"flops": "flops_per_s", "bandwidth": "bytes_per_s"}


def _peak(text: str) -> dict[str, float]:
    """Read peaks, in operations and bytes per second.

    >>> _peak("flops=990T, bandwidth=3.35T")
    {'flops_per_s': 990000000000000.0, 'bytes_per_s': 3350000000000.0}
    """
    found = [_RATE.fullmatch(part.strip()) for part in text.split(",")]
    rates = {_NAMES[m[1]]: float(m[2]) * _PREFIXES[m[3]] for m in found if m}
    if len(rates) < len(found) or not all(rates.values()):
        raise click.UsageError(
            f"--peak is no peak ({text}). Write --peak flops=990T,bandwidth=3.35T, in operations "
            "and bytes per second."
        )
    return rates


def _parted(arguments: tuple[str, ...]) -> tuple[list[Path], str | None]:
    """Return the files among the arguments, and the name, wherever that stands."""
    files = [Path(each) for each in arguments if Path(each).is_file()]
    others = [each for each in arguments if not Path(each).is_file()]
    names = [each for each in others if _is_name(each)]
    wrong = [each for each in others if each not in names]
    if wrong and (names or not files):
        raise click.UsageError(f"No such file: {wrong[0]}. {_ORDER}")
    if wrong:
        raise click.UsageError(f"Unknown file or analysis {wrong[0]!r}{_near(wrong[0])}")
    if not files:
        raise click.UsageError(f"No file is given. {_ORDER}")
    if len(names) > 1:
        raise click.UsageError(f"Several analyses are given ({', '.join(names)}). Name one.")
    return files, names[0] if names else None


_ORDER = "Use: xsp analyze [NAME] FILES..."


def _is_name(name: str) -> bool:
    from xsp.answer.analyses import ALL  # noqa: PLC0415

    return any(name in _names(analysis) for analysis in ALL)


def _near(name: str) -> str:
    from xsp.answer.analyses import ALL  # noqa: PLC0415
    from xsp.text import suggest  # noqa: PLC0415

    near = suggest(name, [analysis.name for analysis in ALL])
    return f"{near} {_ORDER}" if near else f". {_ORDER}"


def _names(analysis: Analysis[Any]) -> tuple[str | None, ...]:
    from xsp.answer.analyses import FORMER  # noqa: PLC0415

    names = [analysis.name, *(name for name, each in FORMER.items() if each is analysis)]
    return *names, *(name.replace("-", "_") for name in names), analysis.paper


def _joining(files: list[Path]) -> str:
    return f"To join recordings of ranks: xsp import {' '.join(map(str, files))} -o ranks.xsp"


def _advice(traces: list[Trace]) -> str:
    """Return the advice on the traces as text."""
    from xsp.answer import analyses  # noqa: PLC0415

    heading = click.style("What to look at next", underline=True)
    return f"{heading}\n\n{advised(analyses.advice(*traces))}"


def _possible(traces: list[Trace], files: list[Path]) -> str:
    """Return a line for each analysis: its question, or what the traces lack for it.

    Questions come first, then the analyses of the paper. Of several traces these are the
    analyses that take several.
    """
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from xsp.answer.analyses import ALL  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    possible = [each for each in ALL if each.several or len(traces) < 2]
    for analysis in sorted(possible, key=lambda each: (each.paper is not None, _rank(each))):
        unmet = next((why for trace in traces if (why := analysis.unmet(trace))), None)
        said = f"[dim]— {escape(unmet)}[/dim]" if unmet else escape(analysis.question)
        table.add_row(analysis.name, analysis.paper or "", said)
    if len(traces) < 2:
        return terminal.drawn(table)
    return f"{terminal.drawn(table)}\n\nThe other analyses take one trace. {_joining(files)}"


def _rank(analysis: Analysis[Any]) -> int:
    return (
        ("advice", "verdict").index(analysis.name) if analysis.name in ("advice", "verdict") else 2
    )


def _column(table: pl.DataFrame, name: str) -> str:
    """Return the column of this name, or of this heading, with or without its unit."""
    from xsp.answer.analyses import heading_of  # noqa: PLC0415
    from xsp.text import suggest  # noqa: PLC0415

    headings = {column: heading_of(column) for column in table.columns}
    bare = {column: heading.removesuffix(" %") for column, heading in headings.items()}
    words = {column: column.replace("_", " ") for column in headings}
    folded = name.lower().replace("_", " ").replace("-", " ")
    for called in ({column: column for column in headings}, words, headings, bare):
        for column, known in called.items():
            if known in (name, folded):
                return column
    near = suggest(name, table.columns) or suggest(folded, bare.values())
    known = near or f". Choose one of {', '.join(table.columns)}."
    raise click.UsageError(f"Unknown column {name!r}{known}")


def _save(table: pl.DataFrame, to: Path) -> None:
    """Write a table to a file whose suffix says the format, whole or not at all."""
    from xsp.machine import replacing  # noqa: PLC0415

    with replacing(to) as file:
        if to.suffix == ".csv":
            flat(table).write_csv(file)
        elif to.suffix == ".json":
            file.write(table.write_json().encode())
        else:
            table.write_parquet(file)


# Writes the table of `xsp.answer.analyses.advice` as numbered paragraphs for people.

if TYPE_CHECKING:
    import polars as pl

# Longer lines of prose are hard to read.
_WIDEST = 100
_INDENT = "   "


def advised(table: pl.DataFrame) -> str:
    """Return advice as numbered paragraphs, what to do in bold, and uncut what verifies that.

    The text has control characters for bold, and none of the table's: pass it to `terminal.write`.
    """
    if not table.height:
        return "xsp found nothing that could save 1 % of the latency or more."
    several = table["trace"].n_unique() > 1
    rows = enumerate(table.iter_rows(named=True), 1)
    return "\n\n".join(_paragraph(number, row, several=several) for number, row in rows)


def _paragraph(number: int, row: dict[str, Any], *, several: bool) -> str:
    from xsp.answer.analyses import estimate_of, text_of  # noqa: PLC0415
    from xsp.text import printable  # noqa: PLC0415

    said = {name: printable(str(value or "")) for name, value in row.items()}
    gain = estimate_of("gain_ns", *(row[f"gain_{end}ns"] for end in ("", "low_", "high_")))
    share = text_of("gain_pct", row["gain_pct"])
    lines = [
        click.style(_filled(f"{number}. ", said["advice"]), bold=True),
        _filled(_INDENT, f"gain: {gain}, {share} % of the latency; {said['estimate']}"),
        _filled(_INDENT, said["evidence"]),
    ]
    if several:
        lines.insert(1, _filled(_INDENT, f"in {said['trace']}"))
    if said["verify"]:
        lines.append(f"{_INDENT}To verify: {said['verify']}")
    return "\n".join(lines)


def _filled(begin: str, text: str) -> str:
    width = min(terminal.width(), _WIDEST)
    return textwrap.fill(
        text,
        max(width, 2 * len(_INDENT)),
        initial_indent=begin,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
    )
