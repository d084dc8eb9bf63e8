"""Importing: seconds and memory for files of 1,000,000 events, Kineto's beside another reader.

Run it as `python benchmarks/importing.py [EVENTS]`; its exit code is 1 where xsp is the slower, or
where an XPlane file takes more than 10 s or 1.5 GiB for 1,000,000 events. The Kineto file is
written here: steps of layers of operators with shapes, each of which launches a
kernel, with an arrow from the call to the kernel. It is read in a fresh process by `xsp.read`,
which makes a trace of it, and in another one by HolisticTraceAnalysis, which loads it as a table
of events, without profiling its own memory. That is left out where it is not installed for this
Python, nor for the one that the variable HTA_PYTHON names; 0.5.0 needs pandas before 3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xplane_file
from table import print_header, print_row

EVENTS = 1_000_000
STEPS = 20
LAYER_OPS = 8  # operators of a layer, each with one inside
PER_LAYER = 1 + LAYER_OPS * 6  # events of a layer: itself, operators, launches, kernels, arrows
NAMES = ("aten::linear", "aten::relu", "aten::add", "aten::layer_norm")
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_{}x128_ldg8>(Params)"

XSP = """
import xsp
trace = xsp.read(path)
said = f"{len(trace):,} spans of a typical step"
"""
XSP_WHOLE = """
import xsp
trace = xsp.read(path, steps=False)
said = f"{len(trace):,} spans"
"""
HTA = """
from hta.common.trace import Trace
traces = Trace(trace_files={0: path}, trace_dir="")
traces.load_traces(use_multiprocessing=False, use_memory_profiling=False)
said = f"{len(traces.get_trace(0)):,} rows of a table"
"""
TIMED = """
import resource, sys, time
path, begin = sys.argv[1], time.perf_counter()
{work}
seconds = time.perf_counter() - begin
used = resource.getrusage(resource.RUSAGE_SELF)
print("done", seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10, said, sep="|")
"""


def layer(begin: float, number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a layer that begins at a time in µs, 100 µs long."""
    place = {"ph": "X", "pid": 100, "tid": 100}
    name = f"nn.Module: Block_{number % 16}"
    yield {**place, "cat": "python_function", "name": name, "ts": begin, "dur": 90.0, "args": {}}
    for at in range(LAYER_OPS):
        start, id = begin + 1 + at * 11, number * LAYER_OPS + at
        shapes = {"Input Dims": [[32, 128], [128, 128], []], "Input type": ["float", "float", ""]}
        for inner in range(2):
            op = {"External id": 2 * id + inner, "Ev Idx": 2 * id + inner, **shapes}
            name = NAMES[at % 4] + "_inner" * inner
            times = {"ts": start + inner, "dur": 10.0 - 2 * inner}
            yield {**place, "cat": "cpu_op", "name": name, **times, "args": op}
        call = {"External id": 2 * id, "cbid": 211, "correlation": id}
        times = {"ts": start + 2, "dur": 3.5}
        yield {**place, "cat": "cuda_runtime", "name": "cudaLaunchKernel", **times, "args": call}
        arrow = {"id": id, "cat": "ac2g", "name": "ac2g", "ts": start + 2}
        yield {"ph": "s", "pid": 100, "tid": 100, **arrow}
        yield {"ph": "f", "pid": 0, "tid": 7, "bp": "e", **arrow}
        work = {"External id": 2 * id, "correlation": id, "device": 0, "stream": 7, "context": 1}
        work |= {"grid": [32, 4, 1], "block": [256, 1, 1], "registers per thread": 96}
        times = {"ts": start + 30.25, "dur": 9.5}
        where = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
        yield {**where, "name": GEMM.format(32 << (at % 4)), **times, "args": work}


def write(path: Path, events: int) -> None:
    """Write a Kineto file of about so many events."""
    layers = events // PER_LAYER // STEPS
    begin = 1_700_000_000_000_000.0
    with path.open("w") as file:
        head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for step in range(STEPS):
            times = {"ts": begin, "dur": layers * 100.0}
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 100}
            file.write(json.dumps({**mark, "tid": 100, **times, "args": {}}) + ",\n")
            for number in range(layers):
                for event in layer(begin + number * 100, step * layers + number):
                    file.write(json.dumps(event) + ",\n")
            begin += layers * 100
        file.write(
            '{"ph": "M", "name": "process_name", "pid": 100, "args": {"name": "python"}}\n]}'
        )


def measure(what: str, work: str, path: Path, python: str = sys.executable) -> tuple[float, float]:
    """Print a line of the table, of a fresh process; return its seconds and its peak MiB."""
    command = [python, "-c", TIMED.format(work=work), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("done|")] or [""]
    if not line:
        print(f"{what} failed: {done.stderr.strip().splitlines()[-1]}")
        return float("nan"), float("nan")
    _, seconds, cpu, peak, said = line.split("|")
    numbers = (f"{float(seconds):.1f}", f"{float(cpu):.1f}", f"{float(peak):,.0f}")
    print_row((what, *numbers, said), WIDTHS)
    return float(seconds), float(peak)


WIDTHS = (34, 8, 8, 9, 30)


def has_hta(python: str) -> bool:
    known = shutil.which(python) is not None
    command = [python, "-c", "import hta"]
    return known and not subprocess.run(command, capture_output=True, check=False).returncode


def kineto(events: int) -> int:
    """Print the lines of a Kineto file; return 1 where another reader is quicker."""
    hta = os.environ.get("HTA_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, events)
        size = path.stat().st_size / 2**20
        header(f"Importing a Kineto file of {events:,} events, {size:,.0f} MiB")
        own, _ = measure("xsp.read", XSP, path)
        measure("xsp.read, steps=False", XSP_WHOLE, path)
        if has_hta(hta):
            return int(own > measure("HolisticTraceAnalysis, events only", HTA, path, hta)[0])
    print("HolisticTraceAnalysis is left out: it is not installed here (HTA_PYTHON)")
    return 0


def xplane(events: int) -> int:
    """Print the lines of XPlane files; return 1 where one takes longer or more than it may."""
    failed = 0
    for tool, made in (("TensorFlow", xplane_file.tensorflow), ("JAX", xplane_file.jax)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "host.xplane.pb"
            xplane_file.write(path, made(events))
            size = path.stat().st_size / 2**20
            header(f"Importing an XPlane file of {tool}, {events:,} events, {size:,.0f} MiB")
            seconds, peak = measure("xsp.read", XSP, path)
            measure("xsp.read, steps=False", XSP_WHOLE, path)
            allowed = max(events / EVENTS, 1)
            failed |= not (seconds <= 10 * allowed and peak <= 1536 * allowed)
    return failed


def header(what: str) -> None:
    print_header(what)
    print_row(("", "seconds", "CPU s", "peak MiB", "result"), WIDTHS)


def main(events: int) -> int:
    return kineto(events) | xplane(events)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS))
