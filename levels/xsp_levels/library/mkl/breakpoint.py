"""Recording of one MKL: the library in; its lines, and the moment each was written at, out."""

from __future__ import annotations

from dataclasses import dataclass

from xsp_levels.arming import undone_on_failure
from xsp_levels.library.mkl.verbose import MklLibrary, MklRecorder
from xsp_levels.native import forked_child, perf_event
from xsp_levels.native.perf_event import Event, Hit

_PAGES = 64  # of the ring that holds the moments: 10,000 of them


@dataclass(frozen=True, slots=True)
class Output:
    """What one MKL told.

    Attributes:
        text: Its lines.
        hits: When each line was about to be written, in order, and on which thread;
            None where the kernel did not say.
    """

    text: str
    hits: tuple[Hit, ...] | None = None


class MklWatch:
    """One MKL from now until `stop`.

    Args:
        library: The MKL.

    Attributes:
        refusal: Why the kernel does not tell when lines are written, None if it does.

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
            # Events first: a line must not be without its moment.
            for event in self._events:
                event.enable()
            self._recorder.start()

    def stop(self) -> tuple[Output, int]:
        """Stop, and return what was told, and how many moments were lost."""
        try:
            text = self._recorder.stop()
        finally:
            hits, lost = self._close()
        return Output(text, tuple(hits) if self.refusal is None else None), lost

    def abandon(self) -> None:
        """Stop in a process that was forked; the one it was forked from goes on."""
        self._recorder.undo()
        self._events = []

    def _close(self) -> tuple[list[Hit], int]:
        events, self._events = self._events, []
        results = [event.close() for event in events]
        hits = sorted((hit for found, _ in results for hit in found), key=lambda hit: hit.time_ns)
        return hits, sum(lost for _, lost in results)
