"""Text: spans and metadata of a trace in, the plain text that `print(trace)` shows out."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from xsp.inexact import legend, marks
from xsp.text import NOTHING, duration, estimate, shorten
from xsp.trace.heading import (
    DOT,
    folded_problem_lines,
    footer_lines,
    headline_parts,
    summary_lines,
    unmarked,
)
from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row

_GAP = "  "
_NARROWEST, _WIDEST = 72, 140
_NARROWEST_NAME = 12  # cells of a name, however wide the numbers beside it are

Cells = tuple[str, ...]


def text(
    spans: pl.DataFrame,
    metadata: Mapping[str, Any],
    *,
    width: int | None = None,
    rows: int | None = 60,
    smallest: float = 0.01,
) -> str:
    """Return the tree of a trace below its headline and problems.

    Args:
        spans: Frame with the columns of `trace.spans`.
        metadata: `trace.metadata`, of which `name`, `problems` and `levels` are used.
        width: Columns to fill; None for those of the terminal, or 100 without one.
        rows: About how many rows the tree has at most; None for all.
        smallest: Fraction of the model's latency below which a span is only counted.
    """
    width = max(_NARROWEST, width or min(shutil.get_terminal_size((100, 24)).columns, _WIDEST))
    drawn = unmarked(outline(spans, rows=rows, smallest=smallest), metadata)
    lines = _packed(headline_parts(spans, metadata), width)
    for line in summary_lines(metadata):
        lines += _wrapped(line, width)
    for problem in folded_problem_lines(metadata):
        lines += _wrapped(problem, width, bullet="! ")
    if drawn.rows:
        lines += ["", *_table(drawn, width)]
    if meaning := legend(reason for row in drawn.rows for reason in row.inexact):
        lines += ["", *_wrapped(meaning, width)]
    for line in footer_lines(metadata):
        lines += ["", *_wrapped(line, width)]
    if drawn.cut:
        lines += ["", *_wrapped(_footer(drawn), width)]
    return "\n".join(lines)


def _packed(parts: Sequence[str], width: int) -> list[str]:
    """Return parts as lines that break between parts, and within a part where that is too long."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(DOT) + len(part) <= width:
            lines[-1] += DOT + part
        else:
            lines += _wrapped(part, width, bullet="  " if lines else "")
    return lines


def _wrapped(line: str, width: int, bullet: str = "") -> list[str]:
    return textwrap.wrap(
        line,
        width,
        initial_indent=bullet,
        subsequent_indent="  ",
        drop_whitespace=True,
        break_on_hyphens=False,
    )


def _footer(drawn: Outline) -> str:
    return (
        f"{drawn.contents}: repeats are folded, small ones summed up; trace.tree(rows=200) or "
        "xsp show --rows 200 shows more"
    )


def _table(drawn: Outline, width: int) -> Iterator[str]:
    """Yield the lines of the tree: names on the left, numbers in columns on the right."""
    signs = max(len(row.inexact) for row in drawn.rows)
    rows = [_cells(row, signs) for row in drawn.rows]
    head = ("", _signed("latency", "", signs), "share", "device", "overhead", "each")
    # Columns without any number are left out; the latency always stands.
    columns = [c for c in range(1, len(head)) if c == 1 or any(row[c] for row in rows)]
    widths = {c: max(_cells_wide(row[c]) for row in (head, *rows)) for c in columns}
    taken = sum(widths.values()) + len(_GAP) * len(columns)
    name_width = max(width - taken, _NARROWEST_NAME)
    # Branches that would take more than half of the names' room are drawn narrower.
    step = min(max(name_width // 2 // max(1, *(row.depth for row in drawn.rows)), 1), 3)
    names = [
        _name(row, branch, name_width)
        for row, branch in zip(drawn.rows, _branches(drawn.rows, step), strict=True)
    ]
    wide = min(name_width, max(_cells_wide(name) for name in names))
    for name, row in zip(("", *names), (head, *rows), strict=True):
        numbers = (row[c].rjust(widths[c]) for c in columns)
        padded = name + " " * (wide - _cells_wide(name))
        yield _GAP.join((padded, *numbers)).rstrip()


def _signed(latency: str, marks: str, signs: int) -> str:
    """Return a latency with its marks, in a column that has room for so many signs."""
    return f"{latency} {marks:<{signs}}" if signs else latency


def _cells(row: Row, signs: int) -> Cells:
    value, margin, unit = estimate(row.latency_ns, row.margin_ns, row.most_ns)
    latency = f"{value} {f'± {margin}' if margin else '':<7} {unit:>2}" if unit else NOTHING
    device = "" if row.device_ns is None else duration(row.device_ns)
    return (
        "",
        _signed(latency, marks(row.inexact), signs),
        row.part(),
        device,
        row.removed(),
        row.each(7),
    )


def _branches(rows: tuple[Row, ...], step: int) -> Iterator[str]:
    """Yield the branch before each row's name, drawn with lines, `step` cells for each level."""
    trail: list[str] = []
    for row in rows:
        del trail[max(row.depth - 1, 0) :]
        arm = "─" * (step - 2) + " "
        yield "".join(trail) + (("└" if row.last else "├") + arm if row.depth else "")
        if row.depth:
            trail.append((" " if row.last else "│") + " " * (step - 1))


def _name(row: Row, branch: str, cells: int) -> str:
    """Return a row's branch and name in at most so many cells of the terminal, but at least 3."""
    # Branches too long even so are cut: half of the cells belong to the name.
    half = max(cells // 2, 2)
    if len(branch) > half:
        branch = "… " + branch[len(branch) - half + 2 :]
    detail = f" {row.detail}" if row.detail else ""
    for width in range(cells - len(branch), 1, -1):  # some characters are two cells wide
        # What is said of a name is cut at its end, and has half of the room at least.
        room = max(width - len(row.name), width // 2)
        said = detail if len(detail) <= room else detail[: room - 1] + "…"
        name = branch + shorten(row.name, width - len(said)) + said
        if _cells_wide(name) <= cells:
            return name
    return branch + "…"


def _cells_wide(line: str) -> int:
    if line.isascii():
        return len(line)
    from rich.cells import cell_len  # noqa: PLC0415  # `import xsp` must not load rich

    return cell_len(line)
