"""Makes one tree of rows for each step in a recording.

Steps that overlap in a file are put one after the other. What lies outside of all of them is left
out, and counted; so are a cold first step and an empty last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from xsp.errors import TraceFormatError
from xsp.level import DEVICE_ACTIVITIES, Kind
from xsp.provider import ATTRIBUTE, SpanRows, checked, concat_rows, span_rows
from xsp.reading.correlation import Trees, captures, correlate, replayed
from xsp.reading.importers.graph import with_captures
from xsp.reading.importers.recording import Recording
from xsp.text import counted, duration, percent
from xsp.warning import COUNTED, TraceWarning

STEP = f"{ATTRIBUTE}step"
# Kinds that tell which thread the program ran on, the surest first: threads of a driver do little
# but wait in calls of the system.
_TELLING = tuple(
    [kind.value for kind in kinds]
    for kinds in ((Kind.REGION, Kind.LAYER, Kind.OP), (Kind.CALL, Kind.LAUNCH), Kind)
)
_TIMES = ("start_ns", "end_ns")
_WORK = pl.col("kind").is_in([kind.value for kind in DEVICE_ACTIVITIES])
_FAR_NS = 1 << 52  # 52 days; times further apart are not exact as 64-bit floating-point numbers
_COLD = 2.0  # times the longest other step
_LONG = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True, slots=True)
class FileSteps:
    """The steps of a recording.

    Attributes:
        frames: One tree of rows for each (`xsp.matching.TREE_SCHEMA`), in the order of time.
        steps: Name of the step that each of them is; one empty name where the recording is one
            step.
        numbers: Place of each of them among the steps of the file.
        warnings: What is missing in the trees, or not known of them.
    """

    frames: tuple[pl.DataFrame, ...]
    steps: tuple[str, ...]
    numbers: tuple[int, ...]
    warnings: tuple[TraceWarning, ...]


def file_steps(recording: Recording, name: str, *, steps: bool) -> FileSteps:
    """Return the steps of a recording.

    Args:
        recording: What was recorded.
        name: Name of the roots of the trees.
        steps: Whether each step that the file marks has a tree; else the whole recording is one
            step, in which those are spans.

    Raises:
        TraceFormatError: The recording has no spans.
        ProviderError: A row cannot be placed in a tree.
    """
    rows, roots, warnings = _near(checked(recording.rows), recording.roots)
    rows, earlier = _without_earlier(with_captures(rows))
    warnings += earlier
    numbers: tuple[int, ...] = (0,)
    if steps and roots.height:
        roots, overlapping = _disjoint(roots)
        warnings += overlapping
    if steps and roots.height:
        numbers, unlike = _typical(roots, rows)
        roots = roots[list(numbers)]
        warnings += unlike
    if not (steps and roots.height):
        inside = recording.roots.with_columns(pl.col("name").alias(STEP))
        rows, roots = concat_rows([rows, inside]), pl.DataFrame()
    if not rows.height and not roots.height:
        why = "".join(f"; {warning.message}" for warning in recording.warnings)
        raise TraceFormatError(f"{name}: {recording.tool} recorded no spans{why}")
    named = roots["name"].to_list() if roots.height else [""]
    if not roots.height:
        roots = _around(rows)
        if recording.peak_bytes is not None:
            roots = roots.with_columns(pl.lit(recording.peak_bytes).alias(f"{ATTRIBUTE}peak_bytes"))
    trees = correlate(_as_roots(roots, rows, name), rows)
    warnings += [*_uncertain(trees), *_outside(trees, rows)]
    # For each process by itself: others number the nodes of their graphs alike.
    known = captures(trees.frames)
    frames = tuple(replayed(frame, known) for frame in trees.frames)
    return FileSteps(frames, tuple(named), numbers, tuple(warnings))


def _near(rows: SpanRows, roots: SpanRows) -> tuple[SpanRows, SpanRows, list[TraceWarning]]:
    """Return rows and steps without those whose times are damaged, and how many these are.

    A damaged time may be far from all others, and a span as long would hide the program.
    """
    middle = rows["start_ns"].median() if rows.height else None
    if not isinstance(middle, float):
        return rows, roots, []
    near = pl.all_horizontal(
        (pl.col(name) - int(middle)).abs() < _FAR_NS for name in ("start_ns", "end_ns")
    )
    kept = [frame.filter(near.fill_null(value=True)) for frame in (rows, roots)]
    lost = rows.height + roots.height - sum(frame.height for frame in kept)
    message = f"{counted(lost, 'span')} lie 52 days or more from most others and are left out"
    return kept[0], kept[1], [TraceWarning("far-away", message)] if lost else []


def _without_earlier(rows: SpanRows) -> tuple[SpanRows, list[TraceWarning]]:
    """Return rows without the work that a device had been given before the recording began.

    Streams work in order: what has no call in the recording, and began before the first work of
    its stream that has one, is of an earlier step.
    """
    calls = rows.filter(pl.col("kind") == Kind.LAUNCH.value)["correlation_id"].drop_nulls()
    called = pl.col("correlation_id").is_in(calls.unique().implode())
    tied = called.fill_null(value=False) | pl.col("parent_id").is_not_null()
    first = pl.col("start_ns").filter(tied).min().over("device", "stream")
    before = (~tied & (pl.col("start_ns") < first)).fill_null(value=False)
    work = rows.with_row_index("row").filter(_WORK).select("row", *_TIMES, before.alias("before"))
    earlier = work.filter("before")
    if not len(calls) or not earlier.height:
        return rows, []
    lasting = duration(float(earlier.select(_LONG.sum()).item()))
    gone = pl.int_range(pl.len()).is_in(earlier["row"].implode())
    message = (
        f"{counted(earlier.height, 'kernel')} or copies of {lasting} were launched before the "
        "recording began; they belong to no step and are left out"
    )
    return rows.filter(~gone), [TraceWarning("earlier", message)]


def _typical(roots: SpanRows, rows: SpanRows) -> tuple[tuple[int, ...], list[TraceWarning]]:
    """Return which steps stand for the program, and what was left out.

    A last step in which the host did nothing is none: schedules go on after the loop has ended. A
    first step that took twice as long as any other compiled, loaded or warmed up.
    """
    begun = rows.filter(pl.col("device").is_null())["start_ns"].sort()
    bounds = [begun.search_sorted(roots[name], side="left") for name in _TIMES]
    kept = list(range(roots.height))
    filled = (bounds[1] > bounds[0]).to_list()
    while len(begun) and len(kept) > 1 and not filled[kept[-1]]:
        kept.pop()
    names, said = roots["name"].to_list(), []
    if lost := names[len(kept) :]:
        said.append(f"nothing was called in {', '.join(lost)}")
    long = roots.select(_LONG).to_series()[kept]
    if len(kept) > 2 and long[0] > _COLD * long[1:].max():  # type: ignore[operator]
        usual = duration(float(long[1:].median()))  # type: ignore[arg-type]
        said.append(f"{names[0]} came first and took {duration(float(long[0]))}, others {usual}")
        del kept[0]
    message = f"{'; '.join(said)}: left out. steps=False, or --whole, shows the whole recording."
    return tuple(kept), [TraceWarning("steps-left-out", message)] if said else []


def _around(rows: SpanRows) -> SpanRows:
    """Return one root around all rows."""
    start, end = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    # An instant is in the time of a root only if that time is not empty.
    times = {"start_ns": [start], "end_ns": [max(end, start + 1)]}
    return span_rows({"kind": Kind.REGION.value, "name": "", **times})


def _as_roots(roots: SpanRows, rows: SpanRows, name: str) -> SpanRows:
    """Return roots of one name, each on a thread and with the name of its step."""
    step = pl.when(pl.col("name") != "").then("name").alias(STEP)
    thread = pl.coalesce("thread", pl.lit(_main_thread(rows), dtype=pl.Int64))
    return roots.with_columns(step, thread, pl.lit(name).alias("name"))


def _main_thread(rows: SpanRows) -> int | None:
    """Return the thread on which most of the program's time was recorded, None if none was."""
    on_host = rows.select("kind", "thread", *_TIMES).drop_nulls("thread")
    for kinds in _TELLING:
        sums = on_host.filter(pl.col("kind").is_in(kinds)).group_by("thread").agg(time=_LONG.sum())
        if sums.height:
            return int(sums.sort("time", "thread")["thread"][-1])
    return None


def _disjoint(roots: SpanRows) -> tuple[SpanRows, list[TraceWarning]]:
    """Return steps one after the other in time, and what was done to make them so.

    >>> roots = span_rows({"kind": "region", "name": ["c", "a", "b"],
    ...                    "start_ns": [60, 0, 10], "end_ns": [90, 70, 20]})
    >>> _disjoint(roots)[0].select("name", "start_ns", "end_ns").rows()
    [('a', 0, 60), ('c', 60, 90)]
    """
    lasting = roots.filter(_LONG > 0).sort("start_ns", -_LONG)
    before = pl.col("end_ns").cum_max().shift(1)
    outermost = lasting.filter((pl.col("end_ns") > before).fill_null(value=True))
    following = pl.col("start_ns").shift(-1)
    cut = pl.min_horizontal("end_ns", following)
    shorter = int(outermost.select((following < pl.col("end_ns")).sum()).item())
    said = []
    if lost := roots.height - outermost.height:
        said.append(f"{counted(lost, 'step')} without length, or inside another, are left out")
    if shorter:
        said.append(f"{counted(shorter, 'step')} end where the next one begins")
    message = f"some of {counted(roots.height, 'step')} overlap: {', '.join(said)}"
    apart = outermost.with_columns(end_ns=cut).filter(_LONG > 0)
    return apart, [TraceWarning("steps-overlap", message)] if said else []


def _uncertain(trees: Trees) -> Iterator[TraceWarning]:
    """Yield what is not known of the places of rows."""
    counts = {
        "no-launch": trees.unlaunched,
        "ambiguous": trees.ambiguous_parents,
        "ambiguous-thread": trees.ambiguous_threads,
    }
    for code, count in counts.items():
        if count:
            noun, sentence = COUNTED[code]
            yield TraceWarning(code, sentence.format(counts=counted(count, noun)))
    if alone := trees.orphans - trees.unlaunched:
        yield TraceWarning(
            "orphans",
            f"{counted(alone, 'span')} on other threads, such as autograd's, have no known cause "
            "and "
            "hang under the root; layers may lack their time",
        )


def _outside(trees: Trees, rows: SpanRows) -> Iterator[TraceWarning]:
    """Yield how much lies outside of all steps."""
    if not trees.outside:
        return
    number, time = _work([rows])
    inside, inside_time = _work(trees.frames)
    message = f"{counted(trees.outside, 'span')} lie outside of the steps"
    if number > inside:
        part = percent((time - inside_time) / time if time else 0.0)
        message += (
            f", with {counted(number - inside, 'kernel')} or copies of "
            f"{duration(time - inside_time)} ({part} of the device's work)"
        )
    yield TraceWarning("outside", f"{message}. steps=False, or --whole, shows the whole recording.")


def _work(frames: list[pl.DataFrame] | tuple[pl.DataFrame, ...]) -> tuple[int, int]:
    """Return number and summed length in ns of all kernels, copies and sets."""
    work = [frame.select("kind", *_TIMES).filter(_WORK) for frame in frames]
    sums = [each.select(pl.len(), _LONG.sum()).row(0) for each in work]
    return sum(number for number, _ in sums), sum(time for _, time in sums)
