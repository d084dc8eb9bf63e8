from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.composition.group import Group
from xsp.composition.journal import Evaluation, Journal, Mark
from xsp.composition.nested.iteration import ITERATION, with_iterations
from xsp.composition.nested.part import UNWATCHED, Part, parts
from xsp.level import Kind
from xsp.tracer import UserSpans

THREAD, OTHER = 1, 2
STEP, VALID, TEACHER, CRITIC = range(4)
GROUPS = [
    Group(STEP, "Net", "training step", "SGD 1"),
    Group(VALID, "Net", "", ""),
    Group(TEACHER, "Teacher", "", ""),
    Group(CRITIC, "Critic", "training step", "SGD 2"),
]


def step(begin: int, end: int, thread: int = THREAD) -> Evaluation:
    return Evaluation(thread, STEP, begin, end, None, False, (1, ()))


def valid(begin: int, end: int) -> Evaluation:
    return Evaluation(THREAD, VALID, begin, end, None, False, (1, ()))


def mark(name: str, start: int, end: int, thread: int = THREAD) -> Mark:
    return Mark(name, start, end, thread, {})


def span(name: str, start: int, end: int, thread: int = THREAD, **attributes: Any) -> list[Any]:
    return [name, Kind.PIPELINE, start, end, thread, None, None, None, attributes]


def found(
    evaluations: Sequence[Evaluation],
    marks: Sequence[Mark] = (),
    spans: Sequence[list[Any]] = (),
    end: int = 100,
) -> list[Part]:
    flat = UserSpans([value for each in spans for value in each])
    journal = Journal(THREAD, 0, end, list(evaluations), list(marks), spans=flat)
    names = [("step", "valid", "teacher", "critic step")[each.group] for each in evaluations]
    groups = [GROUPS[each.group] for each in evaluations]
    return with_iterations(parts(journal, "block", names), groups)


def in_a_row(*groups: int) -> list[Evaluation]:
    """Return evaluations of groups, each of 8 ns, every 10 ns."""
    return [
        Evaluation(THREAD, group, 10 * at, 10 * at + 8, None, False, (1, ()))
        for at, group in enumerate(groups)
    ]


def iterations(evaluations: Sequence[Evaluation], spans: Sequence[list[Any]] = ()) -> list[Any]:
    """Return start and end of each iteration, in units of 10 ns."""
    nested = found(evaluations, spans=spans, end=10 * len(evaluations))
    return [(p.start_ns / 10, p.end_ns / 10) for p in nested if p.name == ITERATION]


def drawn(nested: Sequence[Part], number: int = 0) -> Any:
    """Return a part and what lies in it as nested lists."""
    below = [drawn(nested, n) for n, part in enumerate(nested) if part.parent == number]
    name = nested[number].name
    return [name, *below] if below else name


def test_evaluations_marks_and_spans_nest_by_time() -> None:
    nested = found(
        [valid(20, 30)], [mark("data loading", 12, 18)], [span("request", 10, 40, user=3)]
    )
    assert drawn(nested) == ["block", ["request", "data loading", "valid"]]
    assert nested[1].attributes == {"user.user": 3}
    assert nested[3].evaluation == 0


def test_what_lies_in_an_evaluation_is_no_part_of_the_program() -> None:
    nested = found([valid(20, 60)], [mark("data loading", 30, 40)], [span("inner", 25, 50)])
    assert drawn(nested) == ["block", "valid"]


@pytest.mark.parametrize(("start", "end"), [(10, 30), (10, 59), (20, 30), (25, 70), (59, 90)])
def test_a_span_that_begins_or_ends_in_an_evaluation_is_no_part_of_the_program(
    start: int, end: int
) -> None:
    spans = [span("forward", start, end), span("tokenise", 12, 15), span("save", 60, 70)]
    nested = found([valid(20, 60)], [mark("loading", 15, 21)], spans)
    names = [part.name for part in nested]
    assert set(names) == {"block", "valid", "tokenise", "save"}


def test_a_span_around_evaluations_or_on_another_thread_stays() -> None:
    spans = [span("epoch", 20, 60), span("wait", 30, 70, OTHER)]
    nested = found([valid(20, 30), valid(40, 60)], spans=spans)
    assert drawn(nested) == ["block", ["epoch", "valid", "valid"], "wait"]


def test_a_training_iteration_reaches_from_step_to_step() -> None:
    loading = [mark("data loading", at, at + 8) for at in (10, 30, 50)]
    nested = found([step(20, 25), step(40, 45), step(60, 65)], loading)
    one = [ITERATION, "data loading", "step"]
    assert drawn(nested) == ["block", one, one, one]
    times = [(part.start_ns, part.end_ns) for part in nested if part.name == ITERATION]
    assert times == [(10, 25), (25, 45), (45, 65)]


def test_validation_between_steps_is_no_part_of_an_iteration() -> None:
    nested = found([step(0, 10), step(12, 20), valid(22, 26), step(30, 40), step(42, 50)])
    assert (
        drawn(nested)
        == ["block", [ITERATION, "step"], [ITERATION, "step"], "valid"] + [[ITERATION, "step"]] * 2
    )
    times = [(part.start_ns, part.end_ns) for part in nested if part.name == ITERATION]
    assert times == [(0, 10), (10, 20), (30, 40), (40, 50)]


def test_what_other_models_compute_between_steps_is_part_of_an_iteration() -> None:
    nested = found(in_a_row(TEACHER, STEP, TEACHER, STEP))
    assert drawn(nested) == ["block", *[[ITERATION, "teacher", "step"]] * 2]
    assert iterations(in_a_row(*[TEACHER, STEP] * 3)) == [(0, 1.8), (1.8, 3.8), (3.8, 5.8)]


def test_a_model_that_acts_now_shorter_now_longer_between_its_steps_is_part_of_iterations() -> None:
    rounds = [group for acts in (2, 5, 20, 3) for group in (*[VALID] * acts, STEP)]
    found_at = iterations(in_a_row(*rounds))
    assert found_at == [(0, 2.8), (2.8, 8.8), (8.8, 29.8), (29.8, 33.8)]


@pytest.mark.parametrize("in_span", [False, True])
def test_validation_between_steps_with_a_teacher_is_no_part_of_an_iteration(in_span: bool) -> None:
    rounds = [TEACHER, STEP] * 3 + [VALID, TEACHER] * 2 + [TEACHER, STEP] * 3
    spans = [span("validation", 59, 99)] if in_span else []
    found_at = iterations(in_a_row(*rounds), spans)
    # After validation an iteration begins with the first part that is none of it.
    begins = 10 if in_span else 9
    assert found_at[3:] == [(begins, 11.8), (11.8, 13.8), (13.8, 15.8)]


def test_many_times_the_usual_calls_between_two_steps_are_no_part_of_an_iteration() -> None:
    rounds = [VALID, STEP] * 3 + [VALID] * 50 + [VALID, STEP] * 2
    assert iterations(in_a_row(*rounds))[2:] == [(3.8, 5.8), (56, 57.8), (57.8, 59.8)]


def test_what_lies_between_steps_may_differ_from_one_kind_of_step_to_the_next() -> None:
    found_at = iterations(in_a_row(*[VALID, CRITIC, STEP] * 3))
    assert found_at[2:] == [(2.8, 4.8), (4.8, 5.8), (5.8, 7.8), (7.8, 8.8)]


def test_one_step_alone_is_no_iteration() -> None:
    assert drawn(found([step(20, 30)])) == ["block", "step"]


def test_iterations_lie_in_the_span_around_them() -> None:
    nested = found([step(20, 30), step(40, 50)], spans=[span("epoch", 10, 60)])
    assert drawn(nested) == ["block", ["epoch", [ITERATION, "step"], [ITERATION, "step"]]]


def test_each_thread_has_iterations_of_its_own() -> None:
    both = [step(at, at + 8, thread) for at in (10, 30) for thread in (THREAD, OTHER)]
    nested = found(both)
    assert drawn(nested) == ["block", *[[ITERATION, "step"]] * 4]
    assert sorted(part.thread for part in nested if part.name == ITERATION) == [1, 1, 2, 2]
    for part in nested[1:]:
        assert nested[part.parent].name == "block" or nested[part.parent].thread == part.thread


def test_a_part_that_outlasts_the_block_ends_with_it() -> None:
    nested = found([], [mark("worker", 90, 140, OTHER)])
    assert drawn(nested) == ["block", "worker"]
    assert nested[1].end_ns == 100


def test_the_time_without_watching_is_a_part() -> None:
    journal = Journal(THREAD, 0, 100, [valid(10, 20)], unwatched_ns=60)
    nested = parts(journal, "block", ["valid"])
    assert drawn(nested) == ["block", "valid", UNWATCHED]
    assert (nested[2].start_ns, nested[2].end_ns) == (60, 100)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from("smv"))))
def test_parents_come_before_their_children_and_hold_them(
    drawn_parts: list[tuple[int, int, str]],
) -> None:
    evaluations, marks, at = [], [], 0
    for gap, length, kind in drawn_parts:
        begin, at = at + gap, at + gap + length
        if kind == "m":
            marks.append(mark("loading", begin, at))
        else:
            evaluations.append(step(begin, at) if kind == "s" else valid(begin, at))
    nested = found(evaluations, marks, end=at + 1)
    assert nested[0].parent == -1
    for number, part in enumerate(nested[1:], 1):
        above = nested[part.parent]
        assert part.parent < number
        assert above.start_ns <= part.start_ns <= part.end_ns <= above.end_ns
    assert sorted(p.evaluation for p in nested if p.evaluation >= 0) == [*range(len(evaluations))]
    assert sum(part.name == "loading" for part in nested) == len(marks)
