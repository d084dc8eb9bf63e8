"""Training steps are cut where they begin and end, however a program trains."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from simulated_program import STYLES, Plan, of_style, simulate
from simulated_program.told import read

STEPS = 4
# By the style of four rounds of training: how many members each group has.
GROUPS: Mapping[str, Mapping[str, int]] = {
    "plain": {"M1 training step 8×1": 4},
    "accumulated": {"M1 training step 3 × 8×1": 4},
    "two optimizers": {"M1 training step 8×1": 4},
    "two passes": {"M1 training step 8×1": 4},
    "two models": {"M1 training step 8×1": 4},
    "closure": {"M1 8×1": 4, "M1 training step 2 × 8×1": 4},
    "skipped": {"M1 training step 2 × 8×1": 4},
    "gan": {"M1 training step 8×1": 4, "M1 training step 8×1 (2)": 4},
    "teacher": {"M1 training step 8×1": 4, "M2 8×2": 4},
    "fine-tuned": {"M1 training step 8×1": 4},
    "validated": {"M1 8×1": 12, "M1 8×1 with gradients": 5, "M1 training step 8×1": 8},
}


@pytest.mark.parametrize("style", STYLES)
def test_steps_are_told_as_they_were_written(style: str) -> None:
    simulated = simulate(of_style(style, STEPS, Plan(seed=3, depth=1)))
    groups = read(simulated.record).metadata["groups"]
    assert {group["name"]: group["calls"] for group in groups} == GROUPS[style]
