"""Writes a trace as the plain text that `print(trace)` shows."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from xsp.inexact import legend, marks
from xsp.text import NOTHING, counted, duration, estimate, shorten
from xsp.trace.heading import (
    DOT,
    footer_lines,
    noise,
    note_lines,
    top_lines,
    top_warnings,
    unmarked,
    warning_lines,
)
from xsp.trace.outline import outline
from xsp.trace.row import Outline, Row

_GAP = "  "
_NARROWEST, _WIDEST = 40, 140
_NARROWEST_NAME = 12  # cells of a name, however wide the numbers beside it are
_WARNS, _SLOWEST = "⚠ ", "◀ slowest layer"
_LONGEST_FILE = 40  # characters of a path that a command repeats
_MORE = 200  # rows of the larger tree that the line below a tree names
_SPARSE = 60  # columns from which on there is room for latencies per step

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """Columns and lines that a tree shows beside times, shares and names.

    Attributes:
        errors: The interval of each latency, and why latencies are not exact.
        overhead: The overhead that was removed from each row.
        warnings: All warnings and notes, instead of the three gravest warnings.
        file: Where the trace is saved; empty if it is not.
        advice: What to look at next: a finding each, and the command that checks it.
    """

    errors: bool = False
    overhead: bool = False
    warnings: bool = False
    file: str = ""
    advice: Sequence[tuple[str, str]] = ()


def text(
    spans: pl.DataFrame,
    metadata: Mapping[str, Any],
    *,
    width: int | None = None,
    rows: int | None = 60,
    smallest: float | None = None,
    show: Show | None = None,
) -> str:
    """Return the tree of a trace below its headline and warnings.

    Args:
        spans: Frame with the columns of `trace.spans`.
        metadata: `trace.metadata`, of which `name`, `warnings` and `levels` are used.
        width: Columns to fill; None for those of the terminal, or 100 without one.
        rows: About how many rows the tree has at most; None for all.
        smallest: Share of latency and device time below which a span is only counted; None: as
            small as there are rows for.
        show: What else to show.
    """
    show = show or Show()
    width = max(_NARROWEST, width or min(shutil.get_terminal_size((100, 24)).columns, _WIDEST))
    drawn = unmarked(outline(spans, rows=rows, smallest=smallest), metadata)
    lines: list[str] = []
    for parts in top_lines(spans, metadata, errors=show.errors):
        lines += _packed(parts, width)
    rough = "" if show.errors else noise(spans)
    if rough:
        lines += _wrapped(rough, width, bullet=_WARNS)
    if show.warnings:
        warnings, more = [*warning_lines(metadata), *note_lines(metadata)], 0
    else:
        warnings, more = top_warnings(metadata, rough=bool(rough))
    for warning in warnings:
        lines += _wrapped(warning, width, bullet=_WARNS)
    if more:
        how = f"xsp show {_short(show)} --warnings" if show.file else "trace.tree(warnings=True)"
        lines += _wrapped(f"{counted(more, 'more warning')}: {how}", width, bullet="  ")
    if drawn.rows:
        lines += ["", *_table(drawn, width, show)]
    if show.errors:
        if meaning := legend(reason for row in drawn.rows for reason in row.inexact):
            lines += ["", *_wrapped(meaning, width)]
        for line in footer_lines(metadata):
            lines += ["", *_wrapped(line, width)]
    elif show.overhead:
        for line in note_lines(metadata):
            lines += ["", *_wrapped(line, width)]
    lines += _next(drawn, width, show, more=_MORE if rows is None or rows < _MORE else 5 * rows)
    return "\n".join(lines)


def _next(drawn: Outline, width: int, show: Show, more: int) -> Iterator[str]:
    """Yield the lines below the tree: what to look at next, and how to see more.

    Args:
        drawn: The tree.
        width: Columns to fill.
        show: What to show.
        more: Rows that show more of the tree, if there is more.
    """
    commands = []
    file = _short(show)
    if file:
        commands.append((f"xsp report {file} --open", "all layers, operators and advice"))
    if drawn.more:
        how = f"xsp show {file} --rows {more}" if show.file else f"trace.tree(rows={more})"
        commands.append((how, f"more of this tree ({drawn.contents})"))
    if show.advice or commands:
        yield from ("", "Look next:")
    for finding, check in show.advice:
        yield from _wrapped(finding, width, bullet="  ", hanging="    ")
        yield from _wrapped(check, width, bullet="    ", hanging="      ")
    wide = max((len(how) for how, _ in commands), default=0)
    for how, what in commands:
        yield from _wrapped(f"{how:<{wide}}  {what}", width, bullet="  ", hanging="    ")


def _short(show: Show) -> str:
    """Return the file for a command, `FILE` in the place of a long path."""
    return show.file if len(show.file) <= _LONGEST_FILE else "FILE"


def _packed(parts: Sequence[str], width: int) -> list[str]:
    """Return parts as lines that break between parts, and within a part where that is too long."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(DOT) + len(part) <= width:
            lines[-1] += DOT + part
        else:
            lines += _wrapped(part, width, bullet="  " if lines else "")
    return lines


def _wrapped(line: str, width: int, bullet: str = "", hanging: str = "  ") -> list[str]:
    return textwrap.wrap(
        line,
        width,
        initial_indent=bullet,
        subsequent_indent=hanging,
        drop_whitespace=True,
        break_on_hyphens=False,
    )


def _table(drawn: Outline, width: int, show: Show) -> Iterator[str]:
    """Yield the lines of the tree: numbers in columns on the left, names on the right."""
    signs = max(len(row.inexact) for row in drawn.rows) if show.errors else 0
    rows = [_cells(row, show, signs) for row in drawn.rows]
    head = ("time", "%", "per step", "device", "overhead")
    sparse = width < _SPARSE
    # Columns without any number are left out; the time always stands.
    columns = [
        c
        for c in range(len(head))
        if c == 0 or (any(row[c] for row in rows) and not (sparse and c > 1))
    ]
    if not show.overhead and 4 in columns:
        columns.remove(4)
    widths = {c: max(_cells_wide(row[c]) for row in (head, *rows)) for c in columns}
    taken = sum(widths.values()) + len(_GAP) * len(columns)
    name_width = max(width - taken, _NARROWEST_NAME)
    # Branches that would take more than half of the names' room are drawn narrower.
    room = name_width // 2
    step = min(max(room // max(1, *(row.depth for row in drawn.rows)), 1), 3)
    names = [
        _name(row, branch, name_width)
        for row, branch in zip(drawn.rows, _branches(drawn.rows, step), strict=True)
    ]
    for what, row in zip(("what", *names), (head, *rows), strict=True):
        numbers = (row[c].rjust(widths[c]) for c in columns)
        yield _GAP.join((*numbers, what)).rstrip()


def _cells(row: Row, show: Show, signs: int) -> Cells:
    if show.errors:
        value, margin, unit = estimate(row.latency_ns, row.margin_ns, row.most_ns)
        time = f"{value} {f'± {margin}' if margin else '':<7} {unit:>2}" if unit else NOTHING
        time = f"{time} {marks(row.inexact):<{signs}}" if signs else time
        part = row.part().removesuffix(" %")
    else:
        value, _, unit = duration(row.latency_ns).partition(" ")
        time, part = f"{value} {unit:>2}" if unit else value, row.percents()
    device = duration(row.device_ns) if row.device_ns else ""
    each = "" if row.step_ns is None or row.kind == "rest" else duration(row.step_ns)
    return time, part, each, device, row.removed()


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
    flag = _SLOWEST if row.slowest else ""
    told = [row.detail, row.told, flag]
    # What is said beside a name is left out before the name is cut.
    less = row.detail.rpartition(", ")[0]
    cut = [row.detail, flag], [row.detail, flag[:1]], [row.detail], [less], [flag[:1]]
    for said in (told, *cut):
        name = branch + _GAP.join(filter(None, (row.name, *said)))
        if _cells_wide(name) <= cells:
            return name
    for width in range(cells - len(branch), 1, -1):  # some characters are two cells wide
        name = branch + shorten(row.name, width)
        if _cells_wide(name) <= cells:
            return name
    return branch + "…"


def _cells_wide(line: str) -> int:
    if line.isascii():
        return len(line)
    from rich.cells import cell_len  # noqa: PLC0415  # `import xsp` must not load rich

    return cell_len(line)
