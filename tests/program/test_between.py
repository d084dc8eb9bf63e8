"""What Python runs between two evaluations is named, where evaluations are sampled."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch

import xsp


@pytest.fixture
def model() -> Any:
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).eval()


def post_process() -> None:
    """Take about a millisecond, and call nothing."""
    for _ in range(30_000):
        pass


def predict(model: Any, times: int) -> None:
    with torch.inference_mode():
        for _ in range(times):
            model(torch.zeros(8, 64))
            post_process()


def test_time_between_calls_of_a_model_is_named_by_the_functions_that_ran(model: Any) -> None:
    with xsp.profile(levels=2, replay=False) as profile:
        predict(model, 300)
    block = profile.trace.spans.unnest("attributes").row(0, named=True)
    assert block["own_samples"] >= 20
    assert block["own_functions"][0] == "post_process"
    assert block["own_shares"][0] > 0.8


def test_a_thread_that_was_sampled_and_evaluates_no_more_keeps_no_other_from_its_plan(
    model: Any,
) -> None:
    with xsp.profile(levels=2, replay=False) as profile:
        dispatcher = profile._dispatching

        def until_sampled() -> None:
            while not any(
                each.rung and each.rung.sampled for each in dispatcher.journal.evaluations
            ):
                predict(model, 1)

        first = threading.Thread(target=until_sampled)
        first.start()
        first.join()
        made = len(dispatcher.journal.evaluations)
        predict(model, 300)
    rungs = Counter(each.rung and each.rung.name for each in dispatcher.journal.evaluations[made:])
    assert rungs[None] == 0
    assert {"bare", "layer", "op"} <= rungs.keys()
