from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.composition.group import MOST, MOST_RESTS, Group, Groups, labels
from xsp.provider import Inputs, ModelCall


def call(*shapes: tuple[int, ...], subject: str = "Net", phase: str = "") -> ModelCall:
    inputs: Inputs = tuple((shape, "float32") for shape in shapes)
    return ModelCall(len, subject=subject, phase=phase, inputs=inputs)


def seen(groups: Groups, made: ModelCall, variant: str = "", model_calls: int = 1) -> Group:
    return groups.count(groups.find(made, variant, model_calls), made, model_calls)


def test_models_phases_shapes_and_variants_tell_groups_apart() -> None:
    groups = Groups()
    unlike = [
        (call((8, 3)), "", 1),
        (call((1, 3)), "", 1),
        (call((8, 3), subject="Other"), "", 1),
        (call((8, 3), phase="training step"), "SGD 1", 1),
        (call((8, 3), phase="training step"), "Adam 2", 1),
        (call((8, 3), phase="training step"), "Adam 2", 4),
    ]
    for _ in range(3):
        found = [seen(groups, *each).number for each in unlike]
        assert found == list(range(6))
    assert [group.calls for group in groups.current()] == [3] * 6
    assert not any(group.varies for group in groups.current())


def test_shapes_that_recur_are_groups_however_many_there_are() -> None:
    groups = Groups()
    for size in range(1, 101):
        for _ in range(5):
            seen(groups, call((size, 3)))
            seen(groups, call((256, 3)))
    assert len(groups.current()) == 101
    assert sum(group.calls for group in groups.current()) == 1_000


def test_shapes_that_are_ever_new_are_one_group_with_its_sizes() -> None:
    groups = Groups()
    for length in range(3, 60):
        seen(groups, call((1, length)))
    [group] = groups.current()
    assert group.calls == 57
    assert group.varies
    assert group.sizes[1, call((1, 30)).inputs] == 1
    assert {groups.final(member.number) for member in groups.members} == {group.number}
    assert labels([group]) == ["Net 1×(3…59)"]


def test_an_input_that_varies_freely_leaves_the_others_to_tell_groups_apart() -> None:
    groups = Groups()
    for length in range(40):
        for batch in (1, 8):
            seen(groups, call((batch, 16), (length + batch,)))
    assert sorted(labels(groups.current())) == ["Net 1×16", "Net 8×16"]
    assert [group.calls for group in groups.current()] == [40, 40]


@pytest.mark.parametrize("times", [1, 2], ids=["the same lengths", "other lengths"])
def test_of_an_input_that_varies_freely_the_dimensions_that_do_tell_no_groups_apart(
    times: int,
) -> None:
    groups = Groups()
    for length in range(4, 60):
        seen(groups, call((32, length), (32, 1, length, length)))
        short = length // times
        seen(groups, call((1, short), (1, 1, short, short)))
    seen(groups, call((7, 99), (7, 1, 99, 99)))  # the last batch
    assert labels(groups.current()) == [
        "Net 32×(4…59)", f"Net 1×({4 // times}…{59 // times})", "Net 7×99"
    ]  # fmt: skip
    assert [group.calls for group in groups.current()] == [56, 56, 1]


def test_a_call_of_another_rank_leaves_the_others_as_they_are() -> None:
    groups = Groups()
    seen(groups, call((5,)))
    for length in range(4, 60):
        seen(groups, call((32, length)))
        seen(groups, call((1, length)))
    assert labels(groups.current()) == ["Net 5", "Net 32×(4…59)", "Net 1×(4…59)"]


def test_batches_and_lengths_that_are_both_ever_new_are_one_group() -> None:
    groups = Groups()
    for number in range(40):
        seen(groups, call((number % 11 + 1, 3 * number)))
    assert labels(groups.current()) == ["Net (1…11)×(0…117)"]


@pytest.mark.parametrize("seed", range(6))
def test_dimensions_that_become_free_one_after_the_other_are_free_together(seed: int) -> None:
    # As of photographs, of which either side is 640 pixels long.
    random = Random(seed)
    groups = Groups()
    for _ in range(300):
        side = random.randrange(300, 640)
        seen(groups, call((1, 3, *random.choice([(640, side), (side, 640)]))))
    assert len(groups.current()) <= 2
    assert sum(group.calls for group in groups.current()) == 300


def test_steps_that_call_the_model_ever_another_number_of_times_are_one_group() -> None:
    groups = Groups()
    lengths = [9, 10, 9, 11, 10, 9, 12, 9, 14, 9, 9, 10, 30, 9]
    for length in lengths:
        groups.find(call((1, 4), phase="training step"), "Adam 1", 1)  # expected, and never comes
        seen(groups, call((1, 4), phase="training step"), "Adam 1", length)
        seen(groups, call((1, 4), phase="training step"), "SGD 1", 4)
    varying, fixed = (group for group in groups.current() if group.calls)
    assert (varying.calls, set(varying.by_calls)) == (len(lengths), set(lengths))
    assert varying.usual_calls == 9
    assert varying.sizes[9, call((1, 4)).inputs] == lengths.count(9)
    assert varying.is_of("Adam 1", 77)
    assert not varying.is_of("SGD 1", 9)
    assert (fixed.calls, fixed.is_of("SGD 1", 4), fixed.is_of("SGD 1", 5)) == (14, True, False)
    assert labels([varying, fixed]) == [
        "Net training step (Adam 1) (9…30) × 1×4",
        "Net training step (SGD 1) 4 × 1×4",
    ]


def test_without_end_of_shapes_the_groups_come_to_an_end() -> None:
    groups = Groups()
    for number in range(10_000):  # each shape again and again, so that none is new for long
        for _ in range(3):
            seen(groups, call((number, 2)))
    assert len(groups.current()) <= MOST + 2
    assert sum(group.calls for group in groups.current()) == 30_000


def full() -> Groups:
    """Return groups that are as many as are kept apart."""
    groups = Groups()
    for number in range(MOST):
        seen(groups, call((8, 3), subject=f"Net {number}"))
    return groups


def test_further_shapes_are_one_group_whatever_they_are() -> None:
    groups = full()
    numbers = {seen(groups, call((1, length), (4,))).number for length in range(100)}
    assert numbers == {MOST}
    assert groups.moved == {}
    assert groups.members[MOST].calls == 100


def test_without_end_of_models_the_groups_come_to_an_end() -> None:
    groups = full()
    for number in range(1_000):
        seen(groups, call((1, 3), subject=f"Other {number}"))
    assert len(groups.current()) == MOST + MOST_RESTS + 1
    assert labels(groups.current())[-1] == "further models 1×3"
    assert sum(group.calls for group in groups.current()) == MOST + 1_000


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([call((8, 3))], ["Net 8×3"]),
        ([call((8, 3)), call((8, 3), (1,))], ["Net 8×3 float32", "Net 8×3 float32, 1 float32"]),
        ([call()], ["Net"]),
        ([call(())], ["Net scalar"]),
    ],
)
def test_names_say_what_is_needed(groups: list[ModelCall], expected: list[str]) -> None:
    found = Groups()
    for each in groups:
        seen(found, each)
    assert labels(found.current()) == expected


calls = st.builds(
    call,
    st.tuples(st.integers(0, 3), st.integers(0, 40)),
    subject=st.sampled_from(["A", "B"]),
    phase=st.sampled_from(["", "decode"]),
)


@given(st.lists(calls, max_size=200))
def test_no_call_is_lost_and_no_two_names_are_alike(made: list[ModelCall]) -> None:
    groups = Groups()
    numbers = [(each, seen(groups, each).number) for each in made]
    current = groups.current()
    assert sum(group.calls for group in current) == len(made)
    assert len(set(labels(current))) == len(current)
    for each, number in numbers:
        group = groups.members[groups.final(number)]
        assert (group.subject, group.phase) == (each.subject, each.phase)
        assert group.sizes[1, each.inputs] >= 1
