from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from toy import Cell, Toy

from xsp.measurement.state import MOST_OBJECTS, Snapshot, State, arguments_of, models_of
from xsp.provider import ModelCall, Role
from xsp.testing import FakeClock


class Model:
    """A model of the toy framework, with a state of its own."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.log: list[int] = []
        self.ready: list[int] | None = None

    def __call__(self, *_: object) -> None:
        if self.ready is None:
            self.ready = [1, 2, 3]
        self.cell.number += 1
        self.log.append(self.cell.number)


class Keeping(Toy):
    def role(self, cls: type) -> Role | None:
        return Role.MODEL if issubclass(cls, Model) else super().role(cls)


@pytest.fixture
def toy() -> Keeping:
    return Keeping(FakeClock())


def evaluate(toy: Toy, call: ModelCall, times: int = 5) -> State:
    """Evaluate a call as `carry_out` does."""
    with State([toy], call) as state:
        for _ in range(times):
            state.put_back()
            call()
            if not state.known:
                state.look()
    return state


def test_every_object_is_named_by_the_way_to_it() -> None:
    toy, cell = Keeping(FakeClock()), Cell()
    found = Snapshot([toy], [("cache", {"layers": [(1, cell), [cell]]})])
    assert [entry.name for entry in found.entries] == [
        "cache",
        "cache.layers",
        "cache.layers.1",
        "cache.layers.0.1",
    ]


def test_changes_at_any_depth_are_put_back_before_each_evaluation(toy: Keeping) -> None:
    cell, seen = Cell(1), []
    given: dict[str, Any] = {"states": [(cell, {"h": cell})], "steps": 0}
    given["self"] = given

    def step(given: dict[str, Any]) -> None:
        seen.append((cell.number, given["steps"], len(given["states"])))
        given["states"][0][1]["h"].number += 1
        given["steps"] += 1
        given["states"].append(object())

    state = evaluate(toy, ModelCall(step, (given,)))
    assert set(seen) == {(1, 0, 1)}
    assert (cell.number, given["steps"], len(given["states"])) == (1, 0, 1)
    assert state.changes == "argument 1, argument 1.states, argument 1.states.0.0"


def test_a_model_is_put_back_except_for_what_its_first_call_makes_ready(toy: Keeping) -> None:
    model = Model()
    evaluate(toy, ModelCall(model))
    assert (model.cell.number, model.log) == (0, [])
    assert model.ready == [1, 2, 3]


def test_each_evaluation_after_the_second_finds_the_model_as_the_first_one_did(
    toy: Keeping,
) -> None:
    seen: list[tuple[int, int, bool]] = []

    class Seen(Model):
        def __call__(self, *_: object) -> None:
            seen.append((self.cell.number, len(self.log), self.ready is None))
            super().__call__()

    evaluate(toy, ModelCall(Seen()), times=4)
    assert seen == [(0, 0, True), (1, 1, False), (0, 0, False), (0, 0, False)]


@pytest.mark.parametrize("at", range(4))
def test_a_call_that_raises_leaves_everything_as_it_was(toy: Keeping, at: int) -> None:
    model, log = Model(), list[int]()

    def call(log: list[int]) -> None:
        model()
        log.append(1)
        if model.cell.number > at:
            raise ZeroDivisionError

    def repeat() -> None:
        with State([toy], ModelCall(call, (log,))) as state:
            while True:
                call(log)
                state.look()

    with pytest.raises(ZeroDivisionError):
        repeat()
    assert (model.cell.number, model.log, log) == (0, [], [])


def test_what_a_rare_call_changes_is_put_back_at_the_end(toy: Keeping) -> None:
    log: list[int] = []
    calls = iter(range(100))

    def step(log: list[int]) -> None:
        if next(calls) == 4:
            log.append(1)

    state = evaluate(toy, ModelCall(step, (log,)))
    assert log == []
    assert state.prepare is None


def test_models_are_found_where_a_function_may_have_them(toy: Keeping) -> None:
    model = Model()

    class Classifier:
        def __init__(self) -> None:
            self.model = model

        def classify(self) -> None:
            self.model()

        def __call__(self) -> None:
            self.model()

    def enclosed() -> None:
        model()

    @functools.wraps(enclosed)
    def decorated() -> None:
        enclosed()

    classifier = Classifier()
    ways: list[Callable[..., object]] = [
        model,
        model.__call__,
        enclosed,
        decorated,
        functools.partial(enclosed),
        lambda: [classifier.model],
        classifier,
        classifier.classify,
        uses_global,
    ]
    for way in ways:
        found = [value for _, value in models_of([toy], way)]
        assert found == ([GLOBAL] if way is uses_global else [model]), way
    assert list(models_of([toy], len)) == []


GLOBAL = Model()


def uses_global() -> None:
    def inner() -> None:
        GLOBAL()

    inner()


def test_a_model_among_the_arguments_is_a_model(toy: Keeping) -> None:
    model = Model()
    evaluate(toy, ModelCall(lambda models: models[0](), ([model],)))
    assert (model.cell.number, model.log, model.ready) == (0, [], [1, 2, 3])


def test_an_object_that_takes_another_class_stays_what_it_has_become(toy: Keeping) -> None:
    class Lazy(Model):
        def __call__(self, *_: object) -> None:
            self.log.append(1)
            self.__class__ = Model  # type: ignore[assignment]

    lazy = Lazy()
    evaluate(toy, ModelCall(lazy), times=1)
    assert type(lazy) is Model
    assert lazy.log == [1]


def test_arguments_of_a_partial_are_arguments() -> None:
    call = ModelCall(functools.partial(print, 1, sep=2), (3,), {"end": 4})
    assert list(arguments_of(call)) == [
        ("argument 1", 1),
        ("sep", 2),
        ("argument 1", 3),
        ("end", 4),
    ]


def test_more_objects_than_can_be_looked_at_are_told(toy: Keeping) -> None:
    numbers = list(range(10 * MOST_OBJECTS))
    assert not State([toy], ModelCall(len, (numbers,))).unread
    state = State([toy], ModelCall(len, ([[] for _ in range(MOST_OBJECTS)],)))
    assert state.unread == state.unsafe == "they hold more than 50,000 objects"


def test_what_cannot_be_put_back_is_told(toy: Keeping) -> None:
    class Odd(list[int]):
        pass

    cell = Cell(fixed=True)

    def write(cell: Cell) -> None:
        cell.number = 3

    assert State([toy], ModelCall(write, (cell,))).unsafe == "argument 1, which is fixed"
    assert evaluate(toy, ModelCall(write, (cell,))).stuck == "argument 1, which is fixed"


def test_an_object_that_raises_when_put_back_is_told_of(
    toy: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(cell: Cell) -> None:
        cell.number = 3

    def raising(_: object) -> None:
        raise KeyError("gone")

    monkeypatch.setattr("toy.KeptCell.put_back", raising)
    state = evaluate(toy, ModelCall(write, (Cell(),)))
    assert state.stuck == "argument 1, which raised KeyError when it was put back: 'gone'"


def test_objects_that_raise_when_looked_at_keep_nothing_from_being_evaluated(
    toy: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("proxy of nothing")

    proxy, model = Proxy(), Model()
    assert [value for _, value in models_of([toy], lambda: (proxy, model))] == [model]
    state = evaluate(toy, ModelCall(lambda proxy: None, (proxy,)))
    assert state.unsafe == "looking at argument 1 raised RuntimeError: proxy of nothing"

    def raising(_: object) -> bool:
        raise KeyError("freed")

    monkeypatch.setattr("toy.KeptCell.changed", raising)
    assert "KeyError: 'freed'" in evaluate(toy, ModelCall(id, (Cell(),))).unread


def test_a_keeper_that_fails_is_left_out_and_named(
    toy: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising() -> None:
        raise KeyError("no generator")

    monkeypatch.setattr(toy, "keep_random", raising)
    state = evaluate(toy, ModelCall(id, (Cell(),)))
    assert state.unread == state.unsafe == "Keeping raised KeyError: 'no generator'"
