from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from toy import Toy, ToyCall, ToyModel

import xsp
from xsp.composition import Groups
from xsp.program.recording import KeptCalls
from xsp.program.replay import complete_plans
from xsp.provider import ModelCall
from xsp.testing import FakeClock, only_providers


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A toy framework that is the only provider, with its clock the only one."""
    toy = Toy(FakeClock())
    monkeypatch.setattr("xsp.session.recorder.SystemClock", lambda: toy.clock)
    with only_providers(toy):
        yield toy


def evaluate(toy: Toy, sizes: int, times: int, phase: str = "") -> ToyModel:
    """Call a model with inputs of several sizes, each size several times."""
    model = ToyModel(toy)
    assert toy.evaluations is not None
    for size in range(sizes):
        for _ in range(times):
            inputs = (((size, 3), "float32"),)
            call = ToyCall(model.forward, subject="Net", phase=phase, inputs=inputs, toy=toy)
            toy.evaluations.run(call)
    return model


def messages(trace: xsp.Trace, code: str) -> list[str]:
    return [problem.message for problem in trace.problems if problem.code == code]


def test_evaluations_are_gone_through_a_few_times_however_many_groups_there_are(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[Groups]()
    find = Groups.final

    def final(self: Groups, number: int) -> int:
        asked[self] += 1
        return find(self, number)

    monkeypatch.setattr(Groups, "final", final)
    with xsp.profile(levels=1, runs=2) as prof:
        evaluate(toy, 40, 4)
        before = asked.copy()
    _ = prof.trace
    groups = prof._dispatching.plans.groups  # measuring what pauses cost has others
    assert 160 < asked[groups] - before[groups] < 20 * 160


def test_a_call_that_was_not_kept_is_said_to_be_so(toy: Toy) -> None:
    with xsp.profile(levels=1, runs=3, replay=True) as prof:
        evaluate(toy, 6, 1)
    said = messages(prof.trace, "not-replayed")
    assert len(said) == 2
    assert all("its call was not kept" in message for message in said)


def test_a_training_step_is_said_to_be_more_than_a_call_whatever_was_kept(toy: Toy) -> None:
    with xsp.profile(levels=1, runs=30, replay=True) as prof:
        evaluate(toy, 1, 1)
        assert toy.evaluations is not None
        step = ToyCall(
            ToyModel(toy).forward, subject="Net", phase="training step", whole_model=False
        )
        for _ in range(4):
            toy.evaluations.begin(step)
            step()
            toy.evaluations.extend()
            toy.evaluations.end("SGD")
    [message] = messages(prof.trace, "not-replayed")
    assert "it is more than one call" in message


def test_nothing_is_repeated_of_a_program_that_runs_once(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(*args: Any, **options: Any) -> dict[int, int]:
        return complete_plans(*args, **options | {"once": True})

    monkeypatch.setattr("xsp.program.block.complete_plans", once)
    with xsp.profile(levels=1, runs=3, replay=True) as prof:
        model = evaluate(toy, 1, 2)
    assert model.calls == 2
    [message] = messages(prof.trace, "not-replayed")
    assert "nothing is repeated" in message
    assert "active=" in message


def test_what_was_repeated_until_ctrl_c_is_part_of_its_group(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prof = xsp.profile(levels=2, runs=5)
    model = ToyModel(toy)
    forward = model.forward

    def interrupted(x: int) -> int:
        if model.calls == 9:
            raise KeyboardInterrupt
        return forward(x)

    monkeypatch.setattr(model, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt), prof:
        model()
    prof.trace.check()
    assert sum(rung["runs"] for rung in prof.trace.metadata["rungs"]) >= 3


def test_groups_without_a_tree_are_counted(toy: Toy) -> None:
    with xsp.profile(levels=2, runs=1, replay=False) as prof:
        evaluate(toy, 40, 9)
    prof.trace.check()
    assert len(prof.groups) == 24
    assert messages(prof.trace, "not-recorded") == []
    [message] = messages(prof.trace, "groups-left-out")
    assert "the trees of 16 further groups were not made" in message


def test_groups_of_which_nothing_was_recorded_are_named_and_counted(toy: Toy) -> None:
    late = xsp.schedule(skip=40)
    with xsp.profile(levels=2, runs=1, replay=False, schedule=late) as prof:
        evaluate(toy, 10, 5)
    prof.trace.check()
    assert len(prof.groups) == 2
    *named, rest = messages(prof.trace, "not-recorded")
    assert len(named) == 3
    assert rest == "nothing was recorded of the evaluations of 5 further groups"


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_that_come_in_turns_stay_on_a_rung_together(toy: Toy, groups: int) -> None:
    model = ToyModel(toy)
    with xsp.profile(levels=2, runs=12, replay=False) as prof:
        assert toy.evaluations is not None
        for number in range(groups * 400):
            size = number % groups
            inputs = (((size, 3), "float32"),)
            # The larger the inputs, the slower: turns of the groups have unlike lengths.
            toy.clock.advance(size * 300_000)
            toy.evaluations.run(
                ToyCall(model.forward, subject="Net", phase="", inputs=inputs, toy=toy)
            )
    made = [each for each in prof._dispatching.journal.evaluations if each.rung is not None]
    changes = sum(after.rung != before.rung for before, after in pairwise(made))
    assert len(made) > 8 * changes
    for trace in prof.groups.values():
        runs = {rung["rung"]: rung["runs"] for rung in trace.metadata["rungs"]}
        assert min(runs["bare"], runs["layer"]) >= 10


def noted(groups: Groups, kept: KeptCalls, call: ModelCall, took_ns: int) -> None:
    kept.note(groups.count(groups.find(call), call), call, took_ns)


def test_the_calls_of_the_groups_that_took_most_time_are_kept() -> None:
    groups = Groups()
    kept = KeptCalls(groups)
    calls = [ModelCall(len, subject=f"Part {number}") for number in range(8)]
    for number in range(6):  # as a model that is built calls each of its parts once
        noted(groups, kept, calls[number], 10)
    assert [kept.get(number) for number in range(6)] == [*calls[:4], None, None]
    for _ in range(2):
        noted(groups, kept, calls[7], 8)
    assert kept.get(6) is calls[7]
    # What goes on with a streak counts as well, also where no call is kept.
    kept.take(groups.members[5], calls[5].work, (), 30)
    noted(groups, kept, calls[5], 10)
    assert kept.get(5) is calls[5]
    assert len(kept) == 4


@pytest.mark.parametrize("order", ["rising", "falling", "any"])
def test_of_inputs_that_vary_those_of_about_average_size_are_kept(order: str) -> None:
    groups = Groups()
    kept = KeptCalls(groups)
    for number in range(3):
        noted(groups, kept, ModelCall(len, subject=f"Other {number}"), 5)
    lengths = sorted(range(6, 60), reverse=order == "falling")
    if order == "any":
        random.Random(1).shuffle(lengths)
    for length in lengths:  # the first dozen are groups of their own until they are joined
        call = ModelCall(len, ("",), inputs=(((32, length), "int64"),))
        noted(groups, kept, call, 10)
    [group] = [group for group in groups.current() if group.varies]
    found = kept.get(group.number)
    assert found is not None
    [((_, length), _)] = found.inputs
    assert 20 < length < 50
    others = [kept.get(group.number) for group in groups.current() if not group.varies]
    assert len(kept) == 1 + sum(each is not None for each in others)


class Sentences(torch.nn.Module):  # type: ignore[misc]  # its types are not known
    """Notes the lengths of the sentences that it is given."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self._note = lengths.append

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self._note(ids.shape[1])
        return self.embedding(ids).mean(1)


def test_of_sentences_sorted_by_length_one_of_about_average_length_is_repeated() -> None:
    lengths: list[int] = []
    model = Sentences(lengths).eval()
    with torch.no_grad(), xsp.profile(levels=2, budget=0.5, progress=False) as prof:
        for length in range(59, 5, -1):
            model(torch.ones(32, length, dtype=torch.long))
    [group] = prof.trace.metadata["groups"]
    assert group["name"] == "Sentences 32×(6…59)"
    assert group["samples"] == 32
    assert not {"residual", "prediction"} & {problem.code for problem in prof.trace.problems}
    [trace] = prof.groups.values()
    assert not {"residual", "prediction"} & {problem.code for problem in trace.problems}
    again = set(lengths[54:])
    assert again
    assert all(20 < length < 50 for length in again)


class Detector(torch.nn.Module):  # type: ignore[misc]  # its types are not known
    """Is given a photograph of three colours and of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 2, 1)

    def forward(self, photograph: torch.Tensor) -> torch.Tensor:
        return self.convolution(photograph).mean((1, 2))


def test_the_colours_of_photographs_of_any_size_are_no_samples() -> None:
    model = Detector().eval()
    with torch.no_grad(), xsp.profile(levels=2, replay=False, progress=False) as prof:
        for side in range(30, 60):
            model(torch.ones(3, side, side + 2))
    [group] = prof.trace.metadata["groups"]
    assert list(group["shapes"]) == ["3×(30…59)×(32…61) float32"]
    assert group["samples"] is None
