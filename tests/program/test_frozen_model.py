"""A model that is frozen begins no training step, though it is called in training mode."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import xsp
from xsp_levels.framework.torch.program import call, watcher

STEPS = 40


def names(prof: xsp.profile) -> dict[str, int]:
    """Return how often each group was called, by its name."""
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(requires_grad=False)


class Student(nn.Sequential):  # type: ignore[misc]
    """What is trained."""


class Teacher(nn.Sequential):  # type: ignore[misc]
    """What is frozen."""


@pytest.fixture
def teacher() -> nn.Module:
    return frozen(Teacher(nn.Linear(8, 8), nn.ReLU()))


@pytest.fixture
def student() -> nn.Module:
    return Student(nn.Linear(8, 8), nn.ReLU())


def test_its_call_before_the_loop_is_no_beginning_of_the_first_step(
    student: nn.Module, teacher: nn.Module
) -> None:
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with xsp.profile(levels=1, replay=False) as prof:
        style = teacher(torch.randn(4, 8))
        for _ in range(STEPS):
            optimizer.zero_grad()
            made = student(torch.randn(4, 8))
            (teacher(made) - style).square().sum().backward()
            optimizer.step()
    assert names(prof) == {
        "Student training step 4×8": STEPS,
        "Teacher without backward 4×8": 1,
    }
    [step] = prof.trace.spans.filter(name="Student training step 4×8").iter_rows(named=True)
    assert "training iteration" in step["path"]


def test_its_call_before_each_step_is_told_apart(student: nn.Module, teacher: nn.Module) -> None:
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(STEPS):
            batch = torch.randn(4, 8)
            wanted = teacher(batch)
            optimizer.zero_grad()
            (student(batch) - wanted).square().sum().backward()
            optimizer.step()
    assert names(prof) == {
        "Student training step 4×8": STEPS,
        "Teacher without backward 4×8": STEPS,
    }


def test_an_input_that_is_trained_through_it_makes_a_step(teacher: nn.Module) -> None:
    image = torch.randn(4, 8, requires_grad=True)
    optimizer = torch.optim.SGD([image], lr=0.1)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(STEPS):
            optimizer.zero_grad()
            teacher(image).square().sum().backward()
            optimizer.step()
    assert names(prof) == {"Teacher training step 4×8": STEPS}


def test_looking_at_it_is_no_part_of_its_call(
    teacher: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = call.learns_nothing

    def looked(*given: Any) -> bool:
        time.sleep(0.02)
        return look(*given)

    monkeypatch.setattr(watcher, "learns_nothing", looked)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(10):
            teacher(torch.randn(4, 8))
    [group] = prof.trace.metadata["groups"]
    assert group["name"] == "Teacher without backward 4×8"
    assert group["total_ns"] < 10 * 10_000_000
    assert (prof.trace.root.latency_ns or 0) < 10 * 10_000_000


def test_an_answer_that_holds_itself_is_no_hindrance() -> None:
    class Circle(nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            answer: dict[str, Any] = {"x": x}
            answer["all"] = answer
            return answer

    circle = frozen(Circle(8, 8))
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(3):
            circle(torch.randn(4, 8))
    assert names(prof) == {"Circle without backward 4×8": 3}


def test_a_trained_input_makes_a_step_though_numbers_come_out(teacher: nn.Module) -> None:
    class Judge(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.kept = teacher, torch.zeros(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.inner(x)
            self.kept = made.square().sum()
            return made.argmax()

    judge, image = Judge(), torch.randn(4, 8, requires_grad=True)
    optimizer = torch.optim.SGD([image], lr=0.1)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(STEPS):
            optimizer.zero_grad()
            judge(image)
            judge.kept.backward()
            optimizer.step()
    assert names(prof) == {"Judge training step 4×8": STEPS}


def test_a_model_that_answers_with_numbers_and_keeps_their_logarithms_begins_a_step() -> None:
    class Policy(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.kept = nn.Linear(8, 3), list[Any]()

        def forward(self, state: torch.Tensor) -> torch.Tensor:
            chances = torch.distributions.Categorical(logits=self.scores(state))
            action = chances.sample()
            self.kept.append(chances.log_prob(action))
            return action

    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with xsp.profile(levels=1, replay=False) as prof:
        for _ in range(STEPS):
            for _ in range(3):
                policy(torch.randn(1, 8))
            optimizer.zero_grad()
            torch.stack(policy.kept).sum().backward()
            optimizer.step()
            policy.kept.clear()
    assert names(prof) == {"Policy training step 3 × 1×8": STEPS}
