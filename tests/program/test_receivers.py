from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from toy import evaluate

import xsp
from xsp.level import Kind, Level
from xsp.provider import Evaluations, ModelCall, Records, Request, SpanRows, no_rows
from xsp.testing import only_providers


class Framework:
    """A framework whose models are plain functions; training steps end when it is told so."""

    level = Level.FRAMEWORK
    kinds = frozenset({Kind.LAYER})

    def __init__(self, name: str) -> None:
        self.name = name
        self._evaluations: Evaluations | None = None

    def unavailable(self) -> str | None:
        return None

    def start(self, clock: object, request: Request) -> None: ...

    def stop(self) -> Records:
        return Records(())

    def spans(self, records: Records) -> SpanRows:
        return no_rows()

    def watch(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations

    def unwatch(self) -> None:
        self._evaluations = None

    def model_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelCall | None:
        return None

    def synchronize(self) -> bool:
        return False

    def predict(self, model: Callable[[], Any], name: str = "Net") -> Any:
        if self._evaluations is None:
            return model()
        return evaluate(self._evaluations, ModelCall(model, subject=name))

    @contextmanager
    def step(self, name: str = "Net") -> Iterator[None]:
        """Begin a training step with a call; the block comes after that call."""
        assert self._evaluations is not None
        self._evaluations.begin(ModelCall(_nothing, subject=name, phase="training step"))
        self._evaluations.extend()
        yield
        self._evaluations.extend()
        self.end()

    def end(self) -> None:
        assert self._evaluations is not None
        self._evaluations.end("SGD")


class Patient(Framework):
    """A framework that can tell whether its step goes on."""

    over = False

    def goes_on(self) -> bool:
        if self.over:
            self.end()
        return not self.over


def _nothing() -> None: ...


@pytest.fixture
def profiled() -> Iterator[tuple[Framework, Framework, xsp.profile]]:
    one, other = Framework("one"), Framework("other")
    with only_providers(one, other):
        yield one, other, xsp.profile(levels=2, replay=False, progress=False)


def evaluated(prof: xsp.profile) -> dict[str, int]:
    return {group["name"]: group["calls"] for group in prof.trace.metadata["groups"]}


def test_a_model_that_calls_one_of_another_framework_is_one_evaluation(profiled: Any) -> None:
    one, other, prof = profiled
    with prof:
        for _ in range(30):
            assert one.predict(lambda: other.predict(lambda: 7, "Inner"), "Outer") == 7
        for _ in range(20):
            assert other.predict(lambda: one.predict(lambda: 8, "Inner"), "Layer") == 8
    assert evaluated(prof) == {"Outer": 30, "Layer": 20}


def test_models_of_two_frameworks_with_one_name_are_two_groups(profiled: Any) -> None:
    one, other, prof = profiled
    with prof:
        for _ in range(40):  # of which most go on with a streak
            one.predict(_nothing)
            other.predict(_nothing)
    assert evaluated(prof) == {"Net": 40, "Net of other": 40}


def test_a_step_goes_on_within_its_first_call_whatever_that_calls(profiled: Any) -> None:
    one, other, prof = profiled
    with prof:
        evaluations = one._evaluations
        evaluations.begin(ModelCall(_nothing, subject="Net", phase="training step"))
        other.predict(_nothing, "Teacher")
        evaluations.extend()
        evaluations.end("SGD")
    assert evaluated(prof) == {"Net training step": 1}


def test_a_step_whose_framework_cannot_tell_is_over_when_another_framework_is_called(
    profiled: Any,
) -> None:
    one, other, prof = profiled
    with prof, one.step("Net"):
        other.predict(_nothing, "Other")
    assert evaluated(prof) == {"Net training step": 1, "Other": 1}


@pytest.mark.parametrize("over", [False, True])
def test_a_framework_says_whether_its_step_goes_on(over: bool) -> None:
    one, other = Patient("one"), Framework("other")
    one.over = over
    with only_providers(one, other), xsp.profile(levels=2, replay=False, progress=False) as prof:
        with one.step("Student"):
            other.predict(_nothing, "Teacher")
        other.predict(_nothing, "Teacher")
    found = evaluated(prof)
    assert found.pop("Teacher") == 1 + over
    assert list(found.values()) == [1]


def test_a_step_within_a_call_of_another_framework_is_none(profiled: Any) -> None:
    one, other, prof = profiled

    def trains_inside() -> None:
        with other.step("Inner"):
            pass

    with prof:
        one.predict(trains_inside, "Outer")
        with other.step("Later"):
            pass
    assert evaluated(prof) == {"Outer": 1, "Later training step": 1}


def test_a_call_that_raises_frees_its_thread_for_the_other_framework(profiled: Any) -> None:
    one, other, prof = profiled

    def fails() -> None:
        raise KeyError

    with prof:
        with pytest.raises(KeyError):
            one.predict(fails, "Fails")
        other.predict(_nothing, "Works")
    assert evaluated(prof) == {"Works": 1}


def test_each_thread_has_an_evaluation_of_its_own(profiled: Any) -> None:
    one, other, prof = profiled
    inside, done = threading.Event(), threading.Event()

    def waits() -> None:
        inside.set()
        assert done.wait(10)

    with prof:
        thread = threading.Thread(target=one.predict, args=(waits, "Waits"))
        thread.start()
        assert inside.wait(10)
        other.predict(_nothing, "Meanwhile")
        done.set()
        thread.join()
    assert evaluated(prof) == {"Waits": 1, "Meanwhile": 1}
