"""How much work comes after the last evaluation: counted, as times would be the machine's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from xsp.measurement.build import build_trace
from xsp.measurement.callable import interpret_session, visit_all
from xsp.session.settings import settings_of

torch = pytest.importorskip("torch")


def queries(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of `work`, and how many queries it made of polars: 0.1 to 1 ms each."""
    count = 0

    def note(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        ours = event == "c_call" and getattr(function, "__name__", "") == "collect"
        count += ours and "LazyFrame" in type(function.__self__).__name__

    sys.setprofile(note)
    try:
        return work(), count
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def counted() -> list[tuple[int, int, int]]:
    """Visits of a small model, and queries of interpreting and of merging them; few, then many."""
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(1, 4)
    found = []
    for runs in (60, 300):
        settings = settings_of(2, runs=runs, budget=60.0)
        with torch.inference_mode():
            visited = visit_all(model, (x,), settings=settings, progress=False)
        process, interpreting = queries(partial(interpret_session, *visited))
        _, merging = queries(partial(build_trace, [process], settings))
        found.append((len(visited[0].visits), interpreting, merging))
    return found


def test_a_visit_is_interpreted_with_few_queries(counted: list[tuple[int, int, int]]) -> None:
    (few, at_first, _), (many, in_all, _) = counted
    assert many > 2 * few
    assert (in_all - at_first) / (many - few) < 4


def test_merging_makes_no_query_more_for_more_runs(counted: list[tuple[int, int, int]]) -> None:
    (_, _, few), (_, _, many) = counted
    assert many <= few + 20
