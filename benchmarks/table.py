"""Plain-text tables, under a line that says what they were measured on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def print_header(
    what: str, command: Sequence[str] = sys.argv, *, frameworks: Sequence[str] = ("torch",)
) -> None:
    """Print what is measured, the machine, the versions and the command."""
    print(f"\n{what}")
    print(f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    packages = (f"{name} {_version(name)}" for name in ("xsp", *frameworks, "numpy", "polars"))
    print(f"Python {platform.python_version()}, {', '.join(packages)}")
    print(f"python {' '.join(command)}\n", flush=True)


def print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one line: the first column to the left, the others to the right."""
    first, *others = (
        cell.rjust(width) if at else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    print("  ".join((first, *others)), flush=True)


def percent(value: float, digits: int = 2) -> str:
    return "-" if value != value else f"{100 * value:.{digits}f} %"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def processor() -> str:
    """Return the name of the processor, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
