from __future__ import annotations

import pytest

from xsp.evaluation import Rung
from xsp.level import Kind, Level
from xsp.measurement.interpretation import interpret
from xsp.provider import Records, Request, SpanRows, span_rows
from xsp.session import PlannedVisit, Visit

THREAD = 7


class Rows:
    """A provider whose records are its rows."""

    name = "rows"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.PIPELINE})

    def unavailable(self) -> None:
        return None

    def start(self, clock: object, request: Request) -> None:
        """Record nothing."""

    def stop(self) -> Records:
        return Records(None)

    def spans(self, records: Records) -> SpanRows:
        rows: SpanRows = records.data
        return rows


@pytest.mark.parametrize(
    ("thread", "expected"), [(THREAD, ["root", "step"]), (8, ["root", "step", "loading"])]
)
def test_what_a_program_does_after_an_evaluation_is_not_in_the_wait_for_devices(
    thread: int, expected: list[str]
) -> None:
    provider = Rows()
    rows = span_rows(
        {
            "kind": "pipeline",
            "name": ["step", "loading"],
            "start_ns": [20, 85],
            "end_ns": [30, 95],
            "thread": [THREAD, thread],
        }
    )
    visit = Visit(
        planned=PlannedVisit(Rung(frozenset({Kind.PIPELINE})), round=0),
        name="root",
        thread=THREAD,
        windows=((10, 100),),
        records=((provider, Records(rows)),),
        waited_ns=(20,),
    )
    (run,) = interpret([visit], [provider]).runs
    assert run.rows is not None
    assert run.rows["name"].to_list() == expected
