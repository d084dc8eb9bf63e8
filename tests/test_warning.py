from __future__ import annotations

import pytest

from xsp.warning import AMBIGUITIES, WarningCount, resolved, warnings_of


@pytest.mark.parametrize("code", AMBIGUITIES)
def test_an_ambiguity_says_how_to_make_the_run_that_may_resolve_it_until_that_is_made(
    code: str,
) -> None:
    counts = [WarningCount(code, "launch", 2)]
    (before,) = warnings_of(counts)
    assert "`xsp profile --synchronous`" in before.message
    (after,) = warnings_of(counts, synchronous=True)
    assert "`xsp profile`" not in after.message
    assert after.message.endswith("The synchronous pass does not show which.")


def test_counts_of_a_code_and_provider_are_added_up_over_processes_and_listed_by_pass() -> None:
    counts = [
        WarningCount("dropped", "op", 1, "mkl"),
        WarningCount("orphans", "op", 5),
        WarningCount("dropped", "call", 2, "mkl"),
        WarningCount("dropped", "call", 1, "mkl"),
        WarningCount("dropped", "op", 4, "torch"),
    ]
    mkl, orphans, torch = warnings_of(counts)
    assert mkl.message == (
        "mkl lost 1 record of the op runs, 3 records of the call runs: their spans are missing, "
        "not zero. Profile fewer steps at once."
    )
    assert orphans.message.startswith("5 spans of the op runs have no parent")
    assert torch.message.startswith("torch lost 4 records of the op runs")


def test_resolved_ambiguities_are_told_by_what_they_were() -> None:
    warning = resolved(
        {("ambiguous-thread", "op"): 1, ("ambiguous-thread", "call"): 2, ("no-launch", "op"): 1}
    )
    assert warning.code == "settled"
    assert warning.message.startswith("3 library calls, 1 kernel may have belonged to")
