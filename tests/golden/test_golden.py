"""Traces are what they were: those of recordings and of simulated measurements.

A change that is meant is written by `python tests/golden/write.py`, and read in the diff.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from content import content, document
from recordings import EXPECTED, TRACES, Recorded, recordings
from simulator.cost import COSTS

RECORDINGS = recordings()
SHOWN = 80  # lines of a difference
# Of the simulations, `make test` looks at one of each cost.
MORE = [each.name for each in RECORDINGS if each.name.startswith("simulated")][len(COSTS) :]


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in MORE))
        for each in RECORDINGS
    ],
)
def test_the_trace_of_a_recording_is_as_it_was(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in recorded.files:
        if not file.exists():
            pytest.skip(f"needs {file.name} of the recordings in ../shared/traces or XSP_TRACES")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # no peaks that were measured here
    expected = (EXPECTED / f"{recorded.name}.json").read_text(encoding="utf-8")
    found = document(content(recorded.trace(), tmp_path))
    changed = list(
        difflib.unified_diff(
            expected.splitlines(), found.splitlines(), "as it was", "as it is", lineterm="", n=2
        )
    )
    assert not changed, "\n".join(
        [
            *changed[:SHOWN],
            f"{len(changed)} lines in all. If this is meant: "
            f"python tests/golden/write.py {recorded.name}",
        ]
    )


def test_every_content_is_that_of_a_recording() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == {each.name for each in RECORDINGS}


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recordings of others (XSP_TRACES)")
def test_every_recording_of_others_has_a_content() -> None:
    here = {path for path in TRACES.glob("*/*") if path.is_file()}
    assert here == {file for each in RECORDINGS for file in each.files} & here
