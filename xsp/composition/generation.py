"""Evaluations of models that generate in; the time to the first token, and per token, out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from xsp.composition.nested import Part
from xsp.composition.timeline import Timeline
from xsp.text import duration

PREFILL, EXTEND, DECODE = "prefill", "extend", "decode"

_Token = tuple[int, int, int, int]  # thread, start, end, and what a first call took more


def generation_sentence(
    parts: Sequence[Part],
    groups: Sequence[Mapping[str, Any]],
    timeline: Timeline,
    first_calls: Mapping[int, float],
) -> str:
    """Return the time to the first token, and per token after it; empty if no model generates.

    Of several models that generate, as in assisted generation, that which took most time.

    Args:
        parts: All parts of the program.
        groups: What is known of each group, that with most time first.
        timeline: How long anything takes without xsp.
        first_calls: What first calls take more than the others (ns), by the number of the part.
    """
    generating = [group for group in groups if group["phase"] in (PREFILL, EXTEND, DECODE)]
    models = list(dict.fromkeys(group["model"] for group in generating))
    for model in models:
        mine = [group for group in generating if group["model"] == model]
        phases = {group["name"]: group["phase"] for group in mine}
        checks = _checks(mine)
        given = {PREFILL} if checks else {PREFILL, EXTEND}
        first, later = _tokens(parts, phases, given, first_calls)
        if first and later:
            prefill_ns, later_ns = _mean(timeline, first), _mean(timeline, later)
            of = f" of {model}" if len(models) > 1 else ""
            rate = f"{1e9 / later_ns:,.1f}"
            tokens = f"per token ({rate} tokens/s in each sequence)"
            if checks:
                tokens = f"per step of one or more tokens ({rate} steps/s)"
            return (
                f"generation{of}: first token after {duration(prefill_ns)} in the model, then "
                f"{duration(later_ns)} {tokens}"
            )
    return ""


def _checks(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a model checks candidates, mostly, when several tokens extend its cache.

    The chunks of a prompt are as long as the first one, but for the last, and one token at a time
    comes after them.
    """
    chunk = min((_tokens_given(group) for group in groups if group["phase"] == PREFILL), default=0)
    checks = others = 0
    for group in groups:
        if group["phase"] == EXTEND and _tokens_given(group) < chunk:
            checks += group["calls"]
        elif group["phase"] != PREFILL:
            others += group["calls"]
    return checks > others


def _tokens_given(group: Mapping[str, Any]) -> int:
    """Return how many tokens of each sequence a group is given at most."""
    shape = group["shapes"][0].split()[0] if group["shapes"] else ""
    return int((re.findall(r"\d+", shape) or ["0"])[-1])


def _tokens(
    parts: Sequence[Part],
    phases: Mapping[str, str],
    given: Collection[str],
    first_calls: Mapping[int, float],
) -> tuple[list[_Token], list[_Token]]:
    """Return the first tokens of one model, and those after them.

    Args:
        parts: All parts of the program.
        phases: The phase of each group of the model, by the group's name.
        given: Phases in which the model is given a prompt, or the next chunk of the prompt.
        first_calls: What first calls took more, by the number of the part.
    """
    steps = [
        (part, int(first_calls.get(number, 0)))
        for number, part in enumerate(parts)
        if part.evaluation >= 0 and part.name in phases
    ]
    steps.sort(key=lambda step: (step[0].thread, step[0].start_ns))
    first: list[_Token] = []
    later: list[_Token] = []
    for (before, _), (step, more) in pairwise([*steps[:1], *steps]):
        phase, follows = phases[step.name], before is not step and before.thread == step.thread
        if phase not in given:
            if follows:  # a token takes from the end of the step before it to the end of its own
                later.append((step.thread, before.end_ns, step.end_ns, more))
        elif phase == EXTEND and follows and phases[before.name] in given:
            thread, start, _, earlier = first[-1]
            first[-1] = (thread, start, step.end_ns, earlier + more)
        else:
            first.append((step.thread, step.start_ns, step.end_ns, more))
    return first, later


def _mean(timeline: Timeline, tokens: Sequence[_Token]) -> float:
    thread, start, end, more = np.array(tokens, dtype=np.int64).T
    return float(np.mean(timeline.lasting(thread, start, end) - more))
