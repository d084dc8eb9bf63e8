"""Answers of `xsp sweep`: results and curves in, what is printed of them out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from xsp.cli import terminal
from xsp.cli.sweep.progress import plan_line

if TYPE_CHECKING:
    from xsp.session import Settings
    from xsp.sweep import Curve, Folder, Grid, Result


def listing(grid: Grid, folder: Folder, plan: Settings) -> str:
    """Return the points of a sweep, and how long it is expected to take."""
    from xsp.sweep import expected_s  # noqa: PLC0415

    lines = [plan_line(grid, folder.path, expected_s(grid.points, folder, plan))]
    for point in grid.points:
        again = folder.why_again(point)
        state = "complete" if folder.kept(point) else f"again, for {again}" if again else "to do"
        lines.append(f"  {point}: {state}")
    return "\n".join(lines)


def as_json(
    folder: Folder, results: list[Result], curves: list[Curve], target_ns: float | None
) -> str:
    """Return the points and the best batch of each curve as JSON."""
    from xsp.sweep import TABLE, frame  # noqa: PLC0415

    said: dict[str, Any] = {"table": str(folder.path / TABLE), "target_latency_ns": target_ns}
    said["points"] = frame(results).to_dicts()
    said["curves"] = [asdict(curve) for curve in curves]
    return json.dumps(said, indent=2)


def as_text(folder: Folder, results: list[Result], curves: list[Curve]) -> str:
    """Return the table of the points, and the best batch of each curve in words."""
    from xsp.sweep import TABLE  # noqa: PLC0415

    lines = [terminal.drawn(_table(results))] if results else []
    for curve in curves:
        lead = f"{curve.name}: " if curve.name and len(curves) > 1 else ""
        lines += [f"{lead}{sentence}" for sentence in curve.sentences]
    lines.append(f"the table is {folder.path / TABLE}, the traces lie beside it")
    return "\n".join(lines)


def _table(results: list[Result]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    columns = {name: cell for name, cell in _columns(results).items() if any(map(cell, results))}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=name != "")
    for result in results:
        table.add_row(*(Text(cell(result)) for cell in columns.values()))
    return table


def _columns(results: list[Result]) -> dict[str, Callable[[Result], str]]:
    """Return how each column of the printed table is made: settings that differ, and numbers."""
    from xsp.analyses import text_of  # noqa: PLC0415

    names = dict.fromkeys(name for result in results for name in result.settings)
    told = [name for name in names if name == "batch" or _differs(name, results)]

    def setting(name: str) -> Callable[[Result], str]:
        return lambda result: text_of(name, result.settings.get(name))

    return {name: setting(name) for name in told} | {
        "latency": lambda result: _with_interval(result, "latency", "ns"),
        "throughput": lambda result: _with_interval(result, "throughput", "per_s"),
        "memory": _memory,
        "": _remark,
    }


def _differs(name: str, results: list[Result]) -> bool:
    return len({result.settings.get(name) for result in results}) > 1


def _with_interval(result: Result, quantity: str, unit: str) -> str:
    from xsp.analyses import estimate_of  # noqa: PLC0415

    names = (f"{quantity}_{unit}", f"{quantity}_low_{unit}", f"{quantity}_high_{unit}")
    value, low, high = (result.measured.get(name) for name in names)
    return "" if value is None else estimate_of(names[0], value, low, high)


def _memory(result: Result) -> str:
    from xsp.analyses import text_of  # noqa: PLC0415

    device, host = (result.measured.get(f"peak_{where}memory_bytes") for where in ("device_", ""))
    peak = host if device is None else device
    return "" if peak is None else text_of("peak_bytes", peak)


def _remark(result: Result) -> str:
    if result.reason is None:
        return ""
    return f"{result.status}: {result.reason.splitlines()[0]}"
