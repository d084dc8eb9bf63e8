"""Threads that evaluate at once: a journal and visits in, the traces of the program out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xsp.clock import Clock
from xsp.composition.group import Groups
from xsp.composition.journal import Evaluation, Journal, Pause
from xsp.composition.outcome import Outcome, Purpose, program_traces
from xsp.evaluation import ladder
from xsp.level import Kind, Level
from xsp.provider import ModelCall, Records, Request, SpanRows, span_rows
from xsp.session import PlannedVisit, Selection, Session, Visit, settings_of
from xsp.testing import FakeClock

BARE, PIPELINE, LAYER = ladder({Kind.PIPELINE, Kind.LAYER})
HERE, OTHER = 7, 8
MS = 1_000_000
EACH, APART = 10 * MS, 20 * MS  # each evaluation, and from one to the next
CALL = ModelCall(object, subject="Model")


class Layers:
    """A provider whose records are times of layers."""

    name = "layers"
    level = Level.FRAMEWORK
    kinds = frozenset({Kind.LAYER})

    def unavailable(self) -> None:
        """Work anywhere."""

    def start(self, clock: Clock, request: Request) -> None:
        """Do nothing: the records are made by the test."""

    def stop(self) -> Records:
        """Return nothing."""
        return Records(())

    def spans(self, records: Records) -> SpanRows:
        """Return a row for each layer."""
        start, end = zip(*records.data, strict=True)
        return span_rows(
            {"kind": "layer", "name": "fc", "start_ns": start, "end_ns": end, "thread": HERE}
        )


def program(pauses: list[tuple[int, int]], *, awaited_ns: int = 0) -> Outcome:
    """Make the traces of 18 evaluations of 10 ms on one thread, and a quick one on each rung.

    Args:
        pauses: Begin and end of each time in an evaluation in which xsp worked on another thread.
        awaited_ns: How long each evaluation waited for devices at its end.
    """
    groups, provider = Groups(), Layers()
    number = groups.count(groups.find(CALL), CALL).number
    session = Session([provider], FakeClock())
    made, works = [], []
    for place, rung in enumerate((BARE, PIPELINE, LAYER)):
        begins = [APART * (7 * place + at) for at in range(6)]
        quick = APART * (7 * place + 6)
        windows = (*((begin, begin + EACH) for begin in begins), (quick, quick + 3 * MS))
        made += [Evaluation(HERE, number, *window, rung, True, (1, ())) for window in windows]
        works += [Pause(OTHER, at + begin, at + end) for at in begins for begin, end in pauses]
        layers = [(begin + 2 * MS, begin + 7 * MS) for begin in begins]
        layers += [(quick + MS, quick + 2 * MS)]
        session.visits.append(
            Visit(
                PlannedVisit(rung, 7, round=9),
                "Model",
                HERE,
                windows,
                ((provider, Records(layers)),) if rung == LAYER else (),
                waited_ns=(*(awaited_ns,) * 6, 0),
                groups=(number,) * 7,
                rounds=(9,) * 7,
                names=("Model",) * 7,
            )
        )
    made = [each._replace(awaited_ns=awaited_ns * (each.ran_ns == EACH)) for each in made]
    after = 21 * APART
    made += [Evaluation(OTHER, number, after, after + EACH, None, False, (1, ()))]
    journal = Journal(HERE, 0, after + 2 * EACH, made, pauses=works)
    selection = Selection((provider,), frozenset({Kind.PIPELINE, Kind.LAYER}), {})
    settings = replace(settings_of(2), statistic="median")
    return program_traces(journal, groups, session, Purpose("threads", selection, settings, {}))


@pytest.mark.parametrize(
    ("pauses", "model_ms", "layer_ms"),
    [([], 10, 5), ([(3, 5)], 8, 3), ([(1, 3), (2, 4), (9, 12)], 6, 3)],
)
def test_what_xsp_did_on_another_thread_is_in_no_latency(
    pauses: list[tuple[int, int]], model_ms: int, layer_ms: int
) -> None:
    made = program([(begin * MS, end * MS) for begin, end in pauses])
    (trace,) = made.groups.values()
    (layer,) = trace.spans.filter(trace.spans["kind"] == "layer").iter_rows(named=True)
    assert trace.root.latency_ns == pytest.approx(model_ms * MS)
    assert layer["latency_ns"] == pytest.approx(layer_ms * MS)
    (group,) = made.program.metadata["groups"]
    assert group["total_ns"] == pytest.approx((18 * model_ms + 3 * 3 + EACH / MS) * MS)
    lost_ms = 18 * (EACH / MS - model_ms)
    assert made.program.root.latency_ns == pytest.approx((440 - lost_ms) * MS)


def test_nobody_waits_for_python_while_devices_are_waited_for() -> None:
    made = program([(3 * MS, 5 * MS)], awaited_ns=6 * MS)
    (trace,) = made.groups.values()
    assert trace.root.latency_ns == pytest.approx(9 * MS)  # one of 10 was lost, before that
    (layer,) = trace.spans.filter(trace.spans["kind"] == "layer").iter_rows(named=True)
    assert layer["latency_ns"] == pytest.approx(4 * MS)
