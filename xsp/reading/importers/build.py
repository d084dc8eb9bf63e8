"""Builds one trace of the recordings and metrics that importers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import MEASURED, Kind
from xsp.matching import ON_DEVICE, Pass, Run
from xsp.progress import Progress, progress_bar
from xsp.reading.importers.file_step import file_steps
from xsp.reading.importers.format import contents_of
from xsp.reading.importers.metrics import alone, joined
from xsp.reading.importers.rank import Part, in_order, together
from xsp.reading.importers.recording import KernelMetrics, Recording
from xsp.reading.importers.source import Source
from xsp.reading.merge import merge
from xsp.reading.rank import common_name
from xsp.reading.runs import ProcessRuns, describe
from xsp.text import counted
from xsp.trace import Trace, is_own
from xsp.trace import load as load_own
from xsp.trace_context import Origin
from xsp.warning import TraceWarning

_ENDINGS = (
    ".ncu-rep",
    ".gz",
    ".json",
    ".sqlite",
    ".pb",
    ".rpd",
    ".csv",
    ".trace",
    ".pt",
    ".xplane",
)
_LARGE = 32 << 20  # bytes of files that take so long that a bar is drawn
_LATEST = 2**62  # wall-clock time of a trace, in ns


def load(
    *files: str | PathLike[str],
    steps: bool = True,
    batch: int | None = None,
    progress: bool | Progress | None = None,
) -> Trace:
    """Load a trace: a file that xsp saved, or files that other tools recorded.

    Args:
        files: Paths of one trace that xsp saved, or of recordings in any format that an importer
            is installed for; the content tells the format. Several recordings make one trace: one
            of several processes has a child for each, and metrics join their kernels.
        steps: Whether the steps that a file marks become the steps of the trace, by default True;
            False: the whole recording is one step.
        batch: How many samples a step of recordings of other tools processes, which their files
            do not tell. Throughput and the batch size of analyses come from it.
        progress: Whether to draw a bar on standard error; None (default): for large files on a
            terminal. Or a function that takes the fraction read.

    Raises:
        TraceFormatError: A file is in no known format, nothing of it can be read, or the files
            make no trace together.
        OSError: A file cannot be opened; as Python raises it.
        ValueError: No file is given, or the batch size is no positive number.

    Example:
        A trace of xsp, one of torch.profiler, and that of two ranks::

            trace = xsp.load("train.xsp")
            trace = xsp.load("trace.json.gz")
            trace = xsp.load("rank0.json.gz", "rank1.json.gz")
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise ValueError("No file is given. Name at least one: xsp.load('train.xsp').")
    if batch is not None and batch < 1:
        raise ValueError(f"The batch size is not positive ({batch}). Give the samples of a step.")
    own = [path for path in paths if is_own(path)]
    if own and batch is not None:
        raise ValueError(f"A trace of xsp has its batch size ({own[0]}). Leave batch out.")
    if own and len(paths) == 1:
        return load_own(own[0])
    if own:
        raise TraceFormatError(
            f"A trace of xsp cannot be joined to recordings ({own[0]}). Load it alone."
        )
    size = sum(path.stat().st_size for path in paths)
    wanted = False if progress is None and size < _LARGE else progress
    with progress_bar(wanted, "reading") as report:
        made = _trace(paths, _Reading(report, size), steps=steps)
    if batch is None:
        return made
    settings = {**made.metadata.get("settings", {}), "batch": batch}
    return made.replaced(metadata={**made.metadata, "settings": settings})


read = load  # its name in earlier versions


def trace_of(recording: Recording, name: str, *, steps: bool = True) -> Trace:
    """Return the trace of one process.

    Args:
        recording: What was recorded.
        name: What it is called where the recording has no name.
        steps: Whether each step is a step, as for `read`.

    Raises:
        TraceFormatError: The recording has no spans.
    """
    return _built([Part(recording, 0, name)], (), files=[name], steps=steps)


def name_of(paths: Sequence[Path]) -> str:
    """Return the name of files, or the beginning that their names share, without format endings.

    >>> name_of([Path("runs/resnet.pt.trace.json.gz")])
    'resnet'
    """
    return common_name([_bare(path) for path in paths])


def _bare(path: Path) -> str:
    name = path.name
    while (shorter := Path(name)).suffix in _ENDINGS and shorter.stem:
        name = shorter.stem
    return name


@dataclass(slots=True)
class _Reading:
    """How much of the files has been read; tells of each percent."""

    report: Progress
    size: int
    read: int = 0
    said: float = 0.0

    def told(self, count: int) -> None:
        self.read += count
        fraction = min(self.read / max(self.size, 1), 1.0)
        if fraction >= self.said + 0.01:
            self.said = fraction
            self.report(fraction)


def _trace(paths: Sequence[Path], reading: _Reading, *, steps: bool) -> Trace:
    parts: list[Part] = []
    metrics: list[tuple[KernelMetrics, int, str]] = []
    warnings: list[TraceWarning] = []
    for number, path in enumerate(paths):
        contents, broken = contents_of(Source(path, reading.told))
        warnings += broken
        name = _bare(path)
        metrics += [(each, number, name) for each in contents if isinstance(each, KernelMetrics)]
        recordings = [each for each in contents if isinstance(each, Recording)]
        parts += [Part(each, number, name) for each in recordings]
    parts = _with_metrics(parts, metrics)
    if not parts:
        raise TraceFormatError(f"{', '.join(map(str, paths))}: nothing was recorded in it")
    return _built(parts, warnings, files=[path.name for path in paths], steps=steps)


def _with_metrics(
    parts: Sequence[Part], metrics: Sequence[tuple[KernelMetrics, int, str]]
) -> list[Part]:
    """Return recordings whose kernels have their metrics; metrics alone become recordings."""
    if not parts:
        return [Part(alone(measured), number, name) for measured, number, name in metrics]
    recordings = [part.recording for part in parts]
    found = joined(recordings, [measured for measured, _, _ in metrics])
    return [replace(part, recording=each) for part, each in zip(parts, found, strict=True)]


def _built(
    parts: Sequence[Part], warnings: Sequence[TraceWarning], *, files: Sequence[str], steps: bool
) -> Trace:
    """Return the trace of the recordings of one or several processes."""
    parts = in_order(parts)
    first = parts[0].recording
    told: dict[str, Any] = {}
    if len(parts) == 1:
        name = first.name or parts[0].name
        done = file_steps(first, name, steps=steps)
        warnings = (*warnings, *first.warnings)
    else:
        ranks = together(parts, steps=steps)
        name, done = ranks.name, ranks.steps
        told["recordings"] = ranks.described
    kinds = {kind for frame in done.frames for kind in frame["kind"].unique()}
    pass_ = Pass(frozenset(map(Kind, kinds)), foreign=True)
    runs = tuple(_run(pass_, number, frame) for number, frame in enumerate(done.frames))
    # What a recording says of its machine, with entries of the types that a trace has.
    environment = dict(first.environment)
    versions = environment.get("versions") or {}
    environment["versions"] = {str(name): str(version) for name, version in versions.items()}
    if first.host:
        environment["host"] = first.host
    process = ProcessRuns(
        runs=runs,
        warnings=(*warnings, *done.warnings),
        subject=name,
        levels={kind.level.label: MEASURED for kind in Kind if kind in pass_.kinds},
        environment=environment,
        origin=_origin(first, runs[0]),
    )
    tools = ", ".join(dict.fromkeys(part.recording.tool for part in parts))
    imported = {"tool": tools, "files": list(files), "steps": list(done.steps), **told}
    return _merged(process, imported)


def _run(pass_: Pass, number: int, frame: pl.DataFrame) -> Run:
    start, end = frame["start_ns"][0], frame["end_ns"][0]
    return Run(pass_, end - start, rows=frame, round=number, began_ns=start)


def _merged(process: ProcessRuns, imported: Mapping[str, Any]) -> Trace:
    merged = merge(process.runs)
    metadata = describe(
        [process],
        None,
        (*process.warnings, *merged.warnings),
        passes=merged.passes.to_dicts(),
        intervals=f"over {counted(len(process.runs), 'step')}",
    )
    # Spans in which the root has no self time, where nothing of the host was recorded.
    if merged.spans.filter(~ON_DEVICE).height > 1:
        spans = merged.spans
    else:
        own = pl.when(pl.col("parent_id").is_not_null()).then("self_ns")
        spans = merged.spans.with_columns(self_ns=own)
    told: dict[str, Any] = {"imported": imported}
    if merged.steps is not None:
        told["steps"] = merged.steps
    return Trace(spans, metadata | told, merged.typical_runs)


def _origin(recording: Recording, first: Run) -> Origin | None:
    """Return when the first step began, if the recording tells, and tells a possible time."""
    if recording.unix_ns is None or not 0 <= recording.unix_ns + first.began_ns <= _LATEST:
        return None
    return Origin(unix_ns=recording.unix_ns + first.began_ns)
