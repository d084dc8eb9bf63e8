from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xsp.target.resolution import resolve
from xsp.target.spec import Spec

# Makes more objects than after which Python looks for garbage, and keeps them.
MANY = """
import gc
looked = []
gc.callbacks.append(lambda phase, told: looked.append(phase))
kept = [[] for _ in range(20_000)]
gc.callbacks.pop()
LAST
def work():
    return len(looked)
"""


@pytest.fixture
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)
    gc.enable()


def loaded(tmp_path: Path, last: str = "") -> int:
    """Load a file, and return how often Python looked for garbage meanwhile."""
    (tmp_path / "job.py").write_text(MANY.replace("LAST", last))
    subject = resolve(Spec(f"{tmp_path}/job.py:work"))
    return int(subject.function())


# In a process of its own, where nothing is frozen, as it is in that of the tests.
FRESH = """
import gc, sys
gc.set_threshold(700, 10, 10)  # whatever Python's own are
before = gc.get_threshold()
from xsp.target.resolution import resolve
from xsp.target.spec import Spec
subject = resolve(Spec(sys.argv[1]))
young, objects = len(gc.get_objects(generation=0)), len(gc.get_objects())
print(subject.function(), gc.get_threshold()[:2] == before[:2], gc.isenabled())
full = []
gc.callbacks.append(lambda phase, told: full.append(len(kept)) if told["generation"] == 2 else None)
kept = []
while not full and len(kept) < objects:
    kept.append([])
print(gc.get_freeze_count(), young, (full or [objects])[0] / objects)
"""


def test_no_garbage_is_collected_while_a_target_is_loaded_and_afterwards_as_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.py").write_text(MANY.replace("LAST", "more = [[] for _ in range(300_000)]"))
    command = [sys.executable, "-c", FRESH, f"{tmp_path}/job.py:work"]
    *said, frozen, young, more = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    assert said == ["0", "True", "True"]
    assert frozen == "0"
    assert int(young) < 10_000  # what was made is no longer young
    by_itself = sys.version_info < (3, 14)  # or does Python look at all objects when asked only?
    assert float(more) == pytest.approx(0.27 if by_itself else 1.0, abs=0.07)


@pytest.mark.parametrize(
    ("last", "enabled", "expected"),
    [
        ("gc.disable()", False, None),
        ("gc.set_threshold(9_000)", True, 9_000),
        ("gc.set_threshold(0)", True, 0),
    ],
)
def test_what_a_target_says_of_garbage_stays(
    tmp_path: Path,
    threshold: tuple[int, int, int],
    last: str,
    enabled: bool,
    expected: int | None,
) -> None:
    assert loaded(tmp_path, last) == 0
    assert gc.isenabled() is enabled
    assert gc.get_threshold()[0] == (threshold[0] if expected is None else expected)


def test_a_target_that_cannot_be_loaded_leaves_garbage_as_it_was(
    tmp_path: Path, threshold: tuple[int, int, int]
) -> None:
    with pytest.raises(ZeroDivisionError):
        loaded(tmp_path, "1 / 0")
    assert gc.get_threshold()[:2] == threshold[:2]


@pytest.mark.parametrize("said", [(100, 5, 5), (700, 0, 0), (0, 10, 10)])
def test_what_a_library_said_of_garbage_before_stays(
    tmp_path: Path, threshold: tuple[int, int, int], said: tuple[int, int, int]
) -> None:
    gc.set_threshold(*said)
    loaded(tmp_path)
    assert gc.get_threshold() == said
