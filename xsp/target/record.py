"""Recording a target that a command line names: its specification in, raw records out."""

from __future__ import annotations

from xsp.measurement import Recording, record
from xsp.session import Settings
from xsp.target.part import attempt
from xsp.target.spec import Spec, resolve
from xsp.target.worker import Failure


def record_target(spec: Spec, settings: Settings) -> Recording:
    """Measure a target in this process, and return the recording.

    Raises:
        UnknownTargetError: There is no such target.
        TargetFailedError: The target raised.
        MeasurementError: The target cannot be measured on this machine.
    """

    def work() -> Recording:
        subject = resolve(spec)
        with subject.mode():
            return record(subject.function, *subject.args, settings=settings)

    outcome = attempt(work, early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome
