"""On a real cluster nothing is lost, nothing measured twice, and nobody shares a core."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

# By itself: two clusters at once have too little of a machine.
pytestmark = pytest.mark.timing

DRIVER = Path(__file__).parent / "cluster_driver.py"
POINTS = 6 * 3


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report of a run on a cluster, of whose nodes one was killed."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("cluster")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DRIVER), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Of an object that was lost with its node Ray's core itself says a line, and nothing else.
    assert [line for line in done.stderr.splitlines() if "lost objects" not in line] == []
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_nothing_is_lost_with_a_node(told: dict[str, Any]) -> None:
    delivered = Counter((model, key) for model, key, _ in told["delivered"])
    assert len(delivered) == POINTS
    assert set(delivered.values()) == {1}
    assert {status for _, _, status in told["delivered"]} == {"measured"}
    rows = {(model, settings) for model, settings, _ in told["rows"]}
    assert rows == set(delivered)
    assert all(trace for _, _, trace in told["rows"])


def test_what_the_driver_has_is_not_measured_again(told: dict[str, Any]) -> None:
    """Results that had not left the node are: one that waited there, one just complete."""
    ended = Counter((note["model"], note["key"]) for note in told["ended"])
    assert set(ended) == {(model, key) for model, key, _ in told["delivered"]}
    before = {(model, key) for model, key, _ in told["delivered"][: told["killed_after"]]}
    assert all(ended[each] == 1 for each in before)
    assert sum(ended.values()) - POINTS <= 2


def test_a_second_run_finds_everything_complete(told: dict[str, Any]) -> None:
    assert told["kept"] == POINTS
    assert told["again"] == []


def test_no_core_is_shared(told: dict[str, Any]) -> None:
    """There are more one-core nodes than cores, all on one machine."""
    held = sorted((note["cpus"], note["began"], note["ended"]) for note in told["ended"])
    for (cpus, _, end), (others, begin, _) in pairwise(held):
        assert cpus != others or end <= begin


def test_an_interrupted_run_keeps_what_is_complete_and_leaves_nothing_running(
    told: dict[str, Any],
) -> None:
    assert told["interrupted"]
    assert told["rows after interruption"] == len(told["delivered before interruption"]) == 2
    assert told["left running"] == []
    assert told["files"] == [".zoo.lock", "results.journal", "results.parquet", "traces"]
