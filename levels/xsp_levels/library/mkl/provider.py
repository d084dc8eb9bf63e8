"""The MKL provider: lines of MKL's verbose mode in; rows of BLAS, LAPACK and FFT calls out.

MKL's verbose mode tells the name and the duration of a call, but neither time nor thread.
The kernel of the operating system tells both: it records when a thread reaches the function
with which MKL writes a line, right after the call. If the kernel does not let this process
watch a function, only the order of calls is known, and calls are placed by their order.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from xsp.clock import Clock
from xsp.level import Kind, Level
from xsp.provider import Records, Request, SpanRows, concat_rows
from xsp_levels.arming import undone_on_failure
from xsp_levels.library.mkl.breakpoint import MklWatch, Output
from xsp_levels.library.mkl.line import lines, unread, version
from xsp_levels.library.mkl.row import call_rows, crowd, explained
from xsp_levels.library.mkl.verbose import PRINTER, loaded, set_up
from xsp_levels.native import perf_event, thread
from xsp_levels.native.symbol import mentions

_NONE = "no MKL is loaded; PyTorch for x86-64 brings one, and any other is found once it is loaded"
_OLD = (
    "the MKL in {path} cannot write what it does to a file, as MKL can since 2023.1; "
    "install a PyTorch with a newer one"
)
_LATE = (
    "MKL was called on threads that began while it was recorded, which the kernel does not watch: "
    "its calls in these runs are left out; in later ones these threads are watched"
)
_FULL = (
    "MKL made more calls in a run than the kernel kept moments of: its calls in these runs are "
    "left out; fewer samples at a time, or one thread, may make few enough"
)
_UNFINISHED = (
    "MKL was in use on another thread when recording began or ended, or threads wrote over each "
    "other's lines: its calls in these runs are left out; on one thread (--threads 1, or "
    "torch.set_num_threads(1)) that does not happen"
)
_CROWDED = (
    "MKL was called by several threads at once: of calls that ended within 100 us of each other, "
    "each may have the time and the thread of another, and where lines are missing calls near them "
    "may be shifted by as many; on one thread (--threads 1) none is"
)
_BY_ORDER = (
    "MKL's calls are placed by their order among the operators that can make them, so that one "
    "can lie under a neighbour of its own operator: {why}"
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
        self._watches: list[MklWatch] = []
        self._version: str | None = None

    def unavailable(self) -> str | None:
        """Return why MKL cannot be observed here, or None if it can."""
        found = loaded()
        if not found:
            return None if _torch_has_mkl() else _NONE
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
            problems=(
                *(_BY_ORDER.format(why=why) for why in sorted(refusals)),
                *sorted({said for output in outputs if (said := _remark(output))}),
            ),
        )

    def spans(self, records: Records) -> SpanRows:
        """Turn records into rows, one per call. Pure."""
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
    """Return how many calls there is no row of."""
    written = output.written
    made = written if output.hits is None else max(written, len(output.hits) + output.lost)
    return made if _left_out(output) else made - written + unread(output.text)


def _torch_has_mkl() -> bool:
    """Tell whether PyTorch, which is not loaded yet, has MKL linked into it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return mentions(str(library), PRINTER)
