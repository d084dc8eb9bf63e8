from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from simulate import Machine, Noise, resnet, transformer

from xsp.evaluation.run import Run
from xsp.merge import merge
from xsp.problem import Problem


def runs_with(faults: Mapping[str, float | None], spread: float = 0.0) -> list[Run]:
    """Return runs of a model of 25 ms, 163 layers and 256 operators, with these page faults."""
    random = np.random.default_rng(0)
    runs, _ = Machine(resnet(), Noise(jitter=0.01)).measure(10)
    found = []
    for run in runs:
        count = faults[run.rung.name]
        noisy = None if count is None else count + spread * random.standard_normal()
        found.append(replace(run, page_faults=noisy))
    return found


def page_faults(runs: list[Run]) -> list[Problem]:
    return [problem for problem in merge(runs).problems if problem.code == "page-faults"]


def test_a_rung_with_fewer_page_faults_than_the_rung_above_is_named_with_the_remedy() -> None:
    runs = runs_with({"bare": 4000, "pipeline": 4000, "layer": 4142, "op": 3318}, spread=200)
    (problem,) = page_faults(runs)
    numbers = r"took 3,\d{3} page faults on the op rung and 4,\d{3} on the layer rung"
    assert "MALLOC_TRIM_THRESHOLD_" in problem.message
    assert re.search(numbers, problem.message)


def test_many_page_faults_on_all_rungs_alike_are_no_problem() -> None:
    assert page_faults(runs_with(dict.fromkeys(("bare", "pipeline", "layer", "op"), 4000))) == []


def test_page_faults_that_differ_by_chance_are_no_problem() -> None:
    runs = runs_with({"bare": 4000, "pipeline": 4000, "layer": 4142, "op": 3318}, spread=2000)
    assert page_faults(runs) == []


def test_page_faults_of_the_records_themselves_are_no_problem() -> None:
    assert page_faults(runs_with({"bare": 0, "pipeline": 0, "layer": 100, "op": 340})) == []


def test_more_page_faults_than_the_records_need_are_a_problem() -> None:
    assert page_faults(runs_with({"bare": 0, "pipeline": 0, "layer": 100, "op": 700}))


def test_page_faults_that_would_change_the_latency_by_less_than_a_hundredth_are_no_problem() -> (
    None
):
    assert page_faults(runs_with({"bare": 900, "pipeline": 900, "layer": 800, "op": 700})) == []


def test_unknown_page_faults_are_no_problem() -> None:
    runs, _ = Machine(transformer()).measure(3)
    assert page_faults(runs) == []
    assert page_faults(runs_with({"bare": 0, "pipeline": None, "layer": 9000, "op": None})) == []
