"""Building: what importers read in, one trace out."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import polars as pl

from xsp.correlation import Trees, correlate
from xsp.errors import TraceFormatError
from xsp.evaluation import Run, Rung
from xsp.importers.format import importer_of
from xsp.importers.recording import Recording
from xsp.importers.source import Source
from xsp.level import MEASURED, Kind
from xsp.measurement import ProcessRuns, build_trace
from xsp.problem import Problem
from xsp.provider import SpanRows, span_rows
from xsp.quantity import counted
from xsp.session import Settings
from xsp.trace import Trace
from xsp.trace_context import Origin


def read(*files: str | PathLike[str]) -> Trace:
    """Return the trace of files that other tools recorded.

    Args:
        files: Files in any format that an importer is installed for; the format is found from
            the content.

    Raises:
        TraceFormatError: A file is in no known format, or nothing of it can be read.
        OSError: A file cannot be opened; as Python raises it.
    """
    contents = [
        each
        for file in files
        for source in [Source(Path(file))]
        for each in importer_of(source).read(source)
    ]
    recordings = [each for each in contents if isinstance(each, Recording)]
    if len(recordings) != 1:
        raise TraceFormatError(f"{len(recordings)} recordings: one trace is made of one")
    return trace_of(recordings[0], Path(files[0]).name)


def trace_of(recording: Recording, name: str) -> Trace:
    """Return the trace of one process.

    Args:
        recording: What was recorded.
        name: What it is called where the recording has no name.

    Raises:
        TraceFormatError: The recording has no spans.
    """
    if not recording.rows.height and not recording.roots.height:
        raise TraceFormatError(f"{name}: {recording.tool} recorded no spans")
    roots = recording.roots if recording.roots.height else _whole(recording, name)
    trees = correlate(roots, recording.rows)
    rung = Rung(frozenset(Kind(kind) for kind in recording.rows["kind"].unique()) | {Kind.PIPELINE})
    spans = roots.select("start_ns", "end_ns").rows()
    runs = tuple(
        Run(rung, end - start, rows=frame, round=number, began_ns=start)
        for number, ((start, end), frame) in enumerate(zip(spans, trees.frames, strict=True))
    )
    process = ProcessRuns(
        runs=runs,
        problems=(*recording.problems, *_problems(trees)),
        subject=recording.name or name,
        levels={kind.level.label: MEASURED for kind in sorted(rung.kinds, key=list(Kind).index)},
        environment=recording.environment,
        origin=_origin(recording, spans[0][0]),
    )
    return build_trace([process], Settings(levels=frozenset(k.level for k in rung.kinds)))


def _whole(recording: Recording, name: str) -> SpanRows:
    """Return one root around all rows."""
    start, end = recording.rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return span_rows(
        {
            "kind": [Kind.PIPELINE.value],
            "name": [recording.name or name],
            "start_ns": [start],
            "end_ns": [end],
            "thread": [_busiest_thread(recording.rows)],
        }
    )


def _busiest_thread(rows: SpanRows) -> int | None:
    """Return the thread of the host whose rows took most time, None if there are no such rows."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    busy = rows.filter(pl.col("thread").is_not_null()).group_by("thread").agg(took)
    busiest = busy.sort("end_ns", "thread", descending=[True, False])["thread"]
    return int(busiest[0]) if len(busiest) else None


def _origin(recording: Recording, start_ns: int) -> Origin | None:
    if recording.unix_ns is None:
        return None
    return Origin(unix_ns=recording.unix_ns + start_ns)


def _problems(trees: Trees) -> Iterable[Problem]:
    """Yield what is not known of the places of rows."""
    if trees.unlaunched:
        yield Problem(
            "no-launch",
            f"the calls that launched {counted(trees.unlaunched, 'kernel')}, copies counted in, "
            "were not recorded; they hang under the root",
        )
    if trees.outside:
        yield Problem("outside", f"{counted(trees.outside, 'span')} lie outside of every step")
