"""Opens what each tool wrote: number of events, latencies that it reports for layers, events lost.

Each reader takes the folder of one run and the number of calls of each timed kind of layer, and
uses the tool's own reader where it has one for Python.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

MODELS = "tool_models.py"
PYSPY_PERIOD_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tool recorded, as its file says.

    Attributes:
        events: Number of events; None if the tool does not tell.
        layers: Latency in ns that the tool reports for one call, by kind of layer: the median of
            calls where the tool has each call, else the mean.
        lost: Number of events that the tool says it lost; None if it does not tell.
    """

    events: int | None = None
    layers: Mapping[str, float] = field(default_factory=dict)
    lost: int | None = None


Calls = Mapping[str, int]


def classes_by_line() -> dict[int, str]:
    """Return the class of each `forward` of the models, by its first line."""
    tree = ast.parse(Path(__file__).with_name(MODELS).read_text(encoding="utf-8"))
    return {
        method.lineno: each.name
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name == "forward"
    }


def pstats(folder: Path, calls: Calls) -> Reading:
    """Read what cProfile or yappi wrote: a function's cumulative time by its calls."""
    from pstats import Stats

    stats: Any = Stats(str(folder / "profile"))
    classes, layers = classes_by_line(), {}
    for (file, line, name), (_, number, _, cumulative_s, _) in stats.stats.items():
        if name.endswith("forward") and file.endswith(MODELS) and classes[line] in calls:
            layers[classes[line]] = 1e9 * cumulative_s / number
    return Reading(sum(row[1] for row in stats.stats.values()), layers)


def pyinstrument(folder: Path, calls: Calls) -> Reading:
    """Read a session: the time in a function, by the calls that the program counted."""
    from pyinstrument.session import Session

    session = Session.load(str(folder / "session"))
    classes, seconds = classes_by_line(), defaultdict[str, float](float)
    frames = [session.root_frame()]
    while frames:
        frame = frames.pop()
        if frame is None:
            continue
        frames += frame.children
        if frame.function == "forward" and (frame.file_path or "").endswith(MODELS):
            first = int(frame.identifier.split("\0")[2].split("\1")[0])
            seconds[classes.get(first, "")] += frame.time
    layers = {name: 1e9 * seconds[name] / calls[name] for name in calls if seconds[name]}
    return Reading(session.sample_count, layers)


def viztracer(folder: Path, _: Calls) -> Reading:
    """Read viztracer's JSON: an event for each call, longest names with file and line."""
    content = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    classes = classes_by_line()
    pattern = re.compile(rf"forward \(.*{MODELS}:(\d+)\)")
    found = ((pattern.search(event["name"]), event["dur"]) for event in events)
    layers = medians((classes[int(match[1])], 1e3 * duration) for match, duration in found if match)
    full = content.get("viztracer_metadata", {}).get("overflow")
    return Reading(len(events), layers, None if full else 0)


def pyspy(folder: Path, calls: Calls) -> Reading:
    """Read collapsed stacks: samples of a function, by the calls that the program counted."""
    classes, samples, total = classes_by_line(), defaultdict[str, int](int), 0
    for line in (folder / "stacks").read_text(encoding="utf-8").splitlines():
        stack, _, number = line.rpartition(" ")
        total += int(number)
        for first in set(re.findall(rf"forward \({MODELS}:(\d+)\)", stack)):
            samples[classes.get(int(first), "")] += int(number)
    layers = {
        name: PYSPY_PERIOD_NS * samples[name] / calls[name] for name in calls if samples[name]
    }
    told = re.search(r"Errors: (\d+)", (folder / "stderr").read_text(encoding="utf-8"))
    return Reading(total, layers, int(told[1]) if told else None)


def kineto(folder: Path, _: Calls) -> Reading:
    """Read torch.profiler's JSON: its events, and those that bear the name of a layer."""
    events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    layers = medians(_kineto_layers(timed))
    memory = sum(event.get("name") == "[memory]" for event in events)
    return Reading(len(timed) + memory, layers)


def _kineto_layers(events: Iterable[Any]) -> Iterator[tuple[str, float]]:
    for event in events:
        if event.get("cat") == "user_annotation":
            yield event["name"].removeprefix("layer|"), 1e3 * event["dur"]
        elif event.get("cat") == "python_function":
            module = re.fullmatch(r"nn\.Module: (\w+)_\d+", event["name"])
            if module:
                yield module[1], 1e3 * event["dur"]


def execution_trace(folder: Path, _: Calls) -> Reading:
    """Read the nodes of PyTorch's execution trace, which has no times."""
    return Reading(len(json.loads((folder / "trace.json").read_text(encoding="utf-8"))["nodes"]))


def xsp_block(folder: Path, calls: Calls) -> Reading:
    """Read xsp's trace: medians of layers in the forward pass, weighted by their calls."""
    import polars as pl

    import xsp

    spans = xsp.load(folder / "trace.xsp").spans.filter(pl.col("kind") == "layer")
    if not spans.height:
        return Reading()
    rows = spans["attributes"].struct.unnest()
    if "phase" in rows.columns:
        rows = rows.filter(pl.col("phase").fill_null("forward") == "forward")
    known = rows.filter(pl.col("module_class").is_in(calls)).drop_nulls("median_ns")
    weighted = (pl.col("median_ns") * pl.col("calls")).sum() / pl.col("calls").sum()
    return Reading(layers=dict(known.group_by("module_class").agg(weighted).rows()))


def xsp_pass(folder: Path, calls: Calls) -> Reading:
    """Read the rows of one of xsp's passes."""
    import polars as pl

    rows = pl.read_parquet(folder / "rows.parquet")
    lost = json.loads((folder / "lost.json").read_text(encoding="utf-8"))
    layers = {}
    if "attr.module_class" in rows.columns:
        forward = rows.filter(pl.col("kind") == "layer", pl.col("attr.module_class").is_in(calls))
        if "attr.phase" in rows.columns:
            forward = forward.filter(pl.col("attr.phase").fill_null("forward") == "forward")
        times = forward.group_by("attr.module_class").agg(
            (pl.col("end_ns") - pl.col("start_ns")).median()
        )
        layers = dict(times.rows())
    return Reading(rows.height, layers, lost)


def memray(folder: Path, _: Calls) -> Reading:
    """Read memray's file as its reports do: the allocations at the peak of memory."""
    from memray import FileReader

    with FileReader(folder / "memory.bin") as reader:
        peak = list(reader.get_high_watermark_allocation_records(merge_threads=True))
        return Reading(reader.metadata.total_allocations if peak else 0)


def lines(folder: Path, _: Calls) -> Reading:
    """Count the lines of `strace -f` or `perf trace`, and the events that the latter lost."""
    text = (folder / "lines").read_text(encoding="utf-8", errors="replace")
    lost = sum(map(int, re.findall(r"LOST (\d+) events", text)))
    return Reading(text.count("\n"), lost=lost if "LOST" in text else None)


def strace_counts(folder: Path, _: Calls) -> Reading:
    """Read the total of calls that `strace -c` prints."""
    text = (folder / "lines").read_text(encoding="utf-8")
    total = re.search(r"^100\.00 +\S+ +\S+ +(\d+)", text, re.M)
    return Reading(int(total[1]) if total else None)


def perf_data(folder: Path, _: Calls) -> Reading:
    """Let perf read its own file, and count samples and lost ones."""
    command = ["perf", "report", "--stats", "-i", str(folder / "perf.data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    samples = sum(map(int, re.findall(r"SAMPLE events: +(\d+)", done.stdout)[:1]))
    lost = sum(map(int, re.findall(r"LOST(?:_SAMPLES)? events: +(\d+)", done.stdout)[:1]))
    return Reading(samples, lost=lost)


def bpftrace(folder: Path, _: Calls) -> Reading:
    """Sum the counts of calls that bpftrace printed."""
    text = (folder / "lines").read_text(encoding="utf-8", errors="replace")
    lost = sum(map(int, re.findall(r"Lost (\d+) events", text)))
    return Reading(sum(map(int, re.findall(r"^@calls\[.*\]: (\d+)$", text, re.M))), lost=lost)


def nothing(_: Path, __: Calls) -> Reading:
    """Read a file that has no events."""
    return Reading()


def medians(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the median of the values of each name."""
    values: dict[str, list[float]] = defaultdict(list)
    for name, value in found:
        values[name].append(value)
    return {name: median(each) for name, each in values.items()}
