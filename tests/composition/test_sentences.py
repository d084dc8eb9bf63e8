from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from xsp.composition.journal import Evaluation, Journal, Pause
from xsp.composition.nested.iteration import ITERATION
from xsp.composition.nested.part import UNWATCHED, Part
from xsp.composition.summary import sentences
from xsp.composition.timeline import Timeline
from xsp.level import Kind

MS = 1_000_000


def group(name: str, calls: int, phase: str = "inference", **more: Any) -> dict[str, Any]:
    known = {"name": name, "model": name, "phase": phase, "variant": ""}
    return known | {
        "calls": calls,
        "repeated": 0,
        "latency_ns": None,
        "samples": None,
        "shapes": [],
        **more,
    }


def part(name: str, start: int, end: int, evaluation: int = -1, thread: int = 1) -> Part:
    return Part(name, Kind.PIPELINE, start * MS, end * MS, thread, 0, evaluation)


def said(
    parts: list[Part],
    groups: list[dict[str, Any]],
    pauses: Sequence[Pause] = (),
    first: Mapping[int, float] = MappingProxyType({}),
) -> list[str]:
    evaluations = [
        Evaluation(each.thread, 0, each.start_ns, each.end_ns, None, False, (1, ()))
        for each in parts
        if each.evaluation >= 0
    ]
    journal = Journal(1, 0, parts[0].end_ns, evaluations, [], list(pauses))
    timeline = Timeline(journal, {}, lambda number: number)
    columns = [(each.thread, each.start_ns, each.end_ns) for each in parts]
    lasting = timeline.lasting(*np.array(columns, dtype=np.int64).T)
    return sentences(groups, parts, lasting, timeline, first)


def test_what_was_evaluated_and_how_much_lies_outside() -> None:
    block = [part("block", 0, 100), part("A", 0, 20, 0), part("B", 30, 50, 1)]
    evaluated, outside = said(block, [group("A", 1, repeated=7), group("B", 1)])
    assert evaluated == "evaluated: 1 × A (repeated 7 × afterwards), 1 × B"
    assert "60.0 ms" in outside
    assert "60.0 %" in outside


def test_groups_beyond_a_few_are_counted() -> None:
    [evaluated, _] = said([part("block", 0, 10)], [group(f"G{n}", n) for n in range(10)])
    assert evaluated.endswith("6 further groups")


def test_threads_at_once_are_outside_when_none_of_them_is_in_an_evaluation() -> None:
    block = [part("block", 0, 100), part("A", 10, 50, 0, 2), part("A", 20, 60, 1, 3)]
    [_, outside] = said(block, [group("A", 2)])
    assert "50.0 ms" in outside


def test_the_time_without_watching_is_not_outside_of_evaluations() -> None:
    block = [part("block", 0, 1_000), part("A", 0, 20, 0), part("A", 30, 50, 1)]
    _, outside, unwatched = said([*block, part(UNWATCHED, 50, 1_000)], [group("A", 2)])
    assert outside == "outside of evaluations: 10.0 ms, 20.0 % of the 50.0 ms watched"
    assert unwatched.startswith("unwatched: 950 ms, after 2 evaluations")


def test_inference_says_how_many_samples_a_second_while_it_runs() -> None:
    block = [part("block", 0, 100), part("A", 0, 10, 0), part("A", 50, 80, 1)]
    assert said(block, [group("A", 2, samples=8)])[-1] == (
        "inference: 400 samples/s in A while it runs"
    )
    # On threads at once: 16 samples in the 20 ms in which one of them, or both, ran.
    block = [part("block", 0, 100), part("A", 0, 15, 0, 2), part("A", 5, 20, 1, 3)]
    assert "800 samples/s" in said(block, [group("A", 2, samples=8)])[-1]


def test_generation_says_the_first_token_and_the_others_with_what_lies_between() -> None:
    block = [part("block", 0, 100), part("P", 10, 30, 0)]
    block += [part("D", 32 + 10 * n, 40 + 10 * n, 1 + n) for n in range(5)]
    groups = [group("D", 5, "decode", model="M"), group("P", 1, "prefill", model="M")]
    # xsp took two milliseconds of the time between the second and the third.
    generation = said(block, groups, [Pause(1, 51 * MS, 52 * MS)])[-1]
    assert "first token after 20.0 ms" in generation
    assert "9.80 ms per token (102.0 tokens/s" in generation


TOKENS = {"P": "1×16 int64", "E": "1×16 int64", "C": "1×3 int64", "D": "1×1 int64"}
PHASES = {"P": "prefill", "E": "extend", "C": "extend", "D": "decode"}


def generated(steps: str) -> list[str]:
    """Return what is said of steps of 10 ms, each of which begins 10 ms after the one before."""
    at = {name: n for n, name in enumerate(dict.fromkeys(steps))}
    block = [part("block", 0, 20 * len(steps) + 10)]
    block += [part(s, 20 * n + 10, 20 * n + 20, at[s]) for n, s in enumerate(steps)]
    groups = [
        group(name, steps.count(name), PHASES[name], model="M", shapes=[TOKENS[name]])
        for name in at
    ]
    return [each for each in said(block, groups) if each.startswith("generation")]


@pytest.mark.parametrize(
    ("steps", "first_ms", "later_ms", "what"),
    [
        ("PDDD", 10.0, 20.0, "token"),
        ("PEEDDDD", 50.0, 20.0, "token"),
        ("PEECD", 70.0, 20.0, "token"),  # more chunks than tokens
        ("PDDDDCDDD", 10.0, 20.0, "token"),  # the second turn of a chat
        ("PECDDDDEDDD", 30.0, 20.0, "token"),  # 50 and 10
        ("PCCCD", 10.0, 20.0, "step"),
        ("PDCCCC", 10.0, 20.0, "step"),
    ],
)
def test_the_first_token_comes_after_the_whole_prompt(
    steps: str, first_ms: float, later_ms: float, what: str
) -> None:
    (generation,) = generated(steps)
    assert f"first token after {first_ms:.1f} ms in the model, then {later_ms:.1f} ms" in generation
    each = "per step of one or more tokens (50.0 steps/s)" if what == "step" else "per token (50.0 "
    assert each in generation


@pytest.mark.parametrize("steps", ["P", "PEE", "PEEC"])
def test_a_text_of_which_nothing_follows_is_no_generation(steps: str) -> None:
    assert generated(steps) == []


def test_generation_pairs_the_steps_of_a_thread() -> None:
    block = [part("block", 0, 200)]
    for thread in (1, 2):  # in turn, in two threads
        block.append(part("P", 10 * thread, 10 * thread + 5, 0, thread))
        block += [
            part("D", 20 * n + 10 * thread, 20 * n + 10 * thread + 5, n, thread) for n in (1, 2)
        ]
    groups = [group("D", 4, "decode", model="M"), group("P", 2, "prefill", model="M")]
    generation = said(block, groups)[-1]
    assert generation.startswith("generation: first token after 5.00 ms")
    assert "20.0 ms per token (50.0 tokens/s" in generation


def test_generation_pairs_the_steps_of_a_model() -> None:
    block = [part("block", 0, 200)]
    for number, model in enumerate(("large", "small")):  # in turn, in one thread
        block.append(part(f"{model} P", 10 * number, 10 * number + 5, 0))
        at = [20 * n + 10 * number for n in (1, 2)]
        block += [part(f"{model} D", start, start + 5, n) for n, start in enumerate(at)]
    groups = [
        group(f"{model} {phase[0].upper()}", 2, phase, model=model)
        for model in ("large", "small")
        for phase in ("prefill", "decode")
    ]
    generation = said(block, groups)[-1]
    assert generation.startswith("generation of large: first token after 5.00 ms")
    assert "20.0 ms per token (50.0 tokens/s" in generation


def test_training_says_how_long_iterations_take_and_how_many_samples_a_second() -> None:
    block = [part("block", 0, 100)]
    for at in (0, 40):
        block += [part(ITERATION, at, at + 40), part("S", at, at + 10, at // 40)]
    steps = [group("S", 2, "training step", samples=8)]
    training = said(block, steps)[-1]
    assert "2 iterations of 40.0 ms" in training
    assert "25.0 per second, 200 samples/s" in training


def iterations(*names: str) -> list[Part]:
    """Return a block of two iterations of 40 ms with each step."""
    block = [part("block", 0, 80 * len(names))]
    for number in range(2 * len(names)):
        name, at = names[number % len(names)], 40 * number
        block += [part(ITERATION, at, at + 40), part(name, at, at + 10, number)]
    return block


def test_steps_that_may_share_their_samples_have_no_samples_a_second() -> None:
    steps = [group(name, 2, "training step", samples=8) for name in ("G", "D")]
    training = said(iterations("G", "D"), steps)[-1]
    assert "4 iterations, one for each step of 2 kinds, of 40.0 ms" in training
    assert "samples/s" not in training


def test_batches_of_several_sizes_of_one_model_add_up() -> None:
    sizes = {"S 8×3": 8, "S 4×3": 4}
    steps = [group(name, 2, "training step", samples=n, model="S") for name, n in sizes.items()]
    assert "150 samples/s" in said(iterations(*sizes), steps)[-1]


def test_what_first_calls_take_more_is_in_no_rate() -> None:
    block = [part("block", 0, 200), part("A", 0, 100, 0), part("A", 120, 130, 1)]
    groups = [group("A", 2, samples=8)]
    assert "800 samples/s" in said(block, groups, first={1: 90.0 * MS})[-1]
    alone = said(block[:2], groups, first={1: 90.0 * MS})  # the repetitions tell
    assert "800 samples/s" in alone[-1]

    block = [part("block", 0, 200), part("P", 0, 100, 0)]
    block += [part("D", 100, 150, 1), part("D", 150, 160, 2)]
    groups = [group("D", 2, "decode", model="M"), group("P", 1, "prefill", model="M")]
    generation = said(block, groups, first={1: 80.0 * MS, 2: 40.0 * MS})[-1]
    assert "first token after 20.0 ms" in generation
    assert "10.0 ms per token" in generation

    block = iterations("S")
    block[2] = replace(block[2], parent=1)
    training = said(block, [group("S", 2, "training step", samples=8)], first={2: 8.0 * MS})[-1]
    assert "2 iterations of 36.0 ms" in training
    assert "222 samples/s" in training
