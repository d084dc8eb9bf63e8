"""Measures or records a target in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from xsp.measuring.call import Recording, record
from xsp.measuring.target.examination import exported
from xsp.measuring.target.part import attempt, measure_subject
from xsp.measuring.target.resolution import resolve
from xsp.measuring.target.spec import Spec, Subject
from xsp.measuring.target.worker import Failure
from xsp.progress import Progress, StopMeasurement, progress_bar, status_line
from xsp.reading.runs import ProcessRuns, build_trace
from xsp.record.session import Settings
from xsp.trace import Trace
from xsp.warning import INTERRUPTED, TraceWarning


def measure_here(
    spec: Spec,
    settings: Settings,
    progress: bool | Progress | None = None,
    *,
    look: Callable[[Subject], Iterable[TraceWarning]] | None = None,
) -> Trace:
    """Measure a target in this process, on every pass, and return its trace.

    Ctrl-C ends the measurement after the visit under way, with the runs complete so far.

    Args:
        spec: The target.
        settings: How to measure.
        progress: As for `xsp.measure`.
        look: Called with the target once it is loaded and before it is measured; what it finds
            becomes warnings of the trace.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: The target cannot be measured on this machine.
        KeyboardInterrupt: Interrupted before the first step had ended, or twice.
    """
    warnings: list[TraceWarning] = []
    presses: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    def report(fraction: float) -> None:
        draw(fraction)
        if presses:
            raise StopMeasurement

    def work() -> ProcessRuns:
        draw.say(f"loading {spec.source or spec.target}")
        subject = resolve(runnable)
        draw.say("measuring")
        warnings.extend(look(subject) if look else ())
        return measure_subject(subject, settings, report)

    with (
        exported(spec) as runnable,
        progress_bar(progress, spec.name) as draw,
        _on_interrupt(interrupt),
    ):
        outcome = attempt(work)
    if isinstance(outcome, Failure):
        raise outcome.error()
    if presses:
        if not outcome.has_spans:
            raise KeyboardInterrupt
        warnings.append(INTERRUPTED)
    with status_line(progress, f"merging the runs of {spec.name}"):
        trace = build_trace([outcome], settings, warnings=warnings)
    return trace.replaced(metadata={**trace.metadata, "settings": spec.settings})


@contextmanager
def _on_interrupt(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def record_target(spec: Spec, settings: Settings) -> Recording:
    """Measure a target in this process, and return the recording.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: The target cannot be measured on this machine.
    """

    def work() -> Recording:
        subject = resolve(runnable)
        function = partial(subject.function, **subject.kwargs) if subject.kwargs else None
        with subject.mode():
            return record(function or subject.function, *subject.args, settings=settings)

    with exported(spec) as runnable:
        outcome = attempt(work)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome
