"""The checks for the first hour on a GPU, as far as they go without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import checks
import pytest

ROOT = Path(__file__).parents[2]


def test_the_checks_stand_in_the_order_of_what_would_hurt_most() -> None:
    said = subprocess.run(
        ["bash", "scripts/gpu", "list"],
        cwd=ROOT,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[0] for line in said.splitlines()]
    assert names == [check.name for check in checks.CHECKS]
    assert names[:3] == ["together", "clock", "order"]


@pytest.mark.parametrize("seen", [True, False, None])
def test_a_check_says_what_was_expected_and_what_was_seen(
    capsys: pytest.CaptureFixture[str], seen: bool | None
) -> None:
    def see() -> Iterator[tuple[str, bool | None]]:
        yield "two kernels", seen

    right = checks.run(checks.Check("try", "three kernels", see))
    said = capsys.readouterr().out
    assert right == (seen is not False)
    assert "expected: three kernels" in said
    assert ("WRONG: two kernels" in said) == (seen is False)


@pytest.mark.skipif(
    "torch" in sys.modules and sys.modules["torch"].cuda.is_available(), reason="has a GPU"
)
def test_without_a_gpu_a_check_says_that_and_goes_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    assert not checks.run_apart("detail")
    assert "NVIDIA driver" in capfd.readouterr().err
