"""Recording a target that a command line names: its specification in, raw records out."""

from __future__ import annotations

from functools import partial

from xsp.measurement import Recording, record
from xsp.session import Settings
from xsp.target.examination import exported
from xsp.target.part import attempt
from xsp.target.resolution import resolve
from xsp.target.spec import Spec
from xsp.target.worker import Failure


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
        outcome = attempt(work, early=True)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome
