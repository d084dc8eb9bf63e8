"""Types as a user sees them: the files in tests/typing pass mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _mypy(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"]
    return subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["readme.py", "front_door.py"])
def test_examples_type_check(name: str) -> None:
    result = _mypy(ROOT / "tests" / "typing" / name)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_a_wrong_use_does_not_type_check(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import xsp\n\nxsp.profile(levels=2.5)\nxsp.load(1)\n", encoding="utf-8")
    result = _mypy(wrong)
    assert result.stdout.count("[arg-type]") == 2, result.stdout + result.stderr
