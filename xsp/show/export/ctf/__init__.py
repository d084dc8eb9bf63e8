"""Writes a trace as a folder of traces in the Common Trace Format (CTF 1.8), as LTTng's are.

Trace Compass and babeltrace2 read them. `ust/` has the spans, in the form of LTTng's user-space
tracer. Where system calls were measured, `kernel/` has those of a typical step, in the form of
LTTng's kernel tracer, and the spans are that step's. `metadata` describes the events, `span` makes
them, and `packet` writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl

from xsp import __version__
from xsp.level import Kind
from xsp.show.export.ctf.metadata import (
    BEGIN_FIELDS,
    END_FIELDS,
    SWITCH_FIELDS,
    WAKING_FIELDS,
    Domain,
)
from xsp.show.export.ctf.metadata import metadata as described
from xsp.show.export.ctf.packet import Events, write_stream
from xsp.show.export.ctf.scheduling import SWITCH, WAKING, processors, switch_events
from xsp.show.export.ctf.span import NO_PARENT, call_events, numbered, span_events
from xsp.show.export.picture import began_unix_ns
from xsp.show.export.reduction import as_spans, reduce
from xsp.show.export.timeline import tracks
from xsp.text import counted, printable
from xsp.trace import Trace

# How the README of a folder that xsp wrote begins, and what may be in such a folder.
_MARK = "A trace of xsp in the Common Trace Format."
_ENTRIES = frozenset({"README", "kernel", "ust", "xsp.xml"})

_README = f"""{_MARK}

{{name}}: {{counts}}.
{{times}}

babeltrace2 prints the events:
    babeltrace2 .

Trace Compass (https://eclipse.dev/tracecompass/) draws them:
1. Open ust/metadata with File > Open Trace, and kernel/metadata if there is one.
2. Right-click Traces > Manage XML Analyses, and import xsp.xml. Do this once.
3. Open the views of the analysis "xsp call stack" below the trace.

xsp:begin has the span's name, kind and level, its number (the first is 0), the number of the span
around it ({NO_PARENT}: none), and its latency in ns (-1: unknown). Attributes are in the saved
trace alone. System calls have no arguments and results: a saved trace keeps none. Of a switch
one side is known; the other is thread 2147483647, "(not recorded)".
"""
_TIMELINE = "Times are those of the trace's timeline."
_MEASURED = "Times are those of one typical step in which system calls were recorded, as measured."


def is_ours(folder: Path) -> bool:
    """Tell whether xsp filled a folder, and nobody put anything else there."""
    readme = folder / "README"
    if not readme.is_file() or {entry.name for entry in folder.iterdir()} - _ENTRIES:
        return False
    with readme.open("rb") as file:
        return file.read(len(_MARK)) == _MARK.encode()


def write_ctf(trace: Trace, most: int | None, folder: Path) -> int:
    """Fill an empty folder with the CTF traces of a trace.

    Args:
        trace: The trace.
        most: Most spans; None for all. System calls are not cut.
        folder: The folder.

    Returns:
        How many spans were written, system calls among them.

    Raises:
        OSError: A file could not be written.
        ValueError: `most` is less than 1.
    """
    spans, calls = _step(trace)
    spans = reduce(spans, most).spans
    found, of_row = tracks(spans)
    states: Any = trace.root.attributes.get("thread_timeline") or ()
    states = states if calls.height else ()
    ran = dict.fromkeys([*calls["thread"].to_list(), *(each["thread"] for each in states)])
    threads = numbered(found, list(ran))
    origin_ns = min([0, *spans["start_ns"], *calls["start_ns"]])
    unix_ns = began_unix_ns(trace.metadata) + origin_ns
    states = [{**each, "start_ns": each["start_ns"] - origin_ns} for each in states]
    events = span_events(spans, threads, np.array(of_row, np.int64), origin_ns)
    kinds = [("xsp:begin", BEGIN_FIELDS), ("xsp:end", END_FIELDS)]
    _write(trace.metadata, "ust", kinds, [events], unix_ns, folder)
    counts, times = counted(spans.height, "span"), _TIMELINE
    if calls.height:
        names = calls["name"].unique(maintain_order=True).to_list()
        made = call_events(calls, threads, names, origin_ns)
        kinds = [(f"syscall_{end}_{name}", "") for name in names for end in ("entry", "exit")]
        kinds += [(SWITCH, SWITCH_FIELDS), (WAKING, WAKING_FIELDS)]
        tids = np.array([threads.of_thread[each["thread"]] for each in states], np.int64)
        switches, cpus = switch_events(states, threads.of_thread, 2 * len(names))
        whole = made.joined(switches)
        cpus = np.concatenate([processors(made, states, tids), cpus])
        order = np.argsort(whole.time_ns, kind="stable")
        streams = list(whole.at(order).on(cpus[order]))
        _write(trace.metadata, "kernel", kinds, streams, unix_ns, folder)
        counts += f" in ust/, {counted(calls.height, 'system call')} in kernel/"
        times = _MEASURED
    text = _README.format(name=printable(trace.name), counts=counts, times=times)
    (folder / "README").write_text(text, "utf-8", "replace")
    (folder / "xsp.xml").write_bytes(files(__package__).joinpath("trace_compass.xml").read_bytes())
    return spans.height + calls.height


def _step(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the spans to be written, and the system calls among them where each was recorded."""
    runs = trace.typical_runs
    # In the run of that name every call is a row; among the spans one is all of its name.
    run = runs.filter(pl.col("pass") == Kind.SYSCALL.value)
    is_call = pl.col("kind") == Kind.SYSCALL.value
    calls = run.filter(is_call)
    if not calls.height:
        return trace.spans, calls
    attributes = trace.spans.select("span_id", "attributes")  # a run has none of its own
    spans = as_spans(run.filter(~is_call)).drop("attributes")
    return spans.join(attributes, on="span_id", how="left", maintain_order="left"), calls


def _write(
    metadata: Mapping[str, Any],
    domain: Domain,
    kinds: Sequence[tuple[str, str]],
    streams: Sequence[Events],
    unix_ns: int,
    folder: Path,
) -> None:
    """Write the trace of a domain."""
    environment = metadata.get("environment") or {}
    known = json.dumps(metadata, default=dict, sort_keys=True).encode() + domain.encode()
    times = b"".join(events.time_ns.tobytes() for events in streams)
    uuid = UUID(bytes=hashlib.blake2b(known + times, digest_size=16).digest())
    told = {
        "hostname": environment.get("host"),
        "process_id": environment.get("pid"),
        "trace_name": metadata.get("name"),
        "xsp_version": metadata.get("xsp_version") or __version__,
    }
    texts = {name: str(value) for name, value in told.items() if value}
    text = described(domain, uuid, unix_ns, texts, kinds)
    (folder / domain).mkdir()
    (folder / domain / "metadata").write_bytes(text)
    for events in streams:
        name = "events" if events.cpu is None else f"events_{events.cpu}"
        with (folder / domain / name).open("wb") as file:
            write_stream(events, uuid, file)
