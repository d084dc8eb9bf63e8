"""Serves five tools by the Model Context Protocol: profile, analyze, advise, compare and import."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from xsp.answer.analyses import ALL
from xsp.answer.comparison import compare as compare_traces
from xsp.errors import AnalysisError, XspError
from xsp.measuring.target import end_process
from xsp.reading.importers import load
from xsp.show.agent.digest import brief, difference
from xsp.text import suggest
from xsp.trace import Trace

_INSTRUCTIONS = (
    "xsp profiles Python programs and machine-learning models, and removes its own overhead from "
    "every time. Profile first, read `advice` and `warnings`, change one thing, profile again into "
    "another file, and compare. Times are nanoseconds. A difference whose verdict is not slower or "
    "faster is noise."
)
_MOST_ROWS = 200
_LAST_LINES = 20  # of what a program printed


def server() -> MCPServer[Any]:
    """Make the server; `server().run()` serves on standard input and output."""
    made: MCPServer[Any] = MCPServer("xsp", instructions=_INSTRUCTIONS)
    made.tool(name="profile")(profile)
    made.tool(name="analyze")(analyze)
    made.tool(name="advise")(advise)
    made.tool(name="compare")(compare)
    made.tool(name="import")(import_files)
    return made


def profile(
    target: str,
    output: str,
    arguments: list[str] | None = None,
    levels: str = "2",
    budget_seconds: float | None = None,
    limit_seconds: float = 600.0,
) -> dict[str, Any]:
    """Profile a script or a model, save the trace, and return its brief.

    Args:
        target: A script (`train.py`), a function (`predict.py:run`), or a model
            (`torchvision:resnet50`, `transformers:bert`, `onnx:FILE`).
        output: File for the trace, such as `before.xsp`.
        arguments: Arguments of the script, or options of `xsp profile` for a model.
        levels: What to record: 1 model, 2 layers and operators, 3 library calls, 4 GPU kernels,
            5 operating system.
        budget_seconds: Seconds of measuring, by default 5 for a model.
        limit_seconds: Seconds after which the program is ended.
    """
    if target.startswith("-") or limit_seconds <= 0:
        raise ToolError(
            f"The target is an option ({target}), or limit_seconds is not positive "
            f"({limit_seconds:g}). Name a script or a model, and give it time."
        )
    with (
        tempfile.TemporaryDirectory(prefix="xsp-mcp-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed,
    ):
        made = Path(folder, "trace.xsp")  # a trace that lies at `output` is no result of this run
        options = ["--levels", levels, "-o", str(made)]
        if budget_seconds is not None:
            options += ["--budget", str(budget_seconds)]
        line = [sys.executable, "-m", "xsp", "profile", *options, target, *(arguments or ())]
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,  # this process's own is the protocol's
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"The program did not end within {limit_seconds:g} s ({target}). Raise "
                "limit_seconds, or profile a part of it."
            ) from None
        finally:
            if process.poll() is None:
                end_process(process)
        printed.seek(0)
        last = "\n".join(printed.read().splitlines()[-_LAST_LINES:])
        if not made.exists():
            raise ToolError(f"xsp profile ended with exit code {code}:\n{last}")
        found = _saved(_trace(str(made)), output)
    return found if code == 0 else {**found, "exit_code": code, "printed": last}


def analyze(file: str, question: str, rows: int = 20) -> dict[str, Any]:
    """Answer one question about a trace by a table.

    Args:
        file: A trace, or a recording of torch.profiler, Nsight Systems and others.
        question: Name of an analysis, such as `layer-latency`; `questions` of a brief lists those
            that a trace can answer.
        rows: Most rows, at most 200.
    """
    found = next((each for each in ALL if each.name == question.replace("_", "-")), None)
    if found is None:
        raise ToolError(
            f"Unknown question ({question}){suggest(question, [each.name for each in ALL])}."
        )
    try:
        table: pl.DataFrame = found(_trace(file))
    except AnalysisError as error:
        raise ToolError(str(error)) from error
    return {
        "question": found.question,
        "columns": dict(found.columns),
        "rows": table.head(max(0, min(rows, _MOST_ROWS))).to_dicts(),
        "rows_in_all": table.height,
    }


def advise(file: str) -> dict[str, Any]:
    """Return the brief of a trace: times, slowest spans, advice with possible gains, warnings.

    Args:
        file: A trace, or a recording of another tool.
    """
    return brief(_trace(file), file=file)


def compare(before: str, after: str) -> dict[str, Any]:
    """Tell what became slower or faster between two traces, and what is only noise.

    Args:
        before: The first trace.
        after: The trace that is compared with it.
    """
    try:
        return difference(compare_traces(_trace(before), _trace(after), names=[before, after]))
    except XspError as error:
        raise ToolError(str(error)) from error


def import_files(files: list[str], output: str) -> dict[str, Any]:
    """Convert recordings of other tools to one trace, and return its brief.

    Args:
        files: Files of torch.profiler, Nsight Systems, Nsight Compute, XPlane, Perfetto and others;
            several of one program join.
        output: File for the trace.
    """
    return _saved(_trace(*files), output)


def _trace(*files: str) -> Trace:
    try:
        return load(*files, progress=False)
    except (XspError, OSError, ValueError) as error:
        raise ToolError(str(error)) from error


def _saved(trace: Trace, output: str) -> dict[str, Any]:
    try:
        trace.save(output)
    except (XspError, OSError, ValueError) as error:
        raise ToolError(str(error)) from error
    return brief(trace, file=output)
