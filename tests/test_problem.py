from __future__ import annotations

import pytest

from xsp.problem import AMBIGUITIES, COUNTED, ProblemCount, problems_of, resolved


@pytest.mark.parametrize("code", AMBIGUITIES)
def test_an_ambiguity_says_how_to_make_the_run_that_may_resolve_it_until_that_is_made(
    code: str,
) -> None:
    counts = [ProblemCount(code, "launch", 2)]
    (before,) = problems_of(counts)
    assert "CUDA_LAUNCH_BLOCKING=1" in before.message
    assert "`xsp profile` makes one of a model or a function" in before.message
    (after,) = problems_of(counts, serialised=True)
    assert "`xsp profile`" not in after.message
    assert after.message.endswith("the serialised run does not show which")


def test_counts_of_a_code_and_provider_are_added_up_over_processes_and_listed_by_rung() -> None:
    counts = [
        ProblemCount("dropped", "op", 1, "mkl"),
        ProblemCount("orphans", "op", 5),
        ProblemCount("dropped", "call", 2, "mkl"),
        ProblemCount("dropped", "call", 1, "mkl"),
        ProblemCount("dropped", "op", 4, "torch"),
    ]
    mkl, orphans, torch = problems_of(counts)
    assert mkl.message == (
        "mkl lost 1 record of the op runs, 3 records of the call runs: what they stood for is "
        "missing, not zero"
    )
    assert orphans.message.startswith("no parent was found on the thread of 5 spans of the op runs")
    assert torch.message.startswith("torch lost 4 records of the op runs")


def test_every_code_has_a_sentence_with_its_counts() -> None:
    for code in COUNTED:
        (problem,) = problems_of([ProblemCount(code, "kernel", 3, "cupti")])
        assert problem.code == code
        assert "3 " in problem.message
        assert "of the kernel runs" in problem.message
        assert "{" not in problem.message


def test_without_counts_there_is_no_problem() -> None:
    assert problems_of([]) == ()


def test_resolved_ambiguities_are_told_by_what_they_were() -> None:
    problem = resolved({"ambiguous-thread": 3, "no-launch": 1})
    assert problem.code == "settled"
    assert problem.message.startswith("3 library calls, 1 kernel may have belonged to")
