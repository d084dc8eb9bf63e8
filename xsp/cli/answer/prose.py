"""Advice for people: the table of `xsp.analyses.advice` in, numbered paragraphs out."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from xsp.cli import terminal

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
        return "nothing was found that takes 1 % of the latency or more, and could be saved"
    several = table["trace"].n_unique() > 1
    rows = enumerate(table.iter_rows(named=True), 1)
    return "\n\n".join(_paragraph(number, row, several=several) for number, row in rows)


def _paragraph(number: int, row: dict[str, Any], *, several: bool) -> str:
    from xsp.analyses import estimate_of, text_of  # noqa: PLC0415
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
