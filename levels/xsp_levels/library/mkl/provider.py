"""The MKL provider makes rows of BLAS, LAPACK and FFT calls from lines of MKL's verbose mode.

MKL's verbose mode tells the name and the duration of a call, but neither time nor thread.
The kernel of the operating system tells both: it records when a thread reaches the function
with which MKL writes a line, right after the call. If the kernel does not let this process
watch a function, only the order of calls is known, and calls are placed by their order.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, concat_rows, no_rows, span_rows
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.blas_flop import Work, work
from xsp_levels.library.mkl.verbose import PRINTER, MklLibrary, MklRecorder, loaded, set_up, speak
from xsp_levels.native import forked_child, perf_event, thread
from xsp_levels.native.perf_event import Event, Hit
from xsp_levels.native.symbol import mentions

_NONE = "no MKL is loaded; PyTorch for x86-64 brings one, and any other is found once it is loaded"
_OLD = (
    "the MKL in {path} cannot write what it does to a file, as MKL can since 2023.1; "
    "install a PyTorch with a newer one"
)
_LATE = (
    "threads that began during the recording called MKL; these calls are missing from the first "
    "runs. Later runs have them."
)
_FULL = (
    "MKL made more calls in a run than the kernel can keep; these runs lack MKL's calls. Use "
    "smaller batches or one thread."
)
_UNFINISHED = (
    "other threads used MKL when recording began or ended; these runs lack MKL's calls. Use one "
    "thread (--threads 1, or torch.set_num_threads(1))."
)
_CROWDED = (
    "several threads called MKL at once; calls that ended within 100 us may have each other's "
    "time and thread. Use one thread (--threads 1)."
)
_BY_ORDER = (
    "MKL's calls are placed by their order, so a call may lie under a neighboring operator: {why}"
)


@dataclass(frozen=True, slots=True)
class MklRecords:
    """The records of one visit.

    Attributes:
        outputs: The lines of each MKL, and their times.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        version: MKL's version; None if MKL has not printed the version yet.
    """

    outputs: tuple[Output, ...] = ()
    threads: dict[int, int] = field(default_factory=dict)
    version: str | None = None


class Mkl:
    """Observes every MKL that is loaded."""

    name = "mkl"
    level = Level.LIBRARY
    kinds = frozenset({Kind.CALL})
    record_type = MklRecords

    def __init__(self) -> None:
        self._clocks: weakref.WeakSet[Clock] = weakref.WeakSet()  # of measurements that go on
        self._watches: list[MklWatch] = []
        self._version: str | None = None

    def unavailable(self) -> str | None:
        """Return why MKL cannot be observed here, or None if it can."""
        found = loaded()
        if not found:
            # Tell whether PyTorch, which is not loaded yet, has MKL linked into it.
            spec = importlib.util.find_spec("torch")
            if spec is None or spec.origin is None:
                torch_has_mkl = False
            else:
                library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
                torch_has_mkl = mentions(str(library), PRINTER)
            return None if torch_has_mkl else _NONE
        return None if any(each.complete for each in found) else _OLD.format(path=found[0].path)

    def remark(self) -> str | None:
        """Return how calls are placed in time here, and how to place them better."""
        refusal = perf_event.refusal()
        if refusal is None:
            return "calls are placed in time by the kernel, some µs after they ended"
        return f"calls are placed by their order among the operators that can make them: {refusal}"

    def start(self, clock: Clock, request: Request) -> None:
        """Have every loaded MKL write its lines to memory; an MKL loaded later is not seen."""
        self._disarm()
        if Kind.CALL in request.kinds and clock not in self._clocks:
            self._clocks.add(clock)
            weakref.finalize(clock, speak).atexit = False
        with undone_on_failure(self._disarm):
            for library in loaded() if Kind.CALL in request.kinds else ():
                if library.complete:
                    self._version = version(set_up(library)) or self._version
                    self._watches.append(MklWatch(library))

    def stop(self) -> Records:
        """Restore the user's verbose mode, and return the records."""
        refusals = {watch.refusal for watch in self._watches if watch.refusal}
        stopped = self._disarm()
        outputs = tuple(stopped)
        # MKL names its version once in a process, in whichever visit makes the first call.
        versions = [version(output.text) for output in outputs]
        self._version = next((found for found in versions if found), self._version)
        return Records(
            MklRecords(outputs, thread.names(), self._version),
            dropped=sum(_lost(output) for output in outputs),
            warnings=(
                *(_BY_ORDER.format(why=why) for why in sorted(refusals)),
                *sorted({said for output in outputs if (said := _remark(output))}),
            ),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call. Pure."""
        speak()  # records are read when no call can be under way any more
        data: MklRecords = records.data
        told = (output for output in data.outputs if not _left_out(output))
        return concat_rows(
            [
                call_rows(lines(output.text), output.hits, data.threads, data.version)
                for output in told
            ]
        )

    def _disarm(self) -> list[Output]:
        """Stop all watches, whatever any of them raises, and return their output."""
        watches, self._watches = self._watches, []
        stopped: list[Output] = []
        with ExitStack() as stack:
            for watch in watches:
                stack.callback(_stop_into, stopped, watch)
        return stopped


def _stop_into(stopped: list[Output], watch: MklWatch) -> None:
    stopped.append(watch.stop())


def _left_out(output: Output) -> str | None:
    """Return why the calls of a visit are left out; None if they are not."""
    if output.hits is None:
        return None
    if output.lost:
        return _FULL
    if output.written > len(output.hits):
        return _LATE
    return None if explained(output.hits, output.written) else _UNFINISHED


def _remark(output: Output) -> str | None:
    """Return a sentence about calls without a certain time; None if every time is certain."""
    if output.hits is None:
        return None
    return _left_out(output) or (_CROWDED if crowd(output.hits) else None)


def _lost(output: Output) -> int:
    written = output.written
    made = written if output.hits is None else max(written, len(output.hits) + output.lost)
    return made if _left_out(output) else made - written + unread(output.text)


# Records the lines that one MKL writes, and the time of each line.

_PAGES = 64  # of the ring that holds the times of lines: some 10,000


@dataclass(frozen=True)
class Output:
    """The output of one MKL during a visit.

    Attributes:
        text: The lines.
        hits: Time and thread of each line, right before the line was written, by time;
            None if the kernel refused to record them.
        lost: How many hits the kernel had no room for.
    """

    text: str
    hits: tuple[Hit, ...] | None = None
    lost: int = 0

    @cached_property
    def written(self) -> int:
        """How many calls there are lines of, lines that cannot be read among them."""
        return count(self.text)


class MklWatch:
    """A recording of one MKL, from the making of this object until `stop`.

    Args:
        library: The MKL.

    Attributes:
        refusal: Why the kernel does not record the times of lines; None if it does.

    Raises:
        OSError: MKL cannot write to memory.
    """

    def __init__(self, library: MklLibrary) -> None:
        self.refusal: str | None = None
        self._recorder = MklRecorder(library)
        self._events: list[Event] = []
        forked_child.register(self)
        try:
            self._events = perf_event.watch(library.printer, _PAGES)
        except OSError as error:
            self.refusal = perf_event.explain(error)
        with undone_on_failure(self._close):
            # Events first: every line needs its time.
            for event in self._events:
                event.enable()
            self._recorder.start()

    def stop(self) -> Output:
        """Stop, and return the output."""
        try:
            text = self._recorder.stop()
        finally:
            hits, lost = self._close()
        return Output(text, tuple(hits) if self.refusal is None else None, lost)

    def abandon(self) -> None:
        """Stop in a forked child; the parent's recording goes on."""
        self._recorder.undo()
        self._events = []

    def _close(self) -> tuple[list[Hit], int]:
        events, self._events = self._events, []
        results = [event.close() for event in events]
        hits = sorted((hit for found, _ in results for hit in found), key=lambda hit: hit.time_ns)
        return hits, sum(lost for _, lost in results)


# Makes one row per call of MKL from the calls and the times of their lines. Pure.

# Operators of frameworks that call BLAS or LAPACK: calls of unknown time are placed inside
# these operators, by order.
CALLERS = (
    r"^aten::(b?mm|mv|dot|vdot|addmm|addmv|addr|baddbmm|_addmm_activation|_int_mm"
    r"|_?linalg_\w+|_?cholesky\w*|_?lu_\w+|geqrf|orgqr|ormqr|triangular_solve"
    r"|_fft_\w+|mkldnn_linear|_scaled_dot_product_flash_attention_for_cpu|slow_conv\w*"
    r"|_slow_conv\w*)$"
)

_MOST_LOST = 0.1  # of the lines of threads that write at once: of 10,000 some four were
_ROUNDING = 0.05  # of a duration, which MKL writes with two digits after the point, or of its trap
_WRITTEN_NS = 100_000  # a thread that reaches MKL's printer has written its line within this time

BY_END, BY_ORDER = "end", "order"


def call_rows(
    lines: Sequence[MklCall | None],
    hits: Sequence[Hit] | None,
    threads: Mapping[int, int],
    version: str | None,
) -> SpanRows:
    """Return one row per call, placed by the time of its line; where none was recorded, by order.

    A thread reaches the function that writes lines (a hit), and writes its line: the k-th
    hit is the time of the k-th line. Threads that reach the function together may write in
    another order, and over each other's lines: see `with_lines`.

    Args:
        lines: The call of each line; None for a line that cannot be read, which has a hit too.
        hits: Time and thread of each line, by time, perhaps of some more (`explained`); None if
            not recorded.
        threads: Identifiers of Python's threads, by the kernel's numbers.
        version: MKL's version, None if unknown.
    """
    calls = [call for call in lines if call is not None]
    if not calls:
        return no_rows()
    library = f"MKL {version}" if version else "MKL"
    works = [call.work for call in calls]
    columns = {
        "kind": Kind.CALL.value,
        "name": [call.routine for call in calls],
        "attr.library": library,
        "attr.problem": pl.Series(
            [work.problem if work else None for work in works], dtype=pl.String
        ),
        "attr.flops": pl.Series([work.flops if work else None for work in works], dtype=pl.Int64),
        "attr.threads": pl.Series([call.threads for call in calls], dtype=pl.Int64),
    }
    if hits is None:
        ordered = {
            "start_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
            "end_ns": pl.Series([None] * len(calls), dtype=pl.Int64),
            "duration_ns": [call.duration_ns for call in calls],
            "inside": CALLERS,
            "attr.placement": BY_ORDER,
        }
        return span_rows({**columns, **ordered})
    written = with_lines(hits, lines)
    ends = [hit for hit, call in zip(written, lines, strict=True) if call is not None]
    end = np.array([hit.time_ns for hit in ends], np.int64)
    duration = np.array([call.duration_ns for call in calls], np.int64)
    placed = {
        "start_ns": end - duration,
        "end_ns": end,
        # Only Python's threads have operators; other threads work for one of Python's.
        "thread": pl.Series([threads.get(hit.thread) for hit in ends], dtype=pl.Int64),
        "attr.placement": BY_END,
    }
    return span_rows({**columns, **placed})


def crowd(hits: Sequence[Hit]) -> list[int]:
    """Return which hits come so soon after another thread's that the lines may be exchanged.

    >>> crowd([Hit(0, 1), Hit(99_000, 1), Hit(200_000, 2), Hit(250_000, 1)])
    [3]
    """
    return [
        at
        for at, (one, other) in enumerate(itertools.pairwise(hits), 1)
        if one.thread != other.thread and other.time_ns - one.time_ns < _WRITTEN_NS
    ]


def explained(hits: Sequence[Hit], count: int) -> bool:
    """Return whether there are as many lines as hits, but for some that threads wrote over.

    >>> explained([Hit(0, 1), Hit(9, 2)], 2), explained([Hit(0, 1), Hit(9, 1)], 1)
    (True, False)
    """
    return 0 <= len(hits) - count <= _MOST_LOST * len(crowd(hits))


def with_lines(hits: Sequence[Hit], lines: Sequence[MklCall | None]) -> Sequence[Hit]:
    """Return the hits that belong to lines, in the lines' order.

    A call cannot have begun before its thread's hit before: where it would, the hit is another's,
    whose line is missing. Lines of which no call tells are missing at the end.
    """
    lost, crowded = len(hits) - len(lines), crowd(hits)
    together = set(crowded)
    gone, last, at = set[int](), dict[int, int](), 0
    for call in lines if lost else ():
        while call is not None and len(gone) < lost and at in together:
            begin_ns = hits[at].time_ns - call.duration_ns
            if begin_ns + _ROUNDING * call.duration_ns >= last.get(hits[at].thread, begin_ns):
                break
            gone.add(at)
            at += 1
        last[hits[at].thread] = hits[at].time_ns
        at += 1
    rest = [at for at in reversed(crowded) if at not in gone]
    gone.update(rest[: lost - len(gone)])
    return [hit for at, hit in enumerate(hits) if at not in gone]


# Parses lines of MKL's verbose mode into calls. Pure.

# Threads that write at once write into one buffer of MKL's: a line may begin as `%KL_VERBOSE`.
MARK = "KL_VERBOSE"

_CALL = re.compile(
    MARK
    + r"(?: (\w+)\(((?:[^()\n]|\(nil\))*)\) (\d+(?:\.\d+)?)(ns|us|ms|s)(?![\w.])(?=([^\n]*)))?",
    re.ASCII,
)
_BUILD = re.compile(MARK + r" ((?:Intel|oneMKL)[^\n]*)")
_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)?)(?: Update (\d+))?", re.ASCII)
_THREADS = re.compile(r"\bNThr:(\d+)", re.ASCII)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+|\(nil\)", re.ASCII)
# LAPACK's routines in which an argument of -1 asks for the size of the workspace; in other
# routines -1 is a stride.
_ASKED = re.compile(r"[SDCZ](?:GETRI|GEQRF|(?:OR|UN)GQR|GESDD|GEEV|(?:SY|HE)EVD|GELS[YDS]?)")
_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class MklCall:
    """One call of MKL.

    Attributes:
        routine: Name, in capitals for BLAS and LAPACK: `SGEMM`.
        duration_ns: Duration of the call, as measured by MKL.
        threads: Count of threads that the call could use; None if the line does not tell.
        work: The call's work; None for an unknown routine.
    """

    routine: str
    duration_ns: int
    threads: int | None
    work: Work | None


def lines(text: str) -> tuple[MklCall | None, ...]:
    """Return the call of each of MKL's lines, None for a line that cannot be read.

    Lines that MKL did not write are passed over.

    >>> lines("MKL_VERBOSE DDOT(8,0x1,1,0x2,1) 1.50us CNR:OFF NThr:2")[0].duration_ns
    1500
    """
    return tuple(_call(*found.groups()) if found[1] else None for found in _lines(text))


def count(text: str) -> int:
    """Return the count of MKL's lines of calls, those included that cannot be read."""
    return sum(1 for _ in _lines(text))


def unread(text: str) -> int:
    """Return the count of MKL's lines that cannot be read: lines cut in half, for example."""
    return sum(1 for found in _lines(text) if not found[1])


def _lines(text: str) -> Iterator[re.Match[str]]:
    """Yield the match of each of MKL's lines but those that name the build."""
    for found in _CALL.finditer(text):
        if found[1] or not _BUILD.match(text, found.start()):
            yield found


def version(text: str) -> str | None:
    """Return the version of MKL, None if no line tells the version.

    >>> version("MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64")
    '2024.0 Update 2'
    """
    build = _BUILD.search(text)
    match = _VERSION.search(build[1]) if build else None
    if match is None:
        return None
    return f"{match[1]} Update {match[2]}" if match[2] else match[1]


def _call(routine: str, arguments: str, value: str, unit: str, rest: str) -> MklCall:
    # Arguments without addresses, so that equal problems have equal arguments.
    without_addresses = _ADDRESS.sub("-", arguments)
    return MklCall(
        routine=routine,
        duration_ns=round(float(value) * _NS[unit]),
        threads=_threads(rest),
        work=_work(routine, without_addresses),
    )


@lru_cache(maxsize=4096)
def _work(routine: str, arguments: str) -> Work | None:
    fields = arguments.split(",")
    if routine == "FFT":  # the problem is one word: srfo1024
        return Work(fields[0], None)
    found = work(routine, fields)
    if found is not None and "-1" in fields and _ASKED.fullmatch(routine):
        return Work(f"query {found.problem}", 0)
    return found


@lru_cache(maxsize=256)
def _threads(rest: str) -> int | None:
    match = _THREADS.search(rest)
    return int(match[1]) if match else None
