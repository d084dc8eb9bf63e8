"""How long a file of a million events takes to be read, beside HolisticTraceAnalysis.

The file is made here: training steps of a model of some layers, in the layout of torch.profiler,
with operators and their shapes, calls of the runtime, kernels, and lines between them. Each tool
reads it in a process of its own. HolisticTraceAnalysis is timed where it is installed, in this
environment or in that of `--python`; it only loads the file, xsp makes the trace as well.

    python benchmarks/reading.py [--events 1000000] [--python VENV/bin/python]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from table import print_header, print_row

WIDTHS = (8, 10, 12, 20)
LIMIT_S, LIMIT_BYTES = 12.0, 2.5 * 2**30
PID, THREAD = 4000, 4000
_XSP = """
import sys, xsp.importers
trace = xsp.importers.read(sys.argv[1])
print(trace.spans.height, "spans")
"""
_HTA = """
import sys
from hta.common.trace_file import get_trace_files
from hta.common.trace import Trace
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
trace.decode_symbol_ids()
print(len(trace.get_trace(0)), "events")
"""


def step(number: int, layers: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a training step: 15 for each layer."""
    at = number * layers * 200.0
    mark = {"ph": "X", "pid": PID, "tid": THREAD, "ts": at, "dur": layers * 199.0}
    yield {**mark, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "args": {}}
    for layer in range(layers):
        begin, id_ = at + 1 + layer * 190, (number * layers + layer) * 10
        yield event("python_function", f"nn.Module: Linear_{layer}", begin, 180.123, id_)
        for depth in range(6):
            shapes = {"Input Dims": [[64, 512], [512, 512 + layer % 40]]}
            args = {**shapes, "Input type": ["float", "float"], "External id": id_ + depth}
            name = ("aten::linear", "aten::addmm", "aten::t", "aten::mul")[depth % 4]
            yield event("cpu_op", name, begin + 5 + depth * 9, 150.5 - depth * 20, id_, **args)
        for call in range(2):
            id_ += 1
            when = begin + 60.25 + call * 8
            yield event("cuda_runtime", "cudaLaunchKernel", when, 5.75, id_, correlation=id_)
            yield {"ph": "s", "id": id_, "pid": PID, "tid": THREAD, "ts": when, "cat": "ac2g"}
            yield {"ph": "f", "id": id_, "pid": 0, "tid": 7, "ts": when + 9, "cat": "ac2g"}
            yield kernel(when + 9.125, id_)


def event(category: str, name: str, start: float, duration: float, id_: int, **args: Any) -> Any:
    """Return an event of the host."""
    place = {"pid": PID, "tid": THREAD, "ts": round(start, 3), "dur": duration}
    return {"ph": "X", "cat": category, "name": name, **place, "args": {"Ev Idx": id_, **args}}


def kernel(start: float, id_: int) -> dict[str, Any]:
    """Return a kernel."""
    name = f"void at::native::kernel_{id_ % 300}<4, float>(int, at::native::Functor<float>)"
    size = {"grid": [256, 1, 1], "block": [128, 1, 1], "registers per thread": 32}
    args = {"device": 0, "context": 1, "stream": 7, "correlation": id_, **size}
    place = {"pid": 0, "tid": 7, "ts": round(start, 3), "dur": 12.5}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "args": args}


def write(path: Path, count: int, layers: int = 400) -> None:
    """Write a file with so many events."""
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    written, number = 0, 0
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < count:
            for each in step(number, layers):
                file.write((",\n" if written else "") + json.dumps(each))
                written += 1
                if written == count:
                    break
            number += 1
        file.write("\n]}")


def timed(python: str, program: str, path: Path) -> tuple[float, float, str]:
    """Return the seconds that a program took, the most memory it held in bytes, and what it said.

    Raises:
        subprocess.CalledProcessError: The program failed.
    """
    peak = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    began = time.perf_counter()
    done = subprocess.run(
        [python, "-c", program + peak, str(path)], capture_output=True, text=True, check=True
    )
    *_, said, most = done.stdout.strip().splitlines()
    return time.perf_counter() - began, float(most), said


def main() -> int:
    """Print seconds and memory of each tool; 1 if xsp takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--python", default=sys.executable, help="where HTA is installed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, asked.events)
        size = f"{path.stat().st_size / 1e6:.0f} MB"
        print_header(f"Reading a file of torch.profiler: {asked.events:,} events, {size}")
        print_row(("", "seconds", "memory", "what"), WIDTHS)
        seconds, most = printed("xsp", *timed(sys.executable, _XSP, path))
        try:
            other, _ = printed("HTA", *timed(asked.python, _HTA, path))
        except subprocess.CalledProcessError as error:
            print(f"HTA was not timed: {error.stderr.strip().splitlines()[-1]}")
            other = LIMIT_S
    return int(seconds > min(LIMIT_S, other) or most > LIMIT_BYTES)


def printed(tool: str, seconds: float, most: float, said: str) -> tuple[float, float]:
    """Print a row; return seconds and bytes."""
    print_row((tool, f"{seconds:.1f} s", f"{most / 2**30:.2f} GiB", said), WIDTHS)
    return seconds, most


if __name__ == "__main__":
    sys.exit(main())
