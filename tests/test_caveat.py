from __future__ import annotations

import pytest

from xsp.caveat import DOUBTS, caveat, settled


@pytest.mark.parametrize("code", DOUBTS)
def test_a_doubt_says_how_to_make_the_run_that_may_settle_it_until_it_is_made(code: str) -> None:
    before = caveat(code, {"launch": 2}).message
    assert "CUDA_LAUNCH_BLOCKING=1" in before
    assert "`xsp profile` makes one of a model or a function" in before
    after = caveat(code, {"launch": 2}, serialised=True).message
    assert "`xsp profile`" not in after
    assert after.endswith("the serialised run does not show which")


def test_what_no_serialised_run_changes_says_nothing_of_one() -> None:
    problem = caveat("dropped", {"op": 1, "call": 3}, "mkl")
    assert problem.message == (
        "mkl lost 1 record of the op runs, 3 records of the call runs: what they stood for is "
        "missing, not zero"
    )


def test_what_was_settled_is_told_by_what_it_was() -> None:
    problem = settled({"ambiguous-thread": 3, "no-launch": 1})
    assert problem.code == "settled"
    assert problem.message.startswith("3 library calls, 1 kernel may have belonged to")
