"""One MKL in; the lines that MKL writes, and the time of each line, out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xsp_levels.arming import undone_on_failure
from xsp_levels.library.mkl.line import count
from xsp_levels.library.mkl.verbose import MklLibrary, MklRecorder
from xsp_levels.native import forked_child, perf_event
from xsp_levels.native.perf_event import Event, Hit

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
