"""Recording a target that a command line names: its specification in, raw records out."""

from __future__ import annotations

from xsp.plan import Settings
from xsp.recording import Recording, record
from xsp.target import Spec, resolve
from xsp.worker import Failure, attempt


def record_target(spec: Spec, settings: Settings) -> Recording:
    """Measure a target in this process, and return what was recorded.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: It cannot be measured here.
    """

    def work() -> Recording:
        subject = resolve(spec)
        with subject.mode():
            return record(subject.function, *subject.args, settings=settings)

    outcome = attempt(work, early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    recording: Recording = outcome
    return recording
