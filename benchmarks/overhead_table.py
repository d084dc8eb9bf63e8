"""What does each tool cost, xsp among them? Two processes take turns, one of them under the tool.

    python benchmarks/overhead_table.py [--quick] [--tools NAME …] [--programs NAME …]
    python benchmarks/overhead_table.py --write-docs        # the page, from the kept results

Tools of the operating system need root and tracefs:

    sudo unshare --mount sh -c 'mount -t tracefs nodev /sys/kernel/tracing && python …'

Results are kept in benchmarks/results/MACHINE/tools.parquet; a new run replaces those of the same
tools and programs. `docs/overhead.md` says how to read the tables.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from table import print_header
from table import processor as processor_name
from tool_program import PROGRAMS
from tool_table import SCHEMA, glance_table, group_tables
from tools import GROUPS, TOOLS, Tool
from turns_of_two import Process, ToolError, Turn, take_turns

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "overhead.md"
BEGIN, END = "<!-- overhead_table.py: begin -->", "<!-- overhead_table.py: end -->"
BARE = "none"
WARM_UP = 2  # visits
PROGRAM = str(HERE / "tool_program.py")


def measure(tool: Tool, program: str, bare: Process, turns: int, pair: int) -> dict[str, Any]:
    """Measure one tool with one pair of processes.

    Args:
        tool: The tool.
        program: Name of the program.
        bare: The plain process.
        turns: Number of turns.
        pair: Number of the pair, from 0.

    Returns:
        A row of `tool_table.SCHEMA`; of a tool that is absent or fails, with the reason alone.
    """
    row = {"tool": tool.name, "program": program, "pair": pair, "reason": tool.missing}
    if row["reason"]:
        return row
    folder = Path(tempfile.mkdtemp(prefix="xsp-tool-"))
    try:
        return row | {"version": tool.version} | _measured(tool, program, bare, turns, folder)
    except ToolError as error:
        return row | {"reason": str(error)}
    finally:
        shutil.rmtree(folder)


def _measured(tool: Tool, program: str, bare: Process, turns: int, folder: Path) -> dict[str, Any]:
    steps = PROGRAMS[program][1]
    files = folder / "files"
    files.mkdir()
    process = Process(command(tool, program, folder), folder)
    try:
        process.warm_up(WARM_UP, steps)
        found = take_turns(bare, process, turns * tool.turns, steps)
        process.stop()
    except BaseException:
        process.kill()
        raise
    written = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
    shutil.copy(folder / "stderr", files)  # some tools print what they lost
    began = time.perf_counter()
    try:
        reading = tool.read(files, process.last["calls"])
    except (OSError, ValueError, KeyError) as error:
        raise ToolError(f"Its file cannot be read: {type(error).__name__}: {error}") from error
    opened_s = time.perf_counter() - began
    return {
        "steps": steps,
        "asked": process.asked,
        **times(found),
        "layers": layers(found, reading.layers),
        "enter_s": process.enter_s,
        "finish_s": process.finish_s,
        "open_s": opened_s,
        "events": reading.events,
        "lost": reading.lost,
        "peak_bytes": process.last["peak_bytes"],
        "written_bytes": written,
    }


def command(tool: Tool, program: str, folder: Path) -> list[str]:
    """Return the command that starts a program under a tool."""
    plain = [sys.executable, PROGRAM, program, str(folder / "pipes")]
    if tool.inside:
        plain += ["--tool", tool.name, "--folder", str(folder / "files")]
    return tool.wrap(plain, folder / "files")


def times(turns: Sequence[Turn]) -> dict[str, list[int]]:
    """Return the columns of times, a value for each turn."""
    return {
        f"{who}_{what}": [getattr(turn[at], what) for turn in turns]
        for at, who in enumerate(("bare", "tool"))
        for what in ("cpu_ns", "wall_ns", "beside_ns")
    }


def layers(turns: Sequence[Turn], reported: Any) -> list[dict[str, Any]]:
    """Return the timed layers: mean latency in each turn, and what the tool reports.

    A turn in which a layer was not timed has no value.
    """
    names = sorted({name for turn in turns for visit in turn for name in visit.layers})
    return [
        {
            "name": name,
            "bare_ns": [_mean(bare.layers.get(name)) for bare, _ in turns],
            "tool_ns": [_mean(tool.layers.get(name)) for _, tool in turns],
            "reported_ns": reported.get(name),
        }
        for name in names
    ]


def _mean(values: Sequence[int] | None) -> float | None:
    return float(np.mean(values)) if values else None


def start_bare(program: str, folder: Path) -> Process:
    """Start the plain process of a pair."""
    process = Process(command(TOOLS[BARE], program, folder), folder)
    process.warm_up(WARM_UP, PROGRAMS[program][1])
    return process


def run(given: argparse.Namespace, path: Path) -> None:
    """Measure all chosen tools, in an order that changes, and keep each row at once."""
    names = [BARE, *(name for name in given.tools if name != BARE)]
    order, replaced = random.Random(0), set[tuple[str, str]]()
    for program in given.programs:
        for pair in range(given.pairs):
            others = names[1:]
            order.shuffle(others)
            with tempfile.TemporaryDirectory(prefix="xsp-bare-") as folder:
                bare = start_bare(program, Path(folder))
                try:
                    for name in [BARE, *others]:
                        row = measure(TOOLS[name], program, bare, given.turns, pair)
                        keep(row, path, replaced)
                        say(row, given.pairs)
                finally:
                    bare.kill()


def keep(row: dict[str, Any], path: Path, replaced: set[tuple[str, str]]) -> None:
    """Add a row to the file, in place of what an earlier run left of its tool and program."""
    new = pl.DataFrame([row], schema=SCHEMA)
    old = pl.read_parquet(path) if path.exists() else new.clear()
    at = (row["tool"], row["program"])
    if at not in replaced:
        replaced.add(at)
        old = old.filter((pl.col("tool") != at[0]) | (pl.col("program") != at[1]))
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    pl.concat([old, new]).write_parquet(written)
    written.replace(path)


def say(row: dict[str, Any], pairs: int) -> None:
    """Say on standard error what was measured."""
    result = row["reason"]
    if result is None:
        ratios = np.asarray(row["tool_cpu_ns"]) / np.asarray(row["bare_cpu_ns"])
        result = f"{np.median(ratios):.3f}"
    where = f"{row['program']}, pair {row['pair'] + 1} of {pairs}"
    print(f"{where}: {row['tool']}: {result}", file=sys.stderr, flush=True)


def machine() -> str:
    """Return the name of this machine's folder of results: its processor and number of cores."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", processor_name()).strip("-")
    return f"{words}-{os.cpu_count()}-cores"


def write_page(frame: pl.DataFrame, results: Path) -> None:
    """Put the tables between the markers of the page."""
    ran = frame.filter(pl.col("reason").is_null())
    pairs = ran.group_by("tool", "program").len()["len"]
    few, most = pairs.min(), pairs.max()
    count = f"{few}" if few == most else f"{few} to {most}"
    text = f"Machine: {results.name}. Pairs of processes for each tool and program: {count}."
    text += "\n\n### The small transformer at a glance, the cheapest first\n\n"
    text += f"{glance_table(frame, 'transformer')}\n\n{group_tables(frame)}"
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, metavar="NAME")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, metavar="GROUP")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, metavar="NAME")
    parser.add_argument("--pairs", type=int, help="pairs of processes for each tool")
    parser.add_argument("--turns", type=int, default=24, help="turns of each pair")
    parser.add_argument("--quick", action="store_true", help="the transformer, two pairs")
    parser.add_argument("--results", type=Path, default=HERE / "results" / machine())
    parser.add_argument("--show", action="store_true", help="print the kept results alone")
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/overhead.md from them"
    )
    given = parser.parse_args()
    given.tools = given.tools or [
        name for name, tool in TOOLS.items() if given.groups is None or tool.group in given.groups
    ]
    given.programs = given.programs or (["transformer"] if given.quick else list(PROGRAMS))
    given.pairs = given.pairs or (2 if given.quick else 3)
    path = given.results / "tools.parquet"
    began = time.perf_counter()
    if not (given.show or given.write_docs):
        run(given, path)
    frame = pl.read_parquet(path)
    if given.write_docs:
        write_page(frame, given.results)
        return
    print_header("Cost of tools: ratio to the plain program")
    print(group_tables(frame))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
