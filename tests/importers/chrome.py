"""Files of torch.profiler made by hand: events as Kineto writes them, for tests of its importer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from xsp.importers import Recording, Source, trace_of
from xsp.reading.importers.kineto import Kineto
from xsp.trace import Trace

Event = dict[str, Any]
PID, MAIN, OTHER = 10, 10, 11


def event(category: str, name: str, start: Any, duration: Any, **more: Any) -> Event:
    """Return an event that lasts; `args` are its arguments."""
    args = more.pop("args", {})
    found = {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": MAIN}
    return {**found, "ts": start, "dur": duration, "args": args, **more}


def op(name: str, start: Any, duration: Any, *, tid: Any = MAIN, **args: Any) -> Event:
    """Return an operator."""
    return event("cpu_op", name, start, duration, tid=tid, args=args)


def module(name: str, start: Any, duration: Any, *, tid: int = MAIN) -> Event:
    """Return a call of a module, named `Linear_0`."""
    return event("python_function", f"nn.Module: {name}", start, duration, tid=tid)


def mark(name: str, start: Any, duration: Any, *, tid: int = MAIN) -> Event:
    """Return a range of `record_function`."""
    return event("user_annotation", name, start, duration, tid=tid)


def launch(id: int, start: Any, duration: Any = 2, **more: Any) -> Event:
    """Return a call of the CUDA runtime."""
    category, name = more.pop("category", "cuda_runtime"), more.pop("name", "cudaLaunchKernel")
    return event(category, name, start, duration, args={"correlation": id}, **more)


def kernel(id: int, start: Any, duration: Any, name: Any = "gemm", **args: Any) -> Event:
    """Return a kernel on stream 7 of device 0."""
    args = {"device": 0, "stream": 7, "correlation": id, **args}
    return event("kernel", name, start, duration, pid=0, tid=7, args=args)


def written(path: Path, events: Sequence[Event], **metadata: Any) -> Path:
    """Write a file as Kineto does, packed if its name says so, and return its path."""
    content = json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}, indent=2)
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    return path


def read(path: Path, *, python: bool = False) -> Recording:
    """Return the one recording that a file holds."""
    (found,) = Kineto(python=python).read(Source(path))
    assert isinstance(found, Recording)
    return found


def recording(path: Path, events: Sequence[Event], **metadata: Any) -> Recording:
    """Import a file with these events."""
    return read(written(path / "trace.json", events, **metadata))


def trace(found: Recording) -> Trace:
    """Return the trace of a recording, checked."""
    made = trace_of(found, "trace")
    made.check()
    return made


def tree(found: Recording) -> list[str]:
    """Return the paths of all spans below the root."""
    paths = trace(found).spans["path"].to_list()
    return [path.split("/", 1)[1] for path in paths[1:]]


def row(found: Recording, name: str) -> Mapping[str, Any]:
    """Return the one row of a name, with its attributes under their plain names."""
    (only,) = found.rows.filter(pl.col("name") == name).to_dicts()
    return {key.removeprefix("attr."): value for key, value in only.items()}


def codes(found: Recording) -> dict[str, str]:
    """Return the messages of the warnings, by code."""
    return {warning.code: warning.message for warning in found.warnings}
