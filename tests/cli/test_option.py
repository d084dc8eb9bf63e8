from __future__ import annotations

from pathlib import Path

import pytest

from xsp.show.cli.option import complete_target


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    for name in ("training.py", "notes.txt", "tools/task.py"):
        (tmp_path / name).write_text("")


def completed(begin: str) -> list[str]:
    context, parameter = object(), object()
    found = complete_target(context, parameter, begin)  # type: ignore[arg-type]
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("tools/", ["tools/task.py"]),
        ("tools/t", ["tools/task.py"]),
        ("./to", ["./tools"]),
        ("./tools/", ["./tools/task.py"]),
        ("nowhere/", []),
    ],
)
def test_files_in_folders_are_completed(begin: str, expected: list[str]) -> None:
    assert completed(begin) == expected
