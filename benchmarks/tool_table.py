"""Makes the tables of tools, in Markdown, from the rows that `overhead_table.py` keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from tool_program import PROGRAMS
from tools import GROUPS, TOOLS
from turns_of_two import Estimate, estimate

BARE = "none"
_INTEGERS, _NUMBERS = pl.List(pl.Int64), pl.List(pl.Float64)
# One row for each tool, program and pair of processes. Lists have a value for each turn: the sum
# of its steps, or the mean of a layer's calls. Null: the tool did not run, or does not tell.
SCHEMA = {
    "tool": pl.String,
    "program": pl.String,
    "pair": pl.Int64,
    "reason": pl.String,
    "version": pl.String,
    "steps": pl.Int64,
    "asked": pl.Int64,
    "bare_cpu_ns": _INTEGERS,
    "bare_wall_ns": _INTEGERS,
    "bare_beside_ns": _INTEGERS,
    "tool_cpu_ns": _INTEGERS,
    "tool_wall_ns": _INTEGERS,
    "tool_beside_ns": _INTEGERS,
    "layers": pl.List(
        pl.Struct(
            {
                "name": pl.String,
                "bare_ns": _NUMBERS,
                "tool_ns": _NUMBERS,
                "reported_ns": pl.Float64,
            }
        )
    ),
    "enter_s": pl.Float64,
    "finish_s": pl.Float64,
    "open_s": pl.Float64,
    "events": pl.Int64,
    "lost": pl.Int64,
    "peak_bytes": pl.Int64,
    "written_bytes": pl.Int64,
}
Rows = Sequence[dict[str, Any]]
NOTHING = "\N{EN DASH}"
_PRIVILEGES = "privileges"


def group_tables(frame: pl.DataFrame) -> str:
    """Return the tables of all groups: ratios of all programs, then details of each program."""
    kept = _kept(frame)
    programs = [name for name in PROGRAMS if any(program == name for _, program in kept)]
    parts = []
    for group, title in {BARE: "Two plain processes", **GROUPS}.items():
        names = [
            name
            for name, tool in TOOLS.items()
            if tool.group == group and any(known == name for known, _ in kept)
        ]
        if names:
            parts += [f"### {title}", ratio_table(names, programs, kept)]
            parts += [
                f"{title}, {program}:\n\n{detail_table(names, program, kept)}"
                for program in programs
                if any(_measured(kept.get((name, program), ())) for name in names)
            ]
    return "\n\n".join(parts)


def glance_table(frame: pl.DataFrame, program: str) -> str:
    """Draw a row for each tool on one program, the cheapest first: its cost, and its truth."""
    kept = _kept(frame)
    lines = []
    for name, tool in TOOLS.items():
        if rows := _measured(kept.get((name, program), ())):
            cost = _whole(rows, ())
            lines.append((float(cost), [cost, name, tool.records, _reported(rows, ())]))
    lines.sort(key=lambda line: line[0])
    return markdown(["all steps", "tool", "records", "reports"], [line for _, line in lines])


def _kept(frame: pl.DataFrame) -> dict[Any, Rows]:
    return {
        key: rows.to_dicts()
        for key, rows in frame.sort("pair").group_by("tool", "program", maintain_order=True)
    }


def ratio_table(names: Iterable[str], programs: Sequence[str], kept: dict[Any, Rows]) -> str:
    """Return one row for each tool: CPU and wall time of each program, as ratios."""
    head = [
        "tool",
        "records",
        *(f"{name}, {what}" for name in programs for what in ("CPU", "wall")),
    ]
    lines = []
    for name in names:
        cells = [_label(name, kept), TOOLS[name].records]
        for program in programs:
            rows = kept.get((name, program), ())
            good = _measured(rows)
            if good:
                cells += [interval(ratios(good, what)) for what in ("cpu_ns", "wall_ns")]
            else:
                reason = next((row["reason"] for row in rows), None)
                cells += [(reason or NOTHING).replace("|", "\\|"), NOTHING]
        lines.append(cells)
    return markdown(head, lines)


def detail_table(names: Iterable[str], program: str, kept: dict[Any, Rows]) -> str:
    """Return one row for each tool that ran: all other columns, of one program."""
    bare = _measured(kept.get((BARE, program), ()))
    lines = []
    for name in names:
        rows = _measured(kept.get((name, program), ()))
        if rows:
            lines.append(
                [name, *(cell(rows, bare) for cell in _DETAILS.values()), TOOLS[name].privileges]
            )
    return markdown(["tool", *_DETAILS, _PRIVILEGES], lines)


def ratios(rows: Rows, what: str) -> Estimate:
    """Return the ratio of the program under the tool to the plain one, of all turns."""
    return estimate(
        [np.asarray(row[f"tool_{what}"]) / np.asarray(row[f"bare_{what}"]) for row in rows]
    )


def _whole(rows: Rows, _: Rows) -> str:
    values = [sum(row["tool_cpu_ns"]) / sum(row["bare_cpu_ns"]) for row in rows]
    return f"{np.median(values):.2f}"


def _beside(rows: Rows, _: Rows) -> str:
    values = [
        (sum(row["tool_beside_ns"]) - sum(row["bare_beside_ns"])) / sum(row["bare_cpu_ns"])
        for row in rows
    ]
    return f"{np.median(values):+.2f}"


def _event_ns(rows: Rows, _: Rows) -> str:
    values = [
        (sum(row["tool_cpu_ns"]) - sum(row["bare_cpu_ns"]))
        / (len(row["tool_cpu_ns"]) * row["steps"])
        / (row["events"] / row["asked"])
        for row in rows
        if row["events"]
    ]
    if not values or ratios(rows, "cpu_ns").low <= 1:  # within the noise
        return NOTHING
    return f"{np.median(values):,.0f}"


def _distortion(rows: Rows, _: Rows) -> str:
    return _of_layers(rows, lambda layer: _ratio_of_turns(layer["bare_ns"], layer["tool_ns"]))


def _reported(rows: Rows, _: Rows) -> str:
    def told(layer: dict[str, Any]) -> list[float]:
        truth = [value for value in layer["bare_ns"] if value is not None]
        reported = layer["reported_ns"]
        return [] if reported is None or not truth else [reported / float(np.median(truth))]

    return _of_layers(rows, told)


def _ratio_of_turns(bare: Sequence[float | None], tool: Sequence[float | None]) -> list[float]:
    return [b / a for a, b in zip(bare, tool, strict=True) if a is not None and b is not None]


def _of_layers(rows: Rows, values: Callable[[dict[str, Any]], list[float]]) -> str:
    """Return the median of each layer over all pairs, one after the other."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for layer in row["layers"]:
            found.setdefault(layer["name"], []).extend(values(layer))
    cells = [f"{np.median(each):.2f}" if each else NOTHING for each in found.values()]
    return NOTHING if set(cells) <= {NOTHING} else ", ".join(cells)


def _seconds(what: str) -> Callable[[Rows, Rows], str]:
    def cell(rows: Rows, bare: Rows) -> str:
        own = np.median([row[what] for row in rows])
        return f"{own - np.median([row[what] for row in bare]):+.1f}" if bare else NOTHING

    return cell


def _median(what: str, scale: float, digits: int) -> Callable[[Rows, Rows], str]:
    def cell(rows: Rows, _: Rows) -> str:
        values = [row[what] / scale for row in rows if row[what] is not None]
        return f"{np.median(values):,.{digits}f}" if values else NOTHING

    return cell


_DETAILS: dict[str, Callable[[Rows, Rows], str]] = {
    "all steps": _whole,
    "beside": _beside,
    "ns an event": _event_ns,
    "layers": _distortion,
    "reports": _reported,
    "enter, s": _seconds("enter_s"),
    "finish, s": _seconds("finish_s"),
    "open, s": _median("open_s", 1, 1),
    "peak, MB": _median("peak_bytes", 1e6, 0),
    "written, MB": _median("written_bytes", 1e6, 1),
    "lost": _median("lost", 1, 0),
}


def _measured(rows: Rows) -> Rows:
    return [row for row in rows if row["reason"] is None]


def _label(name: str, kept: dict[Any, Rows]) -> str:
    versions = {
        row["version"] for (tool, _), rows in kept.items() if tool == name for row in rows
    } - {None, ""}
    return f"{name} ({', '.join(sorted(versions))})" if versions and name != BARE else name


def interval(value: Estimate) -> str:
    """Write a ratio with its interval.

    >>> interval(Estimate(1.312, 1.25, 1.4))
    '1.31 [1.25, 1.40]'
    """
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
